//! Which worker runs which units of a phase: a contiguous run each, then work stealing.
//!
//! A worker reads memory sequentially, which the hardware prefetcher follows, until in the last
//! microseconds those that are done steal the far end of another's run. The first unit of a run
//! belongs to its worker from the start: it begins without a write to a shared cache line.
//!
//! This file uses only `crate::sync`, which the loom test replaces, and the protocol's `Gang`.

use std::ops::Range;

use crate::protocol::Gang;
use crate::sync::{AtomicU64, Ordering};

/// The most units that a worker takes at once: nobody can take them over, and where they are longer
/// than others the phase waits for them.
const AT_ONCE: u32 = 4;

/// The units of a phase as contiguous runs, one for each worker that takes part.
#[derive(Clone, Copy)]
pub(crate) struct Runs {
    units: u32,
    workers: u32,
}

impl Runs {
    /// `0..units` among `threads`, or among as many as there are units, but at least 1.
    ///
    /// # Panics
    /// When there are 2³² units or more.
    pub(crate) fn new(units: usize, threads: usize) -> Self {
        let workers = threads.min(units.max(1));
        let fits = u32::try_from(units).ok().zip(u32::try_from(workers).ok());
        let Some((units, workers)) = fits else {
            panic!("{units} units, expected fewer than 2^32");
        };
        Self { units, workers }
    }

    /// Units of all runs.
    pub(crate) fn units(self) -> usize {
        self.units as usize
    }

    /// How many take part: the first of the team, the caller included.
    pub(crate) fn workers(self) -> usize {
        self.workers as usize
    }

    /// The runs, worker by worker. Lengths differ by 1 at most; none is empty but for no units.
    pub(crate) fn each(self) -> impl Iterator<Item = Range<u32>> {
        let (each, more) = (self.units / self.workers, self.units % self.workers);
        let mut end = 0;
        (0..self.workers).map(move |worker| {
            let begin = end;
            end += each + u32::from(worker < more);
            begin..end
        })
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

    /// For who knows that nobody else writes: while none are left, nobody does.
    pub(crate) fn set(&self, begin: u32, end: u32) {
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
    /// Caller: what is left of a job is run by nobody. To be called between jobs, after one that
    /// was not taken to its end; else none is left.
    pub(crate) fn abandon(&self) {
        self.lefts(0..self.threads()).for_each(|left| left.set(0, 0));
    }

    /// Units that `worker` is to run now, in order: some of its own run, up to [`AT_ONCE`] while
    /// many are left and one by one in the end; or, when it has none, of the far half of another's
    /// among the first `workers`.
    ///
    /// Runs of those that the caller comes to later seem empty until it does.
    pub(crate) fn take(&self, worker: usize, workers: usize) -> Option<Range<usize>> {
        let some = |begin: u32, end: u32| begin + ((end - begin) / 4).clamp(1, AT_ONCE);
        let near = |begin, end| {
            let border = some(begin, end);
            [(begin, border), (border, end)]
        };
        if let Some((begin, end)) = self.left(worker).cut(near) {
            return Some(begin as usize..end as usize);
        }
        let far = |begin: u32, end: u32| {
            let border = begin + (end - begin) / 2;
            [(border, end), (begin, border)]
        };
        let mut others = self.lefts(worker + 1..workers).chain(self.lefts(0..worker));
        let (begin, end) = others.find_map(|other| other.cut(far))?;
        // What is not run now is this worker's, for others to take from in turn.
        let border = some(begin, end);
        self.left(worker).set(border, end);
        Some(begin as usize..border as usize)
    }
}

// Outside of its model loom's atomics cannot be used.
#[cfg(all(test, not(loom)))]
mod tests {
    use super::Runs;
    use crate::protocol::Gang;

    #[test]
    fn runs_follow_each_other_and_hardly_differ() {
        let runs = |units, threads| Runs::new(units, threads).each().collect::<Vec<_>>();
        assert_eq!(runs(8, 3), [0..3, 3..6, 6..8]);
        assert_eq!(runs(7, 3), [0..3, 3..5, 5..7]);
        assert_eq!(runs(2, 4), [0..1, 1..2], "two take no part");
        assert!(runs(0, 2).iter().eq([&(0..0)]), "one looks whether there is anything");
        let most = u32::MAX;
        assert_eq!(runs(most as usize, 2), [0..most / 2 + 1, most / 2 + 1..most]);
        assert!(Runs::new(4, 3).has_more() && !Runs::new(3, 3).has_more());
    }

    /// A gang whose caller has released `units`; its workers are played by the test.
    fn released(threads: usize, units: usize) -> Gang<usize> {
        let gang = Gang::new(threads, 0);
        // SAFETY: it is the first job.
        #[expect(unsafe_code, reason = "plays the caller of a team")]
        unsafe {
            gang.release(1, Runs::new(units, threads));
        }
        gang
    }

    #[test]
    fn few_units_of_a_long_run_are_taken_at_once() {
        let gang = released(2, 200);
        // The first ones are run without being taken.
        assert_eq!(gang.take(0, 2), Some(1..5));
        assert_eq!(gang.take(1, 2), Some(101..105));
        // The rest of its own run, in the end one by one; then it takes over from the other.
        let take = |_| gang.take(1, 2).filter(|units| units.start >= 100);
        let own: Vec<_> = (0..100).map_while(take).collect();
        assert!(own.iter().all(|units| units.len() <= 4), "{own:?}");
        assert_eq!((own[0].clone(), own[own.len() - 1].clone()), (105..109, 199..200));
    }

    #[test]
    fn who_has_none_left_takes_from_the_next_one_that_takes_part() {
        let gang = released(4, 8);
        assert_eq!(
            [2, 2, 2, 2].map(|worker| gang.take(worker, 4)),
            [Some(5..6), Some(7..8), Some(1..2), Some(3..4),]
        );
        assert_eq!(gang.take(2, 4), None);
        let gang = released(4, 8);
        assert_eq!([0, 0, 0].map(|worker| gang.take(worker, 2)), [Some(1..2), Some(3..4), None]);
    }

    #[test]
    fn units_that_a_panic_has_left_are_taken_by_nobody() {
        let gang = released(3, 100);
        assert_eq!(gang.take(1, 3), Some(35..39));
        gang.abandon();
        assert_eq!([0, 1, 2].map(|worker| gang.take(worker, 3)), [None, None, None]);
    }
}
