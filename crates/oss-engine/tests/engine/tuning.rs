//! What is measured and chosen changes speed alone.

use oss_engine::{Activation, EngineOptions, Event, Origin, Tune, Tuning};

use crate::support::{engine, engine_with, options, prompts, story};

/// Everything is open.
fn open() -> EngineOptions {
    EngineOptions { threads: None, tune: Tune::AtLoad, ..options() }
}

fn values(tuning: &Tuning) -> [usize; 4] {
    let Tuning { threads, prefill_chunk, max_rows, max_sequences, .. } = tuning;
    [threads, prefill_chunk, max_rows, max_sequences].map(|choice| choice.value)
}

#[test]
fn a_measured_engine_gives_the_same_tokens_and_tells_its_choices() {
    let tuned = engine_with(open());
    let tuning = tuned.tuning();
    assert_eq!(tuning.origin, Origin::AtLoad);
    // At most 0.2 s, and several times that where other tests take the cores meanwhile.
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
    for name in ["threads = ", "prefill_chunk = ", "max_rows = ", "max_sequences = ", "GB/s"] {
        assert!(text.contains(name), "{text}");
    }
}

#[test]
fn tuning_between_the_tokens_of_an_answer_changes_nothing_in_it() {
    let tuned = engine_with(EngineOptions { stream_events: 4, ..open() });
    let mut stream = tuned.submit(story("Once upon a time", 60)).unwrap();
    assert!(stream.by_ref().any(|event| matches!(event, Event::Token(_))));
    let tuning = tuned.tune().unwrap();
    let expected = (&Origin::OnRequest, Activation::ALL.len());
    assert_eq!((&tuning.origin, tuning.profile.peaks.len()), expected);
    let tilings = tuning.profile.tilings.as_ref().expect("measured");
    assert_eq!(tilings.threads, tuning.threads.value);
    assert_eq!(tilings.rows, tuning.prefill_chunk.value.min(256));
    let steps = tilings.prompts.iter().chain(&tilings.answers);
    assert!(steps.clone().all(|step| step.seconds > 0.0), "{tilings:?}");
    assert!(steps.clone().any(|step| step.tiling.input_rows == tuning.tiling.value.input_rows));
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
    // Measured on request, it tells how products are best cut too.
    let tuned = engine_with(options.clone()).tune().unwrap();
    let third = engine_with(options.clone()).tuning();
    assert!(matches!(third.origin, Origin::Stored(_)), "{third:?}");
    assert_eq!((values(&third), third.tiling), (values(&tuned), tuned.tiling));
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

#[test]
fn given_options_are_kept_and_need_no_measuring() {
    let given = EngineOptions {
        threads: Some(1),
        prefill_chunk: Some(24),
        max_rows: Some(40),
        max_sequences: Some(3),
        ..open()
    };
    let engine = engine_with(given);
    assert_eq!(engine.tuning().origin, Origin::Unmeasured);
    assert_eq!(values(&engine.tuning()), [1, 24, 40, 3]);
    let tuned = engine.tune().unwrap();
    assert_eq!((values(&tuned), tuned.profile.threads.len()), ([1, 24, 40, 3], 1));
}
