//! Llama and what is built like it: TinyLlama, SmolLM2, Llama 2 and 3 (Touvron et al., 2023).

use super::common::{Names, RopeDefaults, Shape, rope, shape};
use crate::config::{Config, FeedForward, LayerConfig};
use crate::config_reader::{ConfigReader, field};
use crate::error::{Error, Result};
use crate::plan::{
    FeedForwardPlan, LayerPlan, MatrixPlan, ModelPlan, NetworkPlan, Numbers, Rows, VectorPlan,
};
use oss_kernels::elementwise::Gate;

pub(super) fn describe(reader: &ConfigReader<'_>) -> Result<(Config, ModelPlan)> {
    refuse_unsupported(reader)?;
    let names = Names::new(reader);
    let shape = shape(reader, &names.embedding())?;
    let n_layers = reader.layer_count()?;
    let intermediate_dim =
        reader.required_count(field("intermediate_size", "feed_forward_length"))?;
    let layer = LayerConfig {
        window: None,
        feed_forward: FeedForward::Dense { intermediate_dim },
        gate: Gate::Silu,
    };
    let rope = rope(reader, &shape, RopeDefaults { theta: Some(10_000.0), truncate: true })?;
    let config = shape.config("llama", rope, vec![layer; n_layers]);
    let flag = |name| Ok::<_, Error>(reader.flag(field(name, ""))?.unwrap_or(false));
    let tied = match reader.is_gguf() {
        true => !reader.has_tensor(&names.head()),
        false => flag("tie_word_embeddings")?,
    };
    let biased = Biased { attention: flag("attention_bias")?, feed_forward: flag("mlp_bias")? };
    let plan = ModelPlan {
        embedding: names.embedding(),
        norm: VectorPlan::one(names.norm(), shape.hidden_dim),
        head: (!tied).then(|| names.head()),
        layers: (0..n_layers)
            .map(|i| layer_plan(reader, &names, i, &shape, (intermediate_dim, &biased)))
            .collect(),
    };
    Ok((config, plan))
}

/// Which halves of the layers have biases, as `config.json` says. In GGUF files those are there
/// whose tensors are.
struct Biased {
    attention: bool,
    feed_forward: bool,
}

fn refuse_unsupported(reader: &ConfigReader<'_>) -> Result<()> {
    if let Some(n) = reader.count(field("num_local_experts", "expert_count"))?.filter(|n| *n > 0) {
        return Err(reader.unsupported("a mixture of experts", &n.to_string(), "none"));
    }
    if let Some(other) = reader.text(field("hidden_act", "hidden_act"))?.filter(|x| x != "silu") {
        return Err(reader.unsupported("activation", &other, "silu"));
    }
    let window = field("sliding_window", "attention.sliding_window");
    if let Some(n) = reader.count(window)?.filter(|n| *n > 0) {
        return Err(reader.unsupported("a sliding window", &n.to_string(), "none"));
    }
    Ok(())
}

fn layer_plan(
    reader: &ConfigReader<'_>,
    names: &Names,
    layer: usize,
    shape: &Shape,
    (inner, biased): (usize, &Biased),
) -> LayerPlan {
    let hidden = shape.hidden_dim;
    let vector = |gguf, json, len| names.vector(layer, gguf, json, len);
    let rows = |gguf, json, count| Rows::all(names.layer(layer, gguf, json), count);
    let bias = |rows: Rows, said: bool| {
        let is_there = if reader.is_gguf() { reader.has_tensor(&rows.tensor) } else { said };
        if is_there { Numbers::Of(rows) } else { Numbers::Zeros(rows.count) }
    };
    let attention_bias = |rows| bias(rows, biased.attention);
    let network_bias = |rows| bias(rows, biased.feed_forward);
    let one = |numbers| VectorPlan::Stacked(vec![numbers]).unless_zeros();
    // GGUF's converter stores the rotated heads of this architecture pair by pair.
    let qkv = |kind| names.qkv(layer, shape, kind, reader.is_gguf());
    LayerPlan {
        attention_norm: vector("attn_norm.weight", "input_layernorm.weight", hidden),
        qkv: MatrixPlan::Stacked(qkv("weight").into()),
        qkv_bias: VectorPlan::Stacked(qkv("bias").map(attention_bias).into()).unless_zeros(),
        output: names.matrix(layer, "attn_output.weight", "self_attn.o_proj.weight", hidden),
        output_bias: one(attention_bias(rows("attn_output.bias", "self_attn.o_proj.bias", hidden))),
        sinks: None,
        feed_forward_norm: vector("ffn_norm.weight", "post_attention_layernorm.weight", hidden),
        feed_forward: FeedForwardPlan::Dense(Box::new(NetworkPlan {
            gate_up: MatrixPlan::Paired(
                rows("ffn_gate.weight", "mlp.gate_proj.weight", inner),
                rows("ffn_up.weight", "mlp.up_proj.weight", inner),
            ),
            down: names.matrix(layer, "ffn_down.weight", "mlp.down_proj.weight", hidden),
        })),
        gate_up_bias: VectorPlan::Paired {
            gate: network_bias(rows("ffn_gate.bias", "mlp.gate_proj.bias", inner)),
            up: network_bias(rows("ffn_up.bias", "mlp.up_proj.bias", inner)),
            repeat: 1,
        }
        .unless_zeros(),
        down_bias: one(network_bias(rows("ffn_down.bias", "mlp.down_proj.bias", hidden))),
    }
}
