//! What depends on the process around an engine: its environment and its limits. Each test runs
//! itself once more, as a process of its own.
#![cfg(unix)]

#[cfg(target_os = "linux")]
use std::io::Write as _;
use std::path::Path;
#[cfg(target_os = "linux")]
use std::process::Command;

use oss_engine::{Engine, EngineOptions, Error, Request, Tune};
use oss_testing::{again_behind, passes};
use oss_weights::Container;
#[cfg(target_os = "linux")]
use {
    oss_engine::{ColdTier, Fault},
    oss_threads::topology::Topology,
};

const CACHE: usize = 4 << 20;
/// Set for the second process.
const WITHIN: &str = "OSS_ENGINE_OWN_PROCESS";

/// Runs the test of that name once more, behind a line of shell and in that environment: it passes.
#[track_caller]
fn again(test: &str, before: &str, environment: &[(&str, &Path)]) {
    let mut command = again_behind(before, test);
    command.env_remove("XDG_CACHE_HOME").env_remove("HOME").env(WITHIN, "yes");
    passes(command.envs(environment.iter().copied()));
}

fn is_within() -> bool {
    std::env::var_os(WITHIN).is_some()
}

/// A budget for some of the demo model's experts.
fn small() -> EngineOptions {
    let demo = Container::from_bytes("demo", oss_demo::GGUF, Vec::new()).unwrap();
    let whole = Engine::from_bytes_with(oss_demo::GGUF, plain()).unwrap();
    answer(&whole);
    let others = CACHE + whole.metrics().memory.vocabulary;
    let max_memory = Some(oss_model::packed_bytes(&demo).unwrap() + others - 1);
    EngineOptions { max_memory, ..plain() }
}

fn plain() -> EngineOptions {
    EngineOptions {
        threads: Some(1),
        tune: Tune::Off,
        cache_bytes: Some(CACHE),
        repeat_bytes: 0,
        max_batched_tokens: Some(24),
        prefill_chunk: Some(16),
        system_root: "/no/such/folder".into(),
        ..EngineOptions::default()
    }
}

fn load() -> oss_engine::Result<Engine> {
    Engine::from_bytes_with(oss_demo::GGUF, small())
}

fn answer(engine: &Engine) -> Vec<u32> {
    engine.generate(Request::text("Once upon a time").max_tokens(8).greedy()).unwrap().token_ids()
}

#[test]
fn a_model_larger_than_its_memory_is_packed_to_the_users_folder() {
    let test = "a_model_larger_than_its_memory_is_packed_to_the_users_folder";
    if is_within() {
        let engine = load().unwrap();
        let whole = Engine::from_bytes_with(oss_demo::GGUF, plain()).unwrap();
        assert_eq!(answer(&engine), answer(&whole));
        assert!(engine.metrics().experts.unwrap().misses > 0);
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let packed = |folder: &str| {
        let files = std::fs::read_dir(directory.path().join(folder)).unwrap();
        let (models, others): (Vec<_>, Vec<_>) = files
            .map(|file| file.unwrap())
            .partition(|file| file.path().extension().is_some_and(|name| name == "oss"));
        assert_eq!(others.len(), 1, "the experts' popularity is kept too: {others:?}");
        let times = models.iter().map(|file| file.metadata().unwrap().modified().unwrap());
        times.collect::<Vec<_>>()
    };
    again(test, "", &[("HOME", directory.path())]);
    let first = packed(".cache/oss-engine/packed");
    assert_eq!(first.len(), 1);
    again(test, "", &[("HOME", directory.path())]);
    assert_eq!(packed(".cache/oss-engine/packed"), first, "packed once");
    again(test, "", &[("XDG_CACHE_HOME", &directory.path().join("caches"))]);
    assert_eq!(packed("caches/oss-engine/packed").len(), 1);
}

#[test]
fn without_a_folder_of_the_user_such_a_model_is_refused() {
    if is_within() {
        let error = load().unwrap_err();
        assert!(matches!(error, Error::LargerThanMemory { .. }), "{error}");
        let said = error.to_string();
        for part in ["pack_directory", "XDG_CACHE_HOME", "HOME"] {
            assert!(said.contains(part), "{said}");
        }
        return;
    }
    again("without_a_folder_of_the_user_such_a_model_is_refused", "", &[]);
}

/// The system refuses to let a file grow beyond 256 KiB, as a full disk would.
#[test]
fn a_disk_without_room_for_the_packed_file_is_a_clear_error() {
    if is_within() {
        let error = load().unwrap_err();
        assert!(matches!(error, Error::NotPacked { .. }), "{error}");
        let said = error.to_string();
        for part in ["oss-engine/packed", "pack_directory", ".oss.partial: could not "] {
            assert!(said.contains(part), "{said}");
        }
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let test = "a_disk_without_room_for_the_packed_file_is_a_clear_error";
    let before = "trap '' XFSZ; ulimit -f 512;";
    again(test, before, &[("HOME", directory.path())]);
}

/// Whether root may lock what it likes is up to a capability, which goes here.
#[test]
#[cfg(target_os = "linux")]
fn dense_weights_are_locked_where_the_process_may_and_metrics_say_so() {
    const LOCKED: &str = "OSS_ENGINE_LOCKED";
    if is_within() {
        let engine = load().unwrap();
        answer(&engine);
        let memory = engine.metrics().memory;
        let locked = std::env::var_os(LOCKED).is_some();
        assert_eq!(memory.locked > 0, locked, "{memory:?}");
        assert!(memory.locked < memory.weights, "{memory:?}");
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let test = "dense_weights_are_locked_where_the_process_may_and_metrics_say_so";
    let home = ("HOME", directory.path());
    let drop = "test $(id -u) = 0 && set -- setpriv --bounding-set=-ipc_lock \"$@\";";
    // As much as there may be, where that is less.
    let enough = "{ ulimit -l 65536 2>/dev/null || ulimit -l $(ulimit -H -l); } &&";
    let cases = [
        ("without the right to lock", format!("ulimit -l 64; {drop}"), None),
        ("with it", enough.to_owned(), Some((LOCKED, Path::new("yes")))),
    ];
    for (what, before, locked) in cases {
        // The one needs a capability, the other a limit that lets it.
        let script = format!("{before} exec \"$@\"");
        let can = Command::new("sh").args(["-c", &script, "sh", "true"]).output().expect("a shell");
        if can.status.success() {
            let environment: Vec<_> = std::iter::once(home).chain(locked).collect();
            again(test, &before, &environment);
        } else {
            let why = String::from_utf8_lossy(&can.stderr);
            // Past what keeps the output of tests that pass.
            assert!(std::env::var_os("OSS_REQUIRE_LOCK").is_none(), "{what}: {why}");
            let _told = writeln!(std::io::stderr(), "NOT TESTED: weights {what}: {}", why.trim());
        }
    }
}

/// The threads of this process: the name of each, and the CPUs that it may run on.
#[cfg(target_os = "linux")]
fn masks() -> Vec<(String, String)> {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    // A thread may have ended meanwhile.
    let statuses =
        tasks.filter_map(|task| std::fs::read_to_string(task.unwrap().path().join("status")).ok());
    let field = |status: &str, name: &str| {
        status.lines().find_map(|line| line.strip_prefix(name)).unwrap().trim().to_owned()
    };
    statuses.map(|text| (field(&text, "Name:"), field(&text, "Cpus_allowed_list:"))).collect()
}

/// What an engine starts beside its team, what it measures, and what it makes anew after a panic is
/// free to run anywhere.
#[test]
#[cfg(target_os = "linux")]
fn the_team_of_a_pinned_engine_alone_has_a_cpu_for_each_thread() {
    if !is_within() {
        let test = "the_team_of_a_pinned_engine_alone_has_a_cpu_for_each_thread";
        return again(test, "", &[]);
    }
    let all = masks()[0].1.clone();
    let topology = Topology::read().unwrap();
    let cpus = topology.pin_order();
    let expected = |name: &str| match name.strip_prefix("oss-worker-") {
        Some(worker) => cpus[worker.parse::<usize>().unwrap()].to_string(),
        None if name == "oss-step" => cpus[0].to_string(),
        None => all.clone(),
    };
    let are_right = || {
        let masks = masks();
        let count = |wanted| masks.iter().filter(|(name, _)| name == wanted).count();
        let counts = [count("oss-step"), count("oss-cache-read"), count("oss-cache-pack")];
        counts == [1; 3] && masks.iter().all(|(name, mask)| *mask == expected(name))
    };
    // A new thread has its parent's name for a moment, and a worker no CPU yet.
    let check = |when: &str| {
        let begin = std::time::Instant::now();
        while !are_right() {
            assert!(begin.elapsed().as_secs() < 20, "{when}: {:?}", masks());
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
    };
    let directory = tempfile::tempdir().unwrap();
    let cold = Some(ColdTier { directory: directory.path().to_owned(), bytes: 64 << 20 });
    let options = EngineOptions { pin: true, threads: None, max_memory: None, cold, ..small() };
    let options = EngineOptions { warm_bytes: 1 << 20, ..options };
    let engine = Engine::from_bytes_with(oss_demo::GGUF, options).unwrap();
    let first = answer(&engine);
    check("loaded");
    let tuned = engine.tune().unwrap();
    // From the step thread's own CPU no other would be seen.
    assert_eq!(tuned.profile.threads.last().unwrap().threads, topology.cpu_threads());
    assert_eq!(tuned.cpus.value[..], cpus[..tuned.threads.value]);
    check("tuned");
    let request = Request::text("Once upon a time").max_tokens(8).greedy();
    let error = engine.generate(request.with_fault(Fault::Panic { at: 2 })).unwrap_err();
    assert!(matches!(error, Error::Panicked { .. }), "{error}");
    check("made anew after a panic");
    assert_eq!(answer(&engine), first);
}
