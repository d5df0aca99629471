//! Who runs which units of a phase: a contiguous run each, and the far end of another's run for
//! whoever is done with their own.
//!
//! So a worker reads what lies in memory one after the other, which the processor's prefetching
//! follows, until in the last microseconds some take over from others. The first unit of a run is
//! its worker's from the start: it begins without a write to memory that others look at.
//!
//! This file uses only `crate::sync`, which the loom test replaces, and the protocol's `Gang`.

use std::ops::Range;

use crate::protocol::Gang;
use crate::sync::{AtomicU64, Ordering};

/// The most units that a worker takes at once: nobody can take them over, and where they are longer
/// than others the phase waits for them.
const AT_ONCE: u32 = 4;

/// The units of a phase as contiguous runs, worker by worker.
#[derive(Clone, Copy)]
pub(crate) struct Runs {
    units: usize,
    workers: usize,
}

impl Runs {
    /// `0..units` among the first `workers`.
    ///
    /// # Panics
    /// When there are 2³² units or more.
    pub(crate) fn new(units: usize, workers: usize) -> Self {
        assert!(u32::try_from(units).is_ok(), "{units} units, expected fewer than 2^32");
        Self { units, workers }
    }

    /// The run of `worker`; lengths differ by 1 at most, and are 0 for who takes no part.
    pub(crate) fn of(self, worker: usize) -> Range<usize> {
        let (each, more) = (self.units / self.workers, self.units % self.workers);
        let begin = |worker: usize| (worker * each + worker.min(more)).min(self.units);
        begin(worker)..begin(worker + 1)
    }

    /// What `worker` runs before it takes any.
    pub(crate) fn first(self, worker: usize) -> Option<usize> {
        self.of(worker).next()
    }

    /// Whether there are more units than the first ones, to be taken.
    pub(crate) fn has_more(self) -> bool {
        self.units > self.workers
    }
}

/// The units of one run that nobody has begun: the first of them and their end, 32 bits each, to
/// change together.
pub(crate) struct Left(AtomicU64);

impl Left {
    pub(crate) fn none() -> Self {
        Self(AtomicU64::new(0))
    }

    /// For who knows that nobody else writes.
    fn set(&self, begin: u32, end: u32) {
        self.0.store(pack(begin, end), Ordering::Relaxed);
    }

    /// Takes the first part that `parts` makes of it, leaves the second.
    fn cut(&self, parts: impl Fn(u32, u32) -> [(u32, u32); 2]) -> Option<(u32, u32)> {
        let mut seen = self.0.load(Ordering::Relaxed);
        loop {
            let (begin, end) = ((seen >> 32) as u32, seen as u32);
            if begin == end {
                return None;
            }
            let [taken, rest] = parts(begin, end);
            let order = Ordering::Relaxed;
            match self.0.compare_exchange_weak(seen, pack(rest.0, rest.1), order, order) {
                Ok(_) => return Some(taken),
                Err(now) => seen = now,
            }
        }
    }
}

const fn pack(begin: u32, end: u32) -> u64 {
    (begin as u64) << 32 | end as u64
}

impl<J: Copy> Gang<J> {
    /// Leaves all units but the first ones to be taken; between phases, when nobody takes any.
    pub(crate) fn share(&self, runs: Runs) {
        for worker in 0..self.threads() {
            let run = runs.of(worker);
            let first = usize::from(!run.is_empty());
            // Releasing the phase publishes this.
            self.left(worker).set((run.start + first) as u32, run.end as u32);
        }
    }

    /// Units that `worker` is to run now, in order: some of its own run, up to [`AT_ONCE`] while
    /// many are left and one by one in the end; or, when it has none, of the far half of another's.
    pub(crate) fn take(&self, worker: usize) -> Option<Range<usize>> {
        let some = |begin: u32, end: u32| begin + ((end - begin) / 4).clamp(1, AT_ONCE);
        let near = |begin, end| {
            let border = some(begin, end);
            [(begin, border), (border, end)]
        };
        if let Some((begin, end)) = self.left(worker).cut(near) {
            return Some(begin as usize..end as usize);
        }
        for other in 1..self.threads() {
            let other = (worker + other) % self.threads();
            let far = |begin: u32, end: u32| {
                let border = begin + (end - begin) / 2;
                [(border, end), (begin, border)]
            };
            if let Some((begin, end)) = self.left(other).cut(far) {
                // What is not run now is this worker's, for others to take from in turn. Nobody
                // else writes where none are left.
                let border = some(begin, end);
                self.left(worker).set(border, end);
                return Some(begin as usize..border as usize);
            }
        }
        None
    }
}

// Outside of its model loom's atomics cannot be used.
#[cfg(all(test, not(loom)))]
mod tests {
    use super::Runs;
    use crate::protocol::Gang;

    #[test]
    fn runs_follow_each_other_and_hardly_differ() {
        let runs = |units: usize, workers: usize, all: usize| -> Vec<_> {
            (0..all).map(|worker| Runs::new(units, workers).of(worker)).collect()
        };
        assert_eq!(runs(8, 3, 3), [0..3, 3..6, 6..8]);
        assert_eq!(runs(2, 2, 4), [0..1, 1..2, 2..2, 2..2], "two take no part");
        assert_eq!(runs(7, 3, 5), [0..3, 3..5, 5..7, 7..7, 7..7]);
        assert_eq!(runs(0, 1, 2), [0..0, 0..0]);
        assert!(Runs::new(4, 3).has_more() && !Runs::new(3, 3).has_more());
        assert_eq!([0, 2, 3].map(|worker| Runs::new(7, 3).first(worker)), [Some(0), Some(5), None]);
    }

    #[test]
    fn few_units_of_a_long_run_are_taken_at_once() {
        let gang = Gang::new(2, 0usize);
        gang.share(Runs::new(200, 2));
        // The first ones are run without being taken.
        assert_eq!(gang.take(0), Some(1..5));
        assert_eq!(gang.take(1), Some(101..105));
        // The rest of its own run, in the end one by one; then it takes over from the other.
        let own: Vec<_> = (0..100).map_while(|_| gang.take(1).filter(|n| n.start >= 100)).collect();
        assert!(own.iter().all(|units| units.len() <= 4), "{own:?}");
        assert_eq!((own[0].clone(), own[own.len() - 1].clone()), (105..109, 199..200));
    }
}
