//! Checks that are tests of a crate at another scale.

use std::process::Command;

use anyhow::Result;
use serde_json::json;

use crate::check::{Figures, Scale};
use crate::fetch;
use crate::shell::{self, cargo};

/// One test program of the workspace. Of the whole workspace: with one package alone, cargo chooses
/// features for that one and compiles everything anew.
fn test(name: &str) -> Command {
    cargo(&["test", "--workspace", "--locked", "--test", name])
}

/// `check smollm2`: the reference model's tokens and logits.
pub(crate) fn smollm2(_scale: Scale) -> Result<Figures> {
    let path = fetch::fetch("smollm2")?;
    let mut command = test("smollm2_gives_the_reference_numbers");
    command.args(["--features", "oss-model/reference-model"]);
    shell::run(command.env("OSS_SMOLLM2", path))?;
    Ok(Figures::new())
}

/// `check draws`: chi-square over many draws.
pub(crate) fn draws(scale: Scale) -> Result<Figures> {
    let draws = scale.pick(100_000, 1_000_000).to_string();
    shell::run(test("draws").env("OSS_SAMPLER_DRAWS", &draws))?;
    Ok(Figures::from_iter([("draws".to_owned(), json!(draws))]))
}

/// `check kill`: processes that write the cold tier or pack a model are killed again and again: the
/// tests of that name of the cache and of the engine.
pub(crate) fn kill(scale: Scale) -> Result<Figures> {
    let rounds = scale.pick(6, 100).to_string();
    let variables = ["OSS_CACHE_KILL_ROUNDS", "OSS_ENGINE_KILL_ROUNDS"];
    shell::run(test("kill").envs(variables.map(|name| (name, &rounds))))?;
    Ok(Figures::from_iter([("rounds".to_owned(), json!(rounds))]))
}

/// `check together`: random requests, tiers, faults and options against a plain engine.
pub(crate) fn together(scale: Scale) -> Result<Figures> {
    let steps = scale.pick(2_000, 100_000).to_string();
    shell::run(test("together").env("OSS_ENGINE_TOGETHER_STEPS", &steps))?;
    Ok(Figures::from_iter([("operations".to_owned(), json!(steps))]))
}
