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
    // Decoded, a number takes eight times what it takes in the file: as many as tokens alone.
    for key in ["tokenizer.ggml.token_type", "tokenizer.ggml.scores"] {
        let len = metadata.array(key)?.map_or(0, oss_weights::Array::len);
        if len > 0 && len != tokens.len() {
            return Err(Error::SideFile {
                path: container.path().to_path_buf(),
                file: "metadata",
                reason: format!("{key}: got {len} values, expected {}", tokens.len()),
            });
        }
    }
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
        "repeat_last_n" => "general.sampling.penalty_last_n",
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
    let penalty = number("penalty_repeat", plain.repetition_penalty)?;
    let last_n = metadata.i64("general.sampling.penalty_last_n")?;
    let (repetition_penalty, repeat_last_n) = penalty_over(penalty, last_n);
    for name in ["xtc_probability", "mirostat"] {
        if number(name, 0.0)? != 0.0 {
            warn_of(name);
        }
    }
    if metadata.string("general.sampling.sequence")?.is_some() {
        warn_of("sequence");
    }
    Ok(Options {
        temperature: number("temp", plain.temperature)?,
        top_p: number("top_p", plain.top_p)?,
        min_p: number("min_p", plain.min_p)?,
        repetition_penalty,
        repeat_last_n,
        // Zero and below: off.
        top_k: usize::try_from(top_k).unwrap_or(0),
        ..plain
    })
}

/// A file's penalty and how many of the last tokens it looks at, as llama.cpp reads them: none
/// where that is 0, all where it is negative, and 64 where nothing is said of it.
fn penalty_over(penalty: f32, last_n: Option<i64>) -> (f32, usize) {
    let off = Options::default().repetition_penalty;
    match last_n {
        Some(0) => (off, 0),
        Some(last_n) => (penalty, usize::try_from(last_n).unwrap_or(0)),
        None if penalty == off => (penalty, 0),
        None => (penalty, 64),
    }
}

/// The model's own sampling has something that this engine does not do.
fn warn_of(name: &str) {
    let option = format_args!("general.sampling.{name}");
    tracing::warn!(%option, "the file's own sampling is followed without this");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_penalty_looks_at_as_many_tokens_as_the_file_says() {
        assert_eq!(penalty_over(1.1, None), (1.1, 64));
        assert_eq!(penalty_over(1.1, Some(0)), (1.0, 0));
        assert_eq!(penalty_over(1.1, Some(-1)), (1.1, 0));
        assert_eq!(penalty_over(1.1, Some(256)), (1.1, 256));
        // A request's own penalty looks at all where the file has none.
        assert_eq!(penalty_over(1.0, None), (1.0, 0));
        assert_eq!(penalty_over(1.0, Some(32)), (1.0, 32));
    }
}
