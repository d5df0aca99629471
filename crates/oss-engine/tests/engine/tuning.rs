//! What is measured and chosen changes speed alone.

use oss_engine::tuning::{Origin, PrefetchPolicy, TiledStep, Tiling};
use oss_engine::{Activation, EngineOptions, Error, Event, Request, Tune, Tuning};

use crate::support::{engine, engine_with, eventually, options, prompts, story};

/// Everything is open.
fn open() -> EngineOptions {
    EngineOptions { threads: None, tune: Tune::AtLoad, ..options() }
}

fn values(tuning: &Tuning) -> [usize; 4] {
    let Tuning { threads, prefill_chunk, max_batched_tokens, max_sequences, .. } = tuning;
    [threads, prefill_chunk, max_batched_tokens, max_sequences].map(|choice| choice.value)
}

#[test]
fn a_measured_engine_gives_the_same_tokens_and_tells_its_choices() {
    let tuned = engine_with(open());
    let tuning = tuned.tuning();
    assert_eq!(tuning.origin, Origin::AtLoad);
    // At most 0.2 s on an idle machine. It is the wall clock's time, and other tests take the cores
    // meanwhile: only an engine that measures on and on is found here.
    assert!(tuning.profile.seconds < 1.0, "{}", tuning.profile.seconds);
    let chosen = tuning.profile.of(tuning.threads.value).expect("it was measured");
    assert!(chosen.read_bytes_per_s > 0.0 && chosen.products_per_s > 0.0 && chosen.phase_s > 0.0);
    assert!(values(&tuning).iter().all(|value| *value > 0));
    for prompt in prompts(8) {
        let (got, expected) =
            (tuned.generate(story(&prompt, 20)), engine().generate(story(&prompt, 20)));
        assert_eq!(got.unwrap().tokens, expected.unwrap().tokens);
    }
    let observed = tuned.tuning().observed;
    assert!(observed.answer_step_s > 0.0 && observed.prompt_row_s > 0.0, "{observed:?}");
    let text = tuned.tuning().to_string();
    for name in
        ["threads = ", "prefill_chunk = ", "max_batched_tokens = ", "max_sequences = ", "GB/s"]
    {
        assert!(text.contains(name), "{text}");
    }
}

#[test]
fn tuning_between_the_tokens_of_an_answer_changes_nothing_in_it() {
    let tuned = engine_with(EngineOptions { stream_events: 4, ..open() });
    let mut stream = tuned.submit(story("Once upon a time", 60)).unwrap();
    assert!(stream.by_ref().any(|event| matches!(event, Ok(Event::Token(_)))));
    let tuning = tuned.tune().unwrap();
    let expected = (&Origin::OnRequest, Activation::ALL.len());
    assert_eq!((&tuning.origin, tuning.profile.peaks.len()), expected);
    let measured = tuning.profile.steps.as_ref().expect("measured");
    assert_eq!(measured.threads, tuning.threads.value);
    assert_eq!(measured.rows, tuning.prefill_chunk.value.min(256));
    let steps = measured.prompts.iter().chain(&measured.answers).map(|step| step.seconds);
    let prefetches = measured.prefetches.iter().map(|(_, seconds)| *seconds);
    assert!(steps.chain(prefetches).all(|seconds| seconds > 0.0), "{measured:?}");
    // The usual one, or what was fastest.
    let fastest = |steps: &[TiledStep]| {
        steps.iter().min_by(|a, b| a.seconds.total_cmp(&b.seconds)).unwrap().tiling
    };
    let (usual, chosen) = (Tiling::DEFAULT, tuning.tiling.value);
    let (prompts, answers) = (fastest(&measured.prompts), fastest(&measured.answers));
    let expected = [usual, prompts].map(|tiling| {
        [usual, answers].map(|other| Tiling { wide_rows: other.wide_rows, ..tiling })
    });
    assert!(expected.as_flattened().contains(&chosen), "{chosen:?} of {measured:?}");
    let prefetches = measured.prefetches.iter().min_by(|(_, a), (_, b)| a.total_cmp(b)).unwrap();
    let chosen = tuning.prefetch.value;
    let is_fastest = chosen.name() == Some(prefetches.0.as_str());
    assert!(chosen == PrefetchPolicy::detect() || is_fastest, "{chosen:?} of {measured:?}");
    let words = format!("tiling = {} x ", tuning.tiling.value.input_rows);
    assert!(tuning.to_string().contains(&words), "{tuning}");
    assert_eq!(values(&tuned.tuning()), values(&tuning));
    let expected = engine().generate(story("Once upon a time", 60)).unwrap();
    let rest = stream.collect_all().unwrap();
    assert!(expected.text.ends_with(&rest.text) && !rest.text.is_empty(), "{}", rest.text);
    let again = tuned.generate(story("Once upon a time", 60)).unwrap();
    assert_eq!(again.tokens, expected.tokens);
}

#[test]
fn what_was_measured_once_is_read_by_the_next_engine() {
    let directory = tempfile::tempdir().unwrap();
    let tune = Tune::Stored(directory.path().to_owned());
    let options = EngineOptions { tune, ..open() };
    let first = engine_with(options.clone()).tuning();
    assert_eq!(first.origin, Origin::AtLoad);
    let second = engine_with(options.clone()).tuning();
    assert!(matches!(&second.origin, Origin::Stored(path) if path.exists()), "{second:?}");
    assert_eq!(values(&second), values(&first));
    for (a, b) in second.profile.threads.iter().zip(&first.profile.threads) {
        // JSON keeps all but the last bit.
        assert!((a.products_per_s / b.products_per_s - 1.0).abs() < 1e-9, "{a:?}, {b:?}");
        assert_eq!(a.threads, b.threads);
    }
    // Measured on request, it tells how products are best computed too.
    let tuned = engine_with(options.clone()).tune().unwrap();
    let third = engine_with(options.clone()).tuning();
    assert!(matches!(third.origin, Origin::Stored(_)), "{third:?}");
    assert_eq!((values(&third), third.tiling), (values(&tuned), tuned.tiling));
    assert_eq!(third.prefetch, tuned.prefetch);
    for file in std::fs::read_dir(directory.path()).unwrap() {
        std::fs::write(file.unwrap().path(), "{").unwrap();
    }
    assert_eq!(engine_with(options).tuning().origin, Origin::AtLoad);
}

#[test]
fn nothing_is_measured_where_the_budget_has_no_room_for_it() {
    let max_memory = Some(60 << 20);
    let engine = engine_with(EngineOptions { max_memory, cache_bytes: None, ..open() });
    assert_eq!(engine.tuning().origin, Origin::Unmeasured);
    assert!(engine.tuning().to_string().contains("nothing was measured"));
}

/// With so much for keys and values, and a budget that holds just that and everything else.
fn within_budget(cache_bytes: usize) -> (EngineOptions, usize) {
    let cache_bytes = Some(cache_bytes);
    let kept = EngineOptions { cache_bytes, prefix_caching: true, repeat_bytes: 0, ..open() };
    let options = EngineOptions { tune: Tune::Off, ..kept };
    let unlimited = engine_with(options.clone());
    unlimited.check_books().unwrap(); // it has started, and its numbers are there
    let all = unlimited.metrics().memory;
    // Logits come with the first token.
    let logits = 4 * unlimited.config().vocabulary * 32;
    let budget = all.total() - all.cache + all.cache_limit + logits;
    (EngineOptions { max_memory: Some(budget), ..options }, budget)
}

#[test]
fn tuning_keeps_to_the_budget_and_borrows_from_what_is_kept_for_reuse() {
    let (options, budget) = within_budget(72 << 20);
    let tuned = engine_with(options);
    let prompt = |kind: u32| (0..700).map(|i| (i * i * 7 + i * kind + kind) % 2000).collect();
    let prompts: Vec<Vec<u32>> = (0..14).map(prompt).collect();
    let ask = |prompt: &Vec<u32>| {
        let request = || Request::tokens(prompt.clone()).max_tokens(4).greedy();
        let expected = engine().generate(request()).unwrap().token_ids();
        assert_eq!(tuned.generate(request()).unwrap().token_ids(), expected);
    };
    prompts.iter().for_each(ask);
    eventually("the numbers are told", || tuned.metrics().running == 0);
    let before = tuned.metrics().memory;
    assert!(before.cache > 8 << 20 && before.total() <= budget, "{before:?}");
    assert!(before.total() + (64 << 20) > budget, "{before:?}: enough is left to measure in");
    let most = std::thread::scope(|scope| {
        let tuning = scope.spawn(|| tuned.tune().unwrap());
        let mut most = 0;
        while !tuning.is_finished() {
            let memory = tuned.metrics().memory;
            assert!(memory.total() <= budget, "{} of {budget}: {memory:?}", memory.total());
            most = most.max(memory.measuring);
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        assert_eq!(tuning.join().unwrap().origin, Origin::OnRequest);
        most
    });
    assert!(most >= 64 << 20, "measured in {most} bytes");
    prompts.iter().for_each(ask);
    eventually("the numbers are told", || tuned.metrics().running == 0);
    let after = tuned.metrics().memory;
    assert!(after.total() <= budget && after.measuring == 0, "{after:?}");
    assert!(after.cache > (72 << 20) - most, "no more than beside {most} bytes: {after:?}");
}

#[test]
fn what_was_measured_in_a_tight_budget_is_not_kept_for_others() {
    // Room to read 32 MiB.
    let (options, _) = within_budget(40 << 20);
    let directory = tempfile::tempdir().unwrap();
    let tune = Tune::Stored(directory.path().to_owned());
    let engine = engine_with(EngineOptions { tune, ..options });
    assert_eq!(engine.tuning().origin, Origin::Unmeasured);
    assert_eq!(engine.tune().unwrap().origin, Origin::OnRequest);
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
}

#[test]
fn tuning_without_room_for_the_least_is_refused_and_changes_nothing() {
    let (options, budget) = within_budget(4 << 20);
    let engine = engine_with(options);
    let before = engine.tuning();
    let Err(Error::Budget { what, got, expected }) = engine.tune() else {
        panic!("another error, or none");
    };
    assert_eq!((what, got), ("memory to measure the machine in", budget));
    assert!(expected > budget + (12 << 20) && expected < budget + (20 << 20), "{expected}");
    assert_eq!(engine.tuning(), before);
    let answer = engine.generate(story("Once upon a time", 20)).unwrap();
    let expected = crate::support::engine().generate(story("Once upon a time", 20)).unwrap();
    assert_eq!(answer.token_ids(), expected.token_ids());
    assert_eq!(engine.metrics().memory.measuring, 0);
}

#[test]
fn given_options_are_kept_and_need_no_measuring() {
    let given = EngineOptions {
        threads: Some(1),
        prefill_chunk: Some(24),
        max_batched_tokens: Some(40),
        max_sequences: Some(3),
        ..open()
    };
    let engine = engine_with(given);
    assert_eq!(engine.tuning().origin, Origin::Unmeasured);
    assert_eq!(values(&engine.tuning()), [1, 24, 40, 3]);
    let tuned = engine.tune().unwrap();
    assert_eq!((values(&tuned), tuned.profile.threads.len()), ([1, 24, 40, 3], 1));
}
