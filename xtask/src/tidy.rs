//! Guards the invariants of docs/architecture.md that a compiler does not.
//!
//! The rules read code, not words: comments never count, and neither do tests (files under
//! `tests/`, `benches/` and `fuzz/`, files called `tests.rs`, items under `#[cfg(test)]`) where a
//! rule is about what a crate ships. Names of formats and architectures count inside strings too.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};

mod manifests;
mod rules;
mod source;

use source::Source;

/// One place that breaks a rule.
#[derive(Debug)]
pub(crate) struct Violation {
    path: String,
    line: usize,
    rule: &'static str,
    what: String,
    why: &'static str,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Violation { path, line, rule, what, why } = self;
        write!(f, "{path}:{line}: {rule}: {what} ({why})")
    }
}

/// The root of the workspace.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies in the root").to_owned()
}

/// Prints every violation; an error when there is one.
pub(crate) fn run() -> Result<()> {
    let violations = violations(&root())?;
    for violation in &violations {
        println!("{violation}");
    }
    ensure!(violations.is_empty(), "{} violations", violations.len());
    println!("tidy: nothing to report");
    Ok(())
}

/// All violations in a workspace.
fn violations(root: &Path) -> Result<Vec<Violation>> {
    let mut out = Vec::new();
    let mut files = Vec::new();
    for folder in ["benches", "crates", "examples", "fuzz", "xtask"] {
        walk(&root.join(folder), &mut files)?;
    }
    files.sort();
    for path in files {
        let name = path.strip_prefix(root)?.to_string_lossy().replace('\\', "/");
        let text = || fs::read_to_string(&path).with_context(|| name.clone());
        if name.ends_with(".rs") {
            let source = Source::new(&name, &text()?);
            rules::RULES.iter().for_each(|rule| rule(&source, &mut out));
        } else if name.ends_with("Cargo.toml") && !name.starts_with("fuzz/") {
            manifests::check(&name, &text()?, &mut out);
        }
    }
    manifests::default_tree(root, &mut out)?;
    page(root, &mut out)?;
    Ok(out)
}

/// The layer table of docs/architecture.md is the one that is checked.
fn page(root: &Path, out: &mut Vec<Violation>) -> Result<()> {
    let path = "docs/architecture.md";
    let text = fs::read_to_string(root.join(path)).context(path)?;
    for (name, layer) in manifests::LAYERS {
        let exists = root.join("crates").join(name).exists();
        let shown = if layer == manifests::DEV { "dev".to_owned() } else { layer.to_string() };
        let row = format!("| {shown} | `{name}` |");
        if exists && !text.contains(&row) {
            let what = format!("no row `{row}`");
            let why = "the page tells the layers that tidy checks";
            let path = path.to_owned();
            out.push(Violation { path, line: 1, rule: "page", what, why });
        }
    }
    Ok(())
}

fn walk(folder: &Path, out: &mut Vec<PathBuf>) -> Result<()> {
    let Ok(entries) = fs::read_dir(folder) else { return Ok(()) };
    for entry in entries {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if path.is_dir() {
            if !["target", "data", "corpus"].contains(&name.as_str()) {
                walk(&path, out)?;
            }
        } else if name.ends_with(".rs") || name == "Cargo.toml" {
            out.push(path);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_workspace_is_tidy() {
        let violations = violations(&root()).expect("the workspace can be read");
        let lines: Vec<_> = violations.iter().map(ToString::to_string).collect();
        assert!(lines.is_empty(), "{} violations:\n{}", lines.len(), lines.join("\n"));
    }
}
