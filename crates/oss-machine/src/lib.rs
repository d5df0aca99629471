//! What this machine gives at most: bytes read from memory and from caches, products of bytes, and
//! multiply-adds of numbers.
//!
//! The example `bench` and the benches tell what share of these a model or a kernel reaches, and
//! measure them in the same run: neighbours and clocks change them from minute to minute.
//!
//! ```
//! use oss_simd::Isa;
//! use oss_threads::Team;
//!
//! let (isa, team) = (Isa::detect()?, Team::new(1)?);
//! let operations = oss_machine::int8_peak(isa, &team);
//! let bytes = oss_machine::cached_read_rate(isa, 16 << 10);
//! assert!(operations > 0.0 && bytes > 0.0);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # What it does not do
//! It knows no kernels and no models, and it is not published.

#![forbid(unsafe_code)]

mod products;
mod read;

pub use products::{f32_peak, int8_peak};
pub use read::{ReadProbe, ReadWay, Sample, best_way, beyond_caches, cached_read_rate};

use std::time::{Duration, Instant};

/// What can go wrong when measuring.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The system refused memory.
    #[error(transparent)]
    Memory(#[from] oss_memory::Error),
    /// The system refused threads.
    #[error(transparent)]
    Threads(#[from] oss_threads::Error),
}

/// Operations or bytes per second of the best of some passes that do so many; no more passes are
/// begun after half a second.
fn best(amount: usize, mut pass: impl FnMut()) -> f64 {
    const PASSES: usize = 12;
    let begin = Instant::now();
    let mut seconds = f64::INFINITY;
    for _ in 0..PASSES {
        let start = Instant::now();
        pass();
        seconds = seconds.min(start.elapsed().as_secs_f64());
        if begin.elapsed() > Duration::from_millis(500) {
            break;
        }
    }
    amount as f64 / seconds
}
