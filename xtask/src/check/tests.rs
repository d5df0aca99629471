//! Checks that are tests of a crate at another scale.

use std::io::{Read as _, Seek as _};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use serde_json::json;

use crate::check::{Figures, Scale};
use crate::fetch;
use crate::shell::{self, cargo};

/// One test program of the workspace. Of the whole workspace: with one package alone, cargo chooses
/// features for that one and compiles everything anew.
fn test(name: &str) -> Command {
    cargo(&["test", "--workspace", "--locked", "--test", name])
}

/// Runs tests and returns the figures that they print. All that they print is shown when one fails;
/// an error where none has run.
pub(super) fn figures(command: &mut Command) -> Result<Figures> {
    let mut file = tempfile::tempfile()?;
    command.args(["--", "--show-output"]).stdout(file.try_clone()?);
    let outcome = shell::run(command);
    let mut printed = String::new();
    file.rewind()?;
    file.read_to_string(&mut printed)?;
    if outcome.is_err() {
        print!("{printed}");
    }
    outcome?;
    parse(&printed)
}

/// How many tests have passed, and what they found: lines `figure: NAME = VALUE`.
fn parse(printed: &str) -> Result<Figures> {
    let passed = |line: &str| -> Option<u64> {
        line.strip_prefix("test result: ok. ")?.split_once(" passed")?.0.parse().ok()
    };
    let passed: u64 = printed.lines().filter_map(passed).sum();
    ensure!(passed > 0, "no test has run:\n{printed}");
    let mut figures = Figures::from_iter([("tests passed".to_owned(), json!(passed))]);
    let mut lines: Vec<&str> =
        printed.lines().filter_map(|line| line.strip_prefix("figure: ")).collect();
    // Tests end in any order.
    lines.sort_unstable();
    for line in lines {
        let (name, value) = line.split_once(" = ").with_context(|| format!("no value: {line}"))?;
        let value = serde_json::from_str(value).unwrap_or_else(|_| json!(value));
        let before = figures.insert(name.to_owned(), value);
        ensure!(before.is_none(), "two figures are called `{name}`");
    }
    Ok(figures)
}

/// What is in the way of `check smollm2`: the model, where it is out of reach. A file other than
/// the one that was asked for is not in the way: the check fails by it.
pub(crate) fn no_smollm2() -> Option<String> {
    let why = fetch::fetch("smollm2").err()?;
    (!why.is::<fetch::WrongSum>()).then(|| format!("{why:#}"))
}

/// `check smollm2`: the reference model's tokens and logits, and what its tests print.
pub(crate) fn smollm2(_scale: Scale) -> Result<Figures> {
    let path = fetch::fetch("smollm2")?;
    let mut command = test("smollm2_gives_the_reference_numbers");
    command.args(["--features", "oss-model/reference-model"]);
    figures(command.env("OSS_SMOLLM2", path))
}

/// `check draws`: chi-square over many draws.
pub(crate) fn draws(scale: Scale) -> Result<Figures> {
    let draws = scale.pick(100_000, 1_000_000);
    let mut found = figures(test("draws").env("OSS_SAMPLER_DRAWS", draws.to_string()))?;
    found.insert("draws asked for".to_owned(), json!(draws));
    Ok(found)
}

/// `check kill`: processes that write the cold tier or pack a model are killed again and again: the
/// tests of that name of the cache and of the engine.
pub(crate) fn kill(scale: Scale) -> Result<Figures> {
    let rounds = scale.pick(6, 100).to_string();
    let variables = ["OSS_CACHE_KILL_ROUNDS", "OSS_ENGINE_KILL_ROUNDS"];
    figures(test("kill").envs(variables.map(|name| (name, &rounds))))
}

/// `check together`: random requests, tiers, faults and options against a plain engine.
pub(crate) fn together(scale: Scale) -> Result<Figures> {
    let steps = scale.pick(2_000, 100_000).to_string();
    figures(test("together").env("OSS_ENGINE_TOGETHER_STEPS", steps))
}

#[cfg(test)]
mod unit {
    use super::*;

    #[test]
    fn figures_are_what_tests_print_as_such() {
        let printed = "running 2 tests\n---- a stdout ----\nfigure: b, rounds = 6\nnothing = 1\n\
                       figure: a = 1.5 of 2 = much\ntest result: ok. 2 passed; 0 failed\n\
                       test result: ok. 1 passed; 0 failed\n";
        let found = parse(printed).expect("figures");
        let expected =
            [("tests passed", json!(3)), ("a", json!("1.5 of 2 = much")), ("b, rounds", json!(6))];
        assert_eq!(
            found,
            Figures::from_iter(expected.map(|(name, value)| (name.to_owned(), value)))
        );
        let twice = printed.replace("nothing = 1", "figure: a = 2");
        assert!(parse(&twice).expect_err("a name twice").to_string().contains("`a`"));
        let none = parse("test result: ok. 0 passed; 0 failed\n").expect_err("no test").to_string();
        assert!(none.starts_with("no test has run"), "{none}");
    }
}
