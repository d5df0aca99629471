//! A file mapped for reading.

use std::fmt;
use std::fs::File;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use memmap2::Mmap;

use crate::os::{self, Advice};
use crate::{Error, Result};

/// A whole file, mapped for reading; clones share the map.
///
/// The file must keep its length while it is mapped. Touching a page of a file that was truncated
/// kills the process with `SIGBUS`; no program can turn that into an error. [`super::Writer`] never
/// truncates: it writes a new file and renames it over the old one, whose maps stay whole. Against
/// other programs, [`Map::verify_len`] finds a truncation that has already happened.
#[derive(Clone)]
pub struct Map {
    inner: Arc<Inner>,
}

struct Inner {
    path: PathBuf,
    file: File,
    /// None for an empty file, which cannot be mapped.
    map: Option<Mmap>,
}

impl fmt::Debug for Map {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (path, len) = (self.path(), self.bytes().len());
        f.debug_struct("Map").field("path", &path).field("len", &len).finish_non_exhaustive()
    }
}

impl Map {
    /// Maps the file at `path`.
    ///
    /// # Errors
    /// When the file cannot be opened or mapped, as a directory cannot.
    pub fn open(path: &Path) -> Result<Self> {
        let file = File::open(path).map_err(Error::file("open", path))?;
        let metadata = file.metadata().map_err(Error::file("examine", path))?;
        let empty = metadata.is_file() && metadata.len() == 0;
        let map = (!empty).then(|| os::map_file(&file)).transpose();
        let map = map.map_err(Error::file("map", path))?;
        Ok(Self { inner: Arc::new(Inner { path: path.to_path_buf(), file, map }) })
    }

    /// The file's bytes.
    pub fn bytes(&self) -> &[u8] {
        self.inner.map.as_deref().unwrap_or(&[])
    }

    /// The path that it was opened by.
    pub fn path(&self) -> &Path {
        &self.inner.path
    }

    /// Tells the system how `range` will be used. Ranges are taken as whole pages: `DontNeed`
    /// spares pages that are partly outside, all else includes them.
    ///
    /// # Errors
    /// When the range passes the end of the file, or the system does not know the advice (as
    /// `PopulateRead` before Linux 5.14).
    pub fn advise(&self, range: Range<usize>, advice: Advice) -> Result<()> {
        let bytes = self.part(range)?;
        os::advise(bytes, advice).map_err(Error::file("advise about", &self.inner.path))
    }

    /// Gives back the memory of `range`: this map's, and what the system keeps of the file where no
    /// other map uses it. It is read from the file again when it is touched.
    ///
    /// # Errors
    /// When the range passes the end of the file, or the system refuses.
    pub fn evict(&self, range: Range<usize>) -> Result<()> {
        self.advise(range.clone(), Advice::DontNeed)?;
        os::evict(&self.inner.file, range).map_err(Error::file("evict", &self.inner.path))
    }

    /// How many bytes of the pages of `range` lie on huge pages now.
    ///
    /// # Errors
    /// When the range passes the end of the file, or the system does not say (as Linux before
    /// 6.7).
    pub fn huge_bytes(&self, range: Range<usize>) -> Result<usize> {
        let bytes = self.part(range)?;
        os::huge_bytes(bytes).map_err(Error::file("find the huge pages of", &self.inner.path))
    }

    fn part(&self, range: Range<usize>) -> Result<&[u8]> {
        let expected = self.bytes().len();
        self.bytes().get(range.clone()).ok_or_else(|| Error::Range {
            path: self.inner.path.clone(),
            got: range,
            expected,
        })
    }

    /// Checks that the file still has the length that was mapped.
    ///
    /// # Errors
    /// When the length has changed or cannot be read.
    pub fn verify_len(&self) -> Result<()> {
        let path = &self.inner.path;
        let got = self.inner.file.metadata().map_err(Error::file("examine", path))?.len();
        let expected = self.bytes().len() as u64;
        if got == expected {
            Ok(())
        } else {
            Err(Error::LengthChanged { path: path.clone(), got, expected })
        }
    }
}
