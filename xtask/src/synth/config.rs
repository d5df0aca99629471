//! What a checkpoint says about itself: GGUF metadata and `config.json`.

use anyhow::Result;
use oss_quant::Dtype;
use oss_weights::Value;
use serde_json::{Value as Json, json};

use crate::synth::Options;
use crate::synth::shape::{Family, Shape, Words};
use crate::synth::vocabulary::Tokens;

/// The window of the YaRN correction, as published.
const YARN_FACTOR: f32 = 32.0;
const YARN_ORIGINAL: u32 = 4096;

/// The number by which GGUF files name what most of their tensors are.
fn file_type(family: Family, dense: Dtype) -> u32 {
    match (family, dense) {
        (Family::GptOss, _) => 38,
        (_, Dtype::F32) => 0,
        (_, Dtype::F16) => 1,
        (_, Dtype::Q4_0) => 2,
        (_, Dtype::Q4_1) => 3,
        (_, Dtype::Q8_0) => 7,
        (_, Dtype::Q5_0) => 8,
        (_, Dtype::Q5_1) => 9,
        (_, Dtype::Q2K) => 10,
        (_, Dtype::Q3K) => 12,
        (_, Dtype::Q4K) => 15,
        (_, Dtype::Q5K) => 17,
        (_, Dtype::Q6K) => 18,
        (_, Dtype::Iq4Nl) => 25,
        (_, Dtype::Bf16) => 32,
        // 1024: guessed by the reader from the tensors.
        _ => 1024,
    }
}

/// The metadata of a GGUF file, in the published order of keys.
pub(crate) fn metadata(
    options: &Options,
    shape: &Shape,
    tokens: &Tokens,
) -> Result<Vec<(String, Value)>> {
    let architecture = match shape.family {
        Family::GptOss => "gpt-oss",
        Family::Llama => "llama",
    };
    let count = |n: usize| Value::U32(n as u32);
    let mut own = vec![
        ("block_count", count(shape.layers)),
        ("context_length", count(shape.context)),
        ("embedding_length", count(shape.hidden)),
        ("feed_forward_length", count(shape.inner)),
        ("attention.head_count", count(shape.heads)),
        ("attention.head_count_kv", count(shape.kv_heads)),
        ("rope.freq_base", Value::F32(shape.theta)),
        ("attention.layer_norm_rms_epsilon", Value::F32(1e-5)),
        ("attention.key_length", count(shape.head_dim)),
        ("attention.value_length", count(shape.head_dim)),
    ];
    match shape.family {
        Family::GptOss => own.extend([
            ("expert_count", count(shape.experts)),
            ("expert_used_count", count(shape.top)),
            ("attention.sliding_window", count(shape.window)),
            ("expert_feed_forward_length", count(shape.inner)),
            ("rope.scaling.type", "yarn".into()),
            ("rope.scaling.factor", Value::F32(YARN_FACTOR)),
            ("rope.scaling.original_context_length", Value::U32(YARN_ORIGINAL)),
        ]),
        Family::Llama => own.extend([
            ("rope.dimension_count", count(shape.head_dim)),
            ("vocab_size", count(shape.vocabulary)),
        ]),
    }
    let name = format!("synthetic {}", shape.name);
    let mut all: Vec<(String, Value)> = vec![
        ("general.architecture".into(), architecture.into()),
        ("general.name".into(), name.as_str().into()),
        ("general.type".into(), "model".into()),
    ];
    all.extend(own.into_iter().map(|(key, value)| (format!("{architecture}.{key}"), value)));
    let kind = file_type(shape.family, options.dense());
    all.push(("general.file_type".into(), Value::U32(kind)));
    all.push(("general.quantization_version".into(), Value::U32(2)));
    all.extend(match shape.words {
        Words::ByteLevel => tokens.byte_level(shape.vocabulary, &options.pre)?,
        Words::SentencePiece => tokens.sentence_pieces(shape.vocabulary)?,
    });
    if shape.family == Family::GptOss {
        all.push(("tokenizer.chat_template".into(), oss_demo::CHAT_TEMPLATE.into()));
    }
    Ok(all)
}

/// The `config.json` of a safetensors folder.
pub(crate) fn config(options: &Options, shape: &Shape, tokens: &Tokens) -> Result<Json> {
    let [begin, end, pad] = tokens.marks()?;
    let dtype = match options.dense() {
        Dtype::F32 => "float32",
        Dtype::F16 => "float16",
        _ => "bfloat16",
    };
    let mut config = json!({
        "attention_dropout": 0.0,
        "bos_token_id": begin,
        "eos_token_id": end,
        "head_dim": shape.head_dim,
        "hidden_act": "silu",
        "hidden_size": shape.hidden,
        "intermediate_size": shape.inner,
        "max_position_embeddings": shape.context,
        "num_attention_heads": shape.heads,
        "num_hidden_layers": shape.layers,
        "num_key_value_heads": shape.kv_heads,
        "pad_token_id": pad,
        "rms_norm_eps": 1e-5,
        "rope_theta": shape.theta,
        "tie_word_embeddings": shape.tied,
        "torch_dtype": dtype,
        "use_cache": true,
        "vocab_size": shape.vocabulary,
    });
    let special = match shape.family {
        Family::Llama => json!({
            "architectures": ["LlamaForCausalLM"],
            "attention_bias": false,
            "mlp_bias": false,
            "model_type": "llama",
            "rope_scaling": null,
        }),
        Family::GptOss => {
            let kinds = ["sliding_attention", "full_attention"];
            let types: Vec<_> = (0..shape.layers).map(|layer| kinds[layer % 2]).collect();
            json!({
                "architectures": ["GptOssForCausalLM"],
                "attention_bias": true,
                "experts_per_token": shape.top,
                "initial_context_length": YARN_ORIGINAL,
                "layer_types": types,
                "model_type": "gpt_oss",
                "num_experts_per_tok": shape.top,
                "num_local_experts": shape.experts,
                "quantization_config": {
                    "modules_to_not_convert": [
                        "model.layers.*.self_attn",
                        "model.layers.*.mlp.router",
                        "model.embed_tokens",
                        "lm_head",
                    ],
                    "quant_method": "mxfp4",
                },
                "rope_scaling": {
                    "beta_fast": 32.0,
                    "beta_slow": 1.0,
                    "factor": YARN_FACTOR,
                    "original_max_position_embeddings": YARN_ORIGINAL,
                    "rope_type": "yarn",
                    "truncate": false,
                },
                "sliding_window": shape.window,
                "swiglu_limit": 7.0,
            })
        }
    };
    if let (Some(config), Json::Object(special)) = (config.as_object_mut(), special) {
        config.extend(special);
    }
    Ok(config)
}
