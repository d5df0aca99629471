//! `check repro`: where a build stands does not show in its bytes.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use serde_json::json;

use crate::check::{Figures, Scale};
use crate::fetch::sha256;
use crate::shell;
use crate::tidy::root;

/// Builds twice, in folders of different depth, and compares every program.
pub(crate) fn run(scale: Scale) -> Result<Figures> {
    let scratch = shell::scratch("repro")?;
    let [one, other] = ["one", "another/and/deeper"].map(|name| scratch.path().join(name));
    let (one, other) = (build(&one, scale)?, build(&other, scale)?);
    ensure!(!one.is_empty(), "no program was built");
    let names = |programs: &BTreeMap<String, String>| programs.keys().cloned().collect::<Vec<_>>();
    ensure!(names(&one) == names(&other), "{:?} and {:?} were built", names(&one), names(&other));
    let mut figures = Figures::new();
    for (name, sum) in one {
        ensure!(sum == other[&name], "{name} differs: sha256 {sum} and {}", other[&name]);
        figures.insert(format!("sha256 of {name}"), json!(sum));
    }
    Ok(figures)
}

/// Builds in a folder, and gives the sum of each program by its name.
fn build(folder: &Path, scale: Scale) -> Result<BTreeMap<String, String>> {
    copy_tracked(folder)?;
    let all = ["-p", "oss-server", "--examples", "--bins"];
    let which = scale.pick(&["--example", "embed"][..], &all);
    let mut build = shell::cargo(&["build", "--release", "--locked", "-p", "oss-examples"]);
    let target = prepare(build.args(which), folder, scale)?;
    if scale == Scale::Small {
        // What the other folder left: only what both depend on stays.
        let mut clean = shell::cargo(&["clean", "--release", "--locked", "--workspace"]);
        prepare(&mut clean, folder, scale)?;
        shell::run(&mut clean)?;
    }
    shell::run(&mut build)?;
    programs(&target.join("release"), scale)
}

/// Has a command work in a folder, and tells where it builds. At the small scale, where a build
/// stands shows in its paths and hashes, not in its optimisation.
fn prepare(command: &mut Command, folder: &Path, scale: Scale) -> Result<PathBuf> {
    command.current_dir(folder);
    match scale {
        Scale::Small => shell::hardly_optimised(command),
        Scale::Full => {
            let target = folder.join("target");
            command.env("CARGO_TARGET_DIR", &target);
            Ok(target)
        }
    }
}

/// The sums of the programs that were built, by their names.
fn programs(built: &Path, scale: Scale) -> Result<BTreeMap<String, String>> {
    let mut programs = BTreeMap::new();
    for entry in fs::read_dir(built.join("examples"))? {
        let path = entry?.path();
        let name = path.file_name().and_then(|name| name.to_str()).context("a name in UTF-8")?;
        // Cargo leaves each program under two names; the one with a hash and a dot file are not
        // what is run.
        if path.extension().is_none() && !name.contains('-') {
            programs.insert(name.to_owned(), sha256(&path)?);
        }
    }
    if scale == Scale::Full {
        programs.insert("oss-server".to_owned(), sha256(&built.join("oss-server"))?);
    }
    Ok(programs)
}

/// Copies what git tracks, as it stands in the working tree.
fn copy_tracked(folder: &Path) -> Result<()> {
    let list = shell::output(&mut shell::command("git", &["ls-files", "-z"]))?;
    for name in list.split('\0').filter(|name| !name.is_empty()) {
        let (from, to) = (root().join(name), folder.join(name));
        if !from.is_file() {
            continue;
        }
        fs::create_dir_all(to.parent().context("a file has a folder")?)?;
        fs::copy(&from, &to).with_context(|| name.to_owned())?;
    }
    Ok(())
}
