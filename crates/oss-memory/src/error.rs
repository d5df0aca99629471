//! What can go wrong between this crate and the operating system.

use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};

use crate::placement::Node;

/// An operating error of this crate.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The system refused something about a file.
    #[error("{}: could not {action}: {cause}", path.display())]
    File {
        /// What was tried, as in "could not open".
        action: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// The system's reason.
        cause: io::Error,
    },
    /// The system refused to give a file another name.
    #[error("{}: could not rename to {}: {cause}", from.display(), to.display())]
    Rename {
        /// The file.
        from: PathBuf,
        /// The name that it was to have.
        to: PathBuf,
        /// The system's reason.
        cause: io::Error,
    },
    /// A file is larger than the reader allows.
    #[error("{}: the file has {got} bytes, expected at most {expected}", path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// Its length in bytes.
        got: u64,
        /// The reader's limit.
        expected: u64,
    },
    /// A file has changed its length since it was mapped.
    #[error(
        "{}: the file has {got} bytes, expected the {expected} that were mapped",
        path.display()
    )]
    LengthChanged {
        /// The file.
        path: PathBuf,
        /// Its length in bytes now.
        got: u64,
        /// Its length in bytes when it was mapped.
        expected: u64,
    },
    /// A range of bytes passes the end.
    #[error("{}: bytes {got:?} were asked for, expected a range within {expected}", path.display())]
    Range {
        /// The file.
        path: PathBuf,
        /// The range asked for.
        got: Range<usize>,
        /// The length in bytes.
        expected: usize,
    },
    /// The system has no memory, or refused something about it.
    #[error("could not {action} {bytes} bytes of memory: {cause}")]
    Memory {
        /// What was tried, as in "could not map".
        action: &'static str,
        /// How many bytes.
        bytes: usize,
        /// The system's reason.
        cause: io::Error,
    },
    /// The system does not lay memory on a node: it has none of that number, or lets no process
    /// choose.
    #[error("could not place {bytes} bytes of memory on NUMA nodes {nodes:?}: {cause}")]
    Place {
        /// How many bytes.
        bytes: usize,
        /// The nodes' numbers.
        nodes: Vec<usize>,
        /// The system's reason.
        cause: io::Error,
    },
    /// No placement has that name.
    #[error(
        "got the placement {got}, expected system, interleave, replicate, row-slab or first-touch"
    )]
    Placement {
        /// The name.
        got: String,
    },
    /// No pages have that name.
    #[error("got the pages {got}, expected ordinary, transparent or reserved")]
    Pages {
        /// The name.
        got: String,
    },
    /// The system describes its memory in an unknown way.
    #[error("{}: got {got:?}, expected {expected}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What it holds.
        got: String,
        /// What it should hold.
        expected: &'static str,
    },
}

/// The result of this crate's operations.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// Makes the error for `action` on `path`, for `map_err`.
    pub(crate) fn file(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |cause| Self::File { action, path: path.to_path_buf(), cause }
    }

    /// Makes the error for placing `bytes` on `nodes`, for `map_err`.
    pub(crate) fn place(bytes: usize, nodes: &[Node]) -> impl FnOnce(io::Error) -> Self {
        let nodes = nodes.iter().map(|node| node.id).collect();
        move |cause| Self::Place { bytes, nodes, cause }
    }

    /// Makes the error for `action` on `bytes` of memory, for `map_err`.
    pub(crate) fn memory(action: &'static str, bytes: usize) -> impl FnOnce(io::Error) -> Self {
        move |cause| Self::Memory { action, bytes, cause }
    }
}
