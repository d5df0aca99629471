//! Where pages go that must leave memory, and how they come back bit for bit.
//!
//! Hot pages are resident. *Warm* ones are compressed in memory ([`codec`]), *cold* ones lie in a
//! file that outlives the process. Pages are written to the file as soon as they are complete, and
//! compressed when they are evicted; separate threads do both. The thread that evicts copies a page
//! and goes on; it waits only where the queue is full and the page would be lost, and for the file
//! no longer than pages are worth, nor at all where memory is being given back. Complete pages that
//! find no room in the queue are written later, parents first (`tier/backlog.rs`).
//!
//! The next process finds a page of the file by those before it. So none goes while a page that
//! follows it is in the file, and none goes for one that follows it.

mod backlog;
pub mod codec;
mod cold;
mod format;
mod moves;
mod warm;
mod workers;

pub use cold::ColdOptions;
pub(crate) use moves::{Missing, Tiers};
pub(crate) use warm::{PACK_QUEUE, Packed};
