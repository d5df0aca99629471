//! The budget, and what happens when memory runs short.

use oss_engine::{ColdTier, Engine, EngineOptions, Error, Fault, Pages};

use crate::support::{engine, engine_with, eventually, options, prompts, story, system};

#[test]
fn all_memory_stays_within_the_budget() {
    let directory = tempfile::tempdir().unwrap();
    let budget = 64 << 20;
    let options = EngineOptions {
        prefix_caching: true,
        cache_bytes: None,
        warm_bytes: 1 << 20,
        repeat_bytes: 1 << 18,
        cold: Some(ColdTier { directory: directory.path().to_path_buf(), bytes: 8 << 20 }),
        max_memory: Some(budget),
        threads: Some(2),
        ..options()
    };
    let engine = engine_with(options.clone());
    let texts = prompts(60);
    let streams: Vec<_> = (0..40).map(|i| engine.submit(story(&texts[20 + i], 30))).collect();
    for stream in streams {
        stream.unwrap().collect_all().unwrap();
        let memory = engine.metrics().memory;
        assert!(memory.total() <= budget, "{} of {budget}: {memory:?}", memory.total());
    }
    eventually("repeats are reported", || engine.metrics().memory.repeats > 0);
    let memory = engine.metrics().memory;
    let [cache, warm, repeats] = [memory.cache, memory.warm, memory.repeats];
    assert!(memory.cache_limit + memory.total() - cache - warm - repeats <= budget, "{memory:?}");
    assert!(cache > 1 << 20 && repeats > 0 && repeats <= 1 << 18, "{memory:?}");
    drop(engine);
    let pack_directory = Some(directory.path().join("packed"));
    let tiny = EngineOptions { max_memory: Some(1 << 20), pack_directory, ..options };
    let error = Engine::from_bytes_with(oss_demo::GGUF, tiny).unwrap_err();
    assert!(matches!(error, Error::Budget { got: 1_048_576, .. }), "{error}");
    assert!(error.to_string().contains("`max_memory`"), "{error}");
    let tiny = EngineOptions { cache_bytes: Some(1), ..self::options() };
    let error = Engine::from_bytes_with(oss_demo::GGUF, tiny).unwrap_err();
    assert!(error.to_string().contains("`cache_bytes`"), "{error}");
}

/// Bytes of huge pages that are set aside on this machine and that nobody uses.
fn set_aside() -> usize {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let number = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|rest| rest.split_whitespace().next()?.parse::<usize>().ok()).unwrap_or(0)
    };
    (number("HugePages_Free:") - number("HugePages_Rsvd:")) * number("Hugepagesize:") * 1024
}

#[test]
fn tokens_are_the_same_on_any_pages_and_those_set_aside_are_used_where_there_are_enough() {
    let expected = engine().generate(story("Once upon a time", 20)).unwrap();
    for pages in [Pages::Ordinary, Pages::Transparent, Pages::Reserved] {
        let free = set_aside();
        let engine = engine_with(EngineOptions { pages, ..options() });
        let answer = engine.generate(story("Once upon a time", 20)).unwrap();
        assert_eq!(answer.token_ids(), expected.token_ids(), "{pages:?}");
        let memory = engine.metrics().memory;
        let all = memory.weights + memory.cache_limit;
        match pages {
            Pages::Reserved if free > 2 * all => assert!(memory.reserved > all / 2, "{memory:?}"),
            Pages::Reserved if free > 0 => assert!(memory.reserved <= 2 * all, "{memory:?}"),
            _ => assert_eq!(memory.reserved, 0, "{pages:?}, {free} bytes set aside"),
        }
    }
}

#[test]
fn what_is_kept_for_reuse_goes_when_the_system_runs_short_and_answers_stay_the_same() {
    let root = tempfile::tempdir().unwrap();
    system(root.path(), 900_000);
    let options = EngineOptions {
        prefix_caching: true,
        cache_bytes: Some(4 << 20),
        system_root: root.path().to_path_buf(),
        ..options()
    };
    let short = engine_with(options);
    let texts = prompts(40);
    let ask = |text: &str| {
        let expected = engine().generate(story(text, 16)).unwrap();
        assert_eq!(short.generate(story(text, 16)).unwrap().token_ids(), expected.token_ids());
    };
    texts[10..].iter().for_each(|text| ask(text));
    eventually("the engine is idle", || short.metrics().running == 0);
    let before = short.metrics();
    assert!(before.memory.cache > 1 << 20 && before.shed_bytes == 0, "{:?}", before.memory);
    // Nothing runs: the engine looks by itself.
    system(root.path(), 10_000);
    eventually("everything goes", || short.metrics().memory.cache < before.memory.cache / 3);
    assert!(short.metrics().shed_bytes > 0);
    texts[30..].iter().for_each(|text| ask(text));
    system(root.path(), 900_000);
    eventually("the cache may grow again", || {
        texts[20..].iter().for_each(|text| ask(text));
        short.metrics().memory.cache > before.memory.cache / 2
    });
}

#[test]
fn what_sessions_keep_goes_too_when_nothing_else_is_left_to_go() {
    let root = tempfile::tempdir().unwrap();
    system(root.path(), 900_000);
    let options = EngineOptions {
        cache_bytes: Some(4 << 20),
        system_root: root.path().to_path_buf(),
        ..options()
    };
    let short = engine_with(options);
    let texts = prompts(40);
    let mut sessions: Vec<_> = texts[30..].iter().map(|_| short.session()).collect();
    let mut ask = || {
        for (session, text) in sessions.iter_mut().zip(&texts[30..]) {
            let expected = engine().generate(story(text, 16)).unwrap();
            assert_eq!(
                session.generate(story(text, 16)).unwrap().token_ids(),
                expected.token_ids()
            );
        }
    };
    ask();
    eventually("the engine is idle", || short.metrics().running == 0);
    let before = short.metrics();
    assert!(before.memory.cache > 1 << 20 && before.shed_bytes == 0, "{:?}", before.memory);
    // Less than a tenth is left, more than a thirtieth: not all has to go at once.
    system(root.path(), 90_000);
    eventually("their pages go", || short.metrics().memory.cache < before.memory.cache / 3);
    assert!(short.metrics().shed_bytes > 0);
    ask();
}

#[test]
fn a_request_that_needs_more_than_pressure_leaves_gets_it() {
    let root = tempfile::tempdir().unwrap();
    system(root.path(), 1_000);
    let system_root = root.path().to_path_buf();
    let short = engine_with(EngineOptions { system_root, ..options() });
    let long = prompts(400).pop().unwrap();
    let expected = engine().generate(story(&long, 4)).unwrap();
    assert_eq!(short.generate(story(&long, 4)).unwrap().token_ids(), expected.token_ids());
}

#[test]
fn a_step_whose_memory_is_refused_once_is_tried_again_without_what_is_kept() {
    let engine = engine_with(EngineOptions { prefix_caching: true, ..options() });
    let expected = crate::support::engine().generate(story("Once upon a time", 20)).unwrap();
    let session = engine.session();
    session.generate(story("One day", 40)).unwrap();
    for at in [0, 7] {
        let fault = Fault::Refused { at, times: 1 };
        let answer = engine.generate(story("Once upon a time", 20).with_fault(fault)).unwrap();
        assert_eq!(answer.token_ids(), expected.token_ids(), "refused at {at}");
    }
    assert!(engine.metrics().shed_bytes > 0, "what was kept has gone");
    let fault = Fault::Refused { at: 3, times: 2 };
    let error = engine.generate(story("Once upon a time", 20).with_fault(fault)).unwrap_err();
    assert!(matches!(error, Error::Cache(_)), "{error}");
    assert_eq!(
        engine.generate(story("Once upon a time", 20)).unwrap().token_ids(),
        expected.token_ids()
    );
    assert_eq!(engine.metrics().failed, 1);
}
