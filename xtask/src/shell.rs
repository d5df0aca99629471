//! Running other programs from the root of the workspace.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{Read as _, Seek as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::Value as Json;
use tempfile::TempDir;

use crate::record::field;
use crate::tidy::root;

/// A command that runs in the root.
pub(crate) fn command(program: impl AsRef<OsStr>, arguments: &[&str]) -> Command {
    let mut command = Command::new(program);
    command.args(arguments).current_dir(root());
    command
}

/// A command whose figures are kept: it runs on the best instruction set, whatever this one was
/// told, unless the caller names another.
pub(crate) fn measured(program: impl AsRef<OsStr>, arguments: &[&str]) -> Command {
    let mut command = command(program, arguments);
    command.env_remove("OSS_ISA");
    command
}

/// A cargo command that runs in the root, with the toolchain that is pinned there.
pub(crate) fn cargo(arguments: &[&str]) -> Command {
    let mut command = command("cargo", arguments);
    // Set by the cargo that started this program; a `+nightly` below must win.
    command.env_remove("RUSTUP_TOOLCHAIN").env_remove("CARGO");
    command
}

/// Makes a release build leave out LLVM's passes, for checks of other things than speed, and gives
/// the folder that such builds share, so that what they depend on is built once. The compiler's own
/// passes stay: without these it translates each small function again for every instance of the
/// kernels, which takes 220 s where this takes 80.
pub(crate) fn hardly_optimised(build: &mut Command) -> Result<PathBuf> {
    build.env("CARGO_PROFILE_RELEASE_OPT_LEVEL", "1");
    build.env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "16");
    // Cargo would take those instead.
    build.env_remove("CARGO_ENCODED_RUSTFLAGS").env("RUSTFLAGS", "-C no-prepopulate-passes");
    let folder = target()?.join("hardly-optimised");
    build.env("CARGO_TARGET_DIR", &folder);
    Ok(folder)
}

/// Runs a command whose output goes to the terminal.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    let shown = shown(command);
    let status = command.status().with_context(|| format!("cannot run {shown}"))?;
    ensure!(status.success(), "{shown}: {status}");
    Ok(())
}

/// Runs a command and returns what it prints.
pub(crate) fn output(command: &mut Command) -> Result<String> {
    let shown = shown(command);
    let output = command.stdin(Stdio::null()).output();
    let output = output.with_context(|| format!("cannot run {shown}"))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!("{shown}: {}\n{}", output.status, said.trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Between two looks at how much memory a process has.
const SHORTEST: Duration = Duration::from_millis(5);
const LONGEST: Duration = Duration::from_secs(1);

/// Runs a command and returns what it prints and the most memory it has had resident, in bytes;
/// 0 where the system has no `/proc` to read that from.
pub(crate) fn watched(command: &mut Command) -> Result<(String, u64)> {
    let shown = shown(command);
    let mut printed = tempfile::tempfile()?;
    let mut said = tempfile::tempfile()?;
    command.stdin(Stdio::null()).stdout(printed.try_clone()?).stderr(said.try_clone()?);
    let mut child = command.spawn().with_context(|| format!("cannot run {shown}"))?;
    let (process, ended) = (child.id(), AtomicBool::new(false));
    let (status, peak) = thread::scope(|scope| {
        let watcher = scope.spawn(|| {
            let (begin, mut peak) = (Instant::now(), 0);
            while !ended.load(Ordering::Relaxed) {
                peak = peak.max(high_water(process).unwrap_or(0));
                // Looks take time from what is measured: the longer it runs, the fewer.
                thread::park_timeout((begin.elapsed() / 16).clamp(SHORTEST, LONGEST));
            }
            peak
        });
        let status = child.wait();
        ended.store(true, Ordering::Relaxed);
        watcher.thread().unpark();
        (status, watcher.join().expect("the watcher does not panic"))
    });
    let status = status?;
    if !status.success() {
        bail!("{shown}: {status}\n{}", text(&mut said)?.trim());
    }
    Ok((text(&mut printed)?, peak))
}

/// All that has been written to a file.
fn text(file: &mut File) -> Result<String> {
    let mut bytes = Vec::new();
    file.rewind()?;
    file.read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// The largest resident size that a process has had, in bytes.
fn high_water(process: u32) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    Some(field(&status, "VmHWM")?.strip_suffix(" kB")?.parse::<u64>().ok()? * 1024)
}

/// Whether a program runs with these arguments, such as `--version`.
pub(crate) fn has(program: &str, arguments: &[&str]) -> bool {
    output(command(program, arguments).env_remove("RUSTUP_TOOLCHAIN")).is_ok()
}

/// Where cargo builds, as it says itself: variables and files of configuration may name another
/// folder than `target`.
pub(crate) fn target() -> Result<PathBuf> {
    static TARGET: OnceLock<PathBuf> = OnceLock::new();
    if let Some(target) = TARGET.get() {
        return Ok(target.clone());
    }
    let told = output(&mut cargo(&["metadata", "--no-deps", "--format-version", "1"]))?;
    let told: Json = serde_json::from_str(&told).context("what cargo metadata printed")?;
    let target = told["target_directory"].as_str().context("cargo names no target directory")?;
    Ok(TARGET.get_or_init(|| target.into()).clone())
}

/// A folder under [`target`], as [`scratch_in`].
pub(crate) fn scratch(name: &str) -> Result<TempDir> {
    scratch_in(&target()?.join("scratch"), name)
}

/// A folder in another one, empty, and gone when it is dropped. What a run that was interrupted has
/// left there goes first.
pub(crate) fn scratch_in(parent: &Path, name: &str) -> Result<TempDir> {
    let folder = parent.join(name);
    let shown = || folder.display().to_string();
    if folder.exists() {
        fs::remove_dir_all(&folder).with_context(shown)?;
    }
    fs::create_dir_all(parent).with_context(shown)?;
    tempfile::Builder::new().prefix(name).rand_bytes(0).tempdir_in(parent).with_context(shown)
}

/// How an example is built.
#[derive(Clone, Copy)]
pub(crate) enum Profile {
    /// As the workspace's tests are, by the same features: its dependencies are there already.
    Dev,
    /// As users do.
    Release,
}

/// Builds an example and gives its program.
pub(crate) fn example(name: &str, profile: Profile) -> Result<PathBuf> {
    let folder = build(&["--example", name], "oss-examples", profile)?;
    Ok(folder.join("examples").join(name))
}

/// Builds a crate's program of the same name.
pub(crate) fn program(name: &str, profile: Profile) -> Result<PathBuf> {
    // Beside an example the crates have the features that tests have.
    let what: &[&str] = match profile {
        Profile::Dev => &["--bin", name, "--example", "embed"],
        Profile::Release => &["--bin", name],
    };
    Ok(build(what, name, profile)?.join(name))
}

/// Builds what a package has, and gives the profile's folder.
fn build(what: &[&str], package: &str, profile: Profile) -> Result<PathBuf> {
    let (options, folder): (&[&str], _) = match profile {
        Profile::Dev => (&["--workspace"], "debug"),
        Profile::Release => (&["--release", "-p", package], "release"),
    };
    run(cargo(&["build"]).args(what).args(options))?;
    Ok(target()?.join(folder))
}

fn shown(command: &Command) -> String {
    let parts = std::iter::once(command.get_program()).chain(command.get_args());
    parts.map(|part| part.to_string_lossy()).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_watched_command_gives_its_output_and_its_memory_or_what_it_complained_of() {
        let (printed, peak) = watched(&mut cargo(&["--version"])).expect("cargo runs");
        assert!(printed.starts_with("cargo "), "{printed}");
        if fs::metadata("/proc/self/status").is_ok() {
            assert!(peak > 100_000, "{peak}");
        }
        let error = watched(&mut cargo(&["no-such-command"])).expect_err("no such command");
        assert!(error.to_string().contains("no-such-command"), "{error}");
    }

    #[test]
    fn measured_commands_have_only_a_named_instruction_set_and_builds_no_flags_of_others() {
        let variable = |command: &Command, name: &str| {
            let found = command.get_envs().find(|(key, _)| *key == name);
            found.map(|(_, value)| value.map(OsStr::to_owned))
        };
        assert_eq!(variable(&command("true", &[]), "OSS_ISA"), None);
        let mut plain = measured("true", &[]);
        assert_eq!(variable(&plain, "OSS_ISA"), Some(None));
        plain.env("OSS_ISA", "avx2");
        assert_eq!(variable(&plain, "OSS_ISA"), Some(Some("avx2".into())));
        let mut build = cargo(&["build"]);
        hardly_optimised(&mut build).expect("a folder");
        assert_eq!(variable(&build, "CARGO_ENCODED_RUSTFLAGS"), Some(None));
    }

    #[test]
    fn cargo_tells_where_it_builds() {
        let mut ask = cargo(&["metadata", "--no-deps", "--format-version", "1"]);
        let told = output(ask.env("CARGO_TARGET_DIR", "/elsewhere")).expect("cargo runs");
        assert!(told.contains("\"target_directory\":\"/elsewhere\""), "{told}");
        assert!(target().expect("a folder").is_absolute());
    }

    #[test]
    fn a_scratch_folder_begins_empty_where_an_earlier_one_was_left() {
        let folder = scratch("of-a-test").expect("a folder");
        assert!(folder.path().ends_with("scratch/of-a-test"), "{}", folder.path().display());
        fs::write(folder.path().join("file"), "left").expect("a file");
        let left = folder.keep();
        let folder = scratch("of-a-test").expect("a folder");
        assert_eq!(folder.path(), left);
        assert!(!left.join("file").exists());
        drop(folder);
        assert!(!left.exists());
    }
}
