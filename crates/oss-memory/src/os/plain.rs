//! Fallbacks for systems that are neither Linux nor macOS.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::ops::Range;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use super::{Advice, Policy};

/// Positioned access moves the file's one position, so it happens under this lock.
static POSITION: Mutex<()> = Mutex::new(());

/// A page of the common machines; only alignment and rounding depend on it.
pub fn page_size() -> usize {
    4096
}

/// Advice is not given: pages are read when touched and stay as the system decides.
pub(crate) fn advise(_memory: &[u8], _advice: Advice) -> io::Result<()> {
    Ok(())
}

/// Whether `path` names a file: which one, the system does not say.
pub(crate) fn is_named(_file: &File, path: &Path) -> io::Result<bool> {
    path.try_exists()
}

/// The system keeps what it has read of a file.
pub(crate) fn evict(_file: &File, _range: Range<usize>) -> io::Result<()> {
    Ok(())
}

/// The system does not say.
pub(crate) fn huge_bytes(_map: &[u8]) -> io::Result<usize> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Zeroes private memory; its room is not given back.
pub(crate) fn clear(memory: &mut [u8]) -> io::Result<()> {
    memory.fill(0);
    Ok(())
}

/// Pages are given when they are touched.
pub(crate) fn populate(_memory: &mut [u8]) -> io::Result<()> {
    Ok(())
}

/// Fills `bytes` from `offset`; one thread at a time.
pub(crate) fn read_at(mut file: &File, bytes: &mut [u8], offset: u64) -> io::Result<()> {
    let _position = POSITION.lock().unwrap_or_else(PoisonError::into_inner);
    file.seek(SeekFrom::Start(offset))?;
    file.read_exact(bytes)
}

/// Reads what is there from `offset`, at most `bytes`; one thread at a time.
pub(crate) fn read_some_at(mut file: &File, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
    let _position = POSITION.lock().unwrap_or_else(PoisonError::into_inner);
    file.seek(SeekFrom::Start(offset))?;
    file.read(bytes)
}

/// Who may read and write a new file, its directory decides.
pub(crate) fn open_private(options: &mut OpenOptions, path: &Path) -> io::Result<File> {
    options.open(path)
}

/// Who may look into a new directory, the one above it decides.
pub(crate) fn create_private_directory(path: &Path) -> io::Result<()> {
    fs::create_dir_all(path)
}

/// Reads go through the system's cache.
pub(crate) fn open_direct(_path: &Path) -> io::Result<File> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Writes all `bytes` at `offset`; one thread at a time.
pub(crate) fn write_at(mut file: &File, bytes: &[u8], offset: u64) -> io::Result<()> {
    let _position = POSITION.lock().unwrap_or_else(PoisonError::into_inner);
    file.seek(SeekFrom::Start(offset))?;
    file.write_all(bytes)
}

/// Directories cannot be synchronised; the file system orders a rename by itself.
pub(crate) fn sync_directory(_directory: &Path) -> io::Result<()> {
    Ok(())
}

/// Memory cannot be locked here.
pub(crate) fn lock(_memory: &[u8]) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Memory cannot be placed here.
pub(crate) fn place(_memory: &mut [u8], _policy: Policy, _nodes: &[usize]) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Threads cannot be bound here.
pub(crate) fn bind_thread(_cpus: &[usize]) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

/// The system does not say.
pub(crate) fn current_cpu() -> Option<usize> {
    None
}
