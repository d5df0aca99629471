//! Threads that are bound to CPUs.
#![cfg(target_os = "linux")]

use std::collections::BTreeSet;
use std::sync::Barrier;
use std::{fs, thread};

use oss_threads::topology::Topology;
use oss_threads::{Chunks, Error, Team, TeamOptions};

/// The CPUs that the calling thread may run on, as the system lists them.
fn mask() -> String {
    let status = fs::read_to_string("/proc/thread-self/status").expect("a thread's status");
    let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    list.expect("a mask").trim().to_owned()
}

fn team(threads: usize) -> Result<Team, Error> {
    Team::with_options(&TeamOptions { pin: true, ..TeamOptions::new(threads) })
}

/// What each worker says, by worker.
fn each_worker(team: &Team, say: impl Fn() -> String + Sync) -> Vec<String> {
    let all = Barrier::new(team.threads());
    let mut said = vec![(0, String::new()); team.threads()];
    team.phase(team.threads(), Chunks::new(&mut said, 1), |unit, said| {
        // Nobody does the unit of another.
        all.wait();
        said[0] = (unit.worker, say());
    });
    said.sort_unstable();
    said.into_iter().map(|(_, said)| said).collect()
}

fn texts(cpus: &[usize]) -> Vec<String> {
    cpus.iter().map(ToString::to_string).collect()
}

/// As many as can be bound here.
fn most() -> usize {
    Topology::read().expect("topology").cpu_threads()
}

#[test]
fn every_worker_has_a_cpu_of_its_own_and_the_caller_while_it_has_its_guard() {
    let before = mask();
    for threads in [1, most()] {
        let team = team(threads).expect("as many CPUs");
        assert_eq!(team.cpus(), Topology::read().expect("topology").cpus_for(threads));
        assert_eq!(team.cpus().iter().collect::<BTreeSet<_>>().len(), threads);
        let guard = team.pin_caller().expect("a CPU of ours").expect("a bound team");
        for _ in 0..3 {
            assert_eq!(each_worker(&team, mask), texts(team.cpus()));
        }
        drop(guard);
        assert_eq!(mask(), before);
        assert_eq!(each_worker(&team, mask)[1..], texts(team.cpus())[1..]);
    }
}

#[test]
fn nobody_is_bound_without_being_asked() {
    let team = Team::new(2).expect("threads");
    assert!(team.cpus().is_empty());
    assert!(team.pin_caller().expect("nothing to do").is_none());
    assert_eq!(each_worker(&team, mask), [mask(), mask()]);
}

#[test]
fn more_threads_than_cpus_are_refused() {
    let most = most();
    let Err(Error::Cpus { got, expected }) = team(most + 1) else { panic!("not refused") };
    assert_eq!((got, expected), (most + 1, most));
    let error = team(most + 1).expect_err("refused").to_string();
    assert!(error.contains(&format!("expected at most {most}: the CPUs")), "{error}");
    Team::new(most + 1).expect("unbound, they share CPUs");
}

#[test]
fn a_mask_that_is_inherited_is_kept() {
    let outer = team(most()).expect("as many CPUs");
    let _guard = outer.pin_caller().expect("a CPU of ours");
    // Each worker has a mask of one CPU, which a thread that it starts inherits.
    let inner = each_worker(&outer, || {
        let within = || {
            let Err(Error::Cpus { got: 2, expected: 1 }) = team(2) else { panic!("not refused") };
            let team = team(1).expect("a CPU");
            let _guard = team.pin_caller().expect("a CPU of ours");
            (team.cpus().to_vec(), each_worker(&team, mask))
        };
        let (cpus, masks) = thread::scope(|scope| scope.spawn(within).join().expect("no panic"));
        assert_eq!((cpus.len(), texts(&cpus)), (1, masks));
        cpus[0].to_string()
    });
    assert_eq!(inner, texts(outer.cpus()));
}
