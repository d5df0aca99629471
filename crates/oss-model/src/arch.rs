//! The architectures: one row each.

mod common;
mod gpt_oss;
mod llama;

use crate::config::Config;
use crate::error::Result;
use crate::plan::ModelPlan;
use crate::source::Source;
use oss_weights::Container;

/// How to read one architecture's files.
struct Architecture {
    /// `general.architecture` in GGUF.
    gguf: &'static str,
    /// `model_type` in `config.json`.
    model_type: &'static str,
    describe: fn(&Source<'_>) -> Result<(Config, ModelPlan)>,
}

const TABLE: [Architecture; 2] = [
    Architecture { gguf: "gpt-oss", model_type: "gpt_oss", describe: gpt_oss::describe },
    Architecture { gguf: "llama", model_type: "llama", describe: llama::describe },
];

/// Reads a container's configuration and lists the tensors that it needs.
///
/// # Errors
/// When the architecture or one of its options is not supported, or a field is missing or wrong.
pub fn describe(container: &Container) -> Result<(Config, ModelPlan)> {
    let source = Source::new(container)?;
    let name = source.architecture()?;
    let known = |row: &Architecture| if source.is_gguf() { row.gguf } else { row.model_type };
    let Some(row) = TABLE.iter().find(|row| known(row) == name) else {
        let all: Vec<&str> = TABLE.iter().map(known).collect();
        return Err(source.unsupported("architecture", &name, &all.join(" or ")));
    };
    (row.describe)(&source)
}
