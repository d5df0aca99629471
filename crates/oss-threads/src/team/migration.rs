//! Notices when two threads of a team take turns on one CPU while another is free.
//!
//! Where another program has run for a moment, the OS may leave both there for tens of
//! milliseconds: it sees two threads that are always busy, and does not know that one polls for the
//! other. A worker that finds one before it on its CPU moves to a CPU without a worker of the team,
//! and may be moved from there as before.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use crate::os::{self, Mask};

/// Phases in a row in which a worker meets another: one may have been seen elsewhere long ago.
const PHASES: u32 = 2;
/// From one move of a worker to the next: the CPU that it leaves for may have been taken.
const PAUSE: Duration = Duration::from_millis(10);

/// Where each worker of a team was last seen.
pub(super) struct Residency {
    /// CPUs and one, or 0 while unknown. Written when it changes, so that all can keep a copy.
    seen: Box<[AtomicU32]>,
}

impl Residency {
    pub(super) fn new(workers: usize) -> Self {
        Self { seen: (0..workers).map(|_| AtomicU32::new(0)).collect() }
    }

    /// Notes where `worker` is, which calls this.
    pub(super) fn note(&self, worker: usize) {
        if let Some(cpu) = os::cpu() {
            self.put(worker, cpu);
        }
    }

    fn put(&self, worker: usize, cpu: usize) {
        let now = u32::try_from(cpu).map_or(0, |cpu| cpu.saturating_add(1));
        if self.seen[worker].load(Ordering::Relaxed) != now {
            self.seen[worker].store(now, Ordering::Relaxed);
        }
    }

    /// Whether one before `worker` was last seen where it is.
    fn meets(&self, worker: usize) -> bool {
        let here = self.seen[worker].load(Ordering::Relaxed);
        here != 0 && self.seen[..worker].iter().any(|seen| seen.load(Ordering::Relaxed) == here)
    }

    /// The CPUs where a worker was last seen.
    fn taken(&self) -> impl Iterator<Item = usize> {
        let seen = self.seen.iter().map(|seen| seen.load(Ordering::Relaxed) as usize);
        seen.filter_map(|seen| seen.checked_sub(1))
    }
}

/// A worker that keeps away from those before it.
pub(super) struct Migrator {
    worker: usize,
    /// In how many phases in a row it met one.
    met: u32,
    moved: Option<Instant>,
}

impl Migrator {
    pub(super) fn new(worker: usize) -> Self {
        Self { worker, met: 0, moved: None }
    }

    /// To be called at the start of a phase, by the worker itself.
    pub(super) fn look(&mut self, residency: &Residency) {
        residency.note(self.worker);
        if !residency.meets(self.worker) {
            self.met = 0;
            return;
        }
        self.met += 1;
        if self.met < PHASES || self.moved.is_some_and(|moved| moved.elapsed() < PAUSE) {
            return;
        }
        (self.met, self.moved) = (0, Some(Instant::now()));
        // Refused, or without a CPU to move to, it stays where it is.
        if let Ok(allowed) = Mask::here()
            && let Some(free) = allowed.without(residency.taken())
            && free.bind_here().is_ok()
        {
            let _refused = allowed.bind_here();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Residency;

    #[test]
    fn who_comes_later_meets_those_before_it_where_they_were_last_seen() {
        let residency = Residency::new(3);
        let meets = || [0, 1, 2].map(|worker| residency.meets(worker));
        assert_eq!(meets(), [false; 3], "nobody was seen yet");
        residency.put(2, 0);
        residency.put(0, 0);
        assert_eq!(meets(), [false, false, true]);
        residency.put(1, 0);
        assert_eq!(meets(), [false, true, true]);
        residency.put(1, 5);
        residency.put(2, 5);
        assert_eq!(meets(), [false, false, true]);
        residency.put(2, 6);
        assert_eq!(meets(), [false; 3]);
        assert_eq!(residency.taken().collect::<Vec<_>>(), [0, 5, 6]);
    }

    /// On systems that do not let threads be bound nobody moves.
    #[cfg(target_os = "linux")]
    #[test]
    fn a_worker_moves_to_a_cpu_that_nobody_has_and_may_run_where_it_might_before() {
        use super::{Mask, Migrator, PHASES};
        use crate::os;

        let before = Mask::here().expect("a mask");
        let here = os::cpu().expect("a CPU");
        // Bound for a moment, so that the system does not move it in between.
        Mask::of(here).and_then(|mask| mask.bind_here()).expect("where it is");
        let (residency, mut migrator) = (Residency::new(2), Migrator::new(1));
        residency.put(0, here);
        for _ in 0..PHASES {
            assert_eq!(os::cpu(), Some(here));
            migrator.look(&residency);
        }
        assert_eq!(os::cpu(), Some(here), "bound to one CPU it has nowhere to go");
        before.bind_here().expect("as before");

        let (residency, mut migrator) = (Residency::new(2), Migrator::new(1));
        let mut moved = false;
        for _ in 0..1000 {
            let here = os::cpu().expect("a CPU");
            residency.put(0, here);
            migrator.look(&residency);
            moved |= os::cpu() != Some(here);
            migrator.moved = None;
        }
        let elsewhere = before.without([here].into_iter()).is_some();
        assert_eq!(moved, elsewhere, "with another CPU it moves");
        assert_eq!(Mask::here().expect("a mask").cpus(), before.cpus());
    }
}
