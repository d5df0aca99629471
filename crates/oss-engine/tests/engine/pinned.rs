//! Threads that are bound to CPUs.
#![cfg(target_os = "linux")]

use std::ops::ControlFlow;

use oss_engine::{Engine, EngineOptions, Error, LoadProgress, Team, TeamOptions, Tune};
use oss_threads::topology::Topology;

use crate::support::{engine, engine_with, options, prompts, story};

fn pinned(threads: Option<usize>) -> EngineOptions {
    EngineOptions { pin: true, threads, ..options() }
}

fn team(threads: usize) -> Team {
    Team::with_options(&TeamOptions { pin: true, ..TeamOptions::new(threads) }).unwrap()
}

/// An error of loading, before anything is packed.
fn refused(options: EngineOptions) -> Error {
    fn packing(_done: u64, _of: u64) -> ControlFlow<()> {
        panic!("weights are packed");
    }
    let options = EngineOptions { progress: Some(LoadProgress::new(packing)), ..options };
    Engine::from_bytes_with(oss_demo::GGUF, options).unwrap_err()
}

#[test]
fn a_pinned_engine_gives_the_same_tokens_and_tells_its_cpus() {
    let topology = Topology::read().unwrap();
    for threads in [Some(1), Some(topology.cpu_threads()), None] {
        let pinned = engine_with(pinned(threads));
        for prompt in prompts(6) {
            let got = pinned.generate(story(&prompt, 20)).unwrap();
            assert_eq!(got.tokens, engine().generate(story(&prompt, 20)).unwrap().tokens);
        }
        let tuning = pinned.tuning();
        let cpus = topology.cpus_for(tuning.threads.value);
        assert_eq!((&tuning.cpus.value, tuning.cpus.given), (&cpus, true));
        let text = tuning.to_string();
        assert!(text.contains(&format!("cpus = {}", cpus[0])), "{text}");
        assert!(text.contains("given as an option: one of each core first"), "{text}");
    }
    let free = engine().tuning();
    assert_eq!((&free.cpus.value[..], free.cpus.given), (&[][..], false));
    assert!(free.to_string().contains("cpus = any: threads are not bound"), "{free}");
}

#[test]
fn more_threads_than_cpus_and_a_team_of_ones_own_are_refused() {
    let most = Topology::read().unwrap().cpu_threads();
    let error = refused(pinned(Some(most + 1)));
    let expected = format!("expected at most {most}: the CPUs that this process may use");
    let is_of_cpus = |error: &oss_threads::Error| matches!(error, oss_threads::Error::Cpus { .. });
    assert!(matches!(&error, Error::Threads(error) if is_of_cpus(error)), "{error}");
    assert!(error.to_string().contains(&expected), "{error}");
    let error = refused(EngineOptions { team: Some(team(1)), ..pinned(None) });
    assert!(matches!(error, Error::Conflict { field: "pin", .. }), "{error}");
    let error = refused(EngineOptions { team: Some(team(1)), threads: Some(1), ..options() });
    assert!(matches!(error, Error::Conflict { field: "threads", .. }), "{error}");
}

#[test]
fn a_mask_that_is_inherited_bounds_what_is_chosen_and_what_may_be_asked_for() {
    // What all tests share starts threads too, before this one is bound.
    engine();
    let outer = team(1);
    let _affinity = outer.pin_caller().unwrap();
    let measuring = EngineOptions { tune: Tune::AtLoad, ..pinned(None) };
    let tuning = engine_with(measuring).tuning();
    assert_eq!((tuning.threads.value, &tuning.cpus.value[..]), (1, outer.cpus()));
    let counts: Vec<usize> = tuning.profile.threads.iter().map(|one| one.threads).collect();
    assert_eq!(counts, [1], "no more are tried than there are CPUs");
    let error = refused(pinned(Some(2))).to_string();
    assert!(error.contains("2 threads were to be bound to a CPU each, expected at most 1"));
}

#[test]
fn a_bound_team_that_is_given_is_told() {
    let team = team(Topology::read().unwrap().cpu_threads());
    let shared =
        engine_with(EngineOptions { team: Some(team.clone()), threads: None, ..options() });
    let tuning = shared.tuning();
    assert_eq!((&tuning.cpus.value[..], tuning.cpus.given), (team.cpus(), true));
    assert_eq!(tuning.cpus.reason, "those of the team that was given");
    let expected = engine().generate(story("Once upon a time", 20)).unwrap();
    assert_eq!(shared.generate(story("Once upon a time", 20)).unwrap().tokens, expected.tokens);
}
