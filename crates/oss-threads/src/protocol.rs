//! How a phase starts and ends: release, arrive, sleep.
//!
//! One caller and its workers. The caller writes a worker's share of a job and raises the epoch;
//! each worker waits for an epoch that it has not seen, does its share and arrives; the caller
//! waits until all have arrived that were given one: a job with fewer units than workers leaves the
//! last of them alone. What the caller hands to a worker is on one cache line and is written once,
//! what the worker answers is on another, and neither is shared with other workers: a cache line
//! takes a fifth of a microsecond from one core to another where they lie far apart. Epochs are
//! counted on from phase to phase and never reset.
//!
//! A waiting thread first polls as long as its [`Wait`] says, then sleeps, each on its own lock, so
//! that threads that are woken do not queue for one. A sleeper is never lost: it marks itself, then
//! looks once more; the waker publishes, then looks at the mark; a fence between the two steps of
//! each side makes at least one of them see the other.
//!
//! This file uses only `crate::sync`, which the loom test replaces, and the runs of units.

use std::ops::Range;
use std::sync::PoisonError;

use crate::shares::{Left, Runs};
use crate::sync::{AtomicBool, AtomicU64, AtomicUsize, Cell, Condvar, Mutex, Ordering, fence};

/// How long to poll.
pub(crate) trait Wait {
    /// Pauses a moment and returns true, or returns false when the waiter should go to sleep.
    fn pause(&mut self) -> bool;
}

/// A value on cache lines of its own (two, since processors prefetch pairs).
#[repr(align(128))]
struct Padded<T>(T);

/// Where one thread sleeps until a condition holds.
struct Sleeper {
    asleep: AtomicBool,
    lock: Mutex<()>,
    signal: Condvar,
}

impl Sleeper {
    fn new() -> Self {
        Self { asleep: AtomicBool::new(false), lock: Mutex::new(()), signal: Condvar::new() }
    }

    /// Returns once `ready` holds; sleeps when `wait` gives up. `mark` is told true before it
    /// sleeps, false afterwards.
    fn wait_until(&self, wait: &mut impl Wait, ready: impl Fn() -> bool, mark: impl Fn(bool)) {
        loop {
            if ready() {
                return;
            }
            if !wait.pause() {
                break;
            }
        }
        let mut guard = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        self.asleep.store(true, Ordering::Relaxed);
        mark(true);
        fence(Ordering::SeqCst);
        while !ready() {
            guard = self.signal.wait(guard).unwrap_or_else(PoisonError::into_inner);
        }
        mark(false);
        self.asleep.store(false, Ordering::Relaxed);
    }

    /// Whether somebody sleeps here. To be asked behind a fence, after the condition was made true.
    fn is_asleep(&self) -> bool {
        self.asleep.load(Ordering::Relaxed)
    }

    /// Wakes who sleeps here.
    fn wake(&self) {
        // A sleeper holds the lock from marking itself until it waits for the signal.
        drop(self.lock.lock().unwrap_or_else(PoisonError::into_inner));
        self.signal.notify_one();
    }
}

/// A worker's share of a phase.
#[derive(Clone, Copy)]
pub(crate) struct Share<J> {
    pub(crate) job: J,
    /// The unit that it runs first.
    pub(crate) first: usize,
    /// How many take part, the caller and this one included.
    pub(crate) workers: usize,
}

/// What the caller hands to a worker.
struct Handed<J> {
    /// That of the newest job for this worker.
    epoch: AtomicU64,
    share: Cell<Share<J>>,
    /// What is left of the worker's run of units.
    left: Left,
}

/// What passes between the caller and one worker.
struct Post<J> {
    handed: Padded<Handed<J>>,
    /// The epoch of the last job that the worker has done.
    arrived: Padded<AtomicU64>,
    sleeper: Padded<Sleeper>,
}

/// One caller and its workers.
pub(crate) struct Gang<J> {
    /// The caller's first, which has units but is neither handed a job nor arrives; it sleeps at
    /// its post as everybody does.
    posts: Box<[Post<J>]>,
    /// Jobs so far; the caller's alone.
    epoch: Padded<AtomicU64>,
    /// Workers that sleep.
    sleeping: Padded<AtomicUsize>,
}

// SAFETY: a cell is written by the caller while its worker waits for the next epoch, and read by
// that worker after it acquired that epoch and before it arrives; the loom test checks this.
#[expect(unsafe_code, reason = "the job is handed over through a cell")]
unsafe impl<J: Send> Sync for Gang<J> {}
// SAFETY: owning the gang is owning the job.
#[expect(unsafe_code, reason = "the job is handed over through a cell")]
unsafe impl<J: Send> Send for Gang<J> {}

impl<J: Copy> Gang<J> {
    /// A gang of `threads`, the caller's included; `job` is a value to start with, never run.
    pub(crate) fn new(threads: usize, job: J) -> Self {
        let post = || Post {
            handed: Padded(Handed {
                epoch: AtomicU64::new(0),
                share: Cell::new(Share { job, first: 0, workers: 0 }),
                left: Left::none(),
            }),
            arrived: Padded(AtomicU64::new(0)),
            sleeper: Padded(Sleeper::new()),
        };
        Self {
            posts: (0..threads).map(|_| post()).collect(),
            epoch: Padded(AtomicU64::new(0)),
            sleeping: Padded(AtomicUsize::new(0)),
        }
    }

    /// Threads, the caller's included.
    pub(crate) fn threads(&self) -> usize {
        self.posts.len()
    }

    /// What is left of the run of `worker`.
    pub(crate) fn left(&self, worker: usize) -> &Left {
        &self.posts[worker].handed.0.left
    }

    /// What is left of the runs of all workers of `range`.
    pub(crate) fn lefts(&self, range: Range<usize>) -> impl Iterator<Item = &Left> {
        self.posts[range].iter().map(|post| &post.handed.0.left)
    }

    /// Caller: gives the job to those workers that have a run. The first unit of each run is its
    /// worker's, all others are left to be taken; none of an earlier job may be
    /// ([`Gang::abandon`]): workers look at each other's runs as soon as they have their own share.
    ///
    /// # Safety
    /// One thread at a time is the caller, and [`Gang::finish`] has returned for the previous job.
    #[expect(unsafe_code, reason = "the job is handed over through a cell")]
    pub(crate) unsafe fn release(&self, job: J, runs: Runs) {
        let next = self.epoch.0.load(Ordering::Relaxed).wrapping_add(1);
        self.epoch.0.store(next, Ordering::Relaxed);
        let workers = runs.workers();
        for (worker, (post, run)) in self.posts.iter().zip(runs.each()).enumerate() {
            let Handed { epoch, share, left } = &post.handed.0;
            left.set((run.start + 1).min(run.end), run.end);
            if worker == 0 {
                continue;
            }
            let new = Share { job, first: run.start as usize, workers };
            // SAFETY: this worker has arrived from its last job (the caller's promise), so that it
            // does not read the cell.
            share.with_mut(|share| unsafe { *share = new });
            epoch.store(next, Ordering::Release);
        }
        fence(Ordering::SeqCst);
        if self.sleeping.0.load(Ordering::Relaxed) != 0 {
            let sleepers = self.posts[1..workers].iter().map(|post| &post.sleeper.0);
            sleepers.filter(|sleeper| sleeper.is_asleep()).for_each(Sleeper::wake);
        }
    }

    /// Whether all workers that the job of `epoch` was given to have done it.
    fn is_done(&self, epoch: u64, workers: usize, order: Ordering) -> bool {
        self.posts[1..workers].iter().all(|post| post.arrived.0.load(order) == epoch)
    }

    /// Caller: returns when every worker that has a run has arrived.
    pub(crate) fn finish(&self, runs: Runs, wait: &mut impl Wait) {
        let epoch = self.epoch.0.load(Ordering::Relaxed);
        let is_done = || self.is_done(epoch, runs.workers(), Ordering::Acquire);
        self.posts[0].sleeper.0.wait_until(wait, is_done, |_| ());
    }

    /// Worker `worker` (from 1): waits for a job after the epoch `seen`, and updates `seen`.
    /// Start with `seen` = 0. Each job must be followed by [`Gang::arrive`].
    #[expect(unsafe_code, reason = "the job is handed over through a cell")]
    pub(crate) fn next(&self, worker: usize, seen: &mut u64, wait: &mut impl Wait) -> Share<J> {
        let Post { handed, sleeper, .. } = &self.posts[worker];
        let Handed { epoch, share, .. } = &handed.0;
        let is_new = || epoch.load(Ordering::Acquire) != *seen;
        let mark = |sleeps| match sleeps {
            true => self.sleeping.0.fetch_add(1, Ordering::Relaxed),
            false => self.sleeping.0.fetch_sub(1, Ordering::Relaxed),
        };
        sleeper.0.wait_until(wait, is_new, |sleeps| _ = mark(sleeps));
        // The same as just seen: the caller raises it no more before this worker has arrived. It
        // may be some after the last, for jobs that this worker had no share of.
        *seen = epoch.load(Ordering::Relaxed);
        // SAFETY: the epoch was acquired after the caller wrote the cell, and the caller does not
        // write again before this worker has arrived.
        share.with(|share| unsafe { *share })
    }

    /// Worker: has done its share of the job of the epoch `seen`, which `workers` take part in, and
    /// touches nothing of it any more.
    pub(crate) fn arrive(&self, worker: usize, seen: u64, workers: usize) {
        self.posts[worker].arrived.0.store(seen, Ordering::Release);
        fence(Ordering::SeqCst);
        let caller = &self.posts[0].sleeper.0;
        // Of those who arrive, the one whose fence is the last sees all others.
        if caller.is_asleep() && self.is_done(seen, workers, Ordering::Relaxed) {
            caller.wake();
        }
    }
}
