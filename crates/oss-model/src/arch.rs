//! The architectures: one row each.

mod common;
mod gpt_oss;
mod llama;

use crate::config::Config;
use crate::config_reader::ConfigReader;
use crate::error::{Error, Result};
use crate::plan::ModelPlan;
use oss_weights::{Container, shown};

/// How to read one architecture's files.
struct Architecture {
    /// `general.architecture` in GGUF.
    gguf: &'static str,
    /// `model_type` in `config.json`.
    model_type: &'static str,
    describe: fn(&ConfigReader<'_>) -> Result<(Config, ModelPlan)>,
}

const TABLE: [Architecture; 2] = [
    Architecture { gguf: "gpt-oss", model_type: "gpt_oss", describe: gpt_oss::describe },
    Architecture { gguf: "llama", model_type: "llama", describe: llama::describe },
];

/// Reads a container's configuration and lists the tensors that it needs.
///
/// # Errors
/// When the architecture or one of its options is not supported, a field is missing or wrong, or
/// the container has tensors of which nothing is made.
pub fn describe(container: &Container) -> Result<(Config, ModelPlan)> {
    let reader = ConfigReader::new(container)?;
    let name = reader.architecture()?;
    let known = |row: &Architecture| if reader.is_gguf() { row.gguf } else { row.model_type };
    let Some(row) = TABLE.iter().find(|row| known(row) == name) else {
        let all: Vec<&str> = TABLE.iter().map(known).collect();
        return Err(reader.unsupported("architecture", &name, &all.join(" or ")));
    };
    let (config, plan) = (row.describe)(&reader)?;
    refuse_left_over(&reader, &config, &plan)?;
    Ok((config, plan))
}

/// Refuses tensors that the plan has no use for: what they are for would be left out silently.
fn refuse_left_over(reader: &ConfigReader<'_>, config: &Config, plan: &ModelPlan) -> Result<()> {
    let taken = plan.tensors();
    let is_left = |name: &&str| !taken.contains(*name) && !common::is_ignored(reader, plan, name);
    let left: Vec<&str> = reader.tensor_names().filter(is_left).collect();
    let Some(first) = left.iter().min() else { return Ok(()) };
    Err(Error::LeftOver {
        path: reader.path().to_owned(),
        tensor: shown(first),
        architecture: config.architecture,
        layers: config.layers.len(),
        count: left.len(),
    })
}
