//! What can go wrong when a team is made.

use std::io;
use std::path::PathBuf;

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
    #[error("worker {worker} could not be started: {cause}")]
    Spawn {
        /// Which worker, counted from 1 (worker 0 is the caller).
        worker: usize,
        /// The system's reason.
        cause: io::Error,
    },
    /// There are more threads to be bound than CPUs.
    #[error(
        "{got} threads were to be bound to a CPU each, expected at most {expected}: the CPUs that \
         this process may use, within the quota of its control group"
    )]
    Cpus {
        /// Threads to be bound.
        got: usize,
        /// The most that can be.
        expected: usize,
    },
    /// The system refused to bind a thread to a CPU.
    #[error("worker {worker} could not be bound to cpu {cpu}: {cause}")]
    Pin {
        /// Which worker; 0 is the caller.
        worker: usize,
        /// The CPU.
        cpu: usize,
        /// The system's reason.
        cause: io::Error,
    },
    /// The system describes its processors in an unknown way.
    #[error("{}: got {got:?}, expected {expected}", path.display())]
    Topology {
        /// The file.
        path: PathBuf,
        /// What it holds.
        got: String,
        /// What it should hold.
        expected: &'static str,
    },
}
