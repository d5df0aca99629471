//! One phase: who runs which unit, and what becomes of a panic.

use std::any::Any;
use std::cell::Cell;
use std::panic::{self, AssertUnwindSafe};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use super::Unit;
use crate::partition::{Partition, Parts};
use crate::protocol::Gang;
use crate::shares::Runs;

thread_local! {
    static IN_BODY: Cell<bool> = const { Cell::new(false) };
}

/// Marks the thread as one that runs bodies, until dropped.
pub(super) struct Body(());

impl Body {
    /// # Panics
    /// When the thread is inside a body already.
    pub(super) fn enter() -> Self {
        let nested = IN_BODY.replace(true);
        assert!(!nested, "a phase was started inside the body of a phase, expected outside");
        Self(())
    }
}

impl Drop for Body {
    fn drop(&mut self) {
        IN_BODY.set(false);
    }
}

/// A phase without its types, as workers get it.
#[derive(Clone, Copy)]
pub(super) struct Job {
    phase: *const (),
    run: unsafe fn(*const (), usize, usize),
}

// SAFETY: the pointer is to a `Phase`, which is `Sync`: `Phase::job` asks for the bounds.
#[expect(unsafe_code, reason = "carries a reference without its types")]
unsafe impl Send for Job {}

impl Job {
    /// Runs the unit `first`, then what `worker` can take.
    ///
    /// # Safety
    /// The phase that the job was made of must be alive, and run once by each worker, whose first
    /// unit is the one of its share.
    #[expect(unsafe_code, reason = "follows the pointer to the phase")]
    pub(super) unsafe fn run(self, worker: usize, first: usize) {
        // SAFETY: `Phase::job` paired the function with the pointer; the caller keeps it alive.
        unsafe { (self.run)(self.phase, worker, first) }
    }
}

/// One phase, on the caller's stack, on lines that all read and nobody writes: the caller polls and
/// counts beside it.
#[repr(align(128))]
pub(super) struct Phase<'a, P, B> {
    gang: &'a Gang<Option<Job>>,
    runs: Runs,
    out: P,
    body: B,
    panicked: AtomicBool,
    payload: Mutex<Option<Box<dyn Any + Send>>>,
}

impl<'a, P, B> Phase<'a, P, B>
where
    P: Partition,
    B: for<'p> Fn(Unit, <P as Parts<'p>>::Part) + Sync,
{
    pub(super) fn new(gang: &'a Gang<Option<Job>>, runs: Runs, out: P, body: B) -> Self {
        let (panicked, payload) = (AtomicBool::new(false), Mutex::new(None));
        Self { gang, runs, out, body, panicked, payload }
    }

    pub(super) fn job(&self) -> Job {
        #[expect(unsafe_code, reason = "gives the pointer its type back")]
        unsafe fn run<P, B>(phase: *const (), worker: usize, first: usize)
        where
            P: Partition,
            B: for<'p> Fn(Unit, <P as Parts<'p>>::Part) + Sync,
        {
            // SAFETY: `job` made the pointer from a `Phase`, which the caller keeps alive.
            let phase = unsafe { &*phase.cast::<Phase<'_, P, B>>() };
            phase.work(worker, first);
        }
        Job { phase: std::ptr::from_ref(self).cast(), run: run::<P, B> }
    }

    /// Runs all units on this thread.
    pub(super) fn run_alone(&self) {
        (0..self.runs.units()).for_each(|unit| self.unit(unit, 0));
    }

    /// Runs the unit `first`, then what `worker` can take. Never unwinds.
    pub(super) fn work(&self, worker: usize, first: usize) {
        if let Err(payload) = panic::catch_unwind(AssertUnwindSafe(|| self.run(worker, first))) {
            self.panicked.store(true, Ordering::Relaxed);
            let mut first = self.payload.lock().unwrap_or_else(PoisonError::into_inner);
            match *first {
                None => *first = Some(payload),
                // Dropping a payload may panic again, so a second one is leaked.
                Some(_) => std::mem::forget(payload),
            }
        }
    }

    /// Carries a worker's panic to the caller; all workers have arrived.
    pub(super) fn resume_panic(&self) {
        if self.panicked.load(Ordering::Relaxed) {
            self.gang.abandon();
            let payload = self.payload.lock().unwrap_or_else(PoisonError::into_inner).take();
            if let Some(payload) = payload {
                panic::resume_unwind(payload);
            }
        }
    }

    fn run(&self, worker: usize, first: usize) {
        self.unit(first, worker);
        let workers = self.runs.workers();
        let take = || self.runs.has_more().then(|| self.gang.take(worker, workers)).flatten();
        while let Some(units) = take() {
            for unit in units {
                if self.panicked.load(Ordering::Relaxed) {
                    return;
                }
                self.unit(unit, worker);
            }
        }
    }

    fn unit(&self, index: usize, worker: usize) {
        // SAFETY: `Team::phase` has checked units and workers against the partition; the first
        // units that workers are handed and those taken are disjoint, so a unit comes here once;
        // one thread is `worker` in a phase.
        #[expect(unsafe_code, reason = "takes the unit's part")]
        let part = unsafe { self.out.part(index, worker) };
        (self.body)(Unit { index, worker }, part);
    }
}

#[cfg(test)]
mod tests {
    use super::Phase;
    use crate::Unit;

    #[test]
    fn a_phase_shares_its_lines_with_nothing() {
        type Small = Phase<'static, (), fn(Unit, ())>;
        assert_eq!((align_of::<Small>(), size_of::<Small>() % 128), (128, 0));
    }
}
