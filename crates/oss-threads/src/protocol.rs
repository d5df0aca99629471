//! How a phase starts and ends: release, arrive, sleep.
//!
//! One caller and `n` workers. The caller writes a job and raises the epoch; each worker waits for
//! an epoch that it has not seen, runs the job and arrives; the caller waits until all have
//! arrived. Workers are grouped: a group polls its own line, with the job beside the epoch, and
//! counts arrivals on another one, so that no line is fought for by more than one group and the
//! caller. Epochs and arrivals are counted on from phase to phase and never set back: a line that
//! is written once less is fetched from another core once less.
//!
//! Whoever waits first polls as long as its [`Wait`] says, then sleeps. A sleeper is never lost:
//! it counts itself, then looks once more; the waker publishes, then looks at the count; a fence
//! between the two steps of each side makes at least one of them see the other.
//!
//! This file uses only `crate::sync`, which the loom test replaces.

use std::sync::PoisonError;

use crate::sync::{AtomicUsize, Cell, Condvar, Mutex, Ordering, fence};

/// How long to poll.
pub(crate) trait Wait {
    /// Pauses a moment and returns true, or returns false when the waiter should go to sleep.
    fn pause(&mut self) -> bool;
}

/// A value on cache lines of its own (two, since processors prefetch pairs).
#[repr(align(128))]
pub(crate) struct Padded<T>(pub(crate) T);

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

/// What the caller hands to a group of workers.
struct Handed<J> {
    /// Jobs so far.
    epoch: AtomicUsize,
    /// The newest.
    job: Cell<J>,
}

/// Workers that share lines.
struct Group<J> {
    workers: usize,
    handed: Padded<Handed<J>>,
    /// How often workers of the group have arrived, all jobs together.
    arrived: Padded<AtomicUsize>,
}

impl<J> Group<J> {
    /// Whether every worker has arrived after the newest job; the caller's question.
    fn is_done(&self) -> bool {
        // Written by the caller alone.
        let epoch = self.handed.0.epoch.load(Ordering::Relaxed);
        self.arrived.0.load(Ordering::Acquire) == self.due(epoch)
    }

    /// Arrivals after so many jobs, as counters count them, which may wrap.
    fn due(&self, epoch: usize) -> usize {
        epoch.wrapping_mul(self.workers)
    }
}

/// One caller and its workers.
pub(crate) struct Gang<J> {
    group_size: usize,
    groups: Box<[Group<J>]>,
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
    /// A gang of `workers` (the caller not counted), of which each `group_size` share lines; `job`
    /// is a value to start with, never run.
    pub(crate) fn new(workers: usize, group_size: usize, job: J) -> Self {
        let groups = (0..workers).step_by(group_size).map(|first| Group {
            workers: group_size.min(workers - first),
            handed: Padded(Handed { epoch: AtomicUsize::new(0), job: Cell::new(job) }),
            arrived: Padded(AtomicUsize::new(0)),
        });
        Self {
            group_size,
            groups: groups.collect(),
            workers: Padded(Sleepers::new()),
            caller: Padded(Sleepers::new()),
        }
    }

    /// Caller: gives every worker the job.
    ///
    /// # Safety
    /// One thread at a time is the caller, and [`Gang::finish`] has returned for the previous job.
    #[expect(unsafe_code, reason = "the job is handed over through a cell")]
    pub(crate) unsafe fn release(&self, job: J) {
        for group in &self.groups {
            let Handed { epoch, job: cell } = &group.handed.0;
            // SAFETY: all workers have arrived (the caller's promise), so none reads the cell.
            cell.with_mut(|cell| unsafe { *cell = job });
            epoch.store(epoch.load(Ordering::Relaxed).wrapping_add(1), Ordering::Release);
        }
        self.workers.0.wake();
    }

    /// Caller: returns when every worker has arrived.
    pub(crate) fn finish(&self, wait: &mut impl Wait) {
        self.caller.0.wait_until(wait, || self.groups.iter().all(Group::is_done));
    }

    /// Worker `worker` (from 0): waits for a job after the epoch `seen`, and updates `seen`.
    /// Start with `seen` = 0. Each job must be followed by [`Gang::arrive`].
    #[expect(unsafe_code, reason = "the job is handed over through a cell")]
    pub(crate) fn next(&self, worker: usize, seen: &mut usize, wait: &mut impl Wait) -> J {
        let Handed { epoch, job } = &self.groups[worker / self.group_size].handed.0;
        self.workers.0.wait_until(wait, || epoch.load(Ordering::Acquire) != *seen);
        *seen = seen.wrapping_add(1);
        // SAFETY: the epoch was acquired after the caller wrote the cell, and the caller does not
        // write again before this worker has arrived.
        job.with(|cell| unsafe { *cell })
    }

    /// Worker: has done the job of the epoch `seen` and touches nothing of it any more.
    pub(crate) fn arrive(&self, worker: usize, seen: usize) {
        let group = &self.groups[worker / self.group_size];
        let arrived = group.arrived.0.fetch_add(1, Ordering::AcqRel).wrapping_add(1);
        if arrived == group.due(seen) {
            self.caller.0.wake();
        }
    }
}
