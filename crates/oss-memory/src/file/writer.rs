//! Replaces a file as a whole or not at all.

use std::fs::{self, File};
use std::io::{self, BufWriter, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::{fmt, process};

use crate::{Error, Result};

/// Bytes gathered before the system is called.
const GATHER: usize = 1 << 20;

/// Tells writers of one process apart.
static SERIAL: AtomicU64 = AtomicU64::new(0);

/// Writes a temporary file beside its goal and renames it on [`Writer::commit`].
///
/// Who reads the path sees the old file or the new one, never a part; dropping the writer removes
/// the temporary file and changes nothing. A process that is killed leaves the temporary file,
/// named `.<name>.<process>-<serial>.part`, behind.
pub struct Writer {
    path: PathBuf,
    temporary: PathBuf,
    /// None once committed.
    file: Option<BufWriter<File>>,
}

impl fmt::Debug for Writer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Writer").field("path", &self.path).finish_non_exhaustive()
    }
}

impl Writer {
    /// Begins a file that will be called `path`. Its directory must exist.
    ///
    /// # Errors
    /// When the temporary file cannot be made.
    pub fn create(path: &Path) -> Result<Self> {
        let Some(name) = path.file_name() else {
            let cause = io::Error::new(io::ErrorKind::InvalidInput, "the path names no file");
            return Err(Error::File { action: "create", path: path.to_path_buf(), cause });
        };
        loop {
            let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
            let mut temporary_name = std::ffi::OsString::from(".");
            temporary_name.push(name);
            temporary_name.push(format!(".{}-{serial}.part", process::id()));
            let temporary = path.with_file_name(temporary_name);
            match File::create_new(&temporary) {
                // Of a process of our number, dead or in another container.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                file => {
                    let file = file.map_err(Error::file("create", &temporary))?;
                    let file = Some(BufWriter::with_capacity(GATHER, file));
                    return Ok(Self { path: path.to_path_buf(), temporary, file });
                }
            }
        }
    }

    /// Writes `bytes` at the present position.
    ///
    /// # Errors
    /// When the system refuses, as on a full disk.
    pub fn append(&mut self, bytes: &[u8]) -> Result<()> {
        let path = self.path.clone();
        self.write_all(bytes).map_err(Error::file("write", &path))
    }

    /// Makes the file durable and gives it its name.
    ///
    /// # Errors
    /// When the system refuses to write the file or to rename it; the old one is then as it was. Or
    /// when it fails to synchronise the directory: the new file has the name then, and a power cut
    /// may bring the old one back. A file system that never synchronises directories is no error.
    pub fn commit(mut self) -> Result<()> {
        let file = self.file.take().map(BufWriter::into_inner);
        let finish = |file: io::Result<File>| {
            file?.sync_all()?;
            fs::rename(&self.temporary, &self.path)
        };
        if let Some(file) = file
            && let Err(cause) = finish(file.map_err(io::IntoInnerError::into_error))
        {
            drop(fs::remove_file(&self.temporary));
            return Err(Error::File { action: "write", path: self.path.clone(), cause });
        }
        super::sync_name(&self.path)
    }

    fn file(&mut self) -> &mut BufWriter<File> {
        self.file.as_mut().expect("commit takes the writer, so nothing is written after it")
    }
}

impl Write for Writer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file().flush()
    }
}

impl Seek for Writer {
    fn seek(&mut self, position: SeekFrom) -> io::Result<u64> {
        self.file().seek(position)
    }

    fn stream_position(&mut self) -> io::Result<u64> {
        self.file().stream_position()
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        if let Some(file) = self.file.take() {
            // What is still gathered is not worth writing.
            drop(file.into_parts());
            // Nobody is left to tell; a part that stays behind is harmless.
            drop(fs::remove_file(&self.temporary));
        }
    }
}
