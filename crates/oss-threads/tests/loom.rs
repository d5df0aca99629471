//! Every interleaving of release, arrive and sleep, and of workers that take units, by loom:
//! `cargo xtask check loom`.
#![cfg(loom)]

#[path = "../src/protocol.rs"]
mod protocol;
#[path = "../src/shares.rs"]
mod shares;

/// What the protocol is written in, as loom has it.
mod sync {
    pub(crate) use loom::cell::UnsafeCell as Cell;
    pub(crate) use loom::sync::atomic::{AtomicU64, AtomicUsize, Ordering, fence};
    pub(crate) use loom::sync::{Condvar, Mutex};
}

use loom::sync::Arc;
use loom::thread;
use protocol::{Gang, Wait};
use shares::Runs;
use sync::Cell;

/// Polls so many times, then sleeps.
#[derive(Clone, Copy)]
struct Polls(usize);

impl Wait for Polls {
    fn pause(&mut self) -> bool {
        if self.0 == 0 {
            return false;
        }
        self.0 -= 1;
        thread::yield_now();
        true
    }
}

/// Data that workers write and the caller reads, checked for races by loom.
struct Slots(Vec<Cell<usize>>);

// SAFETY: loom's cells report an access that is not ordered after the one before.
#[expect(unsafe_code, reason = "shares the cells that loom checks")]
unsafe impl Sync for Slots {}
// SAFETY: as above.
#[expect(unsafe_code, reason = "shares the cells that loom checks")]
unsafe impl Send for Slots {}

#[expect(unsafe_code, reason = "plays the caller and the workers of a team")]
fn phases(workers: usize, phases: usize, polls: Polls) {
    let gang = Arc::new(Gang::new(1 + workers, 0usize));
    let slots = Arc::new(Slots((0..workers).map(|_| Cell::new(0)).collect()));
    let threads: Vec<_> = (1..=workers)
        .map(|worker| {
            let (gang, slots) = (Arc::clone(&gang), Arc::clone(&slots));
            thread::spawn(move || {
                let mut seen = 0;
                loop {
                    let job = gang.next(worker, &mut seen, &mut polls.clone());
                    if job == 0 {
                        break;
                    }
                    // SAFETY: loom checks that nobody else has the slot now.
                    slots.0[worker - 1].with_mut(|slot| unsafe { *slot += job });
                    gang.arrive(worker, seen);
                }
            })
        })
        .collect();
    for phase in 1..=phases {
        // SAFETY: this thread is the only caller, and finishes each phase.
        unsafe { gang.release(phase) };
        gang.finish(&mut polls.clone());
        for slot in &slots.0 {
            // SAFETY: loom checks that the worker has let go of the slot.
            slot.with(|slot| assert_eq!(unsafe { *slot }, phase * (phase + 1) / 2));
        }
    }
    // SAFETY: as above; 0 tells the workers to end.
    unsafe { gang.release(0) };
    threads.into_iter().for_each(|thread| thread.join().expect("a worker ends"));
}

/// Tries every interleaving with at most so many preemptions.
fn every(preemptions: usize, body: impl Fn() + Sync + Send + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(preemptions);
    model.check(body);
}

#[test]
fn a_worker_that_sleeps_at_once_misses_no_phase() {
    every(3, || phases(1, 2, Polls(0)));
}

#[test]
fn a_worker_that_polls_first_misses_no_phase() {
    every(3, || phases(1, 2, Polls(1)));
}

#[test]
fn two_workers_arrive_before_the_caller_goes_on() {
    every(2, || phases(2, 2, Polls(0)));
    every(2, || phases(2, 1, Polls(1)));
}

fn takes(workers: usize, units: usize) {
    let gang = Arc::new(Gang::new(workers, 0usize));
    let runs = Runs::new(units, workers);
    gang.share(runs);
    let all = move |worker: usize, gang: &Gang<usize>| {
        let mut taken: Vec<_> = runs.first(worker).into_iter().collect();
        while let Some(units) = gang.take(worker) {
            taken.extend(units);
        }
        taken
    };
    let threads: Vec<_> = (1..workers)
        .map(|worker| {
            let gang = Arc::clone(&gang);
            thread::spawn(move || all(worker, &gang))
        })
        .collect();
    let mut taken = all(0, &gang);
    threads.into_iter().for_each(|thread| taken.extend(thread.join().expect("a worker ends")));
    taken.sort_unstable();
    assert_eq!(taken, (0..units).collect::<Vec<_>>());
}

#[test]
fn every_unit_is_taken_once() {
    every(3, || takes(2, 1));
    every(3, || takes(2, 9));
    every(2, || takes(3, 7));
}
