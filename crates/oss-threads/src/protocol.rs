//! How a phase starts and ends: release, arrive, sleep.
//!
//! One caller and `n` workers. The caller writes a job and raises the epoch; each worker waits for
//! an epoch that it has not seen, runs the job and arrives; the caller waits until all have
//! arrived. Workers are grouped: a group polls its own epoch line and counts arrivals on its own
//! line, and the last of a group counts on the root, so that no line is fought for by more than
//! one group and the caller.
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

/// What a group of workers polls and counts on.
struct Group {
    workers: usize,
    epoch: Padded<AtomicUsize>,
    /// Workers of the group that have not arrived.
    missing: Padded<AtomicUsize>,
}

/// One caller and its workers.
pub(crate) struct Gang<J> {
    group_size: usize,
    job: Padded<Cell<J>>,
    groups: Box<[Group]>,
    /// Groups that have not arrived.
    missing: Padded<AtomicUsize>,
    workers: Padded<Sleepers>,
    caller: Padded<Sleepers>,
}

// SAFETY: the cell is written by the caller while every worker waits for the next epoch, and read
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
            epoch: Padded(AtomicUsize::new(0)),
            missing: Padded(AtomicUsize::new(0)),
        });
        Self {
            group_size,
            job: Padded(Cell::new(job)),
            groups: groups.collect(),
            missing: Padded(AtomicUsize::new(0)),
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
        // SAFETY: all workers have arrived (the caller's promise), so none reads the cell.
        self.job.0.with_mut(|cell| unsafe { *cell = job });
        self.missing.0.store(self.groups.len(), Ordering::Relaxed);
        for group in &self.groups {
            group.missing.0.store(group.workers, Ordering::Relaxed);
            let epoch = group.epoch.0.load(Ordering::Relaxed);
            group.epoch.0.store(epoch.wrapping_add(1), Ordering::Release);
        }
        self.workers.0.wake();
    }

    /// Caller: returns when every worker has arrived.
    pub(crate) fn finish(&self, wait: &mut impl Wait) {
        self.caller.0.wait_until(wait, || self.missing.0.load(Ordering::Acquire) == 0);
    }

    /// Worker `worker` (from 0): waits for a job after the epoch `seen`, and updates `seen`.
    /// Start with `seen` = 0. Each job must be followed by [`Gang::arrive`].
    #[expect(unsafe_code, reason = "the job is handed over through a cell")]
    pub(crate) fn next(&self, worker: usize, seen: &mut usize, wait: &mut impl Wait) -> J {
        let epoch = &self.groups[worker / self.group_size].epoch.0;
        self.workers.0.wait_until(wait, || epoch.load(Ordering::Acquire) != *seen);
        *seen = seen.wrapping_add(1);
        // SAFETY: the epoch was acquired after the caller wrote the cell, and the caller does not
        // write again before this worker has arrived.
        self.job.0.with(|cell| unsafe { *cell })
    }

    /// Worker: has done the job and touches nothing of it any more.
    pub(crate) fn arrive(&self, worker: usize) {
        let group = &self.groups[worker / self.group_size];
        if group.missing.0.fetch_sub(1, Ordering::AcqRel) == 1
            && self.missing.0.fetch_sub(1, Ordering::AcqRel) == 1
        {
            self.caller.0.wake();
        }
    }
}
