//! How a phase starts and ends: release, arrive, sleep.
//!
//! One caller and its workers. The caller writes a job and raises the epoch; each worker waits for
//! an epoch that it has not seen, runs the job and arrives; the caller waits until all have
//! arrived. What the caller hands to a worker is on one line, what the worker answers on another,
//! and nobody else's is there: a line takes a fifth of a microsecond from one core to another where
//! they lie far apart. Epochs are counted on from phase to phase and never set back.
//!
//! Whoever waits first polls as long as its [`Wait`] says, then sleeps. A sleeper is never lost:
//! it counts itself, then looks once more; the waker publishes, then looks at the count; a fence
//! between the two steps of each side makes at least one of them see the other.
//!
//! This file uses only `crate::sync`, which the loom test replaces, and what is left of a run.

use std::sync::PoisonError;

use crate::shares::Left;
use crate::sync::{AtomicUsize, Cell, Condvar, Mutex, Ordering, fence};

/// How long to poll.
pub(crate) trait Wait {
    /// Pauses a moment and returns true, or returns false when the waiter should go to sleep.
    fn pause(&mut self) -> bool;
}

/// A value on cache lines of its own (two, since processors prefetch pairs).
#[repr(align(128))]
struct Padded<T>(T);

/// Threads that sleep until a condition holds.
struct Sleepers {
    count: AtomicUsize,
    lock: Mutex<()>,
    signal: Condvar,
}

impl Sleepers {
    fn new() -> Self {
        Self { count: AtomicUsize::new(0), lock: Mutex::new(()), signal: Condvar::new() }
    }

    /// Returns once `ready` holds; sleeps when `wait` gives up.
    fn wait_until(&self, wait: &mut impl Wait, ready: impl Fn() -> bool) {
        loop {
            if ready() {
                return;
            }
            if !wait.pause() {
                break;
            }
        }
        let mut guard = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        self.count.fetch_add(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        while !ready() {
            guard = self.signal.wait(guard).unwrap_or_else(PoisonError::into_inner);
        }
        self.count.fetch_sub(1, Ordering::Relaxed);
    }

    /// To be called after the condition was made true: wakes all who sleep. No system call when
    /// nobody does.
    fn wake(&self) {
        fence(Ordering::SeqCst);
        if self.count.load(Ordering::Relaxed) != 0 {
            // A sleeper holds the lock from counting itself until it waits for the signal.
            drop(self.lock.lock().unwrap_or_else(PoisonError::into_inner));
            self.signal.notify_all();
        }
    }
}

/// What the caller hands to a worker.
struct Handed<J> {
    /// Jobs so far.
    epoch: AtomicUsize,
    /// The newest.
    job: Cell<J>,
    /// What is left of the worker's run of units.
    left: Left,
}

/// What passes between the caller and one worker.
struct Post<J> {
    handed: Padded<Handed<J>>,
    /// The epoch of the last job that the worker has done.
    arrived: Padded<AtomicUsize>,
}

/// One caller and its workers.
pub(crate) struct Gang<J> {
    /// The caller's first, which has units but is neither handed a job nor arrives.
    posts: Box<[Post<J>]>,
    /// Jobs so far; the caller's alone.
    epoch: Padded<AtomicUsize>,
    workers: Padded<Sleepers>,
    caller: Padded<Sleepers>,
}

// SAFETY: a cell is written by the caller while every worker waits for the next epoch, and read
// by workers after they acquired that epoch and before they arrive; the loom test checks this.
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
                epoch: AtomicUsize::new(0),
                job: Cell::new(job),
                left: Left::none(),
            }),
            arrived: Padded(AtomicUsize::new(0)),
        };
        Self {
            posts: (0..threads).map(|_| post()).collect(),
            epoch: Padded(AtomicUsize::new(0)),
            workers: Padded(Sleepers::new()),
            caller: Padded(Sleepers::new()),
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

    /// Caller: gives every worker the job.
    ///
    /// # Safety
    /// One thread at a time is the caller, and [`Gang::finish`] has returned for the previous job.
    #[expect(unsafe_code, reason = "the job is handed over through a cell")]
    pub(crate) unsafe fn release(&self, job: J) {
        let next = self.epoch.0.load(Ordering::Relaxed).wrapping_add(1);
        self.epoch.0.store(next, Ordering::Relaxed);
        for post in &self.posts[1..] {
            let Handed { epoch, job: cell, .. } = &post.handed.0;
            // SAFETY: all workers have arrived (the caller's promise), so none reads the cell.
            cell.with_mut(|cell| unsafe { *cell = job });
            epoch.store(next, Ordering::Release);
        }
        self.workers.0.wake();
    }

    /// Caller: returns when every worker has arrived.
    pub(crate) fn finish(&self, wait: &mut impl Wait) {
        let epoch = self.epoch.0.load(Ordering::Relaxed);
        let is_done = |post: &Post<J>| post.arrived.0.load(Ordering::Acquire) == epoch;
        self.caller.0.wait_until(wait, || self.posts[1..].iter().all(is_done));
    }

    /// Worker `worker` (from 1): waits for a job after the epoch `seen`, and updates `seen`.
    /// Start with `seen` = 0. Each job must be followed by [`Gang::arrive`].
    #[expect(unsafe_code, reason = "the job is handed over through a cell")]
    pub(crate) fn next(&self, worker: usize, seen: &mut usize, wait: &mut impl Wait) -> J {
        let Handed { epoch, job, .. } = &self.posts[worker].handed.0;
        self.workers.0.wait_until(wait, || epoch.load(Ordering::Acquire) != *seen);
        *seen = seen.wrapping_add(1);
        // SAFETY: the epoch was acquired after the caller wrote the cell, and the caller does not
        // write again before this worker has arrived.
        job.with(|cell| unsafe { *cell })
    }

    /// Worker: has done the job of the epoch `seen` and touches nothing of it any more.
    pub(crate) fn arrive(&self, worker: usize, seen: usize) {
        self.posts[worker].arrived.0.store(seen, Ordering::Release);
        self.caller.0.wake();
    }
}
