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
    let ggufs = ggufs(&names).with_context(|| format!("{id} cannot be downloaded"))?;
    if let Some((first, more)) = ggufs.split_first() {
        let path = repository.get(first)?;
        for part in more {
            repository.get(part)?;
        }
        return Ok(path);
    }
    if !names.iter().any(|name| name.ends_with(".safetensors") && !name.contains('/')) {
        anyhow::bail!("{id} has neither GGUF nor safetensors");
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
    folder.with_context(|| format!("{id} has no files"))
}

/// Says what is missing.
#[cfg(not(feature = "download"))]
pub(crate) fn fetch(id: &str) -> Result<PathBuf> {
    anyhow::bail!(
        "no file or directory {id}; to download it from Hugging Face, build with \
         `--features download`"
    )
}

/// The GGUF file of a model among a repository's files, or the parts of one, the first of them
/// first; nothing where there is none.
#[cfg(any(feature = "download", test))]
fn ggufs<'a>(names: &[&'a str]) -> Result<Vec<&'a str>> {
    // What looks at images is no model of texts.
    let model = |name: &&&str| name.ends_with(".gguf") && !name.contains("mmproj");
    let mut ggufs: Vec<&str> = names.iter().filter(model).copied().collect();
    ggufs.sort_unstable();
    let parts = |two: &[&str]| part_of(two[0]).is_some() && part_of(two[0]) == part_of(two[1]);
    anyhow::ensure!(
        ggufs.windows(2).all(parts),
        "got several GGUF files, expected one; download one of them and give its path:\n{}",
        ggufs.join("\n")
    );
    Ok(ggufs)
}

/// What the parts of a split file have in common: `name` and `00003` of `name-00001-of-00003.gguf`.
#[cfg(any(feature = "download", test))]
fn part_of(name: &str) -> Option<(&str, &str)> {
    let (rest, count) = name.strip_suffix(".gguf")?.rsplit_once("-of-")?;
    let (name, number) = rest.rsplit_once('-')?;
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    (digits(number) && digits(count)).then_some((name, count))
}

#[cfg(test)]
mod tests {
    use super::ggufs;

    #[test]
    fn one_model_is_taken_and_several_are_listed() {
        let one = ["README.md", "mmproj-f16.gguf", "m-q8_0.gguf"];
        assert_eq!(ggufs(&one).unwrap(), ["m-q8_0.gguf"]);
        let parts = ["q/m-00002-of-00002.gguf", "q/m-00001-of-00002.gguf"];
        assert_eq!(ggufs(&parts).unwrap(), [parts[1], parts[0]]);
        assert!(ggufs(&["model.safetensors", "mmproj.gguf"]).unwrap().is_empty());
        for several in [
            ["m-q8_0.gguf", "m-q4_0.gguf"],
            ["a-00001-of-00001.gguf", "b-00001-of-00001.gguf"],
            ["a-00001-of-00001.gguf", "m-q4_0.gguf"],
        ] {
            let error = ggufs(&several).unwrap_err().to_string();
            assert!(several.iter().all(|name| error.contains(name)), "{error}");
        }
    }
}
