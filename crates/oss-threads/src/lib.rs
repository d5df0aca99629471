//! Persistent workers that run phases over disjoint data.
//!
//! A forward pass is a sequence of *phases*. A phase is a parallel loop with a barrier at its end:
//! the same function over many units (rows of a matrix, heads, experts), run by a few threads that
//! stay awake between phases. The calling thread is worker 0 of a [`Team`]; a phase costs one
//! release and one arrival, the traffic of a barrier.
//!
//! ```
//! use oss_threads::{Chunks, Team};
//!
//! let team = Team::new(2)?;
//! let x = [1.0, 2.0, 3.0, 4.0, 5.0];
//! let mut squares = [0.0; 5];
//! // Three units of two elements; the last has one.
//! team.phase(3, Chunks::new(&mut squares, 2), |unit, part| {
//!     for (offset, square) in part.iter_mut().enumerate() {
//!         let value: f64 = x[unit.index * 2 + offset];
//!         *square = value * value;
//!     }
//! });
//! assert_eq!(squares, [1.0, 4.0, 9.0, 16.0, 25.0]);
//! # Ok::<(), oss_threads::Error>(())
//! ```
//!
//! Invariants:
//! - Each unit of a phase is run exactly once, by one worker; which one differs from run to run, so
//!   a result must depend on the unit's index alone (or scratch that the unit overwrites first).
//! - A safe caller cannot race: mutable data reach a body only as parts of a [`Partition`], whose
//!   constructor checks that they are disjoint, and no part outlives its body call.
//! - A phase neither allocates nor makes a system call while the workers are awake; they go to
//!   sleep 1 ms after the last phase that had units for them. A phase with fewer units than threads
//!   leaves the others alone.
//! - One phase of a team runs at a time; among the threads that share a team, the OS decides whose
//!   is next.
//! - A panic in a body reaches the caller after all workers have stopped; the team stays usable.
//!
//! [`topology`] says how many threads are worth having, and to which CPUs they are bound with
//! [`TeamOptions::pin`].
//!
//! It knows nothing of the work it runs and has no futures, and phases do not nest.

mod backoff;
mod error;
mod options;
mod os;
mod partition;
mod protocol;
mod shares;
mod sync;
mod team;
pub mod topology;

pub use error::Error;
pub use options::TeamOptions;
pub use partition::{Chunks, Partition, Parts, PerWorker, RowCuts, Spans, Tile, Tiles};
pub use team::{AffinityGuard, MAX_THREADS, Team, Unit};
