//! `check arm`: the workspace compiles for 64-bit Arm, and tests pass there under emulation.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use serde_json::json;

use crate::check::{Figures, Scale};
use crate::fetch;
use crate::shell::{self, cargo, command};

/// Linked statically by what comes with the compiler: neither a C compiler nor libraries for Arm
/// are needed.
const TARGET: &str = "aarch64-unknown-linux-musl";

/// Processors as the emulator calls them, and the instruction sets that they must be found to have.
const PROCESSORS: [(&str, &str); 2] = [("cortex-a72", "neon"), ("max", "neon,neondot")];

/// The standard library for Arm and an emulator, which are fetched where that is possible.
pub(crate) fn missing() -> Option<String> {
    let found = standard_library().and_then(|()| emulator());
    found.err().map(|error| format!("{error:#}"))
}

/// Compiles the engine, or everything; runs the tests of crates that compute, on each processor.
pub(crate) fn run(scale: Scale) -> Result<Figures> {
    let emulator = emulator()?;
    let all = scale.pick(&["-p", "oss-engine"], &["--workspace", "--all-targets"]);
    shell::run(&mut on_target("check", all))?;
    // The kernels take minutes to compile and to run under emulation.
    let packages = ["oss-simd", "oss-quant", "oss-kernels", "oss-model"];
    let packages = &packages[..scale.pick(1, packages.len())];
    for (processor, isas) in PROCESSORS {
        let mut test = on_target("test", &[]);
        test.args(packages.iter().flat_map(|package| ["-p", package]));
        test.env(variable("RUNNER"), format!("{} -cpu {processor}", emulator.display()));
        shell::run(test.env("OSS_REQUIRE_ISA", isas))?;
    }
    let version = shell::output(Command::new(&emulator).arg("--version"))?;
    let version = version.lines().next().unwrap_or_default();
    Ok(Figures::from_iter([
        ("emulator".to_owned(), json!(version)),
        ("crates tested".to_owned(), json!(packages.join(", "))),
    ]))
}

/// A cargo command for the target, linked by the compiler's own linker.
fn on_target(what: &str, arguments: &[&str]) -> Command {
    let mut command = cargo(&[what, "--locked", "--target", TARGET]);
    command.args(arguments).env(variable("LINKER"), "rust-lld");
    command
}

/// The name by which cargo's environment knows a setting of the target.
fn variable(setting: &str) -> String {
    format!("CARGO_TARGET_{}_{setting}", TARGET.to_uppercase().replace('-', "_"))
}

/// Installs the standard library for Arm unless it is there.
fn standard_library() -> Result<()> {
    let mut ask = command("rustc", &["--print", "target-libdir", "--target", TARGET]);
    let folder = shell::output(ask.env_remove("RUSTUP_TOOLCHAIN"))?;
    if Path::new(folder.trim()).exists() {
        return Ok(());
    }
    let mut add = command("rustup", &["target", "add", TARGET]);
    let added = shell::output(add.env_remove("RUSTUP_TOOLCHAIN"));
    added.context("needs the standard library for Arm").map(|_| ())
}

/// QEMU for programs: installed, fetched before, or fetched now from the system's packages.
fn emulator() -> Result<PathBuf> {
    let fetched = fetch::cache()?.join("qemu-aarch64-static");
    let known = [Path::new("qemu-aarch64-static"), Path::new("qemu-aarch64"), &fetched];
    let runs = |program: &&Path| shell::has(&program.to_string_lossy(), &["--version"]);
    if let Some(program) = known.into_iter().find(runs) {
        return Ok(program.to_owned());
    }
    from_debian(&fetched).context("needs an emulator: apt-get install qemu-user-static")?;
    Ok(fetched)
}

/// Unpacks QEMU from Debian's package, whose signature `apt-get` checks; nothing is installed.
fn from_debian(program: &Path) -> Result<()> {
    let scratch = fetch::scratch()?;
    let mut download = command("apt-get", &["download", "--quiet", "qemu-user-static"]);
    shell::output(download.current_dir(scratch.path()))?;
    let packages: Vec<_> = fs::read_dir(scratch.path())?.collect::<std::io::Result<_>>()?;
    ensure!(packages.len() == 1, "apt-get left {} files, expected 1", packages.len());
    let mut unpack = command("dpkg-deb", &["--extract"]);
    shell::output(unpack.arg(packages[0].path()).arg(scratch.path()))?;
    fs::rename(scratch.path().join("usr/bin/qemu-aarch64-static"), program)?;
    Ok(())
}
