//! Everything that must pass, in one command: what `.ci/run` runs and the README names.

use std::process::Command;
use std::time::Instant;

use anyhow::{Result, bail};
use oss_simd::Isa;

use crate::check::{CHECKS, Scale};
use crate::fetch;
use crate::shell::{self, cargo};
use crate::tidy;

/// What became of each step.
#[derive(Default)]
struct Report {
    lines: Vec<String>,
    failed: usize,
}

impl Report {
    /// Runs a step and notes its time; later steps run even if it fails.
    fn step(&mut self, name: &str, work: impl FnOnce() -> Result<()>) {
        println!("\n=== {name}");
        let start = Instant::now();
        let result = work();
        let seconds = start.elapsed().as_secs_f64();
        let line = match result {
            Ok(()) => format!("passed   {seconds:6.1} s  {name}"),
            Err(error) => {
                self.failed += 1;
                let error = format!("{error:#}");
                println!("{error}");
                let first = error.lines().next().unwrap_or_default();
                format!("FAILED   {seconds:6.1} s  {name}: {first}")
            }
        };
        self.lines.push(line);
    }

    /// Notes a step that this machine cannot run.
    fn not_run(&mut self, name: &str, why: &str) {
        self.lines.push(format!("NOT RUN            {name}: {why}"));
    }
}

/// Tests run over what a machine has: names what this one has not.
fn name_what_tests_lack(report: &mut Report) {
    let here: Vec<&str> = Isa::available().into_iter().map(Isa::name).collect();
    for name in Isa::ALL_NAMES.iter().filter(|name| !here.contains(name)) {
        report.not_run(&format!("tests with {name}"), "this processor lacks it");
    }
    let nodes = std::fs::read_dir("/sys/devices/system/node").into_iter().flatten().flatten();
    let is_node =
        |name: &str| name.strip_prefix("node").is_some_and(|number| number.parse::<u32>().is_ok());
    if nodes.filter(|entry| entry.file_name().to_str().is_some_and(is_node)).count() < 2 {
        report.not_run("tests of placement on NUMA nodes", "this machine has one; see NOT TESTED");
    }
}

/// Checks licences, sources and bans of all dependencies against `.deny.toml`. Advisories are left
/// out: their list is a repository that a build must not depend on.
fn deny() -> Result<Command> {
    let checks = ["--locked", "check", "bans", "licenses", "sources"];
    if shell::has("cargo", &["deny", "--version"]) {
        return Ok(cargo(&[&["deny"], &checks[..]].concat()));
    }
    Ok(shell::command(fetch::fetch("cargo-deny")?, &checks))
}

/// Runs everything; an error when something failed.
pub(crate) fn run() -> Result<()> {
    let mut report = Report::default();
    report.step("format", || shell::run(&mut cargo(&["fmt", "--all", "--check"])));
    report.step("tidy", tidy::run);
    report.step("clippy", || {
        // With the tests that only a check runs, and what a feature of the examples adds.
        let features = "oss-model/reference-model,oss-examples/download";
        let what = ["--workspace", "--all-targets", "--features", features];
        shell::run(cargo(&["clippy", "--locked"]).args(what).args(["--", "-D", "warnings"]))
    });
    report.step("test", || {
        shell::run(&mut cargo(&["test", "--workspace", "--locked", "--no-fail-fast"]))
    });
    report.step("documentation", || {
        let mut command = cargo(&["doc", "--workspace", "--no-deps", "--locked"]);
        shell::run(command.env("RUSTDOCFLAGS", "-D warnings"))
    });
    match deny() {
        Ok(mut command) => report.step("deny", || shell::run(&mut command)),
        // Out of reach is one thing, something else than was asked for another.
        Err(why) if why.is::<fetch::WrongSum>() => report.step("deny", || Err(why)),
        Err(why) => report.not_run("deny", &format!("{why:#}; or: cargo install cargo-deny")),
    }
    for check in &CHECKS {
        let name = format!("check {} --small", check.name);
        match (check.missing)() {
            Some(missing) => report.not_run(&name, &missing),
            None => report.step(&name, || check.perform(Scale::Small)),
        }
    }
    name_what_tests_lack(&mut report);
    println!("\n=== summary");
    for line in &report.lines {
        println!("{line}");
    }
    if report.failed > 0 {
        bail!("{} of {} steps failed", report.failed, report.lines.len());
    }
    Ok(())
}
