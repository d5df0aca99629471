//! Llama and what is built like it: TinyLlama, SmolLM2, Llama 2 and 3 (Touvron et al., 2023).

use super::common::{Names, Shape, rope, shape};
use crate::config::{Config, FeedForward, LayerConfig};
use crate::error::Result;
use crate::plan::{
    FeedForwardPlan, LayerPlan, MatrixPlan, ModelPlan, NetworkPlan, Rows, VectorPlan,
};
use crate::source::{Source, field};
use oss_kernels::elementwise::Gate;

pub(super) fn describe(source: &Source<'_>) -> Result<(Config, ModelPlan)> {
    refuse_unsupported(source)?;
    let names = Names::new(source);
    let shape = shape(source, &names.embedding())?;
    let n_layers = source.layer_count()?;
    let inner_dim = source.required_count(field("intermediate_size", "feed_forward_length"))?;
    let layer = LayerConfig {
        window: None,
        feed_forward: FeedForward::Dense { inner_dim },
        gate: Gate::Silu,
    };
    let config = Config {
        architecture: "llama",
        vocabulary: shape.vocabulary,
        hidden_dim: shape.hidden_dim,
        n_heads: shape.n_heads,
        n_kv_heads: shape.n_kv_heads,
        head_dim: shape.head_dim,
        norm_epsilon: shape.norm_epsilon,
        rope: rope(source, shape.head_dim, true)?,
        context_len: shape.context_len,
        layers: vec![layer; n_layers],
    };
    let tied = if source.is_gguf() {
        !source.has_tensor(&names.head())
    } else {
        source.flag(field("tie_word_embeddings", ""))?.unwrap_or(false)
    };
    let biased = source.flag(field("attention_bias", "attention_bias"))?.unwrap_or(false)
        || (source.is_gguf() && source.has_tensor("blk.0.attn_q.bias"));
    let plan = ModelPlan {
        embedding: names.embedding(),
        norm: VectorPlan::one(names.norm(), shape.hidden_dim),
        head: (!tied).then(|| names.head()),
        layers: (0..n_layers)
            .map(|i| layer_plan(source, &names, i, &shape, (inner_dim, biased)))
            .collect(),
    };
    Ok((config, plan))
}

fn refuse_unsupported(source: &Source<'_>) -> Result<()> {
    if let Some(n) = source.count(field("num_local_experts", "expert_count"))?.filter(|n| *n > 0) {
        return Err(source.unsupported("a mixture of experts", &n.to_string(), "none"));
    }
    if let Some(other) = source.text(field("hidden_act", "hidden_act"))?.filter(|x| x != "silu") {
        return Err(source.unsupported("activation", &other, "silu"));
    }
    if source.flag(field("mlp_bias", "mlp_bias"))?.unwrap_or(false) {
        return Err(source.unsupported("mlp_bias", "true", "false"));
    }
    let window = field("sliding_window", "attention.sliding_window");
    if let Some(n) = source.count(window)?.filter(|n| *n > 0) {
        return Err(source.unsupported("a sliding window", &n.to_string(), "none"));
    }
    Ok(())
}

fn layer_plan(
    source: &Source<'_>,
    names: &Names,
    layer: usize,
    shape: &Shape,
    (inner, biased): (usize, bool),
) -> LayerPlan {
    let hidden = shape.hidden_dim;
    let vector = |gguf, json, len| names.vector(layer, gguf, json, len);
    let rows = |gguf, json| Rows::all(names.layer(layer, gguf, json), inner);
    // GGUF's converter stores the rotated heads of this architecture pair by pair.
    let interleaved = source.is_gguf();
    LayerPlan {
        attention_norm: vector("attn_norm.weight", "input_layernorm.weight", hidden),
        qkv: names.qkv(layer, shape, interleaved),
        qkv_bias: biased.then(|| names.qkv_bias(layer, shape, interleaved)),
        output: names.matrix(layer, "attn_output.weight", "self_attn.o_proj.weight", hidden),
        output_bias: biased.then(|| vector("attn_output.bias", "self_attn.o_proj.bias", hidden)),
        sinks: None,
        feed_forward_norm: vector("ffn_norm.weight", "post_attention_layernorm.weight", hidden),
        feed_forward: FeedForwardPlan::Dense(Box::new(NetworkPlan {
            gate_up: MatrixPlan::Paired(
                rows("ffn_gate.weight", "mlp.gate_proj.weight"),
                rows("ffn_up.weight", "mlp.up_proj.weight"),
            ),
            down: names.matrix(layer, "ffn_down.weight", "mlp.down_proj.weight", hidden),
        })),
    }
}
