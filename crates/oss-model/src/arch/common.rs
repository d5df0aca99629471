//! What the architectures have in common: the decoder's shape and the names of its tensors.

use crate::config::{RopeConfig, RopeScaling};
use crate::error::{Error, Result};
use crate::plan::{MatrixPlan, Rows, VectorPlan};
use crate::rope::yarn_attention_factor;
use crate::source::{Field, Source, field};
use oss_quant::kv::MAX_HEAD_DIM;

/// Heads and widths of a decoder.
pub(super) struct Shape {
    pub(super) vocabulary: usize,
    pub(super) hidden_dim: usize,
    pub(super) n_heads: usize,
    pub(super) n_kv_heads: usize,
    pub(super) head_dim: usize,
    pub(super) norm_epsilon: f32,
    pub(super) context_len: usize,
}

pub(super) const HEADS: Field = field("num_attention_heads", "attention.head_count");
const KV_HEADS: Field = field("num_key_value_heads", "attention.head_count_kv");
const HIDDEN: Field = field("hidden_size", "embedding_length");
const HEAD_DIM: Field = field("head_dim", "attention.key_length");
const EPSILON: Field = field("rms_norm_eps", "attention.layer_norm_rms_epsilon");
const CONTEXT: Field = field("max_position_embeddings", "context_length");

/// Reads the shape and checks that its parts fit each other.
pub(super) fn shape(source: &Source<'_>, embedding: &str) -> Result<Shape> {
    let hidden_dim = source.required_count(HIDDEN)?;
    let n_heads = source.required_count(HEADS)?;
    let n_kv_heads = source.count(KV_HEADS)?.unwrap_or(n_heads);
    if n_kv_heads == 0 || !n_heads.is_multiple_of(n_kv_heads) {
        let expected = format!("a divisor of {n_heads} heads");
        return Err(source.wrong(KV_HEADS, &n_kv_heads.to_string(), &expected));
    }
    let head_dim = source.count(HEAD_DIM)?.unwrap_or(hidden_dim / n_heads);
    if head_dim == 0 || !head_dim.is_multiple_of(2) || head_dim > MAX_HEAD_DIM {
        let expected = format!("an even number above 0, {MAX_HEAD_DIM} at most");
        return Err(source.wrong(HEAD_DIM, &head_dim.to_string(), &expected));
    }
    let values = field("head_dim", "attention.value_length");
    if let Some(value_dim) = source.count(values)?.filter(|dim| *dim != head_dim) {
        return Err(source.wrong(values, &value_dim.to_string(), &head_dim.to_string()));
    }
    let rotated = field("head_dim", "rope.dimension_count");
    if let Some(dim) = source.count(rotated)?.filter(|dim| *dim != head_dim) {
        return Err(source.wrong(rotated, &dim.to_string(), &head_dim.to_string()));
    }
    let epsilon = source.required_number(EPSILON)?;
    // The vocabulary is as long as the embedding; a configuration may say it too.
    let vocabulary = match *source.tensor_shape(embedding)? {
        [rows, _] => rows,
        _ => 0,
    };
    let said = field("vocab_size", "vocab_size");
    if let Some(got) = source.count(said)?.filter(|said| *said != vocabulary) {
        let expected = format!("{vocabulary}, the rows of {embedding}");
        return Err(source.wrong(said, &got.to_string(), &expected));
    }
    Ok(Shape {
        vocabulary,
        hidden_dim,
        n_heads,
        n_kv_heads,
        head_dim,
        norm_epsilon: epsilon as f32,
        context_len: source.required_count(CONTEXT)?,
    })
}

/// The base and stretching of the rotary positions of heads; `truncate` is what holds when the file
/// is silent.
pub(super) fn rope(source: &Source<'_>, head_dim: usize, truncate: bool) -> Result<RopeConfig> {
    let theta = if source.is_gguf() {
        source.number(field("", "rope.freq_base"))?
    } else {
        match source.number(field("rope_theta", ""))? {
            None => source.number(field("rope_parameters.rope_theta", ""))?,
            theta => theta,
        }
    };
    let theta = theta.unwrap_or(10_000.0);
    if theta <= 1.0 {
        let field = field("rope_theta", "rope.freq_base");
        return Err(source.wrong(field, &theta.to_string(), "above 1"));
    }
    let scaling =
        if source.is_gguf() { gguf_scaling(source, truncate)? } else { json_scaling(source)? };
    if let RopeScaling::Divisors(divisors) = &scaling {
        let is_divisor = |divisor: f32| divisor > 0.0 && divisor.is_finite();
        if divisors.len() != head_dim / 2 || !divisors.iter().all(|divisor| is_divisor(*divisor)) {
            return Err(Error::Shape {
                path: source.container.path().to_owned(),
                tensor: DIVISORS.to_owned(),
                got: match divisors.iter().find(|divisor| !is_divisor(**divisor)) {
                    Some(divisor) => format!("{divisor}"),
                    None => format!("{} numbers", divisors.len()),
                },
                expected: format!("{} numbers above 0, one for each pair", head_dim / 2),
            });
        }
    }
    Ok(RopeConfig { theta, scaling })
}

/// The tensor that frequencies are divided by.
const DIVISORS: &str = "rope_freqs.weight";

/// A number above 0 that has to be there.
fn positive(source: &Source<'_>, field: Field) -> Result<f64> {
    let number = source.required_number(field)?;
    if number > 0.0 && number.is_finite() {
        return Ok(number);
    }
    Err(source.wrong(field, &number.to_string(), "a number above 0"))
}

fn gguf_scaling(source: &Source<'_>, truncate: bool) -> Result<RopeScaling> {
    let number = |key| source.number(field("", key));
    let kind = source.text(field("", "rope.scaling.type"))?;
    let required = |key| positive(source, field("", key));
    let original = "rope.scaling.original_context_length";
    let divisors = source.container.find(DIVISORS);
    let kind = match kind {
        // Files of 2023 say how far, and not how, under two names; 0 and 1 are not at all.
        None => linear_key(source)?.map(|key| ("linear".to_owned(), key)),
        Some(kind) => Some((kind, "rope.scaling.factor")),
    };
    let scaling = match kind.as_ref().map(|(kind, key)| (kind.as_str(), *key)) {
        None | Some(("none", _)) => {
            return match divisors {
                None => Ok(RopeScaling::None),
                Some(tensor) => {
                    Ok(RopeScaling::Divisors(crate::weights::numbers(source, &tensor)?))
                }
            };
        }
        Some(("linear", key)) => RopeScaling::Linear { factor: required(key)? },
        Some(("yarn", key)) => {
            // Where the file is silent, or repeats what holds without it.
            for key in ["rope.scaling.yarn_ext_factor", "rope.scaling.yarn_attn_factor"] {
                if let Some(other) = number(key)?.filter(|x| *x != 1.0) {
                    return Err(source.wrong(field("", key), &other.to_string(), "1"));
                }
            }
            let factor = required(key)?;
            // GGUF has what the usual one is multiplied by.
            let usual = |times: f64| times * yarn_attention_factor(factor);
            RopeScaling::Yarn {
                factor,
                beta_fast: number("rope.scaling.yarn_beta_fast")?.unwrap_or(32.0),
                beta_slow: number("rope.scaling.yarn_beta_slow")?.unwrap_or(1.0),
                original: required(original)?,
                truncate,
                attention_factor: number("rope.scaling.attn_factor")?.map(usual),
            }
        }
        Some((other, _)) => {
            return Err(source.unsupported("rope scaling", other, "none, linear or yarn"));
        }
    };
    match divisors {
        None => Ok(scaling),
        Some(_) => {
            let (what, expected) = ("rope scaling", "one way to stretch positions");
            Err(source.unsupported(what, &format!("{DIVISORS} beside another one"), expected))
        }
    }
}

/// The field that says how far positions are stretched, in a file that does not say how.
fn linear_key(source: &Source<'_>) -> Result<Option<&'static str>> {
    for key in ["rope.scaling.factor", "rope.scale_linear"] {
        if source.number(field("", key))?.is_some_and(|factor| factor != 0.0 && factor != 1.0) {
            return Ok(Some(key));
        }
    }
    Ok(None)
}

fn json_scaling(source: &Source<'_>) -> Result<RopeScaling> {
    for parent in [
        ["rope_scaling.rope_type", "rope_scaling.type"],
        ["rope_parameters.rope_type", "rope_parameters.type"],
    ] {
        let kind = match source.text(field(parent[0], ""))? {
            None => source.text(field(parent[1], ""))?,
            kind => kind,
        };
        let Some(kind) = kind else { continue };
        return if parent[0].starts_with("rope_scaling") {
            json_scaling_of(source, &kind, &SCALING)
        } else {
            json_scaling_of(source, &kind, &PARAMETERS)
        };
    }
    Ok(RopeScaling::None)
}

/// Names of the fields of a stretching, under `rope_scaling` or `rope_parameters`.
struct ScalingFields {
    factor: Field,
    low: Field,
    high: Field,
    original: Field,
    beta_fast: Field,
    beta_slow: Field,
    truncate: Field,
    attention_factor: Field,
}

macro_rules! scaling_fields {
    ($parent:literal) => {
        ScalingFields {
            factor: field(concat!($parent, ".factor"), ""),
            low: field(concat!($parent, ".low_freq_factor"), ""),
            high: field(concat!($parent, ".high_freq_factor"), ""),
            original: field(concat!($parent, ".original_max_position_embeddings"), ""),
            beta_fast: field(concat!($parent, ".beta_fast"), ""),
            beta_slow: field(concat!($parent, ".beta_slow"), ""),
            truncate: field(concat!($parent, ".truncate"), ""),
            attention_factor: field(concat!($parent, ".attention_factor"), ""),
        }
    };
}

const SCALING: ScalingFields = scaling_fields!("rope_scaling");
const PARAMETERS: ScalingFields = scaling_fields!("rope_parameters");

fn json_scaling_of(source: &Source<'_>, kind: &str, fields: &ScalingFields) -> Result<RopeScaling> {
    let required = |field| positive(source, field);
    match kind {
        "default" => Ok(RopeScaling::None),
        "linear" => Ok(RopeScaling::Linear { factor: required(fields.factor)? }),
        "llama3" => Ok(RopeScaling::Bands {
            factor: required(fields.factor)?,
            low: required(fields.low)?,
            high: required(fields.high)?,
            original: required(fields.original)?,
        }),
        "yarn" => Ok(RopeScaling::Yarn {
            factor: required(fields.factor)?,
            beta_fast: source.number(fields.beta_fast)?.unwrap_or(32.0),
            beta_slow: source.number(fields.beta_slow)?.unwrap_or(1.0),
            original: required(fields.original)?,
            truncate: source.flag(fields.truncate)?.unwrap_or(true),
            attention_factor: source.number(fields.attention_factor)?,
        }),
        other => Err(source.unsupported("rope scaling", other, "linear, llama3 or yarn")),
    }
}

/// The names of a decoder's tensors in both kinds of file.
pub(super) struct Names {
    gguf: bool,
}

impl Names {
    pub(super) const fn new(source: &Source<'_>) -> Self {
        Self { gguf: source.is_gguf() }
    }

    pub(super) fn embedding(&self) -> String {
        self.pick("token_embd.weight", "model.embed_tokens.weight").to_owned()
    }

    pub(super) fn norm(&self) -> String {
        self.pick("output_norm.weight", "model.norm.weight").to_owned()
    }

    pub(super) fn head(&self) -> String {
        self.pick("output.weight", "lm_head.weight").to_owned()
    }

    /// A tensor of a layer.
    pub(super) fn layer(&self, layer: usize, gguf: &str, json: &str) -> String {
        if self.gguf {
            format!("blk.{layer}.{gguf}")
        } else {
            format!("model.layers.{layer}.{json}")
        }
    }

    const fn pick(&self, gguf: &'static str, json: &'static str) -> &'static str {
        if self.gguf { gguf } else { json }
    }

    /// Query, key and value, one below the other; `interleaved` where the file stores rotated
    /// heads pair by pair.
    pub(super) fn qkv(&self, layer: usize, shape: &Shape, interleaved: bool) -> MatrixPlan {
        let heads = interleaved.then_some(shape.head_dim);
        let dim = |heads| heads * shape.head_dim;
        let part = |gguf, json, count, interleaved_heads| Rows {
            interleaved_heads,
            ..Rows::all(self.layer(layer, gguf, json), count)
        };
        MatrixPlan::Stacked(vec![
            part("attn_q.weight", "self_attn.q_proj.weight", dim(shape.n_heads), heads),
            part("attn_k.weight", "self_attn.k_proj.weight", dim(shape.n_kv_heads), heads),
            part("attn_v.weight", "self_attn.v_proj.weight", dim(shape.n_kv_heads), None),
        ])
    }

    /// The biases of [`Names::qkv`].
    pub(super) fn qkv_bias(&self, layer: usize, shape: &Shape, interleaved: bool) -> VectorPlan {
        let heads = interleaved.then_some(shape.head_dim);
        let dim = |heads| heads * shape.head_dim;
        let part = |gguf, json, count, interleaved_heads| Rows {
            interleaved_heads,
            ..Rows::all(self.layer(layer, gguf, json), count)
        };
        VectorPlan::Stacked(vec![
            part("attn_q.bias", "self_attn.q_proj.bias", dim(shape.n_heads), heads),
            part("attn_k.bias", "self_attn.k_proj.bias", dim(shape.n_kv_heads), heads),
            part("attn_v.bias", "self_attn.v_proj.bias", dim(shape.n_kv_heads), None),
        ])
    }

    /// All rows of one tensor of a layer.
    pub(super) fn matrix(&self, layer: usize, gguf: &str, json: &str, rows: usize) -> MatrixPlan {
        MatrixPlan::one(self.layer(layer, gguf, json), rows)
    }

    /// One vector of a layer.
    pub(super) fn vector(&self, layer: usize, gguf: &str, json: &str, len: usize) -> VectorPlan {
        VectorPlan::one(self.layer(layer, gguf, json), len)
    }
}
