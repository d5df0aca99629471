//! The synthetic files of checks: small ones for the check alone, large ones kept in the cache.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use oss_weights::packed::{Reader, VERSION};
use tempfile::TempDir;

use crate::check::Scale;
use crate::fetch;
use crate::shell;
use crate::synth::{Format, GENERATOR, Options, Routing, write};

/// A file, there as long as this is.
pub(crate) struct Synthetic {
    pub(crate) path: PathBuf,
    /// None: in the cache, where it stays.
    _scratch: Option<TempDir>,
}

/// A GGUF file of a shape.
pub(crate) fn gguf(shape: &str, scale: Scale) -> Result<Synthetic> {
    let name = format!("synth-{shape}-{GENERATOR}.gguf");
    made(scale, &name, |path| write(&Options::new(shape, Format::Gguf, path.into())).map(|_| ()))
}

/// A packed file whose routers prefer some experts.
pub(crate) fn packed(shape: &str, scale: Scale) -> Result<Synthetic> {
    let program = shell::example("pack", scale.profile())?;
    let name = match scale {
        Scale::Small => format!("synth-{shape}.oss"),
        Scale::Full => packed_name(shape, &layout(&program)?),
    };
    made(scale, &name, |path| {
        let source = path.with_extension("gguf");
        let mut options = Options::new(shape, Format::Gguf, source.clone());
        options.routing = Routing::Zipf;
        write(&options)?;
        pack(&program, Some(&source), path)?;
        fs::remove_file(&source).with_context(|| source.display().to_string())
    })
}

/// What a packed file holds depends on what is written, and on how it is packed.
fn packed_name(shape: &str, layout: &str) -> String {
    format!("synth-{shape}-zipf-{GENERATOR}-v{VERSION}-{layout}.oss")
}

/// How the program lays weights out: as it does those of the demo model.
fn layout(program: &Path) -> Result<String> {
    let scratch = tempfile::tempdir()?;
    let path = scratch.path().join("demo.oss");
    pack(program, None, &path)?;
    let file = Reader::open(&path)?;
    let experts = file.sections().find(|section| section.name.starts_with("experts."));
    Ok(experts.context("the packed demo model: no experts")?.format.clone())
}

/// Packs a model, or the demo model.
fn pack(program: &Path, model: Option<&Path>, output: &Path) -> Result<()> {
    let mut command = shell::command(program, &[]);
    if let Some(model) = model {
        command.arg("--model").arg(model);
    }
    shell::run(command.arg("--output").arg(output))
}

/// A file that is written at the small scale, and at the full one unless it is there.
fn made(scale: Scale, name: &str, write: impl FnOnce(&Path) -> Result<()>) -> Result<Synthetic> {
    if scale == Scale::Small {
        let scratch = shell::scratch(name)?;
        let path = scratch.path().join(name);
        write(&path)?;
        return Ok(Synthetic { path, _scratch: Some(scratch) });
    }
    let cache = fetch::cache()?;
    fs::create_dir_all(&cache).with_context(|| cache.display().to_string())?;
    let path = cache.join(name);
    if !path.exists() {
        write(&path)?;
    }
    Ok(Synthetic { path, _scratch: None })
}

#[cfg(test)]
mod unit {
    use super::*;

    #[test]
    fn a_small_file_goes_with_what_has_it_and_the_name_of_a_packed_one_tells_its_layout() {
        let file = gguf("tiny", Scale::Small).expect("written");
        let path = file.path.clone();
        assert!(path.is_file() && !path.starts_with(fetch::cache().expect("a cache")));
        drop(file);
        assert!(!path.exists());
        let name = packed_name("small", "p16.1");
        assert!(name.ends_with(&format!("-v{VERSION}-p16.1.oss")), "{name}");
    }
}
