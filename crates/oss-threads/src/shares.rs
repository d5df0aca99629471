//! Who runs which units of a phase: a contiguous share each, and the far end of another's share for
//! whoever is done with their own.
//!
//! So a worker reads what lies in memory one after the other, which the processor's prefetching
//! follows, until in the last microseconds some take over from others.
//!
//! This file uses only `crate::sync`, which the loom test replaces, and the protocol's `Padded`.

use std::ops::Range;

use crate::protocol::Padded;
use crate::sync::{AtomicU64, Ordering};

/// The most units that a worker takes at once: nobody can take them over, and where they are longer
/// than others the phase waits for them.
const AT_ONCE: u32 = 4;

/// The units of a phase that nobody has begun.
pub(crate) struct Shares {
    /// Of each worker the first of its units and their end: 32 bits each, to change together.
    left: Box<[Padded<AtomicU64>]>,
}

impl Shares {
    /// No units, for so many workers.
    pub(crate) fn new(workers: usize) -> Self {
        Self { left: (0..workers).map(|_| Padded(AtomicU64::new(0))).collect() }
    }

    /// Shares out `0..units` among the first `workers`; between phases, when nobody takes any.
    ///
    /// # Panics
    /// When there are 2³² units or more.
    pub(crate) fn share(&self, units: usize, workers: usize) {
        let units = u32::try_from(units).expect("fewer than 2^32 units");
        let mut begin = 0;
        for (worker, left) in self.left.iter().enumerate() {
            // Lengths differ by 1 at most.
            let all = units as usize;
            let more = usize::from(worker < all % workers);
            let n = if worker < workers { all / workers + more } else { 0 };
            let end = begin + n as u32;
            // Publishing the phase publishes this.
            left.0.store(pack(begin, end), Ordering::Relaxed);
            begin = end;
        }
    }

    /// Units that `worker` is to run now, in order: some of its own share, up to [`AT_ONCE`] while
    /// many are left and one by one in the end; or, when it has none, of the far half of another's.
    pub(crate) fn take(&self, worker: usize) -> Option<Range<usize>> {
        let some = |begin: u32, end: u32| begin + ((end - begin) / 4).clamp(1, AT_ONCE);
        let near = |begin, end| {
            let border = some(begin, end);
            [(begin, border), (border, end)]
        };
        if let Some((begin, end)) = self.cut(worker, near) {
            return Some(begin as usize..end as usize);
        }
        for other in 1..self.left.len() {
            let other = (worker + other) % self.left.len();
            let far = |begin: u32, end: u32| {
                let border = begin + (end - begin) / 2;
                [(border, end), (begin, border)]
            };
            if let Some((begin, end)) = self.cut(other, far) {
                // What is not run now is this worker's share, for others to take from in turn.
                // Nobody else writes to an empty one.
                let border = some(begin, end);
                self.left[worker].0.store(pack(border, end), Ordering::Relaxed);
                return Some(begin as usize..border as usize);
            }
        }
        None
    }

    /// Takes of what a worker has left the first part that `parts` makes of it, leaves the second.
    fn cut(
        &self,
        worker: usize,
        parts: impl Fn(u32, u32) -> [(u32, u32); 2],
    ) -> Option<(u32, u32)> {
        let left = &self.left[worker].0;
        let mut seen = left.load(Ordering::Relaxed);
        loop {
            let (begin, end) = ((seen >> 32) as u32, seen as u32);
            if begin == end {
                return None;
            }
            let [taken, rest] = parts(begin, end);
            let order = Ordering::Relaxed;
            match left.compare_exchange_weak(seen, pack(rest.0, rest.1), order, order) {
                Ok(_) => return Some(taken),
                Err(now) => seen = now,
            }
        }
    }
}

const fn pack(begin: u32, end: u32) -> u64 {
    (begin as u64) << 32 | end as u64
}

// Outside of its model loom's atomics cannot be used.
#[cfg(all(test, not(loom)))]
mod tests {
    use super::Shares;

    #[test]
    fn few_units_of_a_long_share_are_taken_at_once() {
        let shares = Shares::new(2);
        shares.share(200, 2);
        assert_eq!(shares.take(0), Some(0..4));
        assert_eq!(shares.take(1), Some(100..104));
        // The rest of its own share, in the end one by one; then it takes over from the other.
        let own: Vec<_> =
            (0..100).map_while(|_| shares.take(1).filter(|n| n.start >= 100)).collect();
        assert!(own.iter().all(|units| units.len() <= 4), "{own:?}");
        assert_eq!((own[0].clone(), own[own.len() - 1].clone()), (104..108, 199..200));
    }
}
