//! Tokenizer, template and sampling defaults out of the files beside safetensors.

use oss_sampler::Options;
use oss_text::Tokenizer;
use oss_text::chat::Template;
use oss_weights::Container;
use serde::Deserialize;

use super::{Found, check_defaults};
use crate::error::{Error, Result};

/// The file that says how tokens are drawn.
const GENERATION: &str = "generation_config.json";

/// The chat template, where it is a file of its own.
const TEMPLATE: &str = "chat_template.jinja";

/// What [`GENERATION`] says; unknown fields are for other programs.
#[derive(Default, Deserialize)]
struct Generation {
    temperature: Option<f32>,
    top_k: Option<i64>,
    top_p: Option<f32>,
    min_p: Option<f32>,
    typical_p: Option<f32>,
    repetition_penalty: Option<f32>,
    eos_token_id: Option<Ids>,
}

/// One id or several.
#[derive(Deserialize)]
#[serde(untagged)]
enum Ids {
    One(u32),
    Many(Vec<u32>),
}

impl Ids {
    fn into_vec(self) -> Vec<u32> {
        match self {
            Self::One(id) => vec![id],
            Self::Many(ids) => ids,
        }
    }
}

pub(super) fn read(container: &Container) -> Result<Found> {
    let config = container.side_file("tokenizer_config.json")?;
    let tokenizer = match container.side_file("tokenizer.json")? {
        None => None,
        Some(json) => {
            let tokenizer = Tokenizer::from_json(&json)?;
            Some(match &config {
                Some(config) => tokenizer.with_config(config)?,
                None => tokenizer,
            })
        }
    };
    let template = match (container.side_file(TEMPLATE)?, &config) {
        (Some(source), _) => Some(template(&source)),
        (None, Some(config)) => Template::from_config(config).transpose(),
        (None, None) => None,
    };
    let generation = generation(container)?;
    let plain = Options::default();
    let defaults = Options {
        temperature: generation.temperature.unwrap_or(plain.temperature),
        // Zero and below: off.
        top_k: generation.top_k.map_or(plain.top_k, |k| usize::try_from(k).unwrap_or(0)),
        top_p: generation.top_p.unwrap_or(plain.top_p),
        min_p: generation.min_p.unwrap_or(plain.min_p),
        typical_p: generation.typical_p.unwrap_or(plain.typical_p),
        repetition_penalty: generation.repetition_penalty.unwrap_or(plain.repetition_penalty),
        ..plain
    };
    check_defaults(container, GENERATION, &defaults, |field| field)?;
    let stops = generation.eos_token_id.map(Ids::into_vec).unwrap_or_default();
    Ok(Found { tokenizer, template, stops, defaults })
}

fn template(source: &[u8]) -> oss_text::Result<Template> {
    let source = std::str::from_utf8(source).map_err(|error| {
        let at = error.valid_up_to();
        let reason = format!("{TEMPLATE}: got byte {:02x} at {at}, expected UTF-8", source[at]);
        oss_text::Error::TemplateSyntax { reason }
    })?;
    Template::new(source)
}

fn generation(container: &Container) -> Result<Generation> {
    let Some(json) = container.side_file(GENERATION)? else { return Ok(Generation::default()) };
    serde_json::from_slice(&json).map_err(|error| Error::SideFile {
        path: container.path().to_path_buf(),
        file: GENERATION,
        reason: error.to_string(),
    })
}
