//! `check package`: the crates as a registry would serve them.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use serde_json::json;
use sha2::{Digest as _, Sha256};

use crate::check::{Figures, Scale};
use crate::fetch;
use crate::shell;
use crate::tidy::root;

/// The largest package that the registry takes.
const LIMIT: u64 = 10 << 20;

/// Packages that are not published.
const PRIVATE: [&str; 4] = ["xtask", "oss-examples", "oss-testing", "oss-machine"];

const PROGRAM: &str = r#"//! A program outside of the workspace.
use oss_engine::{Engine, Request};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let engine = Engine::from_bytes(oss_demo::GGUF)?;
    let answer = engine.generate(Request::text("Once upon a time").max_tokens(16).greedy())?;
    println!("{}", answer.text);
    Ok(())
}
"#;

/// Packages everything, then builds and runs a program against the packages.
pub(crate) fn run(_: Scale) -> Result<Figures> {
    let packages = shell::target()?.join("package");
    if packages.exists() {
        fs::remove_dir_all(&packages)?;
    }
    let mut command = shell::cargo(&["package", "--workspace", "--no-verify", "--allow-dirty"]);
    shell::run(command.args(PRIVATE.map(|name| format!("--exclude={name}"))))?;

    // Outside of the workspace, and always the same one for this checkout: what is built differs
    // from folder to folder, and stays.
    let scratch = shell::scratch_in(&fetch::cache()?, &outside(&root()))?;
    let mut figures = Figures::new();
    let mut patches = String::new();
    for entry in fs::read_dir(&packages)? {
        let path = entry?.path();
        if path.extension().is_none_or(|extension| extension != "crate") {
            continue;
        }
        let bytes = fs::metadata(&path)?.len();
        let full = path.file_stem().and_then(|stem| stem.to_str()).context("a package's name")?;
        ensure!(bytes <= LIMIT, "{full} has {bytes} bytes, at most {LIMIT} are allowed");
        figures.insert(full.to_owned(), json!(bytes));
        // As files of today: in the archive all are equally old, and cargo would take what it built
        // of earlier ones for theirs.
        let mut unpack = shell::command("tar", &["-xzmf"]);
        shell::run(unpack.arg(&path).arg("-C").arg(scratch.path()))?;
        let name = full.rsplit_once('-').context("a package has a version")?.0;
        patches += &format!("{name} = {{ path = \"../{full}\" }}\n");
    }
    ensure!(!figures.is_empty(), "cargo package left nothing in {}", packages.display());
    let text = build(&scratch.path().join("program"), &patches)?;
    ensure!(!text.trim().is_empty(), "the program outside of the workspace printed nothing");
    figures.insert("program printed".into(), json!(text.trim()));
    Ok(figures)
}

/// The name of a folder beside those of other checkouts.
fn outside(root: &Path) -> String {
    let sum = Sha256::digest(root.as_os_str().as_encoded_bytes());
    let digits: String = sum[..4].iter().map(|byte| format!("{byte:02x}")).collect();
    format!("outside-{digits}")
}

/// Builds and runs a program whose dependencies are the unpacked packages. Hardly anything is
/// optimised: that would take most of the time, and a story of a few words needs none. With the
/// workspace's profile, whose builds of other crates are this program's then.
fn build(folder: &Path, patches: &str) -> Result<String> {
    fs::create_dir_all(folder.join("src"))?;
    fs::write(folder.join("src/main.rs"), PROGRAM)?;
    let manifest = format!(
        "[package]\nname = \"outside\"\nversion = \"0.0.0\"\nedition = \"2024\"\n\n\
         [dependencies]\noss-engine = \"0.1.0\"\noss-demo = \"0.1.0\"\n\n\
         [profile.release]\nstrip = true\n\n\
         [patch.crates-io]\n{patches}\n[workspace]\n"
    );
    fs::write(folder.join("Cargo.toml"), manifest)?;
    // The same compiler, and the same versions of everything else.
    for name in ["rust-toolchain.toml", "Cargo.lock"] {
        fs::copy(root().join(name), folder.join(name))?;
    }
    let mut command = shell::cargo(&["run", "--release", "--quiet"]);
    shell::hardly_optimised(command.current_dir(folder))?;
    shell::output(&mut command)
}

#[cfg(test)]
mod unit {
    use super::*;

    #[test]
    fn two_checkouts_have_a_folder_each() {
        let [one, other] = ["/work/a", "/work/b"].map(|root| outside(Path::new(root)));
        assert_ne!(one, other);
        assert_eq!(one, outside(Path::new("/work/a")));
    }
}
