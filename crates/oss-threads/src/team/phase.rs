//! One phase: who runs which unit, and what becomes of a panic.

use std::any::Any;
use std::cell::Cell;
use std::panic::{self, AssertUnwindSafe};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use super::Unit;
use crate::partition::{Partition, Parts};
use crate::protocol::Padded;

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
    run: unsafe fn(*const (), usize),
}

// SAFETY: the pointer is to a `Phase`, which is `Sync`: `Phase::job` asks for the bounds.
#[expect(unsafe_code, reason = "carries a reference without its types")]
unsafe impl Send for Job {}

impl Job {
    /// Runs the share of `worker`.
    ///
    /// # Safety
    /// The phase that the job was made of must be alive, and run once by each worker.
    #[expect(unsafe_code, reason = "follows the pointer to the phase")]
    pub(super) unsafe fn run(self, worker: usize) {
        // SAFETY: `Phase::job` paired the function with the pointer; the caller keeps it alive.
        unsafe { (self.run)(self.phase, worker) }
    }
}

/// One phase, on the caller's stack.
pub(super) struct Phase<P, B> {
    units: usize,
    threads: usize,
    /// Units that are shared out beforehand.
    fixed: usize,
    out: P,
    body: B,
    panicked: AtomicBool,
    payload: Mutex<Option<Box<dyn Any + Send>>>,
    /// The next unit to be claimed.
    next: Padded<AtomicUsize>,
}

impl<P, B> Phase<P, B>
where
    P: Partition,
    B: for<'p> Fn(Unit, <P as Parts<'p>>::Part) + Sync,
{
    pub(super) fn new(units: usize, threads: usize, out: P, body: B) -> Self {
        let fixed = units - units / 5;
        Self {
            units,
            threads,
            fixed,
            out,
            body,
            panicked: AtomicBool::new(false),
            payload: Mutex::new(None),
            next: Padded(AtomicUsize::new(fixed)),
        }
    }

    pub(super) fn job(&self) -> Job {
        #[expect(unsafe_code, reason = "gives the pointer its type back")]
        unsafe fn run<P, B>(phase: *const (), worker: usize)
        where
            P: Partition,
            B: for<'p> Fn(Unit, <P as Parts<'p>>::Part) + Sync,
        {
            // SAFETY: `job` made the pointer from a `Phase<P, B>`, which the caller keeps alive.
            let phase = unsafe { &*phase.cast::<Phase<P, B>>() };
            phase.work(worker);
        }
        Job { phase: std::ptr::from_ref(self).cast(), run: run::<P, B> }
    }

    /// Runs all units on this thread.
    pub(super) fn run_alone(&self) {
        (0..self.units).for_each(|unit| self.unit(unit, 0));
    }

    /// Runs the share of `worker`, then what it can claim. Never unwinds.
    pub(super) fn work(&self, worker: usize) {
        if let Err(payload) = panic::catch_unwind(AssertUnwindSafe(|| self.share(worker))) {
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
            let payload = self.payload.lock().unwrap_or_else(PoisonError::into_inner).take();
            if let Some(payload) = payload {
                panic::resume_unwind(payload);
            }
        }
    }

    fn share(&self, worker: usize) {
        if worker < self.threads {
            let border = |worker: usize| {
                // Up to MAX_THREADS runs whose lengths differ by 1 at most.
                let (each, more) = (self.fixed / self.threads, self.fixed % self.threads);
                each * worker + more.min(worker)
            };
            self.units(border(worker), border(worker + 1), worker);
        }
        while let Some((begin, end)) = self.claim() {
            self.units(begin, end, worker);
        }
    }

    /// Some of the units that are left: many at first, to leave the shared line alone, one by one
    /// in the end, so that all workers stop together.
    fn claim(&self) -> Option<(usize, usize)> {
        let mut begin = self.next.0.load(Ordering::Relaxed);
        while begin < self.units && !self.panicked.load(Ordering::Relaxed) {
            let end = begin + ((self.units - begin) / (4 * self.threads)).max(1);
            let order = Ordering::Relaxed;
            match self.next.0.compare_exchange_weak(begin, end, order, order) {
                Ok(_) => return Some((begin, end)),
                Err(now) => begin = now,
            }
        }
        None
    }

    fn units(&self, begin: usize, end: usize, worker: usize) {
        for unit in begin..end {
            if self.panicked.load(Ordering::Relaxed) {
                break;
            }
            self.unit(unit, worker);
        }
    }

    fn unit(&self, index: usize, worker: usize) {
        // SAFETY: `Team::phase` has checked units and workers against the partition; the fixed runs
        // and the claims are disjoint, so a unit comes here once; one thread is `worker` in a
        // phase.
        #[expect(unsafe_code, reason = "takes the unit's part")]
        let part = unsafe { self.out.part(index, worker) };
        (self.body)(Unit { index, worker }, part);
    }
}
