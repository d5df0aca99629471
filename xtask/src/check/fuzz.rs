//! `check fuzz`: every target of every package under `fuzz/`.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context as _, Result, ensure};
use serde_json::json;

use crate::check::{Figures, Scale};
use crate::shell;
use crate::tidy::root;

/// Fuzzing needs the nightly compiler and cargo-fuzz.
pub(crate) fn missing() -> Option<String> {
    if !shell::has("cargo", &["+nightly", "--version"]) {
        return Some("needs the nightly compiler: rustup toolchain install nightly".to_owned());
    }
    let there = shell::has("cargo", &["+nightly", "fuzz", "--version"]);
    (!there).then(|| "needs cargo-fuzz: cargo install cargo-fuzz".to_owned())
}

/// Runs each target for a while, from its seeds and from what earlier runs found.
pub(crate) fn run(scale: Scale) -> Result<Figures> {
    let seconds = scale.pick(5, 600);
    let mut figures = Figures::new();
    for package in packages()? {
        let folder = package.to_str().context("a path in UTF-8")?;
        let list = ["+nightly", "fuzz", "list", "--fuzz-dir", folder];
        let targets = shell::output(&mut shell::cargo(&list))?;
        for target in targets.lines().map(str::trim).filter(|target| !target.is_empty()) {
            let corpus = package.join("corpus").join(target);
            fs::create_dir_all(&corpus)?;
            let mut command = shell::cargo(&["+nightly", "fuzz", "run", "--fuzz-dir", folder]);
            command.arg(target).arg(&corpus);
            let seeds = package.join("seeds").join(target);
            if seeds.exists() {
                command.arg(seeds);
            }
            let limit = format!("-max_total_time={seconds}");
            command.args(["--", &limit, "-timeout=10", "-rss_limit_mb=2048", "-verbosity=0"]);
            shell::run(&mut command)?;
            figures.insert(target.to_owned(), json!({ "seconds": seconds, "findings": 0 }));
        }
    }
    ensure!(!figures.is_empty(), "no fuzz target found");
    Ok(figures)
}

fn packages() -> Result<Vec<PathBuf>> {
    let mut packages = Vec::new();
    for entry in fs::read_dir(root().join("fuzz")).context("fuzz/")? {
        let path = entry?.path();
        if path.join("Cargo.toml").exists() {
            packages.push(path);
        }
    }
    packages.sort();
    Ok(packages)
}
