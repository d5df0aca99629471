//! What can go wrong while a cache works.

use std::io;
use std::path::PathBuf;

/// An operating error of the cache. Programmer errors (a position outside the sequence, a stale
/// id where no `Result` is returned) panic instead.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// There are not enough free pages; nothing was changed.
    #[error("out of cache pages in group {group}: got {got} free, expected {expected}")]
    OutOfPages {
        /// The group of layers that ran short.
        group: usize,
        /// Pages this group could have had.
        got: usize,
        /// Pages this group needed.
        expected: usize,
    },
    /// The id names a sequence that has been removed.
    #[error("sequence {id} has been removed")]
    UnknownSequence {
        /// The id's index.
        id: u32,
    },
    /// Something was asked of positions which a sequence does not have.
    #[error("position beyond the sequence: got {got}, expected at most {expected}")]
    BeyondSequence {
        /// The position asked for.
        got: usize,
        /// The sequence's length.
        expected: usize,
    },
    /// A text names no eviction policy.
    #[error("got the eviction policy {got}, expected lru, lfu, adaptive or random")]
    Policy {
        /// The name.
        got: String,
    },
    /// The shape makes no sense.
    #[error("cache shape: {field}: got {got}, expected {expected}")]
    Shape {
        /// Which field.
        field: &'static str,
        /// What it was.
        got: usize,
        /// What it may be.
        expected: &'static str,
    },
    /// The capacity does not hold a single page of the largest group.
    #[error("cache capacity (`cache_bytes`): got {got} bytes, expected at least {expected}")]
    Capacity {
        /// The capacity asked for, in bytes.
        got: usize,
        /// One page of the largest group, in bytes.
        expected: usize,
    },
    /// The file of cold pages does not hold a single page of the largest group.
    #[error("cold pages (`cold.bytes`): got {got} bytes, expected at least {expected}")]
    ColdCapacity {
        /// The most bytes that the file may have.
        got: u64,
        /// Its bytes with one page of the largest group.
        expected: u64,
    },
    /// Memory or a file could not be had.
    #[error(transparent)]
    Memory(#[from] oss_memory::Error),
    /// Another process uses the file of cold pages.
    #[error("{}: another cache uses this file", path.display())]
    InUse {
        /// The file.
        path: PathBuf,
    },
    /// The system gave no thread for a lower tier.
    #[error("no thread for the cache's lower tiers: {cause}")]
    Thread {
        /// The system's reason.
        cause: io::Error,
    },
    /// A book-keeping rule does not hold; only [`crate::KvCache::validate`] reports it.
    #[error("cache book-keeping: {what}: got {got}, expected {expected}")]
    Inconsistent {
        /// The rule.
        what: &'static str,
        /// What was found.
        got: usize,
        /// What the rule demands.
        expected: usize,
    },
}

/// A result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// Holds what book-keeping says against what its rule demands.
pub(crate) fn same(what: &'static str, got: usize, expected: usize) -> Result<()> {
    match got == expected {
        true => Ok(()),
        false => Err(Error::Inconsistent { what, got, expected }),
    }
}
