//! The bytes of one file: mapped, or in memory.

use std::borrow::Cow;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use oss_memory::file::{Advice, Map};

use crate::error::{Error, Result};

/// How the text begins that Git LFS leaves in the place of a file that it has not fetched.
const POINTER: &[u8] = b"version https://git-lfs.github.com/spec/";

/// One file of a container. Clones share the bytes.
#[derive(Clone)]
pub(crate) struct Source {
    path: Arc<PathBuf>,
    bytes: Bytes,
    modified: Option<SystemTime>,
}

#[derive(Clone)]
enum Bytes {
    Map(Map),
    Memory(Arc<Cow<'static, [u8]>>),
}

impl Source {
    /// Maps the file at `path`.
    pub(crate) fn open(path: &Path) -> Result<Source> {
        let map = Map::open(path)?;
        let modified = path.metadata().and_then(|about| about.modified()).ok();
        let source =
            Source { path: Arc::new(path.to_path_buf()), bytes: Bytes::Map(map), modified };
        source.check_fetched()?;
        Ok(source)
    }

    /// Bytes in memory; `name` takes the place of the path in errors.
    pub(crate) fn memory(name: &str, bytes: Cow<'static, [u8]>) -> Source {
        let bytes = Bytes::Memory(Arc::new(bytes));
        Source { path: Arc::new(PathBuf::from(name)), bytes, modified: None }
    }

    /// Refuses what stands in the place of a file that was not fetched.
    pub(crate) fn check_fetched(&self) -> Result<()> {
        if !self.bytes().starts_with(POINTER) {
            return Ok(());
        }
        Err(Error::NotAModel {
            file: self.path.to_path_buf(),
            got: "a Git LFS pointer (run `git lfs pull`)".to_string(),
            expected: "the file that it points to".to_string(),
        })
    }

    /// Whether it is a file, and not bytes in memory.
    pub(crate) fn is_file(&self) -> bool {
        self.map().is_some()
    }

    /// The path that errors name.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// When the file had last been written when it was opened, where the system says.
    pub(crate) fn modified(&self) -> Option<SystemTime> {
        self.modified
    }

    /// The whole file.
    pub(crate) fn bytes(&self) -> &[u8] {
        match &self.bytes {
            Bytes::Map(map) => map.bytes(),
            Bytes::Memory(bytes) => bytes,
        }
    }

    /// The map, where the bytes are those of a file.
    pub(crate) fn map(&self) -> Option<&Map> {
        match &self.bytes {
            Bytes::Map(map) => Some(map),
            Bytes::Memory(_) => None,
        }
    }

    /// Tells the system about the pages of `range`; nothing for bytes in memory.
    pub(crate) fn advise(&self, range: Range<usize>, advice: Advice) -> Result<()> {
        self.map().map_or(Ok(()), |map| Ok(map.advise(range, advice)?))
    }
}

impl std::fmt::Debug for Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} ({} bytes)", self.path.display(), self.bytes().len())
    }
}
