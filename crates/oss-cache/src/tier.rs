//! Where pages go that must leave memory, and how they come back bit for bit.
//!
//! Hot pages are resident. *Warm* ones are compressed in memory ([`codec`]), *cold* ones lie in a
//! file that outlives the process. Pages are written to the file as soon as they are complete, and
//! compressed when they must go; threads of their own do both. Whoever evicts copies a page and
//! goes on; it waits only where the queue is full and the page would be lost.

pub mod codec;
mod cold;
mod format;
mod moves;
mod warm;
mod workers;

pub use cold::ColdOptions;
pub(crate) use moves::{Missing, Tiers};
pub use warm::PACK_QUEUE;
pub(crate) use warm::Packed;
