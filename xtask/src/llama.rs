//! llama.cpp, the peer: its pinned source, built for this machine as its users build it.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

use crate::fetch;
use crate::record::field;
use crate::shell;

/// The package whose source archive brings llama.cpp along.
pub(crate) const PACKAGE: &str = "llama-cpp-python==0.3.36";
const SHA256: &str = "832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e";

/// Its tools that are built: speed of one sequence, of many, and plain text.
const TOOLS: [&str; 3] = ["llama-bench", "llama-batched-bench", "llama-simple"];

/// The folder of the build. Its kernels for AMX are left out: those of this version end by SIGILL
/// (tiles used before they are configured), and the ones for AVX-512 run on the same machines.
const BUILD: &str = "build-without-amx";

/// The file in [`BUILD`] that names the CPU whose native instructions it has.
const BUILT_FOR: &str = "built-for";

/// What the beginnings of lines of `/proc/cpuinfo` are that tell CPUs apart, on x86-64 and Arm.
const OF_CPU: [&str; 5] = ["model name", "flags", "CPU implementer", "CPU part", "Features"];

/// What to say where it has not been built.
const NOT_BUILT: &str =
    "llama.cpp is not built: cargo xtask compare --build (10 to 20 minutes, needs a C++ compiler)";

/// A built llama.cpp.
pub(crate) struct Llama {
    /// Where its programs lie.
    programs: PathBuf,
}

impl Llama {
    /// The one in the cache directory, if it has been built for this CPU.
    pub(crate) fn built() -> Result<Llama> {
        let build = folder()?.join(BUILD);
        let programs = build.join("bin");
        ensure!(TOOLS.iter().all(|tool| programs.join(tool).is_file()), NOT_BUILT);
        check_cpu(&build, &cpu())?;
        Ok(Llama { programs })
    }

    /// Fetches and builds what is not there yet. Quick when everything is. A build for another CPU
    /// is made anew where `anew` says so, as it takes long.
    pub(crate) fn build(anew: bool) -> Result<Llama> {
        let folder = folder()?;
        if !folder.join("vendor").exists() {
            unpack(&folder)?;
        }
        let (build, cpu) = (folder.join(BUILD), cpu());
        let shown = || build.display().to_string();
        if build.exists() {
            match check_cpu(&build, &cpu) {
                Err(_) if anew => fs::remove_dir_all(&build).with_context(shown)?,
                checked => checked?,
            }
        }
        let tools = BuildTools::find(&folder)?;
        if !build.join("build.ninja").exists() {
            // First: each file is compiled for the CPU that it is compiled on.
            fs::create_dir_all(&build).with_context(shown)?;
            fs::write(build.join(BUILT_FOR), cpu).with_context(shown)?;
            shell::run(&mut tools.configure(&folder))?;
        }
        let mut command = tools.cmake(&folder, &["--build", BUILD, "--target"]);
        shell::run(command.args(TOOLS))?;
        Self::built().context("after the build of llama.cpp")
    }

    /// One of its programs.
    pub(crate) fn tool(&self, name: &str, arguments: &[&str]) -> Result<Command> {
        ensure!(TOOLS.contains(&name), "`{name}` is not built; there are {}", TOOLS.join(", "));
        Ok(shell::command(self.programs.join(name), arguments))
    }
}

/// Where it is unpacked and built: `vendor/llama.cpp`, [`BUILD`], `venv`.
fn folder() -> Result<PathBuf> {
    Ok(fetch::cache()?.join(PACKAGE.replace("==", "-")))
}

/// Refuses a build for another CPU than this: it may end by SIGILL, or do without instructions that
/// are there.
fn check_cpu(build: &Path, here: &str) -> Result<()> {
    // One from before there was such a file may be for any CPU.
    let built_for = fs::read_to_string(build.join(BUILT_FOR)).unwrap_or_default();
    ensure!(
        built_for == here,
        "llama.cpp: got a build for {}, expected one for {}{}; make it anew: \
         cargo xtask compare --build (10 to 20 minutes)",
        name(&built_for),
        name(here),
        differing(&built_for, here)
    );
    Ok(())
}

/// What tells this CPU from others; nothing where the system does not tell.
fn cpu() -> String {
    cpu_of(&fs::read_to_string("/proc/cpuinfo").unwrap_or_default())
}

/// The lines about the first CPU that tell it from others.
fn cpu_of(cpuinfo: &str) -> String {
    let first = cpuinfo.split("\n\n").next().unwrap_or_default();
    let tells = |line: &&str| OF_CPU.iter().any(|begin| line.starts_with(begin));
    first.lines().filter(tells).map(|line| format!("{line}\n")).collect()
}

/// The name of a CPU.
fn name(cpu: &str) -> &str {
    field(cpu, "model name").unwrap_or("an unknown CPU")
}

/// The first of the features that one CPU has and another of the same name lacks, for an error.
fn differing(one: &str, other: &str) -> String {
    if name(one) != name(other) {
        return String::new();
    }
    let [one, other] = [one, other].map(|cpu| cpu.split_whitespace().collect::<BTreeSet<_>>());
    let features: Vec<&str> = one.symmetric_difference(&other).copied().take(5).collect();
    format!(" that differs in {}", features.join(", "))
}

/// Fetches the source; the folder appears when it is whole.
fn unpack(folder: &Path) -> Result<()> {
    let scratch = fetch::scratch()?;
    eprintln!("fetching {PACKAGE} into {}", folder.display());
    let download = scratch.path().join("download");
    let archive = fetch::source(PACKAGE, SHA256, &download)?;
    let into = scratch.path().join("unpacked");
    let mut command = shell::command(fetch::python()?, &["-m", "tarfile", "-e"]);
    shell::output(command.arg(&archive).arg(&into))?;
    let inner =
        into.join(PACKAGE.replace("==", "-").replace("llama-cpp-python", "llama_cpp_python"));
    fs::rename(&inner, folder).with_context(|| inner.display().to_string())
}

/// cmake and ninja: those on the PATH, or a private copy.
struct BuildTools {
    cmake: PathBuf,
    ninja: PathBuf,
}

impl BuildTools {
    fn find(folder: &Path) -> Result<BuildTools> {
        let compiler =
            ["c++", "g++", "clang++"].iter().any(|name| shell::has(name, &["--version"]));
        ensure!(compiler, "no C++ compiler on the PATH: install g++ or clang++ to build llama.cpp");
        if shell::has("cmake", &["--version"]) && shell::has("ninja", &["--version"]) {
            return Ok(BuildTools { cmake: "cmake".into(), ninja: "ninja".into() });
        }
        let environment = folder.join("venv");
        let own = BuildTools {
            cmake: environment.join("bin/cmake"),
            ninja: environment.join("bin/ninja"),
        };
        if !own.cmake.exists() || !own.ninja.exists() {
            eprintln!("no cmake and ninja on the PATH: fetching them");
            shell::output(shell::command(fetch::python()?, &["-m", "venv"]).arg(&environment))?;
            let python = environment.join("bin/python");
            let mut install = Command::new(&python);
            install.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]);
            shell::output(install.args(["cmake==4.4.4", "ninja==1.13.2"]))?;
        }
        Ok(own)
    }

    fn cmake(&self, folder: &Path, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.cmake);
        command.args(arguments).current_dir(folder);
        command
    }

    /// Release and native, as everybody builds it; without what only downloads and servers need.
    fn configure(&self, folder: &Path) -> Command {
        let source = ["-S", "vendor/llama.cpp", "-B", BUILD, "-G", "Ninja"];
        let mut command = self.cmake(folder, &source);
        command.arg(format!("-DCMAKE_MAKE_PROGRAM={}", self.ninja.display()));
        command.args(["-DCMAKE_BUILD_TYPE=Release", "-DGGML_NATIVE=ON"]);
        command.arg("-DCMAKE_CXX_FLAGS=-U__AMX_INT8__");
        let without = ["OPENSSL", "BUILD_SERVER", "BUILD_APP", "BUILD_TESTS", "USE_PREBUILT_UI"];
        command.args(without.map(|name| format!("-DLLAMA_{name}=OFF")));
        command
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_build_for_another_cpu_names_both_and_what_to_do() {
        let cpuinfo = "processor\t: 0\nmodel\t\t: 1\nmodel name\t: Old 3\nflags\t\t: sse2 avx\n\n\
                       processor\t: 1\nmodel name\t: Old 3\n";
        let old = cpu_of(cpuinfo);
        assert_eq!(old, "model name\t: Old 3\nflags\t\t: sse2 avx\n");
        let folder = tempfile::tempdir().expect("a folder");
        let error = |cpu: &str| {
            let error = check_cpu(folder.path(), cpu).expect_err("another CPU").to_string();
            assert!(error.contains("cargo xtask compare --build"), "{error}");
            error
        };
        let unknown = error(&old);
        assert!(unknown.contains("for an unknown CPU, expected one for Old 3;"), "{unknown}");
        fs::write(folder.path().join(BUILT_FOR), &old).expect("a file");
        check_cpu(folder.path(), &old).expect("this CPU");
        let new = error(&old.replace("Old 3", "New 4"));
        assert!(new.contains("a build for Old 3, expected one for New 4;"), "{new}");
        let more = error(&old.replace("avx", "avx avx2"));
        assert!(more.contains("for Old 3 that differs in avx2;"), "{more}");
    }
}
