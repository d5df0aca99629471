//! Folders that cannot be used, for keys and values, packed files, profiles and models. Apart from
//! the other tests: a process that is just being started holds a copy of every open file, locks
//! included, and files of cold pages are locked.
#![cfg(target_os = "linux")]

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};

use oss_engine::tuning::Origin;
use oss_engine::{ColdTier, Engine, EngineOptions, Error, Request, Tune};
use oss_testing::{again, passes};

const FOLDER: &str = "OSS_ENGINE_UNREADABLE";
/// `nobody`, and who may do as little where that is somebody else.
const NOBODY: u32 = 65534;

fn options() -> EngineOptions {
    EngineOptions {
        threads: Some(1),
        cache_bytes: Some(16 << 20),
        tune: Tune::Off,
        system_root: PathBuf::from("/no/such/folder"),
        ..EngineOptions::default()
    }
}

fn engine(options: EngineOptions) -> Result<Engine, Error> {
    Engine::from_bytes_with(oss_demo::GGUF, options)
}

fn answer(engine: &Engine) -> Vec<u32> {
    engine.generate(Request::text("Once upon a time").max_tokens(8).greedy()).unwrap().token_ids()
}

/// The whole chain of an error: the path and the system's words for it are both to be found.
fn assert_names(error: &Error, path: &Path, why: &str) {
    let mut text = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(error) = source {
        text += &format!(": {error}");
        source = error.source();
    }
    assert!(text.contains(path.to_str().unwrap()), "{text}, expected {}", path.display());
    assert!(text.contains(why), "{text}, expected {why}");
}

/// Tries everything that an engine keeps in a folder with one that it cannot use.
fn refuses(directory: &Path, why: &str) {
    let expected = answer(&engine(options()).unwrap());

    let cold = Some(ColdTier { directory: directory.to_owned(), bytes: 16 << 20 });
    let error = engine(EngineOptions { cold, ..options() }).unwrap_err();
    assert_names(&error, directory, why);

    let pack_directory = Some(directory.to_owned());
    let error = engine(EngineOptions { pack_directory, ..options() }).unwrap_err();
    assert_names(&error, directory, why);

    let error = Engine::load_with(directory.join("model.gguf"), options()).unwrap_err();
    assert_names(&error, directory, why);

    // Without its profile an engine measures at each load, and says so where it was asked to.
    let tune = Tune::Stored(directory.to_owned());
    let measured = engine(EngineOptions { threads: None, tune, ..options() }).unwrap();
    assert_eq!(measured.tuning().origin, Origin::AtLoad);
    assert_names(&measured.tune().unwrap_err(), directory, why);
    assert_eq!(measured.tuning().origin, Origin::AtLoad);
    assert_eq!(answer(&measured), expected);
}

#[test]
fn a_path_below_a_file_is_no_folder() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("file");
    fs::write(&file, "not a folder").unwrap();
    refuses(&file.join("below"), "Not a directory");
    assert_eq!(fs::read(&file).unwrap(), b"not a folder");
}

/// In a process of its own that may do nothing where this one is root, for whom permissions do not
/// hold.
#[test]
fn a_folder_without_permissions_is_an_error_or_done_without() {
    if let Some(folder) = std::env::var_os(FOLDER) {
        let folder = PathBuf::from(folder);
        assert!(fs::read_dir(folder.join("closed")).is_err(), "permissions do not hold");
        refuses(&folder.join("closed"), "Permission denied");
        // Cold pages of somebody else, in a folder where files can be found.
        let open = folder.join("open");
        let cold = Some(ColdTier { directory: open.clone(), bytes: 16 << 20 });
        let error = engine(EngineOptions { cold, ..options() }).unwrap_err();
        assert_names(&error, &open, "Permission denied");
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let set_mode = |path: &Path, mode| fs::set_permissions(path, Permissions::from_mode(mode));
    let [closed, open] = ["closed", "open"].map(|name| directory.path().join(name));
    fs::create_dir(&closed).unwrap();
    let cold = Some(ColdTier { directory: open.clone(), bytes: 16 << 20 });
    drop(engine(EngineOptions { cold, ..options() }).unwrap());
    let files: Vec<PathBuf> =
        fs::read_dir(&open).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert_eq!(files.len(), 1, "{files:?}");
    set_mode(&files[0], 0o000).unwrap();
    set_mode(&open, 0o755).unwrap();
    set_mode(&closed, 0o000).unwrap();
    set_mode(directory.path(), 0o755).unwrap();

    let mut child = again("a_folder_without_permissions_is_an_error_or_done_without");
    if fs::metadata(directory.path()).unwrap().uid() == 0 {
        child.uid(NOBODY).gid(NOBODY);
    }
    passes(child.env(FOLDER, directory.path()));
    set_mode(&closed, 0o700).unwrap();
}
