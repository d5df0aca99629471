//! gpt-oss: mixture of experts, attention sinks, alternating sliding windows (OpenAI, 2025).

use super::common::{Names, RopeDefaults, Shape, rope, shape};
use crate::config::{Config, FeedForward, LayerConfig, RopeScaling};
use crate::config_reader::{ConfigReader, field, text_of};
use crate::error::{Error, Result};
use crate::plan::{
    ExpertsPlan, FeedForwardPlan, LayerPlan, MatrixPlan, ModelPlan, NetworkPlan, Numbers, Rows,
    VectorPlan,
};
use oss_kernels::elementwise::Gate;

/// The factor inside the sigmoid; no published configuration has a field for it.
const ALPHA: f32 = 1.702;
/// Where gate and up are cut off when the file is silent, as GGUF files are.
const LIMIT: f64 = 7.0;

/// The most experts of all layers together, a dozen times those of published models: some 600 bytes
/// are taken for each before its matrices are found.
const MAX_EXPERTS: usize = 1 << 16;

/// The matrices of all experts in safetensors.
const GATE_UP: &str = "mlp.experts.gate_up_proj";
const DOWN: &str = "mlp.experts.down_proj";

struct Experts {
    intermediate_dim: usize,
    n_experts: usize,
    top_k: usize,
}

pub(super) fn describe(reader: &ConfigReader<'_>) -> Result<(Config, ModelPlan)> {
    let names = Names::new(reader);
    let shape = shape(reader, &names.embedding())?;
    let n_layers = reader.layer_count()?;
    let inner = field("intermediate_size", "expert_feed_forward_length");
    let experts = Experts {
        intermediate_dim: reader.required_count(inner)?,
        n_experts: reader.required_count(field("num_local_experts", "expert_count"))?,
        top_k: reader.required_count(field("num_experts_per_tok", "expert_used_count"))?,
    };
    if experts.top_k > experts.n_experts {
        let field = field("num_experts_per_tok", "expert_used_count");
        let expected = format!("at most {}", experts.n_experts);
        return Err(reader.wrong(field, &experts.top_k.to_string(), &expected));
    }
    check_experts(reader, &names, n_layers, (experts.n_experts, shape.hidden_dim))?;
    if let Some(other) = reader.text(field("hidden_act", "hidden_act"))?.filter(|x| x != "silu") {
        return Err(reader.unsupported("activation", &other, "silu"));
    }
    let limit = reader.positive(field("swiglu_limit", "swiglu_clamp_exp"))?.unwrap_or(LIMIT);
    let windows = windows(reader, n_layers)?;
    let gate = Gate::Clamped { alpha: ALPHA, limit: limit as f32 };
    let feed_forward = FeedForward::Experts {
        intermediate_dim: experts.intermediate_dim,
        n_experts: experts.n_experts,
        top_k: experts.top_k,
    };
    let layer = |window| LayerConfig { window, feed_forward, gate };
    // The published configuration says `truncate: false`, and GGUF has no field for it.
    let rope = rope(reader, &shape, RopeDefaults { theta: None, truncate: false })?;
    if rope.scaling == RopeScaling::None {
        let field = field("rope_scaling", "rope.scaling.type");
        return Err(reader.wrong(field, "nothing", "how positions stretch"));
    }
    let config = shape.config("gpt-oss", rope, windows.into_iter().map(layer).collect());
    let tied = reader.flag(field("tie_word_embeddings", "tie_word_embeddings"))?.unwrap_or(false);
    let plan = ModelPlan {
        embedding: names.embedding(),
        norm: VectorPlan::one(names.norm(), shape.hidden_dim),
        head: (!tied).then(|| names.head()),
        layers: (0..n_layers).map(|i| layer_plan(reader, &names, i, &shape, &experts)).collect(),
    };
    Ok((config, plan))
}

/// Refuses experts that are not there before any is listed, every layer's router has a row for
/// each, and those whose matrices lie otherwise.
fn check_experts(
    reader: &ConfigReader<'_>,
    names: &Names,
    n_layers: usize,
    (n_experts, hidden_dim): (usize, usize),
) -> Result<()> {
    let field = field("num_local_experts", "expert_count");
    let wrong = |expected: String| reader.wrong(field, &n_experts.to_string(), &expected);
    // What a packed file says of tensors that it has packed is not backed by their bytes.
    if n_layers.saturating_mul(n_experts) > MAX_EXPERTS {
        return Err(wrong(format!("at most {MAX_EXPERTS} in {n_layers} layers together")));
    }
    for layer in 0..n_layers {
        let router = names.layer(layer, "ffn_gate_inp.weight", "mlp.router.weight");
        let shape = reader.tensor_shape(&router)?;
        if shape.first() != Some(&n_experts) {
            let rows = shape.first().unwrap_or(&0);
            return Err(wrong(format!("{rows}, the rows of {router}")));
        }
        if shape != [n_experts, hidden_dim] {
            let got = format!("{shape:?}");
            let expected = format!("[{n_experts}, {hidden_dim}]");
            return Err(Error::Shape {
                path: reader.path().to_owned(),
                tensor: router,
                got,
                expected,
            });
        }
        if !reader.is_gguf() {
            check_type(reader, names.layer(layer, "", GATE_UP))?;
            check_type(reader, names.layer(layer, "", DOWN))?;
        }
    }
    Ok(())
}

/// Refuses experts in safetensors that are no blocks of codes, as published: those of floats lie
/// with rows and columns exchanged.
fn check_type(reader: &ConfigReader<'_>, tensor: String) -> Result<()> {
    let dtype = reader.tensor_dtype(&tensor)?;
    if dtype.block_len() > 1 {
        return Ok(());
    }
    Err(Error::Shape {
        path: reader.path().to_owned(),
        tensor,
        got: dtype.name().to_owned(),
        expected: "blocks of codes, as published: floats lie the other way round".to_owned(),
    })
}

/// Which layers see only a window: those that `layer_types` says, else every second from the first.
fn windows(reader: &ConfigReader<'_>, n_layers: usize) -> Result<Vec<Option<usize>>> {
    let window = reader.required_count(field("sliding_window", "attention.sliding_window"))?;
    let types = field("layer_types", "");
    let Some(list) = reader.json(types) else {
        return Ok((0..n_layers).map(|i| i.is_multiple_of(2).then_some(window)).collect());
    };
    let list = list.as_array().filter(|list| list.len() == n_layers).ok_or_else(|| {
        reader.wrong(types, &text_of(list), &format!("a list of {n_layers} strings"))
    })?;
    list.iter()
        .map(|kind| match kind.as_str() {
            Some("sliding_attention") => Ok(Some(window)),
            Some("full_attention") => Ok(None),
            _ => {
                let expected = "sliding_attention or full_attention";
                Err(reader.unsupported("layer type", &text_of(kind), expected))
            }
        })
        .collect()
}

fn layer_plan(
    reader: &ConfigReader<'_>,
    names: &Names,
    layer: usize,
    shape: &Shape,
    experts: &Experts,
) -> LayerPlan {
    let hidden = shape.hidden_dim;
    let n = experts.n_experts;
    let vector = |gguf, json, len| names.vector(layer, gguf, json, len);
    LayerPlan {
        attention_norm: vector("attn_norm.weight", "input_layernorm.weight", hidden),
        qkv: MatrixPlan::Stacked(names.qkv(layer, shape, "weight", false).into()),
        qkv_bias: Some(VectorPlan::Stacked(
            names.qkv(layer, shape, "bias", false).map(Numbers::Of).into(),
        )),
        output: names.matrix(layer, "attn_output.weight", "self_attn.o_proj.weight", hidden),
        output_bias: Some(vector("attn_output.bias", "self_attn.o_proj.bias", hidden)),
        sinks: Some(vector("attn_sinks.weight", "self_attn.sinks", shape.n_heads)),
        feed_forward_norm: vector(
            "post_attention_norm.weight",
            "post_attention_layernorm.weight",
            hidden,
        ),
        feed_forward: FeedForwardPlan::Experts(Box::new(ExpertsPlan {
            router: names.matrix(layer, "ffn_gate_inp.weight", "mlp.router.weight", n),
            router_bias: Some(vector("ffn_gate_inp.bias", "mlp.router.bias", n)),
            experts: (0..n).map(|e| network(reader, names, layer, e, (shape, experts))).collect(),
        })),
        gate_up_bias: Some(gate_up_bias(reader, names, layer, experts)),
        down_bias: Some(vector("ffn_down_exps.bias", "mlp.experts.down_proj_bias", n * hidden)),
    }
}

/// The gate rows and the up rows of an expert. GGUF has a tensor of each; the published
/// checkpoints have one tensor, which is both, in which gate and up alternate.
fn gate_and_up(
    reader: &ConfigReader<'_>,
    (gate, up): (String, String),
    first: usize,
    count: usize,
) -> (Rows, Rows) {
    if reader.is_gguf() {
        let rows = |tensor| Rows { first, ..Rows::all(tensor, count) };
        (rows(gate), rows(up))
    } else {
        let rows =
            |tensor, odd| Rows { first: 2 * first + odd, step: 2, ..Rows::all(tensor, count) };
        (rows(gate, 0), rows(up, 1))
    }
}

fn network(
    reader: &ConfigReader<'_>,
    names: &Names,
    layer: usize,
    expert: usize,
    (shape, experts): (&Shape, &Experts),
) -> NetworkPlan {
    let (inner, hidden) = (experts.intermediate_dim, shape.hidden_dim);
    let tensors = (
        names.layer(layer, "ffn_gate_exps.weight", GATE_UP),
        names.layer(layer, "ffn_up_exps.weight", GATE_UP),
    );
    let (gate, up) = gate_and_up(reader, tensors, expert * inner, inner);
    let down = names.layer(layer, "ffn_down_exps.weight", DOWN);
    let down = Rows { first: expert * hidden, ..Rows::all(down, hidden) };
    let of_all = |rows: Rows| Rows { experts: Some(experts.n_experts), ..rows };
    NetworkPlan {
        gate_up: MatrixPlan::Paired(of_all(gate), of_all(up)),
        down: MatrixPlan::Stacked(vec![of_all(down)]),
    }
}

fn gate_up_bias(
    reader: &ConfigReader<'_>,
    names: &Names,
    layer: usize,
    experts: &Experts,
) -> VectorPlan {
    let both = "mlp.experts.gate_up_proj_bias";
    let tensors = (
        names.layer(layer, "ffn_gate_exps.bias", both),
        names.layer(layer, "ffn_up_exps.bias", both),
    );
    let count = experts.n_experts * experts.intermediate_dim;
    let (gate, up) = gate_and_up(reader, tensors, 0, count);
    let (gate, up) = (Numbers::Of(gate), Numbers::Of(up));
    VectorPlan::Paired { gate, up, repeat: experts.n_experts }
}
