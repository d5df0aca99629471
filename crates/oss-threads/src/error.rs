//! What can go wrong when a team is made.

use std::io;

/// An operating error of this crate.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The number of threads is out of range.
    #[error("a team of {got} threads was asked for, expected 1 to {expected}")]
    Threads {
        /// Threads asked for.
        got: usize,
        /// The most that a team can have.
        expected: usize,
    },
    /// The system refused a thread.
    #[error("worker {worker} could not be started: {source}")]
    Spawn {
        /// Which worker, counted from 1 (worker 0 is the caller).
        worker: usize,
        /// The system's reason.
        source: io::Error,
    },
}
