//! Runs the example `bench` and reads its numbers.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use serde_json::Value as Json;

use crate::shell::{self, Profile};

/// The built program.
pub(crate) struct Bench(PathBuf);

/// What a run printed.
pub(crate) struct Printed(pub(crate) Json);

impl Bench {
    /// Builds it.
    pub(crate) fn build() -> Result<Bench> {
        shell::example("bench", Profile::Release).map(Bench)
    }

    /// Runs it on a model, with some options that take numbers, and more, and variables of the
    /// environment.
    pub(crate) fn run(
        &self,
        model: &Path,
        numbers: &[(&str, usize)],
        more: &[&str],
        variables: &[(&str, &str)],
    ) -> Result<Printed> {
        let mut command = shell::measured(&self.0, &["--json", "--model"]);
        command.arg(model);
        for (name, value) in numbers {
            command.args([name, value.to_string().as_str()]);
        }
        let printed = shell::output(command.args(more).envs(variables.iter().copied()))?;
        serde_json::from_str(&printed).map(Printed).context("what bench printed")
    }
}

impl Printed {
    /// The number at a JSON pointer.
    pub(crate) fn number(&self, path: &str) -> Result<f64> {
        let value = self.0.pointer(path).and_then(Json::as_f64);
        value.with_context(|| format!("bench printed no {path}: {}", self.0))
    }
}
