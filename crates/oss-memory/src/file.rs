//! Files: maps, whole reads, atomic replacement, positioned access.
//!
//! Every file of the engine is opened here, so that errors name it and writes cannot leave half a
//! file behind.

mod map;
mod random_access;
mod writer;

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

pub use crate::os::Advice;
use crate::{Error, Result, os};
pub use map::Map;
pub use random_access::{DIRECT_ALIGNMENT, RandomAccess};
pub use writer::Writer;

/// Reads a whole file of at most `limit` bytes.
///
/// # Errors
/// When the file cannot be opened or read, or is longer than `limit`.
pub fn read(path: &Path, limit: u64) -> Result<Vec<u8>> {
    let file = File::open(path).map_err(Error::file("open", path))?;
    let len = file.metadata().map_err(Error::file("examine", path))?.len();
    if len > limit {
        return Err(Error::TooLarge { path: path.to_path_buf(), got: len, expected: limit });
    }
    let mut bytes = Vec::new();
    let room = usize::try_from(len).unwrap_or(usize::MAX);
    bytes.try_reserve_exact(room).map_err(|e| Error::memory("allocate", room)(e.into()))?;
    // One byte more than allowed shows that the file has grown meanwhile.
    let read = file.take(limit.saturating_add(1)).read_to_end(&mut bytes);
    let got = read.map_err(Error::file("read", path))? as u64;
    if got > limit {
        return Err(Error::TooLarge { path: path.to_path_buf(), got, expected: limit });
    }
    Ok(bytes)
}

/// Writes a whole file, or nothing: see [`Writer`].
///
/// # Errors
/// When it cannot be written, or get its name.
pub fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    let mut writer = Writer::create(path)?;
    writer.append(bytes)?;
    writer.commit()
}

/// Makes a directory and those above it; it may exist already.
///
/// # Errors
/// When the system refuses.
pub fn create_directory(path: &Path) -> Result<()> {
    fs::create_dir_all(path).map_err(Error::file("create", path))
}

/// [`create_directory`] for what is nobody else's business: what is made only this user may look
/// into, where the system knows users (as Linux and macOS do). One that exists stays as it is.
///
/// # Errors
/// When the system refuses.
pub fn create_private_directory(path: &Path) -> Result<()> {
    os::create_private_directory(path).map_err(Error::file("create", path))
}

/// The paths of what lies in a directory, sorted.
///
/// # Errors
/// When the system refuses.
pub fn list(directory: &Path) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(directory).map_err(Error::file("list", directory))?;
    let paths = entries.map(|entry| entry.map(|entry| entry.path()));
    let mut paths: Vec<PathBuf> =
        paths.collect::<std::io::Result<_>>().map_err(Error::file("list", directory))?;
    paths.sort();
    Ok(paths)
}

/// Whether two paths lead to one file; no where there is none.
#[must_use]
pub fn is_same(one: &Path, other: &Path) -> bool {
    let [one, other] = [one, other].map(|path| path.canonicalize().ok());
    one.is_some() && one == other
}

/// Removes a file; false when there was none.
///
/// # Errors
/// When the system refuses.
pub fn remove(path: &Path) -> Result<bool> {
    match fs::remove_file(path) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(Error::file("remove", path)(error)),
    }
}

/// Gives a complete and synchronised file its name, replacing what had it, durably.
///
/// # Errors
/// When the system refuses the rename, as between two file systems; both are then as they were. Or
/// when it fails to synchronise the directory: the file has its new name then, and a power cut may
/// take it back. A file system that never synchronises directories is no error.
pub fn rename(from: &Path, to: &Path) -> Result<()> {
    let refused = |cause| Error::Rename { from: from.to_path_buf(), to: to.to_path_buf(), cause };
    fs::rename(from, to).map_err(refused)?;
    sync_name(to)
}

/// Makes the name that a file has just been given survive a power cut, as far as the file system
/// knows how.
fn sync_name(path: &Path) -> Result<()> {
    let directory = directory_of(path);
    os::sync_directory(directory).map_err(Error::file("synchronise", directory))
}

/// The directory that a file lies in.
fn directory_of(path: &Path) -> &Path {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    parent.unwrap_or(Path::new("."))
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::{Path, sync_name};

    #[test]
    fn a_directory_that_cannot_be_synchronised_is_no_error_and_a_missing_one_is() {
        // The system's own files have no disk to be synchronised with.
        sync_name(Path::new("/proc/version")).expect("nothing to do");
        let error = sync_name(Path::new("/proc/absent/name")).expect_err("no directory");
        assert!(error.to_string().contains("/proc/absent: could not synchronise"), "{error}");
    }
}
