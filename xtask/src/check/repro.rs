//! `check repro`: where a build stands does not show in its bytes.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use serde_json::json;

use crate::check::{Figures, Scale};
use crate::fetch::sha256;
use crate::shell;
use crate::tidy::root;

/// Where programs lie below the folder that they are built in.
const BUILT: &str = "target/release";

/// Builds twice, in folders of different depth, and compares every program.
pub(crate) fn run(scale: Scale) -> Result<Figures> {
    let scratch = shell::scratch("repro")?;
    let folders = ["one", "another/and/deeper"].map(|name| scratch.path().join(name));
    for folder in &folders {
        copy_tracked(folder)?;
        let all = ["-p", "oss-server", "--examples", "--bins"];
        let which = scale.pick(&["--example", "embed"][..], &all);
        let mut command = shell::cargo(&["build", "--release", "--locked", "-p", "oss-examples"]);
        command.args(which).current_dir(folder).env("CARGO_TARGET_DIR", folder.join("target"));
        if scale == Scale::Small {
            // Where a build stands shows in its paths and hashes, not in its optimisation.
            shell::hardly_optimised(&mut command);
        }
        shell::run(&mut command)?;
    }
    let mut names = examples(&folders[0])?;
    ensure!(!names.is_empty(), "no example was built");
    if scale == Scale::Full {
        names.push("oss-server".to_owned());
    }
    let mut figures = Figures::new();
    for name in names {
        let program = match name.as_str() {
            "oss-server" => Path::new(BUILT).join(&name),
            _ => Path::new(BUILT).join("examples").join(&name),
        };
        let sums = [sha256(&folders[0].join(&program))?, sha256(&folders[1].join(&program))?];
        ensure!(sums[0] == sums[1], "{name} differs: sha256 {} and {}", sums[0], sums[1]);
        figures.insert(format!("sha256 of {name}"), json!(sums[0]));
    }
    Ok(figures)
}

/// The names of the examples that were built in a folder.
fn examples(folder: &Path) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(folder.join(BUILT).join("examples"))? {
        let path = entry?.path();
        let name = path.file_name().and_then(|name| name.to_str()).context("a name in UTF-8")?;
        // Cargo leaves each program under two names; the one with a hash and a dot file are not
        // what is run.
        if path.extension().is_none() && !name.contains('-') {
            names.push(name.to_owned());
        }
    }
    names.sort_unstable();
    Ok(names)
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
