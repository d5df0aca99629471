//! llama.cpp, the peer: its pinned source, built for this machine as its users build it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

use crate::fetch;
use crate::shell;

/// The package whose source archive brings llama.cpp along.
pub(crate) const PACKAGE: &str = "llama-cpp-python==0.3.36";
const SHA256: &str = "832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e";

/// Its tools that are built: speed of one sequence, of many, and plain text.
const TOOLS: [&str; 3] = ["llama-bench", "llama-batched-bench", "llama-simple"];

/// The folder of the build. Its kernels for AMX are left out: those of this version end by SIGILL
/// (tiles used before they are configured), and the ones for AVX-512 run on the same machines.
const BUILD: &str = "build-without-amx";

/// What to say where it has not been built.
pub(crate) const NOT_BUILT: &str =
    "llama.cpp is not built: cargo xtask compare --build (10 to 20 minutes, needs a C++ compiler)";

/// A built llama.cpp.
pub(crate) struct Llama {
    /// Where its programs lie.
    programs: PathBuf,
}

impl Llama {
    /// The one in the cache directory, if it has been built.
    pub(crate) fn built() -> Option<Llama> {
        let programs = folder().ok()?.join(BUILD).join("bin");
        TOOLS.iter().all(|tool| programs.join(tool).is_file()).then_some(Llama { programs })
    }

    /// Fetches and builds what is not there yet. Quick when everything is.
    pub(crate) fn build() -> Result<Llama> {
        let folder = folder()?;
        if !folder.join("vendor").exists() {
            unpack(&folder)?;
        }
        let tools = BuildTools::find(&folder)?;
        if !folder.join(BUILD).join("build.ninja").exists() {
            shell::run(&mut tools.configure(&folder))?;
        }
        let mut build = tools.cmake(&folder, &["--build", BUILD, "--target"]);
        shell::run(build.args(TOOLS))?;
        Self::built().context("the build of llama.cpp left no programs")
    }

    /// One of its programs.
    pub(crate) fn tool(&self, name: &str, arguments: &[&str]) -> Result<Command> {
        ensure!(TOOLS.contains(&name), "`{name}` is not built; there are {}", TOOLS.join(", "));
        let program = self.programs.join(name);
        Ok(shell::command(program.to_str().context("the cache's path is no UTF-8")?, arguments))
    }
}

/// Where it is unpacked and built: `vendor/llama.cpp`, [`BUILD`], `venv`.
fn folder() -> Result<PathBuf> {
    Ok(fetch::cache()?.join(PACKAGE.replace("==", "-")))
}

/// Fetches the source; the folder appears when it is whole.
fn unpack(folder: &Path) -> Result<()> {
    let cache = fetch::cache()?;
    fs::create_dir_all(&cache).with_context(|| cache.display().to_string())?;
    eprintln!("fetching {PACKAGE} into {}", folder.display());
    let scratch = tempfile::tempdir_in(&cache)?;
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
