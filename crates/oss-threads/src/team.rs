//! The team: persistent workers and the phases that they run.

mod affinity;
mod migration;
mod oversubscription;
mod phase;

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;
use std::{fmt, thread};

use crate::backoff::{Backoff, WaitPolicy};
use crate::error::Error;
use crate::options::TeamOptions;
use crate::os::Mask;
use crate::partition::{Partition, Parts};
use crate::protocol::{Gang, Share};
use crate::shares::Runs;

pub use affinity::AffinityGuard;
use migration::{Migrator, Residency};
use oversubscription::Oversubscription;
use phase::{Body, Job, Phase};

/// The most threads that a team can have.
pub const MAX_THREADS: usize = 1024;

/// One unit of a phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unit {
    /// Which unit, from 0.
    pub index: usize,
    /// The worker that runs it, from 0; it differs from run to run.
    pub worker: usize,
}

/// Persistent workers that run phases; the calling thread is worker 0.
///
/// A clone is another handle of the same workers; they end with the last handle.
#[derive(Clone)]
pub struct Team {
    inner: Arc<Inner>,
}

/// What the workers and all handles share.
struct Shared {
    gang: Gang<Option<Job>>,
    policy: WaitPolicy,
    /// None where threads are bound to CPUs.
    residency: Option<Residency>,
}

struct Inner {
    shared: Arc<Shared>,
    /// Those that threads are bound to, the caller's first.
    cpus: Vec<usize>,
    /// Held by the thread whose phase runs.
    caller: Mutex<()>,
    oversubscription: Oversubscription,
    workers: Vec<JoinHandle<()>>,
}

impl fmt::Debug for Team {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Team").field("threads", &self.threads()).finish_non_exhaustive()
    }
}

impl Team {
    /// A team of `threads`, the caller's included, with all other options at their defaults.
    ///
    /// # Errors
    /// When `threads` is 0 or above [`MAX_THREADS`], or the system refuses a thread.
    pub fn new(threads: usize) -> Result<Self, Error> {
        Self::with_options(&TeamOptions::new(threads))
    }

    /// A team as the options say.
    ///
    /// # Errors
    /// When the number of threads is 0 or above [`MAX_THREADS`], the system refuses a thread, or
    /// there is no CPU for one that is to be bound (see [`TeamOptions::cpus`]).
    pub fn with_options(options: &TeamOptions) -> Result<Self, Error> {
        let threads = options.threads;
        if threads == 0 || threads > MAX_THREADS {
            return Err(Error::Threads { got: threads, expected: MAX_THREADS });
        }
        let cpus = options.cpus()?;
        let gang = Gang::new(threads, None);
        let residency = cpus.is_empty().then(|| Residency::new(threads));
        let shared = Arc::new(Shared { gang, policy: WaitPolicy::active(), residency });
        // Made before the workers, so that dropping it ends those that did start.
        let mut inner = Inner {
            shared,
            cpus,
            caller: Mutex::new(()),
            oversubscription: Oversubscription::new(),
            workers: Vec::with_capacity(threads - 1),
        };
        for worker in 1..threads {
            let shared = Arc::clone(&inner.shared);
            let thread = thread::Builder::new()
                .name(format!("oss-worker-{worker}"))
                .spawn(move || work(&shared, worker));
            let thread = thread.map_err(|cause| Error::Spawn { worker, cause })?;
            let bind = |&cpu: &usize| {
                let bound = Mask::of(cpu).and_then(|mask| mask.bind(&thread));
                bound.map_err(|cause| Error::Pin { worker, cpu, cause })
            };
            let bound = inner.cpus.get(worker).map_or(Ok(()), bind);
            inner.workers.push(thread);
            bound?;
        }
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Number of threads, the caller's included.
    pub fn threads(&self) -> usize {
        self.inner.shared.gang.threads()
    }

    /// The CPUs that its threads are bound to, the caller's first (see [`Team::pin_caller`]);
    /// empty where they are not bound.
    pub fn cpus(&self) -> &[usize] {
        &self.inner.cpus
    }

    /// Runs `body` once for each unit of `0..units`, with the unit's part of `out`.
    ///
    /// The units are shared out in contiguous runs, worker by worker; who is done with their own
    /// takes over half of what another has not begun, but for its first unit. The call returns
    /// when all units are done. Writes of the body are visible to the caller and to later phases.
    ///
    /// One phase of a team runs at a time; other callers wait.
    ///
    /// # Panics
    /// When `out` has fewer units than `units` or serves fewer workers than the team has threads;
    /// when there are 2³² units or more; when called from inside the body of a phase; and, after
    /// all workers have stopped, with the panic of a body. The team is usable afterwards.
    pub fn phase<P, B>(&self, units: usize, out: P, body: B)
    where
        P: Partition,
        B: for<'p> Fn(Unit, <P as Parts<'p>>::Part) + Sync,
    {
        let (available, workers) = (out.units(), out.workers());
        assert!(units <= available, "{units} units of a partition that has {available}");
        assert!(self.threads() <= workers, "{} threads share {workers} slots", self.threads());
        let _body = Body::enter();
        // A phase that panicked has left nothing behind.
        let _caller = self.inner.caller.lock().unwrap_or_else(PoisonError::into_inner);
        let runs = Runs::new(units, self.threads());
        let phase = Phase::new(&self.inner.shared.gang, runs, out, body);
        if runs.workers() > 1 {
            self.inner.run(&phase, runs);
        } else {
            phase.run_alone();
        }
    }
}

impl Inner {
    /// Runs a phase on those workers that have a run; the calling thread holds `caller`.
    fn run<P, B>(&self, phase: &Phase<'_, P, B>, runs: Runs)
    where
        P: Partition,
        B: for<'p> Fn(Unit, <P as Parts<'p>>::Part) + Sync,
    {
        let begin = self.oversubscription.is_timed().then(Instant::now);
        if let Some(residency) = &self.shared.residency {
            residency.note(0);
        }
        // SAFETY: who holds `caller` is the only caller, `finish` below returns before
        // `phase` ends, and nothing between the two unwinds: `work` catches every panic.
        #[expect(unsafe_code, reason = "lends the phase to the workers until they have arrived")]
        unsafe {
            self.shared.gang.release(Some(phase.job()), runs);
        }
        phase.work(0, 0);
        let worked = begin.map(|begin| begin.elapsed());
        self.shared.gang.finish(runs, &mut Backoff::new(&self.shared.policy));
        if let (Some(begin), Some(work)) = (begin, worked) {
            let now = Instant::now();
            let wait = now.saturating_duration_since(begin).saturating_sub(work);
            let passive = self.oversubscription.observe(work, wait, now);
            self.shared.policy.passive.store(passive, Ordering::Relaxed);
        }
        phase.resume_panic();
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let (gang, threads) = (&self.shared.gang, self.shared.gang.threads());
        // Threads that were refused never wait for a job nor arrive; nobody waits for them here.
        // SAFETY: no handle is left, so no phase runs and no other thread is the caller.
        #[expect(unsafe_code, reason = "releases the workers a last time")]
        unsafe {
            gang.release(None, Runs::new(threads, threads));
        }
        for worker in self.workers.drain(..) {
            // A worker catches the panics of bodies; a panic of its own has been printed already.
            drop(worker.join());
        }
    }
}

/// The life of worker `worker`.
fn work(shared: &Shared, worker: usize) {
    let _body = Body::enter();
    let (mut seen, mut migrator) = (0, Migrator::new(worker));
    let next = |seen: &mut u64| shared.gang.next(worker, seen, &mut Backoff::new(&shared.policy));
    while let Share { job: Some(job), first, workers } = next(&mut seen) {
        if let Some(residency) = &shared.residency {
            migrator.look(residency);
        }
        // SAFETY: the caller keeps the phase alive until this worker has arrived.
        #[expect(unsafe_code, reason = "runs the phase that the caller has lent")]
        unsafe {
            job.run(worker, first);
        }
        shared.gang.arrive(worker, seen, workers);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::oversubscription::{EVERY, LATE, WINDOW};
    use super::{Ordering, Team, thread};
    use crate::partition::Chunks;

    #[test]
    fn a_team_whose_worker_is_always_late_sleeps_at_once_and_works_on() {
        let team = Team::new(2).expect("threads");
        let late = || {
            // Unit 1 is always worker 1's.
            team.phase(2, (), |unit, ()| match unit.index {
                0 => {}
                _ => thread::sleep(Duration::from_millis(1)),
            });
        };
        let is_passive = || team.inner.shared.policy.passive.load(Ordering::Relaxed);
        for phase in 1..EVERY * LATE {
            late();
            assert!(!is_passive(), "after {phase} phases");
        }
        // The next one, unless the caller itself was kept from its core in one of them.
        let more = (0..EVERY * WINDOW).take_while(|_| !is_passive()).inspect(|_| late()).count();
        assert!(is_passive(), "after {more} more");
        let mut runs = [0; 9];
        for _ in 0..100 {
            team.phase(9, Chunks::new(&mut runs, 1), |_, run| run[0] += 1);
        }
        assert_eq!(runs, [100; 9]);
    }
}
