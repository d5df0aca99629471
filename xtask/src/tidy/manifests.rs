//! The rules over manifests: the layer table, the shared lints, and the tree without C.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value as Json;

use crate::tidy::Violation;
use crate::tidy::rules::WITHOUT_UNIT_TESTS;

/// The layer of what is a dependency of tests, benches and examples alone.
pub(crate) const DEV: u8 = 6;

/// The layer of each crate, as docs/architecture.md tells them. A crate uses only lower layers.
pub(crate) const LAYERS: [(&str, u8); 15] = [
    ("oss-simd", 0),
    ("oss-threads", 0),
    ("oss-memory", 0),
    ("oss-text", 0),
    ("oss-demo", 0),
    ("oss-quant", 1),
    ("oss-kernels", 2),
    ("oss-cache", 2),
    ("oss-weights", 2),
    ("oss-model", 3),
    ("oss-sampler", 3),
    ("oss-engine", 4),
    ("oss-server", 5),
    ("oss-testing", DEV),
    ("oss-machine", DEV),
];

/// What tests and benches may use from anywhere.
const FOR_TESTS: [&str; 3] = ["oss-testing", "oss-machine", "oss-demo"];

/// Packages that build or bind C and C++.
const C_TOOLS: [&str; 8] =
    ["cc", "cmake", "bindgen", "pkg-config", "vcpkg", "nasm-rs", "autotools", "cxx-build"];

/// Packages that say `links` only so that cargo takes one version of them.
const PURE_LINKS: [&str; 1] = ["rayon-core"];

/// The layer of a crate of the workspace.
fn layer(name: &str) -> Option<u8> {
    LAYERS.iter().find(|(known, _)| *known == name).map(|(_, layer)| *layer)
}

/// The rules over one manifest's text.
pub(crate) fn check(path: &str, text: &str, out: &mut Vec<Violation>) {
    let name = path.trim_end_matches("/Cargo.toml").rsplit('/').next().unwrap_or("");
    if path.starts_with("crates/") && layer(name).is_none() {
        let what = format!("{name} has no row in the layer table");
        let why = "nothing says what it may use";
        out.push(Violation { path: path.to_owned(), line: 1, rule: "layers", what, why });
    }
    let mut section = "";
    let mut lints = false;
    for (index, line) in text.lines().enumerate() {
        let line = line.split('#').next().unwrap_or("").trim();
        if line.starts_with('[') {
            section = line.trim_matches(['[', ']']);
            continue;
        }
        lints |= section == "lints" && line.replace(' ', "") == "workspace=true";
        let off = section == "lib" && line.replace(' ', "") == "test=false";
        if off && !WITHOUT_UNIT_TESTS.contains(&name) {
            let what = format!("{name} is not built as tests");
            let why = "tests beside the code would be skipped silently";
            let (path, line) = (path.to_owned(), index + 1);
            out.push(Violation { path, line, rule: "tests-that-run", what, why });
        }
        let kind = section.rsplit('.').next().unwrap_or("");
        let Some(used) = line.split(['.', '=', ' ']).next().filter(|used| used.starts_with("oss-"))
        else {
            continue;
        };
        let fault = match kind {
            "dependencies" => normal(name, used),
            "dev-dependencies" | "build-dependencies" => for_tests(name, used),
            _ => None,
        };
        if let Some(why) = fault {
            let what = format!("{name} uses {used}");
            let (path, line) = (path.to_owned(), index + 1);
            out.push(Violation { path, line, rule: "layers", what, why });
        }
    }
    if !lints {
        let what = "no `[lints] workspace = true`".to_owned();
        let why = "every package obeys the workspace's lints";
        out.push(Violation { path: path.to_owned(), line: 1, rule: "lints", what, why });
    }
}

fn normal(name: &str, used: &str) -> Option<&'static str> {
    let own = layer(name)?;
    match layer(used) {
        Some(DEV) => Some("it is a dependency of tests and benches alone"),
        _ if used == "oss-demo" => Some("the demo model is a dependency of examples and tests"),
        None => Some("the crate has no row in the layer table"),
        Some(_) if name == "oss-server" && used != "oss-engine" => {
            Some("the server sees the facade alone")
        }
        Some(other) if other >= own => Some("a crate uses only lower layers"),
        Some(_) => None,
    }
}

fn for_tests(name: &str, used: &str) -> Option<&'static str> {
    if FOR_TESTS.contains(&used) || used == name {
        return None;
    }
    match (layer(name), layer(used)) {
        (Some(own), Some(other)) if other >= own => Some("tests too use only lower layers"),
        _ => None,
    }
}

/// No C or C++ in what a program that embeds the facade, or serves it, builds; no async runtime in
/// the former.
pub(crate) fn default_tree(root: &Path, out: &mut Vec<Violation>) -> Result<()> {
    let mut names = tree(root, "oss-engine", "normal,build")?;
    if names.contains("tokio") {
        out.push(fault("tokio", "library crates start no async runtime"));
    }
    names.extend(tree(root, "oss-server", "normal,build")?);
    names.extend(tree(root, "oss-examples", "normal,build,dev")?);
    for name in names.iter().filter(|name| C_TOOLS.contains(&name.as_str())) {
        out.push(fault(name, "the default tree needs no C compiler"));
    }
    for name in linking(root)?.intersection(&names) {
        if !PURE_LINKS.contains(&name.as_str()) {
            out.push(fault(name, "the default tree links no foreign library"));
        }
    }
    Ok(())
}

fn fault(name: &str, why: &'static str) -> Violation {
    let what = format!("{name} in the default dependency tree");
    Violation { path: "Cargo.lock".to_owned(), line: 1, rule: "no-c", what, why }
}

fn cargo(root: &Path, arguments: &[&str]) -> Result<String> {
    let program = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(program).args(arguments).current_dir(root).output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "cargo {}: {}", arguments.join(" "), said.trim());
    Ok(String::from_utf8(output.stdout)?)
}

/// The names of the packages below one, features off.
fn tree(root: &Path, package: &str, edges: &str) -> Result<BTreeSet<String>> {
    let shape = ["--prefix", "none", "--format", "{p}", "--edges", edges];
    let text = cargo(root, &[&["tree", "--locked", "-p", package][..], &shape].concat())?;
    Ok(text.lines().filter_map(|line| line.split(' ').next()).map(str::to_owned).collect())
}

/// The names of all packages whose manifest says `links`.
fn linking(root: &Path) -> Result<BTreeSet<String>> {
    let text = cargo(root, &["metadata", "--locked", "--format-version", "1"])?;
    let json: Json = serde_json::from_str(&text)?;
    let packages = json["packages"].as_array().context("cargo metadata lists no packages")?;
    let linking = packages.iter().filter(|package| !package["links"].is_null());
    Ok(linking.filter_map(|package| package["name"].as_str()).map(str::to_owned).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn broken(path: &str, dependencies: &str) -> Vec<(&'static str, usize)> {
        let mut out = Vec::new();
        check(path, &format!("[lints]\nworkspace = true\n{dependencies}"), &mut out);
        out.iter().map(|violation| (violation.rule, violation.line)).collect()
    }

    #[test]
    fn a_crate_uses_only_lower_layers() {
        let text = "[dependencies]\noss-simd.workspace = true\noss-cache = { path = \"x\" }";
        assert_eq!(broken("crates/oss-weights/Cargo.toml", text), [("layers", 5)]);
        assert_eq!(broken("crates/oss-model/Cargo.toml", text), []);
        let target = "[target.'cfg(unix)'.dependencies]\noss-engine.workspace = true";
        assert_eq!(broken("crates/oss-model/Cargo.toml", target), [("layers", 4)]);
    }

    #[test]
    fn a_crate_has_a_row_in_the_layer_table() {
        assert_eq!(broken("crates/oss-new/Cargo.toml", ""), [("layers", 1)]);
        assert_eq!(broken("examples/Cargo.toml", ""), []);
    }

    #[test]
    fn the_demo_model_and_the_test_helpers_are_for_tests() {
        for used in FOR_TESTS {
            let normal = format!("[dependencies]\n{used}.workspace = true");
            assert_eq!(broken("crates/oss-engine/Cargo.toml", &normal), [("layers", 4)]);
            assert_eq!(broken("examples/Cargo.toml", &normal), []);
            let dev = format!("[dev-dependencies]\n{used}.workspace = true");
            assert_eq!(broken("crates/oss-text/Cargo.toml", &dev), []);
        }
        let up = "[dev-dependencies]\noss-engine.workspace = true";
        assert_eq!(broken("crates/oss-text/Cargo.toml", up), [("layers", 4)]);
    }

    #[test]
    fn the_server_sees_the_facade_alone() {
        let text = "[dependencies]\noss-engine.workspace = true\noss-text.workspace = true";
        assert_eq!(broken("crates/oss-server/Cargo.toml", text), [("layers", 5)]);
    }

    #[test]
    fn libraries_are_built_as_tests_where_they_may_have_some() {
        let text = "[lib]\ntest = false";
        assert_eq!(broken("crates/oss-quant/Cargo.toml", text), [("tests-that-run", 4)]);
        assert_eq!(broken("crates/oss-kernels/Cargo.toml", text), []);
    }

    #[test]
    fn every_package_obeys_the_lints() {
        let mut out = Vec::new();
        check("crates/oss-text/Cargo.toml", "[package]\nname = \"oss-text\"", &mut out);
        assert_eq!(out[0].rule, "lints");
    }
}
