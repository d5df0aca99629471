//! Models that are not packed: packed to a file at their first load where a folder is given or they
//! are larger than their memory, so that later loads map it, and experts for which there is no
//! memory can stay there.

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use oss_memory::file;
use oss_model::{Precision, has_experts, pack_to_file, packed_bytes, packed_name};
use oss_weights::{Container, Kind};

use crate::budget;
use crate::error::{Error, Result};
use crate::options::{EngineOptions, LoadProgress};

/// How often an engine looks whether another one, which packs the same model, is done.
const LOOK: Duration = Duration::from_millis(200);

/// What an engine reads a model from.
pub(crate) struct Packed {
    /// The container that was given, or its packed file.
    pub(crate) container: Arc<Container>,
    /// That file, where it was made here, so that it can be made again.
    pub(crate) made: Option<PathBuf>,
    /// Where what else is known about the model may be kept.
    pub(crate) directory: Option<PathBuf>,
}

/// The container itself; or, where it is not packed and should be, its packed file in the folder
/// that the options name, else in the user's own, written unless it is there and whole.
pub(crate) fn packed_where_wanted(
    container: Arc<Container>,
    options: &EngineOptions,
    vocabulary_bytes: usize,
) -> Result<Packed> {
    if container.kind() == Kind::Packed {
        let directory = options.pack_directory.clone();
        return Ok(Packed { container, made: None, directory });
    }
    let directory = match &options.pack_directory {
        Some(directory) => directory.clone(),
        None => match larger_than_memory(&container, options, vocabulary_bytes)? {
            None => return Ok(Packed { container, made: None, directory: None }),
            Some(error) => users_directory(|name| env::var_os(name)).ok_or(error)?,
        },
    };
    let path = directory.join(packed_name(&container)?);
    let packed = match open_whole(&path)? {
        Some(packed) => packed,
        None => {
            pack(&container, &directory, &path, options)?;
            Container::open(&path)?
        }
    };
    Ok(Packed { container: Arc::new(packed), made: Some(path), directory: Some(directory) })
}

/// Opens a packed file that was made here, where it is; removes one that cannot be what was
/// written.
fn open_whole(path: &Path) -> Result<Option<Container>> {
    if !path.exists() {
        return Ok(None);
    }
    match Container::open(path) {
        Ok(packed) => Ok(Some(packed)),
        Err(error @ oss_weights::Error::File(_)) => Err(error.into()),
        Err(error) => {
            tracing::warn!(%error, "the packed file is damaged: the model is packed anew");
            file::remove(path).map_err(oss_weights::Error::from)?;
            Ok(None)
        }
    }
}

fn pack(
    container: &Container,
    directory: &Path,
    path: &Path,
    options: &EngineOptions,
) -> Result<()> {
    // What is wrong with the model is said as such.
    packed_bytes(container)?;
    let (model, directory) = (container.path(), directory.to_owned());
    if options.pack_directory.is_none() {
        tracing::warn!(
            model = %model.display(),
            directory = %directory.display(),
            "the model is larger than its memory: it is packed to disk first"
        );
    }
    let progress = options.progress.as_ref().map(LoadProgress::shown);
    let pack = || pack_to_file(container, &Precision::default(), path, progress);
    let packed = file::create_directory(&directory)
        .map_err(Error::from)
        .and_then(|()| pack_or_wait(path, pack));
    packed.map_err(|cause| match cause {
        Error::LoadCancelled => cause,
        cause => Error::NotPacked { path: model.to_owned(), directory, cause: Box::new(cause) },
    })
}

/// Packs to a file, or waits until another engine, of this process or another one, has done so.
fn pack_or_wait(path: &Path, mut pack: impl FnMut() -> Result<(), oss_model::Error>) -> Result<()> {
    let mut is_told = false;
    loop {
        match pack() {
            Err(oss_model::Error::Weights(oss_weights::Error::Busy { file })) => {
                if !std::mem::replace(&mut is_told, true) {
                    let file = file.display();
                    tracing::info!(%file, "another engine is packing this model: waiting for it");
                }
                thread::sleep(LOOK);
                if path.exists() {
                    return Ok(());
                }
                // It may have ended before it was done.
            }
            done => return Ok(done?),
        }
    }
}

/// Where programs of this user keep what can be made again.
fn users_directory(variable: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let folder = |name| variable(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let caches = folder("XDG_CACHE_HOME").or_else(|| Some(folder("HOME")?.join(".cache")))?;
    Some(caches.join("oss-engine/packed"))
}

/// Says so where a model's experts do not fit: only those of a packed file can stay outside memory.
fn larger_than_memory(
    container: &Container,
    options: &EngineOptions,
    vocabulary_bytes: usize,
) -> Result<Option<Error>> {
    let Some(got) = options.max_memory else { return Ok(None) };
    let cache = options.cache_bytes.unwrap_or(budget::LEAST);
    let others = [options.warm_bytes, options.repeat_bytes, vocabulary_bytes];
    let others = others.into_iter().fold(cache, usize::saturating_add);
    let expected = others.saturating_add(packed_bytes(container)?);
    if expected <= got || !has_experts(container)? {
        return Ok(None);
    }
    Ok(Some(Error::LargerThanMemory { path: container.path().to_owned(), got, expected }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_another_one_packs_is_waited_for_and_packed_where_that_one_gives_up() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("model.oss");
        let busy = || {
            let file = directory.path().join("model.oss.partial");
            Err(oss_model::Error::Weights(oss_weights::Error::Busy { file }))
        };
        let mut tries = 0;
        pack_or_wait(&path, || {
            tries += 1;
            if tries < 3 { busy() } else { Ok(()) }
        })
        .unwrap();
        assert_eq!(tries, 3, "the other one is gone, and has left nothing");
        pack_or_wait(&path, || {
            tries += 1;
            std::fs::write(&path, "packed").unwrap();
            busy()
        })
        .unwrap();
        assert_eq!(tries, 4, "the other one is done");
    }

    #[test]
    fn the_users_folder_is_where_the_environment_says() {
        let directory = |variables: &[(&str, &str)]| {
            let value = |name: &str| {
                let found = variables.iter().find(|(known, _)| *known == name);
                found.map(|(_, value)| OsString::from(value))
            };
            users_directory(value)
        };
        let packed = |folder: &str| Some(Path::new(folder).join("oss-engine/packed"));
        let home = ("HOME", "/home/ada");
        assert_eq!(directory(&[home]), packed("/home/ada/.cache"));
        assert_eq!(directory(&[home, ("XDG_CACHE_HOME", "/caches")]), packed("/caches"));
        // The standard has relative and empty ones ignored.
        assert_eq!(directory(&[home, ("XDG_CACHE_HOME", "here")]), packed("/home/ada/.cache"));
        assert_eq!(directory(&[home, ("XDG_CACHE_HOME", "")]), packed("/home/ada/.cache"));
        assert_eq!(directory(&[("HOME", "")]), None);
        assert_eq!(directory(&[]), None);
    }
}
