//! Where pages go that must leave memory, and how they come back bit for bit.
//!
//! Hot pages are resident. *Warm* ones are compressed in memory ([`codec`]), *cold* ones lie in a
//! file that outlives the process. Pages are written to the file in the background as soon as they
//! are complete, so that eviction seldom has to wait for it; a page that is in neither lower tier
//! when it must go is compressed, or else written.

pub mod codec;
mod cold;
mod format;
mod moves;
mod workers;

pub use cold::ColdOptions;
pub(crate) use moves::{Missing, Tiers};
