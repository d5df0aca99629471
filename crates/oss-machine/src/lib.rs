//! What this machine gives at most: bytes read from memory and from caches, products of bytes, and
//! multiply-adds of numbers.
//!
//! The example `bench` and the benches report what share of these a model or a kernel reaches, and
//! measure them in the same run: other tenants of the host and clocks change them from minute to
//! minute.
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

mod caches;
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;
    use std::thread;

    #[test]
    fn the_shortest_pass_counts_and_passes_end_after_half_a_second() {
        let passes = Cell::new(0);
        let pass = |milliseconds: [u64; 2]| {
            let first = passes.replace(passes.get() + 1) == 0;
            thread::sleep(Duration::from_millis(milliseconds[usize::from(!first)]));
        };
        // 1,000 in 2 ms or a little more; the first pass takes longer.
        let rate = best(1000, || pass([30, 2]));
        assert!((70_000.0..=500_000.0).contains(&rate), "{rate} a second");
        assert_eq!(passes.replace(0), 12);
        best(1, || pass([600, 600]));
        assert_eq!(passes.get(), 1);
    }
}
