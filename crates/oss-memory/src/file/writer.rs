//! Replaces a file as a whole or not at all.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File, TryLockError};
use std::io::{self, BufWriter, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::{fmt, process};

use crate::{Error, Result, os};

/// Bytes gathered before the system is called.
const GATHER: usize = 1 << 20;

/// Tells writers of one process apart.
static SERIAL: AtomicU64 = AtomicU64::new(0);

/// Writes a temporary file beside its target and renames it on [`Writer::commit`].
///
/// Who reads the path sees the old file or the new one, never a part; dropping the writer removes
/// the temporary file and changes nothing. A process that is killed leaves the temporary file,
/// named `.<name>.<process>-<serial>.part`, behind: see [`Writer::remove_stale`].
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
            let mut temporary_name = OsString::from(".");
            temporary_name.push(name);
            temporary_name.push(format!(".{}-{serial}.part", process::id()));
            let temporary = path.with_file_name(temporary_name);
            match File::create_new(&temporary) {
                // Of a process of our number, dead or in another container.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                file => {
                    let file = file.map_err(Error::file("create", &temporary))?;
                    // Tells other containers that it is not stale. Not all file systems have locks.
                    let is_taken = matches!(file.try_lock(), Err(TryLockError::WouldBlock));
                    // One of them was quicker, and has removed it or is about to.
                    if is_taken || os::is_named(&file, &temporary).is_ok_and(|named| !named) {
                        continue;
                    }
                    let file = Some(BufWriter::with_capacity(GATHER, file));
                    return Ok(Self { path: path.to_path_buf(), temporary, file });
                }
            }
        }
    }

    /// Removes the temporary files of `path` that killed processes have left behind, and says how
    /// many there were. It keeps those that a process of their number may still be writing, or that
    /// are locked, as writers in other containers keep theirs; all of them where the system does
    /// not tell in `/proc` which processes there are.
    ///
    /// # Errors
    /// When the directory cannot be listed, but for a missing one, or the system refuses to remove
    /// a file.
    pub fn remove_stale(path: &Path) -> Result<usize> {
        Self::remove_stale_under(Path::new("/"), path)
    }

    /// [`Writer::remove_stale`] on the system whose `/proc` lies under `root`.
    fn remove_stale_under(root: &Path, path: &Path) -> Result<usize> {
        let processes = root.join("proc");
        let directory = super::directory_of(path);
        if !processes.join("self").exists() || !directory.exists() {
            return Ok(0);
        }
        let Some(name) = path.file_name() else { return Ok(0) };
        let mut removed = 0;
        for part in super::list(directory)? {
            let writer = part.file_name().and_then(|part| writer_of(part, name));
            let is_dead = |process: u32| !processes.join(process.to_string()).exists();
            if !writer.is_some_and(is_dead) {
                continue;
            }
            // One that is gone by now, or may not be read, is another's business. The lock is kept
            // until it is removed: its writer looks for it.
            let Ok(file) = File::open(&part) else { continue };
            if file.try_lock().is_ok() && super::remove(&part)? {
                removed += 1;
            }
        }
        Ok(removed)
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

/// The number of the process that wrote the temporary file `part` of the file `name`; none of other
/// files.
fn writer_of(part: &OsStr, name: &OsStr) -> Option<u32> {
    let rest = part.as_encoded_bytes().strip_prefix(b".")?;
    let rest = rest.strip_prefix(name.as_encoded_bytes())?;
    let numbers = rest.strip_prefix(b".")?.strip_suffix(b".part")?;
    let (process, serial) = std::str::from_utf8(numbers).ok()?.split_once('-')?;
    serial.parse::<u64>().ok()?;
    process.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_killed_processes_left_is_removed_and_nothing_else() {
        let directory = tempfile::tempdir().expect("directory");
        let at = |name: &str| directory.path().join(name);
        let path = at("model.gguf");
        let stale = [".model.gguf.17-0.part", ".model.gguf.17-12.part"].map(at);
        let others = [
            "model.gguf",
            "model.gguf.17-0.part",
            ".model.gguf.18-0.part",
            ".model.gguf.self-0.part",
            ".model.gguf.17-x.part",
            ".model.gguf.17-0.partial",
            ".other.gguf.17-0.part",
        ];
        let others = others.map(at);
        let fill = || {
            for file in stale.iter().chain(&others) {
                fs::write(file, "").expect("write");
            }
        };
        // A system on which process 18 lives, and not this one: as another container has it.
        let system = |root: &Path, name: &str| {
            fs::create_dir_all(root.join("proc").join(name)).expect("directory");
        };
        let root = tempfile::tempdir().expect("directory");
        let mut writer = Writer::create(&path).expect("create");
        writer.append(b"new").expect("append");
        fill();
        assert_eq!(Writer::remove_stale_under(root.path(), &path).expect("no /proc"), 0);
        system(root.path(), "18");
        assert_eq!(Writer::remove_stale_under(root.path(), &path).expect("no /proc/self"), 0);
        assert!(stale.iter().all(|file| file.exists()));
        system(root.path(), "self");
        assert_eq!(Writer::remove_stale_under(root.path(), &path).expect("removed"), 2);
        assert!(others.iter().all(|file| file.exists()) && !stale.iter().any(|file| file.exists()));
        writer.commit().expect("nobody has taken its part away");
        assert_eq!(fs::read(&path).expect("read"), b"new");
        assert_eq!(Writer::remove_stale(&at("absent/model.gguf")).expect("no directory"), 0);
    }
}
