//! What the architectures have in common: the decoder's shape and the names of its tensors.

use crate::config::{Config, LayerConfig, RopeConfig, RopeScaling};
use crate::config_reader::{ConfigReader, Field, field, text_of};
use crate::error::{Error, Result};
use crate::plan::{MatrixPlan, ModelPlan, Rows, VectorPlan};
use crate::rope::yarn_attention_factor;
use oss_quant::kv::MAX_HEAD_DIM;
use std::iter;

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
const THETA: Field = field("rope_theta", "rope.freq_base");

/// Reads the shape and checks that its parts fit each other.
pub(super) fn shape(reader: &ConfigReader<'_>, embedding: &str) -> Result<Shape> {
    let hidden_dim = reader.required_count(HIDDEN)?;
    let n_heads = reader.required_count(HEADS)?;
    let n_kv_heads = reader.count(KV_HEADS)?.unwrap_or(n_heads);
    if n_kv_heads == 0 || !n_heads.is_multiple_of(n_kv_heads) {
        let expected = format!("a divisor of {n_heads} heads");
        return Err(reader.wrong(KV_HEADS, &n_kv_heads.to_string(), &expected));
    }
    let head_dim = reader.count(HEAD_DIM)?.unwrap_or(hidden_dim / n_heads);
    if head_dim == 0 || !head_dim.is_multiple_of(2) || head_dim > MAX_HEAD_DIM {
        let expected = format!("an even number above 0, {MAX_HEAD_DIM} at most");
        return Err(reader.wrong(HEAD_DIM, &head_dim.to_string(), &expected));
    }
    let values = field("head_dim", "attention.value_length");
    if let Some(value_dim) = reader.count(values)?.filter(|dim| *dim != head_dim) {
        return Err(reader.wrong(values, &value_dim.to_string(), &head_dim.to_string()));
    }
    let rotated = field("head_dim", "rope.dimension_count");
    if let Some(dim) = reader.count(rotated)?.filter(|dim| *dim != head_dim) {
        return Err(reader.wrong(rotated, &dim.to_string(), &head_dim.to_string()));
    }
    let epsilon = reader.required_number(EPSILON)?;
    if epsilon < 0.0 || (epsilon as f32).is_infinite() {
        return Err(reader.wrong(EPSILON, &epsilon.to_string(), "0 or a small number above it"));
    }
    // The vocabulary is as long as the embedding; a configuration may say it too.
    let vocabulary = match *reader.tensor_shape(embedding)? {
        [rows, _] => rows,
        _ => 0,
    };
    let said = field("vocab_size", "vocab_size");
    if let Some(got) = reader.count(said)?.filter(|said| *said != vocabulary) {
        let expected = format!("{vocabulary}, the rows of {embedding}");
        return Err(reader.wrong(said, &got.to_string(), &expected));
    }
    Ok(Shape {
        vocabulary,
        hidden_dim,
        n_heads,
        n_kv_heads,
        head_dim,
        norm_epsilon: epsilon as f32,
        context_len: reader.required_count(CONTEXT)?,
    })
}

impl Shape {
    /// The configuration of a decoder of this shape.
    pub(super) fn config(
        &self,
        architecture: &'static str,
        rope: RopeConfig,
        layers: Vec<LayerConfig>,
    ) -> Config {
        Config {
            architecture,
            vocabulary: self.vocabulary,
            hidden_dim: self.hidden_dim,
            n_heads: self.n_heads,
            n_kv_heads: self.n_kv_heads,
            head_dim: self.head_dim,
            norm_epsilon: self.norm_epsilon,
            rope,
            context_len: self.context_len,
            layers,
        }
    }
}

/// What holds of rotary positions where a file is silent.
#[derive(Clone, Copy)]
pub(super) struct RopeDefaults {
    /// The base; `None` where the file has to say it.
    pub(super) theta: Option<f64>,
    /// Whether YaRN's bounds are whole pairs.
    pub(super) truncate: bool,
}

/// The base and stretching of the rotary positions of heads.
pub(super) fn rope(
    reader: &ConfigReader<'_>,
    shape: &Shape,
    defaults: RopeDefaults,
) -> Result<RopeConfig> {
    let head_dim = shape.head_dim;
    // Since 2025 the base stands with the stretching.
    let mut beside = STRETCHES.map(|object| Field::within(object, "rope_theta")).into_iter();
    let named = beside.find(|field| reader.json(*field).is_some()).unwrap_or(THETA);
    let Some(theta) = reader.number(named)?.or(defaults.theta) else {
        return Err(reader.wrong(named, "nothing", "a number above 1"));
    };
    if theta <= 1.0 {
        return Err(reader.wrong(named, &theta.to_string(), "above 1"));
    }
    let scaling = if reader.is_gguf() {
        gguf_scaling(reader, defaults.truncate)?
    } else {
        refuse_partial(reader)?;
        json_scaling(reader, shape.context_len)?
    };
    if let RopeScaling::FrequencyFactors(divisors) = &scaling {
        let is_divisor = |divisor: f32| divisor > 0.0 && divisor.is_finite();
        if divisors.len() != head_dim / 2 || !divisors.iter().all(|divisor| is_divisor(*divisor)) {
            return Err(Error::Shape {
                path: reader.container.path().to_owned(),
                tensor: FREQUENCY_FACTORS.to_owned(),
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
const FREQUENCY_FACTORS: &str = "rope_freqs.weight";

fn gguf_scaling(reader: &ConfigReader<'_>, truncate: bool) -> Result<RopeScaling> {
    let number = |key| reader.number(field("", key));
    let kind = reader.text(field("", "rope.scaling.type"))?;
    let positive = |key| reader.positive(field("", key));
    let required = |key| reader.required_positive(field("", key));
    let original = "rope.scaling.original_context_length";
    let divisors = reader.container.find(FREQUENCY_FACTORS);
    let kind = match kind {
        // Files of 2023 say how far, and not how, under two names; 0 and 1 are not at all.
        None => linear_key(reader)?.map(|key| ("linear".to_owned(), key)),
        Some(kind) => Some((kind, "rope.scaling.factor")),
    };
    let scaling = match kind.as_ref().map(|(kind, key)| (kind.as_str(), *key)) {
        None | Some(("none", _)) => {
            return match divisors {
                None => Ok(RopeScaling::None),
                Some(tensor) => {
                    Ok(RopeScaling::FrequencyFactors(crate::weights::numbers(reader, &tensor)?))
                }
            };
        }
        Some(("linear", key)) => RopeScaling::Linear { factor: required(key)? },
        Some(("yarn", key)) => {
            // Where the file is silent, or repeats what holds without it.
            for key in ["rope.scaling.yarn_ext_factor", "rope.scaling.yarn_attn_factor"] {
                if let Some(other) = number(key)?.filter(|x| *x != 1.0) {
                    return Err(reader.wrong(field("", key), &other.to_string(), "1"));
                }
            }
            let factor = required(key)?;
            // GGUF has what the usual one is multiplied by.
            let usual = |times: f64| times * yarn_attention_factor(factor, 1.0);
            RopeScaling::Yarn {
                factor,
                beta_fast: positive("rope.scaling.yarn_beta_fast")?.unwrap_or(32.0),
                beta_slow: positive("rope.scaling.yarn_beta_slow")?.unwrap_or(1.0),
                original: required(original)?,
                truncate,
                attention_factor: positive("rope.scaling.attn_factor")?.map(usual),
            }
        }
        Some((other, _)) => {
            return Err(reader.unsupported("rope scaling", other, "none, linear or yarn"));
        }
    };
    match divisors {
        None => Ok(scaling),
        Some(_) => {
            let (what, expected) = ("rope scaling", "one way to stretch positions");
            Err(reader.unsupported(
                what,
                &format!("{FREQUENCY_FACTORS} beside another one"),
                expected,
            ))
        }
    }
}

/// The field that says how far positions are stretched, in a file that does not say how.
fn linear_key(reader: &ConfigReader<'_>) -> Result<Option<&'static str>> {
    for key in ["rope.scaling.factor", "rope.scale_linear"] {
        if reader.number(field("", key))?.is_some_and(|factor| factor != 0.0 && factor != 1.0) {
            return Ok(Some(key));
        }
    }
    Ok(None)
}

/// The stretching that `config.json` says, in one of two objects, as transformers reads them.
fn json_scaling(reader: &ConfigReader<'_>, context_len: usize) -> Result<RopeScaling> {
    for object in STRETCHES {
        let (whole, kind) = (field(object, ""), Field::within(object, "rope_type"));
        let Some(value) = reader.json(whole) else { continue };
        let Some(fields) = value.as_object() else {
            return Err(reader.wrong(whole, &text_of(value), "an object"));
        };
        let said = match reader.text(kind)? {
            None => reader.text(Field::within(object, "type"))?,
            said => said,
        };
        match said {
            Some(said) => return json_scaling_of(reader, &said, object, context_len),
            // What holds of positions that are not stretched, too.
            None if fields.keys().all(|key| key == "rope_theta" || key == PARTIAL) => {}
            None => return Err(reader.wrong(kind, "nothing", "how positions stretch")),
        }
    }
    Ok(RopeScaling::None)
}

/// The objects of `config.json` that may say how positions are stretched.
const STRETCHES: [&str; 2] = ["rope_scaling", "rope_parameters"];

/// The field that says which share of a head turns.
const PARTIAL: &str = "partial_rotary_factor";

/// Refuses heads of which only a part turns.
fn refuse_partial(reader: &ConfigReader<'_>) -> Result<()> {
    let objects = iter::once("").chain(STRETCHES);
    for field in objects.map(|object| Field::within(object, PARTIAL)) {
        if let Some(share) = reader.number(field)?.filter(|share| *share != 1.0) {
            return Err(reader.wrong(field, &share.to_string(), "1"));
        }
    }
    Ok(())
}

/// The context that a model was trained with before its positions were stretched.
const ORIGINAL: &str = "original_max_position_embeddings";

fn json_scaling_of(
    reader: &ConfigReader<'_>,
    kind: &str,
    object: &'static str,
    context_len: usize,
) -> Result<RopeScaling> {
    let required = |name| reader.required_positive(Field::within(object, name));
    let positive = |name| reader.positive(Field::within(object, name));
    match kind {
        "default" => Ok(RopeScaling::None),
        "linear" => Ok(RopeScaling::Linear { factor: required("factor")? }),
        "llama3" => Ok(RopeScaling::FrequencyBands {
            factor: required("factor")?,
            low: required("low_freq_factor")?,
            high: required("high_freq_factor")?,
            original: required(ORIGINAL)?,
        }),
        "yarn" => {
            let factor = required("factor")?;
            Ok(RopeScaling::Yarn {
                factor,
                beta_fast: positive("beta_fast")?.unwrap_or(32.0),
                beta_slow: positive("beta_slow")?.unwrap_or(1.0),
                original: positive(ORIGINAL)?.unwrap_or(context_len as f64),
                truncate: reader.flag(Field::within(object, "truncate"))?.unwrap_or(true),
                attention_factor: json_attention_factor(reader, object, factor)?,
            })
        }
        other => Err(reader.unsupported("rope scaling", other, "linear, llama3 or yarn")),
    }
}

/// What YaRN multiplies queries and keys with, where the file says it: itself, or by two
/// coefficients of which none is 0.
fn json_attention_factor(
    reader: &ConfigReader<'_>,
    object: &'static str,
    stretch: f64,
) -> Result<Option<f64>> {
    let coefficient = |name| -> Result<Option<f64>> {
        let field = Field::within(object, name);
        match reader.number(field)? {
            Some(number) if number != 0.0 => reader.positive(field),
            _ => Ok(None),
        }
    };
    let coefficients = (coefficient("mscale")?, coefficient("mscale_all_dim")?);
    Ok(match (reader.positive(Field::within(object, "attention_factor"))?, coefficients) {
        (Some(factor), _) => Some(factor),
        (None, (Some(one), Some(all))) => {
            Some(yarn_attention_factor(stretch, one) / yarn_attention_factor(stretch, all))
        }
        (None, _) => None,
    })
}

/// Whether a tensor may be there of which no part of the model is made.
pub(super) fn is_ignored(reader: &ConfigReader<'_>, plan: &ModelPlan, tensor: &str) -> bool {
    // What the base and the width of heads say, as checkpoints of 2023 have it in each layer.
    let is_frequencies = tensor.ends_with("rotary_emb.inv_freq");
    // Read with the configuration.
    let is_divisors = reader.is_gguf() && tensor == FREQUENCY_FACTORS;
    // The embedding once more.
    let is_head = plan.is_tied() && tensor == Names::new(reader).head();
    is_frequencies || is_divisors || is_head
}

/// The names of a decoder's tensors in both kinds of file.
pub(super) struct Names {
    gguf: bool,
}

impl Names {
    pub(super) const fn new(reader: &ConfigReader<'_>) -> Self {
        Self { gguf: reader.is_gguf() }
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

    /// Query, key and value, one below the other: the rows of each one's `weight`, or the numbers
    /// of its `bias`; `interleaved` where the file stores rotated heads pair by pair.
    pub(super) fn qkv(
        &self,
        layer: usize,
        shape: &Shape,
        kind: &str,
        interleaved: bool,
    ) -> [Rows; 3] {
        let interleaved = interleaved.then_some(shape.head_dim);
        let part = |gguf: &str, json: &str, n_heads, interleaved_heads| {
            let tensor = self.layer(layer, &format!("{gguf}.{kind}"), &format!("{json}.{kind}"));
            Rows { interleaved_heads, ..Rows::all(tensor, n_heads * shape.head_dim) }
        };
        [
            part("attn_q", "self_attn.q_proj", shape.n_heads, interleaved),
            part("attn_k", "self_attn.k_proj", shape.n_kv_heads, interleaved),
            part("attn_v", "self_attn.v_proj", shape.n_kv_heads, None),
        ]
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
