//! Models from Hugging Face, behind the feature `download`.

use anyhow::Result;
use std::path::PathBuf;

/// Downloads a repository's model and gives the folder (or the GGUF file) it lies in.
#[cfg(feature = "download")]
pub(crate) fn fetch(id: &str) -> Result<PathBuf> {
    use anyhow::Context;
    let api = hf_hub::api::sync::ApiBuilder::new().with_progress(true).build()?;
    let repository = api.model(id.to_owned());
    let info = repository.info().with_context(|| format!("no repository {id}"))?;
    let names: Vec<&str> = info.siblings.iter().map(|file| file.rfilename.as_str()).collect();
    if let Some(gguf) = names.iter().find(|name| name.ends_with(".gguf")) {
        return Ok(repository.get(gguf)?);
    }
    let wanted = |name: &&&str| {
        !name.contains('/')
            && (name.ends_with(".safetensors")
                || name.ends_with(".json")
                || name.ends_with(".jinja"))
    };
    let mut folder = None;
    for name in names.iter().filter(wanted) {
        folder = repository.get(name)?.parent().map(PathBuf::from);
    }
    folder.with_context(|| format!("{id} has neither GGUF nor safetensors"))
}

/// Says what is missing.
#[cfg(not(feature = "download"))]
pub(crate) fn fetch(id: &str) -> Result<PathBuf> {
    anyhow::bail!(
        "no file or directory {id}; to download it from Hugging Face, build with \
         `--features download`"
    )
}
