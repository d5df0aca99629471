//! Tokenizer, template and sampling defaults out of GGUF metadata.

use std::borrow::Cow;

use oss_sampler::Options;
use oss_text::chat::Template;
use oss_text::{Tokenizer, Vocabulary};
use oss_weights::{Container, Metadata};

use super::{Found, check_defaults};
use crate::error::{Error, Result};

pub(super) fn read(container: &Container) -> Result<Found> {
    let metadata = container.metadata();
    let tokenizer = match metadata.strings("tokenizer.ggml.tokens")? {
        None => None,
        Some(tokens) => Some(Tokenizer::from_vocabulary(&vocabulary(container, tokens)?)?),
    };
    let template = metadata.string("tokenizer.chat_template")?.map(Template::new);
    let mut stops = Vec::new();
    for name in ["eos", "eot", "eom"] {
        stops.extend(id(container, &format!("tokenizer.ggml.{name}_token_id"))?);
    }
    let defaults = defaults(metadata)?;
    check_defaults(container, "metadata", &defaults, spelt)?;
    Ok(Found { tokenizer, template, stops, defaults })
}

fn vocabulary<'a>(container: &'a Container, tokens: Vec<&'a str>) -> Result<Vocabulary<'a>> {
    let metadata = container.metadata();
    let text =
        |name| -> Result<String> { Ok(metadata.string(name)?.unwrap_or_default().to_owned()) };
    let types = metadata.integers("tokenizer.ggml.token_type")?.unwrap_or_default();
    let scores = metadata.floats("tokenizer.ggml.scores")?.unwrap_or_default();
    let merges = metadata.strings("tokenizer.ggml.merges")?.unwrap_or_default();
    Ok(Vocabulary {
        model: text("tokenizer.ggml.model")?,
        pre: text("tokenizer.ggml.pre")?,
        tokens: tokens.into_iter().map(Cow::Borrowed).collect(),
        scores: scores.into_iter().map(|score| score as f32).collect(),
        // Types are 1 to 6; anything else is as good as a normal token.
        types: types.into_iter().map(|kind| i32::try_from(kind).unwrap_or(1)).collect(),
        merges: merges.into_iter().map(Cow::Borrowed).collect(),
        bos: id(container, "tokenizer.ggml.bos_token_id")?,
        eos: id(container, "tokenizer.ggml.eos_token_id")?,
        unknown: id(container, "tokenizer.ggml.unknown_token_id")?,
        add_bos: metadata.bool("tokenizer.ggml.add_bos_token")?,
        add_space_prefix: metadata.bool("tokenizer.ggml.add_space_prefix")?,
    })
}

/// A token's id.
fn id(container: &Container, key: &str) -> Result<Option<u32>> {
    let Some(value) = container.metadata().u64(key)? else { return Ok(None) };
    u32::try_from(value).map(Some).map_err(|_| Error::SideFile {
        path: container.path().to_path_buf(),
        file: "metadata",
        reason: format!("{key}: got {value}, expected a token id"),
    })
}

/// How metadata calls a sampling option.
pub(super) fn spelt(option: &'static str) -> &'static str {
    match option {
        "temperature" => "general.sampling.temp",
        "top_p" => "general.sampling.top_p",
        "min_p" => "general.sampling.min_p",
        "repetition_penalty" => "general.sampling.penalty_repeat",
        other => other,
    }
}

fn defaults(metadata: &Metadata) -> Result<Options> {
    let plain = Options::default();
    let number = |name: &str, default: f32| -> Result<f32> {
        let value = metadata.f64(&format!("general.sampling.{name}"))?;
        Ok(value.map_or(default, |value| value as f32))
    };
    let top_k = metadata.i64("general.sampling.top_k")?.unwrap_or(0);
    Ok(Options {
        temperature: number("temp", plain.temperature)?,
        top_p: number("top_p", plain.top_p)?,
        min_p: number("min_p", plain.min_p)?,
        repetition_penalty: number("penalty_repeat", plain.repetition_penalty)?,
        // Zero and below: off.
        top_k: usize::try_from(top_k).unwrap_or(0),
        ..plain
    })
}
