//! Every interleaving of release, arrive and sleep, of phases that leave workers alone, and of
//! workers that take units, by loom: `cargo xtask check loom`.
#![cfg(loom)]

#[path = "../src/protocol.rs"]
mod protocol;
#[path = "../src/shares.rs"]
mod shares;

/// What the protocol is written in, as loom has it.
mod sync {
    pub(crate) use loom::cell::UnsafeCell as Cell;
    pub(crate) use loom::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};
    pub(crate) use loom::sync::{Condvar, Mutex};
}

use loom::sync::Arc;
use loom::thread;
use protocol::{Gang, Share, Wait};
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

/// The phases `1..`, each of which so many threads of `threads` take part in.
#[expect(unsafe_code, reason = "plays the caller and the workers of a team")]
fn phases<const N: usize>(threads: usize, takers: [usize; N], polls: Polls) {
    let gang = Arc::new(Gang::new(threads, 0usize));
    let slots = Arc::new(Slots((1..threads).map(|_| Cell::new(0)).collect()));
    let workers: Vec<_> = (1..threads)
        .map(|worker| {
            let (gang, slots) = (Arc::clone(&gang), Arc::clone(&slots));
            thread::spawn(move || {
                let mut seen = 0;
                loop {
                    let Share { job, first, workers } =
                        gang.next(worker, &mut seen, &mut polls.clone());
                    if job == 0 {
                        break;
                    }
                    assert_eq!((first, workers), (worker, takers[job - 1]));
                    // SAFETY: loom checks that nobody else has the slot now.
                    slots.0[worker - 1].with_mut(|slot| unsafe { *slot += job });
                    gang.arrive(worker, seen, workers);
                }
            })
        })
        .collect();
    for (before, &workers) in takers.iter().enumerate() {
        let runs = Runs::new(workers, threads);
        // SAFETY: this thread is the only caller, and finishes each phase.
        unsafe { gang.release(before + 1, runs) };
        gang.finish(runs, &mut polls.clone());
        for (worker, slot) in (1..).zip(&slots.0) {
            let taken = (1..).zip(&takers[..=before]).filter(|(_, workers)| worker < **workers);
            let sum: usize = taken.map(|(phase, _)| phase).sum();
            // SAFETY: loom checks that the worker has let go of the slot.
            slot.with(|slot| assert_eq!(unsafe { *slot }, sum));
        }
    }
    // SAFETY: as above; 0 tells the workers to end.
    unsafe { gang.release(0, Runs::new(threads, threads)) };
    workers.into_iter().for_each(|worker| worker.join().expect("a worker ends"));
}

/// Tries every interleaving with at most so many preemptions.
fn every(preemptions: usize, body: impl Fn() + Sync + Send + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(preemptions);
    model.check(body);
}

#[test]
fn a_worker_that_sleeps_at_once_misses_no_phase() {
    every(3, || phases(2, [2, 2], Polls(0)));
}

#[test]
fn a_worker_that_polls_first_misses_no_phase() {
    every(3, || phases(2, [2, 2], Polls(1)));
}

#[test]
fn two_workers_arrive_before_the_caller_goes_on() {
    every(2, || phases(3, [3, 3], Polls(0)));
    every(2, || phases(3, [3], Polls(1)));
}

#[test]
fn a_worker_that_a_phase_leaves_alone_sleeps_on_and_misses_no_other() {
    every(2, || phases(3, [2, 3], Polls(0)));
    every(2, || phases(3, [3, 2], Polls(0)));
    every(2, || phases(3, [2], Polls(1)));
}

/// Phases of so many units each, whose workers take them from each other as soon as they have their
/// share. In those that end in a panic each thread runs one unit alone.
#[expect(unsafe_code, reason = "plays the caller and the workers of a team")]
fn units<const N: usize>(threads: usize, units: [usize; N], panics: bool, polls: Polls) {
    let gang = Arc::new(Gang::new(threads, 0usize));
    let most = units.iter().copied().fold(0, usize::max);
    let slots = Arc::new(Slots((0..most).map(|_| Cell::new(0)).collect()));
    let has_more = units.map(|units| Runs::new(units, threads).has_more());
    let run = move |gang: &Gang<usize>, slots: &Slots, worker: usize, share: Share<usize>| {
        // SAFETY: loom checks that nobody else runs the unit.
        let unit = |unit: usize| slots.0[unit].with_mut(|slot| unsafe { *slot += share.job });
        unit(share.first);
        if panics && share.job < N {
            return;
        }
        let take = || has_more[share.job - 1].then(|| gang.take(worker, share.workers)).flatten();
        while let Some(taken) = take() {
            taken.for_each(unit);
        }
    };
    let workers: Vec<_> = (1..threads)
        .map(|worker| {
            let (gang, slots) = (Arc::clone(&gang), Arc::clone(&slots));
            thread::spawn(move || {
                let mut seen = 0;
                loop {
                    let share = gang.next(worker, &mut seen, &mut polls.clone());
                    if share.job == 0 {
                        break;
                    }
                    run(&gang, &slots, worker, share);
                    gang.arrive(worker, seen, share.workers);
                }
            })
        })
        .collect();
    let mut firsts = 0;
    for (job, &units) in (1..).zip(&units) {
        let runs = Runs::new(units, threads);
        // SAFETY: this thread is the only caller, and finishes each phase.
        unsafe { gang.release(job, runs) };
        run(&gang, &slots, 0, Share { job, first: 0, workers: runs.workers() });
        gang.finish(runs, &mut polls.clone());
        for (unit, slot) in slots.0.iter().enumerate() {
            // SAFETY: loom checks that all workers have let go of the slot.
            slot.with_mut(|slot| {
                let ran = std::mem::take(unsafe { &mut *slot });
                match panics && job < N {
                    true => firsts += usize::from(ran == job),
                    false => assert_eq!(ran, job * usize::from(unit < runs.units()), "unit {unit}"),
                }
            });
        }
        if panics {
            gang.abandon();
        }
    }
    assert_eq!(firsts, if panics { threads * (N - 1) } else { 0 }, "units before the panics");
    // SAFETY: as above; 0 tells the workers to end.
    unsafe { gang.release(0, Runs::new(threads, threads)) };
    workers.into_iter().for_each(|worker| worker.join().expect("a worker ends"));
}

/// The units of one phase, taken by threads that are all awake: more of them than a whole phase has
/// time for.
#[expect(unsafe_code, reason = "plays the caller of a team")]
fn takes(threads: usize, units: usize) {
    let gang = Arc::new(Gang::new(threads, 0usize));
    let runs = Runs::new(units, threads);
    // SAFETY: it is the first job.
    unsafe { gang.release(1, runs) };
    let all = move |worker: usize, gang: &Gang<usize>| {
        let first = runs.each().nth(worker).map(|run| run.start as usize);
        let mut taken: Vec<_> = first.into_iter().collect();
        while let Some(units) = gang.take(worker, runs.workers()) {
            taken.extend(units);
        }
        taken
    };
    let workers: Vec<_> = (1..runs.workers())
        .map(|worker| {
            let gang = Arc::clone(&gang);
            thread::spawn(move || all(worker, &gang))
        })
        .collect();
    let mut taken = all(0, &gang);
    workers.into_iter().for_each(|worker| taken.extend(worker.join().expect("a worker ends")));
    taken.sort_unstable();
    assert_eq!(taken, (0..units).collect::<Vec<_>>());
}

#[test]
fn every_unit_is_taken_once() {
    every(3, || takes(2, 1));
    every(3, || takes(2, 9));
    every(2, || takes(3, 7));
}

#[test]
fn every_unit_is_run_once_in_phases_that_follow_each_other() {
    every(2, || units(2, [5, 4], false, Polls(0)));
    every(2, || units(2, [9, 2], false, Polls(1)));
    every(2, || units(3, [4], false, Polls(0)));
    every(1, || units(3, [5, 4], false, Polls(0)));
}

#[test]
fn units_that_a_panic_left_are_not_run_in_the_next_phase() {
    every(2, || units(2, [9, 4], true, Polls(0)));
    every(1, || units(3, [7, 4], true, Polls(1)));
}
