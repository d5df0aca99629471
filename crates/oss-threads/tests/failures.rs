//! Misuse and misfortune: panics, nesting, sharing, ends.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use oss_threads::{Chunks, Error, PerWorker, RowCuts, Spans, Team, Tiles};

/// What a panic says.
fn message(call: impl FnOnce()) -> String {
    let payload = catch_unwind(AssertUnwindSafe(call)).expect_err("a panic");
    let text = payload.downcast_ref::<String>().cloned();
    text.or_else(|| payload.downcast_ref::<&str>().map(ToString::to_string)).expect("text")
}

fn assert_works(team: &Team) {
    let mut runs = [0; 37];
    team.phase(37, Chunks::new(&mut runs, 1), |_, run| run[0] += 1);
    assert_eq!(runs, [1; 37]);
}

#[test]
fn a_panic_in_any_unit_reaches_the_caller_and_leaves_the_team_usable() {
    for threads in 1..=4 {
        let team = Team::new(threads).expect("threads");
        for unlucky in 0..20 {
            let text = message(|| {
                team.phase(20, (), |unit, ()| {
                    assert!(unit.index != unlucky, "unit {unlucky} failed");
                });
            });
            assert_eq!(text, format!("unit {unlucky} failed"));
        }
        assert_works(&team);
    }
}

#[test]
fn a_panic_in_every_worker_is_one_panic_after_all_have_stopped() {
    let team = Team::new(3).expect("threads");
    let inside = AtomicUsize::new(0);
    for _ in 0..50 {
        let text = message(|| {
            team.phase(30, (), |_, ()| {
                inside.fetch_add(1, Ordering::SeqCst);
                thread::yield_now();
                inside.fetch_sub(1, Ordering::SeqCst);
                panic!("all fail");
            });
        });
        assert_eq!((text.as_str(), inside.load(Ordering::SeqCst)), ("all fail", 0));
    }
    assert_works(&team);
}

#[test]
fn a_phase_inside_a_body_panics_instead_of_waiting_forever() {
    for threads in 1..=3 {
        let (team, other) = (Team::new(threads).expect("threads"), Team::new(1).expect("threads"));
        for inner in [&team, &other] {
            let text = message(|| team.phase(6, (), |_, ()| inner.phase(1, (), |_, ()| ())));
            assert!(text.contains("inside the body of a phase"), "{text}");
        }
        assert_works(&team);
        assert_works(&other);
    }
}

#[test]
fn what_would_break_disjointness_is_refused() {
    let team = Team::new(2).expect("threads");
    let mut data = [0; 8];
    let text = message(|| team.phase(3, Chunks::new(&mut data, 4), |_, _| ()));
    assert_eq!(text, "3 units of a partition that has 2");
    let text = message(|| team.phase(1, PerWorker::new(&mut data[..1]), |_, _| ()));
    assert_eq!(text, "2 threads share 1 slots");
    let spans = |spans: &[std::ops::Range<usize>]| {
        let mut data = [0; 8];
        message(|| _ = Spans::new(&mut data, spans))
    };
    assert!(spans(&[0..3, 2..4]).contains("span 1 is 2..4, expected it to ascend from 3"));
    assert!(spans(&[0..3, 4..9]).contains("spans end at 9, but there are 8 elements"));
    #[expect(clippy::reversed_empty_ranges, reason = "a span that ends before it begins")]
    let reversed = spans(std::slice::from_ref(&(3..1)));
    assert!(reversed.contains("span 0 is 3..1"));
    let mut tiles = |row_len, cuts| message(|| _ = Tiles::new(&mut data, row_len, cuts, 2));
    assert!(tiles(4, RowCuts::At(&[0, 2, 1])).contains("must ascend"));
    assert!(tiles(4, RowCuts::At(&[0, 3])).contains("there are 2 rows"));
    assert!(tiles(4, RowCuts::Every { rows: 3, block: 2 }).contains("there are 2 rows"));
    assert!(tiles(4, RowCuts::Every { rows: 2, block: 0 }).contains("at least 1 row"));
    assert!(tiles(3, RowCuts::At(&[])).contains("rows of 3"));
    assert!(message(|| _ = Chunks::new(&mut data, 0)).contains("at least 1 element"));
    let text = message(|| {
        let out = Tiles::new(&mut data, 4, RowCuts::At(&[0, 2]), 4);
        team.phase(1, out, |_, mut tile| tile.row_mut(2).fill(0));
    });
    assert_eq!(text, "row 2 of a tile that has 2");
}

#[test]
fn callers_that_share_a_team_take_turns() {
    let team = Team::new(2).expect("threads");
    let inside = [const { AtomicUsize::new(0) }; 4];
    thread::scope(|scope| {
        for caller in 0..inside.len() {
            let (team, inside) = (team.clone(), &inside);
            scope.spawn(move || {
                for _ in 0..200 {
                    let mut runs = [0; 9];
                    team.phase(9, Chunks::new(&mut runs, 1), |unit, run| {
                        inside[caller].fetch_add(1, Ordering::SeqCst);
                        let others = (0..inside.len()).filter(|&other| other != caller);
                        for other in others {
                            assert_eq!(inside[other].load(Ordering::SeqCst), 0, "two callers");
                        }
                        run[0] += unit.index;
                        inside[caller].fetch_sub(1, Ordering::SeqCst);
                    });
                    assert_eq!(runs, [0, 1, 2, 3, 4, 5, 6, 7, 8]);
                }
            });
        }
    });
}

#[test]
fn a_team_ends_while_its_workers_are_hot_or_asleep() {
    for pause in [0, 10] {
        let team = Team::new(4).expect("threads");
        assert_works(&team);
        thread::sleep(Duration::from_millis(pause));
        assert_works(&team);
        let handle = team.clone();
        drop(team);
        assert_works(&handle);
        thread::sleep(Duration::from_millis(pause));
    }
    drop(Team::new(3).expect("a team that never ran a phase"));
}

#[test]
fn an_impossible_number_of_threads_is_an_error() {
    let error = Team::new(0).expect_err("no threads");
    assert!(matches!(error, Error::Threads { got: 0, .. }), "{error}");
    assert!(Team::new(oss_threads::MAX_THREADS + 1).is_err());
}
