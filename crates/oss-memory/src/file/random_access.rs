//! A file of records, read and written by position.

use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use crate::{Error, Result, os};

/// Where reads past the system's cache of files begin and end: multiples of this, in the file and
/// in memory.
pub const DIRECT_ALIGNMENT: usize = 4096;

/// A file that is read and written by position, from any thread.
///
/// Writes that overlap in time and place leave either's bytes; nothing is durable before
/// [`RandomAccess::sync`].
#[derive(Debug)]
pub struct RandomAccess {
    path: PathBuf,
    file: File,
    direct: bool,
}

impl RandomAccess {
    /// Opens the file at `path` for reading and writing, and makes an empty one if there is none.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn open(path: &Path) -> Result<Self> {
        let mut options = OpenOptions::new();
        let file = options.read(true).write(true).create(true).truncate(false).open(path);
        let file = file.map_err(Error::file("open", path))?;
        Ok(Self { path: path.to_path_buf(), file, direct: false })
    }

    /// [`RandomAccess::open`] for what is nobody else's business: a file that is made only this
    /// user may read and write, where the system knows users (as Linux and macOS do). One that
    /// exists stays as it is.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn open_private(path: &Path) -> Result<Self> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false);
        let file = os::open_private(&mut options, path).map_err(Error::file("open", path))?;
        Ok(Self { path: path.to_path_buf(), file, direct: false })
    }

    /// Opens the file at `path` for reading; writing to it fails.
    ///
    /// # Errors
    /// When the system refuses, or there is no file.
    pub fn open_read_only(path: &Path) -> Result<Self> {
        let file = File::open(path).map_err(Error::file("open", path))?;
        Ok(Self { path: path.to_path_buf(), file, direct: false })
    }

    /// Opens the file at `path` for reading past the system's cache of files, where system and file
    /// system can do that (as Linux on disks), and as [`RandomAccess::open_read_only`] elsewhere.
    /// It is for large reads by [`RandomAccess::read_to_end_at`] that begin and end at multiples of
    /// [`DIRECT_ALIGNMENT`].
    ///
    /// # Errors
    /// When the system refuses, or there is no file.
    pub fn open_direct(path: &Path) -> Result<Self> {
        match os::open_direct(path) {
            Ok(file) => Ok(Self { path: path.to_path_buf(), file, direct: true }),
            Err(error) if is_unknown(&error) => Self::open_read_only(path),
            Err(error) => Err(Error::file("open", path)(error)),
        }
    }

    /// The path that it was opened by.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Keeps other processes that ask the same out until this file is closed; false when one of
    /// them has it.
    ///
    /// # Errors
    /// When the file system has no locks.
    pub fn try_lock(&self) -> Result<bool> {
        match self.file.try_lock() {
            Ok(()) => Ok(true),
            Err(TryLockError::WouldBlock) => Ok(false),
            Err(TryLockError::Error(cause)) => Err(Error::file("lock", &self.path)(cause)),
        }
    }

    /// Whether its path still names it: it may have been renamed or removed, and another one may
    /// have its name (where the system tells files apart, as Linux and macOS do).
    ///
    /// # Errors
    /// When the system refuses.
    pub fn has_its_name(&self) -> Result<bool> {
        os::is_named(&self.file, &self.path).map_err(Error::file("examine", &self.path))
    }

    /// Length in bytes.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn len(&self) -> Result<u64> {
        let metadata = self.file.metadata().map_err(Error::file("examine", &self.path))?;
        Ok(metadata.len())
    }

    /// When the file was last written.
    ///
    /// # Errors
    /// When the system refuses, or does not keep such times.
    pub fn modified(&self) -> Result<SystemTime> {
        let modified = self.file.metadata().and_then(|metadata| metadata.modified());
        modified.map_err(Error::file("examine", &self.path))
    }

    /// Whether the file has no bytes.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn is_empty(&self) -> Result<bool> {
        Ok(self.len()? == 0)
    }

    /// Cuts the file or lengthens it with zeros.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn set_len(&self, len: u64) -> Result<()> {
        self.file.set_len(len).map_err(Error::file("resize", &self.path))
    }

    /// Fills `bytes` from `offset`.
    ///
    /// # Errors
    /// When the system refuses or the file ends before.
    pub fn read_at(&self, bytes: &mut [u8], offset: u64) -> Result<()> {
        os::read_at(&self.file, bytes, offset).map_err(Error::file("read", &self.path))
    }

    /// Fills `bytes` from `offset` as far as the file goes, and says how many there were.
    ///
    /// # Errors
    /// When the system refuses, as it does when the file was opened by
    /// [`RandomAccess::open_direct`] and the bytes or the offset are not aligned.
    pub fn read_to_end_at(&self, bytes: &mut [u8], offset: u64) -> Result<usize> {
        let mut done = 0;
        while done < bytes.len() {
            let read = os::read_some_at(&self.file, &mut bytes[done..], offset + done as u64);
            let read = read.map_err(Error::file("read", &self.path))?;
            done += read;
            // What is not a whole block is the end, and nothing could be read from there.
            let end = self.direct && !read.is_multiple_of(DIRECT_ALIGNMENT);
            if read == 0 || end {
                break;
            }
        }
        Ok(done)
    }

    /// Writes all `bytes` at `offset`; the file grows as needed.
    ///
    /// # Errors
    /// When the system refuses, as on a full disk; some of the bytes may have been written.
    pub fn write_at(&self, bytes: &[u8], offset: u64) -> Result<()> {
        os::write_at(&self.file, bytes, offset).map_err(Error::file("write", &self.path))
    }

    /// Makes everything written so far durable.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn sync(&self) -> Result<()> {
        self.file.sync_data().map_err(Error::file("synchronise", &self.path))
    }
}

/// Whether the system or the file system does not know reads past its cache.
fn is_unknown(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::InvalidInput | io::ErrorKind::Unsupported)
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::OpenOptionsExt;

    use super::*;

    /// Whether reads go past the system's cache, as it says itself.
    fn is_direct(file: &File) -> bool {
        let about = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", file.as_raw_fd()));
        let about = about.expect("an open file");
        let flags = about.lines().find_map(|line| line.strip_prefix("flags:")).expect("flags");
        let flags = i32::from_str_radix(flags.trim(), 8).expect("an octal number");
        flags & libc::O_DIRECT != 0
    }

    #[test]
    fn direct_reads_go_past_the_cache_unless_the_file_system_refuses() {
        let directory = tempfile::tempdir().expect("directory");
        let path = directory.path().join("experts");
        std::fs::write(&path, [0; DIRECT_ALIGNMENT]).expect("write");
        let can = OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(&path).is_ok();
        let direct = RandomAccess::open_direct(&path).expect("open");
        assert_eq!((direct.direct, is_direct(&direct.file)), (can, can));
        let cached = RandomAccess::open_read_only(&path).expect("open");
        assert_eq!((cached.direct, is_direct(&cached.file)), (false, false));
    }
}
