//! Models larger than the memory that they may take.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use oss_engine::{
    Engine, EngineOptions, Error, ErrorKind, Fault, LoadProgress, Request, Speculation,
};
use oss_model::{ExpertRoom, LoadOptions, Model};
use oss_weights::Container;

use crate::support::{engine, engine_with, eventually, options, packed, prompts, story, within};

const TOP: usize = 2;
const CACHE: usize = 4 << 20;

fn demo() -> Container {
    Container::from_bytes("demo", oss_demo::GGUF, Vec::new()).unwrap()
}

/// Little besides weights.
fn small() -> EngineOptions {
    EngineOptions {
        cache_bytes: Some(CACHE),
        repeat_bytes: 0,
        max_batched_tokens: Some(24),
        prefill_chunk: Some(16),
        max_sequences: Some(8),
        ..options()
    }
}

fn room(path: &Path) -> ExpertRoom {
    let load = LoadOptions {
        activation: options().activation,
        kv_format: options().kv_format,
        pages: options().pages,
        ..LoadOptions::new(engine().isa())
    };
    let model = Model::load(Arc::new(Container::open(path).unwrap()), load).unwrap();
    model.weights.expert_room().unwrap()
}

/// The least budget with which a model loads.
fn least(path: &Path) -> usize {
    let error = Engine::load_with(path, EngineOptions { max_memory: Some(1), ..small() });
    match error.unwrap_err() {
        Error::Budget { expected, .. } => expected,
        other => panic!("{other}"),
    }
}

fn with_budget(path: &Path, max_memory: usize) -> Engine {
    Engine::load_with(path, EngineOptions { max_memory: Some(max_memory), ..small() }).unwrap()
}

fn is_expert(error: &Error) -> bool {
    let is = |error: &oss_model::Error| matches!(error, oss_model::Error::Expert { .. });
    matches!(error, Error::Model(error) if is(error))
}

#[test]
fn every_budget_gives_the_same_tokens_and_is_kept() {
    let directory = tempfile::tempdir().unwrap();
    let path = packed(directory.path());
    let (least, room) = (least(&path), room(&path));
    let texts = prompts(12);
    let request = |index: usize| {
        let request = Request::text(&texts[index]).max_tokens(12).seed(index as u64);
        Request { logprobs: Some(2), ..request }
    };
    let expected: Vec<_> = (0..12).map(|i| engine().generate(request(i)).unwrap().tokens).collect();
    for more in [0, 1, room.experts / 4, room.experts / 2] {
        let budget = least + more * room.slot_bytes;
        let engine = with_budget(&path, budget);
        let streams: Vec<_> = (0..12).map(|i| engine.submit(request(i)).unwrap()).collect();
        for (stream, expected) in streams.into_iter().zip(&expected) {
            assert_eq!(stream.collect_all().unwrap().tokens, *expected, "{more} more slots");
            let memory = engine.metrics().memory;
            assert!(memory.total() <= budget, "{} of {budget}: {memory:?}", memory.total());
        }
        let experts = engine.metrics().experts.unwrap();
        assert_eq!((experts.slots, experts.experts), (TOP + more, room.experts));
        // Few slots hold nothing but what the steps of so many requests need just then.
        let hits = experts.hits > 0 || more < room.experts / 2;
        assert!(experts.misses > 0 && hits, "{experts:?}");
        assert!(experts.predicted_used + experts.predicted_wasted <= experts.predicted);
    }
}

#[test]
fn a_prompt_in_one_chunk_reads_each_expert_once() {
    let directory = tempfile::tempdir().unwrap();
    let path = packed(directory.path());
    let room = room(&path);
    let text = prompts(26).pop().unwrap();
    let mut read = Vec::new();
    for chunk in [16, 128] {
        let options = EngineOptions {
            max_batched_tokens: Some(128 + 8),
            prefill_chunk: Some(chunk),
            speculation: Speculation::Off,
            ..small()
        };
        let error =
            Engine::load_with(&path, EngineOptions { max_memory: Some(1), ..options.clone() });
        let Error::Budget { expected: least, .. } = error.unwrap_err() else { panic!("no budget") };
        let options = EngineOptions { max_memory: Some(least), ..options };
        let engine = Engine::load_with(&path, options).unwrap();
        let request = || Request { logprobs: Some(2), ..story(&text, 1) };
        let answer = engine.generate(request()).unwrap();
        let prompt = answer.usage.prompt_tokens;
        assert!((48..=128).contains(&prompt), "{prompt} tokens: three small chunks, a large one");
        assert_eq!(answer.tokens, crate::support::engine().generate(request()).unwrap().tokens);
        // The numbers are told with it.
        engine.check_books().unwrap();
        read.push(engine.metrics().experts.unwrap());
    }
    let all = room.experts as u64;
    let once = read[1];
    assert!(once.hits + once.misses <= all && once.misses > all / 2, "{once:?} of {all}");
    assert!(once.read_bytes <= all * room.slot_bytes as u64, "{once:?}");
    assert!(read[0].misses > 2 * once.misses, "{read:?}");
}

#[test]
fn a_model_that_fits_has_no_slots() {
    let directory = tempfile::tempdir().unwrap();
    let path = packed(directory.path());
    let engine = with_budget(&path, 200 << 20);
    let expected = crate::support::engine().generate(story("Once upon a time", 20)).unwrap();
    assert_eq!(
        engine.generate(story("Once upon a time", 20)).unwrap().token_ids(),
        expected.token_ids()
    );
    assert_eq!(engine.metrics().experts, None);
}

#[test]
fn a_budget_for_less_than_one_token_s_experts_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = packed(directory.path());
    let (least, slot) = (least(&path), room(&path).slot_bytes);
    with_budget(&path, least);
    let options = EngineOptions { max_memory: Some(least - slot / 2), ..small() };
    let error = Engine::load_with(&path, options).unwrap_err();
    assert!(matches!(error, Error::Budget { expected, .. } if expected == least), "{error}");
}

#[test]
fn vectors_and_the_vocabulary_are_counted_and_a_budget_without_room_for_them_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = packed(directory.path());
    let (least, room) = (least(&path), room(&path));
    let engine = with_budget(&path, least);
    engine.check_books().unwrap(); // it has started, and its numbers are there
    let memory = engine.metrics().memory;
    let demo = demo();
    let vectors = demo.tensors().filter(|tensor| {
        let name = &tensor.name;
        ["norm", "bias", "sinks"].iter().any(|part| name.contains(part))
    });
    assert_eq!(memory.vectors, vectors.map(|vector| 4 * vector.elements()).sum::<usize>());
    let tokenizer = engine.text().tokenizer().unwrap();
    let words = (0..tokenizer.vocabulary_len() as u32).filter_map(|id| tokenizer.token_bytes(id));
    let bytes: usize = words.map(<[u8]>::len).sum();
    assert!(memory.vocabulary > 10 * bytes && memory.vocabulary < 4 << 20, "{memory:?}");
    // Everything that an engine takes: logits come with its first token.
    let logits = 4 * engine.config().vocabulary * small().max_batched_tokens.unwrap();
    let weights = room.dense_bytes + TOP * room.slot_bytes;
    let all = weights + memory.vectors + memory.vocabulary + memory.scratch + logits + CACHE;
    assert_eq!(least, all, "{memory:?}");
    for missing in [1, memory.vectors, memory.vocabulary] {
        let max_memory = Some(least - missing);
        let error = Engine::load_with(&path, EngineOptions { max_memory, ..small() }).unwrap_err();
        let said = error.to_string();
        let numbers = [format!("got {} bytes", least - missing), format!("at least {least} (")];
        for part in numbers.iter().map(String::as_str).chain(["vectors", "the vocabulary"]) {
            assert!(said.contains(part), "{said}");
        }
    }
}

#[test]
fn a_model_that_is_not_packed_is_packed_first_where_a_folder_is_given() {
    let directory = tempfile::tempdir().unwrap();
    let least = least(&packed(directory.path()));
    let cache = directory.path().join("packed");
    let load = |pack_directory: PathBuf| {
        let pack_directory = Some(pack_directory);
        let options = EngineOptions { max_memory: Some(least), pack_directory, ..small() };
        Engine::from_container(Arc::new(demo()), options)
    };
    let file = directory.path().join("a file");
    std::fs::write(&file, b"no folder").unwrap();
    let error = load(file).unwrap_err();
    assert!(matches!(error, Error::NotPacked { .. }), "{error}");
    let said = error.to_string();
    for part in ["demo: could not be packed to ", "a file", "pack_directory"] {
        assert!(said.contains(part), "{said}");
    }
    let expected = engine().generate(story("Once upon a time", 20)).unwrap();
    let written = || {
        let files = std::fs::read_dir(&cache).unwrap().map(|file| file.unwrap());
        let is_packed = |path: &Path| path.extension().is_some_and(|name| name == "oss");
        let files: Vec<_> = files.filter(|file| is_packed(&file.path())).collect();
        assert_eq!(files.len(), 1, "{files:?}");
        files[0].metadata().unwrap().modified().unwrap()
    };
    let mut times = Vec::new();
    for _ in 0..2 {
        let engine = load(cache.clone()).unwrap();
        assert_eq!(
            engine.generate(story("Once upon a time", 20)).unwrap().token_ids(),
            expected.token_ids()
        );
        assert!(engine.metrics().experts.unwrap().misses > 0);
        times.push(written());
    }
    assert_eq!(times[0], times[1], "the second engine found the first one's file");
}

#[test]
fn a_second_engine_begins_with_what_was_popular_and_gives_the_same_tokens() {
    let directory = tempfile::tempdir().unwrap();
    let path = packed(directory.path());
    let (budget, folder) = (least(&path) + 4 * room(&path).slot_bytes, directory.path().join("k"));
    let load = |pack_directory| {
        let options = EngineOptions { max_memory: Some(budget), pack_directory, ..small() };
        Engine::load_with(&path, options).unwrap()
    };
    let request = || Request { logprobs: Some(2), ..story("Once upon a time", 20) };
    let expected = engine().generate(request()).unwrap().tokens;
    let answers =
        |engine: &Engine| assert_eq!(engine.generate(request()).unwrap().tokens, expected);
    answers(&load(None));
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1, "no folder, no file");
    drop(load(Some(folder.clone())));
    assert!(!folder.exists(), "nothing was needed");
    let popular = |engine: &Engine| {
        // Sent round its loop, the step thread tells the numbers.
        engine.pulse().unwrap();
        engine.metrics().experts.unwrap().popular_bytes
    };
    let first = load(Some(folder.clone()));
    answers(&first);
    assert_eq!((popular(&first), first.metrics().unusable_popularity), (0, 0));
    drop(first);
    let files: Vec<_> = std::fs::read_dir(&folder).unwrap().map(|file| file.unwrap()).collect();
    assert_eq!(files.len(), 1, "{files:?}");
    let second = load(Some(folder.clone()));
    eventually("popular experts are read", || popular(&second) > 0);
    answers(&second);
    drop(second);
    // What is no popularity of this model is as good as none, and is replaced.
    let kept = files[0].path();
    let whole = std::fs::read_to_string(&kept).unwrap();
    for damaged in [&whole[..whole.len() / 2], &whole.replace('[', "[[")[..], ""] {
        std::fs::write(&kept, damaged).unwrap();
        let engine = load(Some(folder.clone()));
        assert_eq!((popular(&engine), engine.metrics().unusable_popularity), (0, 1));
        answers(&engine);
        drop(engine);
        assert_eq!(load(Some(folder.clone())).metrics().unusable_popularity, 0);
    }
}

#[test]
fn a_folder_makes_later_loads_map_what_the_first_one_packed() {
    let directory = tempfile::tempdir().unwrap();
    let load = || {
        let pack_directory = Some(directory.path().join("packed"));
        let packed = Arc::new(AtomicUsize::new(0));
        let seen = Arc::clone(&packed);
        let count = move |_, _| {
            seen.fetch_add(1, Ordering::Relaxed);
            ControlFlow::Continue(())
        };
        let progress = Some(LoadProgress::new(count));
        let options = EngineOptions { pack_directory, progress, ..small() };
        let engine = Engine::from_container(Arc::new(demo()), options).unwrap();
        let ids = engine.generate(story("Once upon a time", 20)).unwrap().token_ids();
        (ids, packed.load(Ordering::Relaxed))
    };
    let expected = engine().generate(story("Once upon a time", 20)).unwrap().token_ids();
    let (first, packed) = load();
    assert_eq!(first, expected);
    assert!(packed > 0, "the first load packs");
    assert_eq!(load(), (expected, 0), "the second one maps");
}

#[test]
fn a_load_that_is_cancelled_leaves_no_packed_file_and_the_next_one_packs_it() {
    let directory = tempfile::tempdir().unwrap();
    let load = |progress| {
        let pack_directory = Some(directory.path().to_path_buf());
        let options = EngineOptions { pack_directory, progress, ..small() };
        Engine::from_container(Arc::new(demo()), options)
    };
    let half = LoadProgress::new(|done, all| match 2 * done < all {
        true => ControlFlow::Continue(()),
        false => ControlFlow::Break(()),
    });
    let error = load(Some(half)).unwrap_err();
    assert!(matches!(error, Error::LoadCancelled), "{error}");
    assert_eq!((error.kind(), error.is_retryable()), (ErrorKind::Cancelled, false));
    let has = |extension: &str| {
        let files = std::fs::read_dir(directory.path()).unwrap().map(|file| file.unwrap().path());
        files.into_iter().any(|path| path.extension().is_some_and(|name| name == extension))
    };
    assert!(!has("oss") && has("partial"), "what was written stays for the next load");
    let answer = load(None).unwrap().generate(story("Once upon a time", 20)).unwrap();
    let expected = engine().generate(story("Once upon a time", 20)).unwrap();
    assert_eq!(answer.token_ids(), expected.token_ids());
    assert!(has("oss") && !has("partial"));
}

#[test]
fn a_packed_file_in_memory_gives_the_same_tokens() {
    let directory = tempfile::tempdir().unwrap();
    let file = std::fs::read(packed(directory.path())).unwrap();
    let loaded = Engine::from_bytes_with(file, options()).unwrap();
    let request = || story("Once upon a time", 20);
    let expected = engine().generate(request()).unwrap().tokens;
    assert_eq!(loaded.generate(request()).unwrap().tokens, expected);
}

#[test]
fn an_engine_waits_for_another_one_that_packs_the_same_model() {
    let directory = tempfile::tempdir().unwrap();
    let packed = directory.path().join("packed");
    let load = |progress| {
        let pack_directory = Some(packed.clone());
        let options = EngineOptions { pack_directory, progress, ..small() };
        let engine = Engine::from_container(Arc::new(demo()), options).unwrap();
        engine.generate(story("Once upon a time", 20)).unwrap().token_ids()
    };
    let (begun, has_begun) = std::sync::mpsc::channel();
    let is_first = AtomicBool::new(true);
    let slow = LoadProgress::new(move |_, _| {
        if is_first.swap(false, Ordering::Relaxed) {
            begun.send(()).unwrap();
            std::thread::sleep(std::time::Duration::from_millis(400));
        }
        ControlFlow::Continue(())
    });
    let answers = std::thread::scope(|scope| {
        let first = scope.spawn(|| load(Some(slow)));
        has_begun.recv().unwrap();
        let second = load(None);
        [first.join().unwrap(), second]
    });
    let expected = engine().generate(story("Once upon a time", 20)).unwrap().token_ids();
    assert_eq!(answers, [expected.clone(), expected]);
    assert_eq!(std::fs::read_dir(&packed).unwrap().count(), 1);
}

#[test]
fn a_model_file_that_is_changed_in_place_is_packed_anew() {
    let directory = tempfile::tempdir().unwrap();
    let (path, packed) = (directory.path().join("demo.gguf"), directory.path().join("packed"));
    let mut bytes = oss_demo::GGUF.to_vec();
    for round in 1..=2 {
        std::fs::write(&path, &bytes).unwrap();
        let expected = Engine::from_bytes_with(bytes.clone(), small()).unwrap();
        let pack_directory = Some(packed.clone());
        let engine = Engine::load_with(&path, EngineOptions { pack_directory, ..small() }).unwrap();
        let [got, expected] = [engine, expected]
            .map(|engine| engine.generate(story("Once upon a time", 20)).unwrap().tokens);
        assert_eq!(got, expected);
        assert_eq!(std::fs::read_dir(&packed).unwrap().count(), round);
        // Bits that tell an answer's log-probabilities apart: the scales of a few blocks.
        let at = within("blk.2.ffn_down_exps.weight");
        bytes[at..at + 64].iter_mut().for_each(|byte| *byte ^= 1);
    }
}

#[test]
fn an_expert_that_cannot_be_read_fails_its_requests_and_the_next_ones_are_right() {
    let directory = tempfile::tempdir().unwrap();
    let path = packed(directory.path());
    let (budget, whole) = (least(&path), std::fs::read(&path).unwrap());
    let container = Container::open(&path).unwrap();
    // Experts are read from the file that has the name: the map's own stays as it is.
    let other = directory.path().join("other.oss");
    // The last layer's experts are the end of the file.
    let last = room(&path).slot_bytes * 3;
    std::fs::write(&other, &whole[..whole.len() - last]).unwrap();
    std::fs::rename(&other, &path).unwrap();
    let options = EngineOptions { max_memory: Some(budget), ..small() };
    let engine = Engine::from_container(Arc::new(container), options).unwrap();
    let error = engine.generate(story("Once upon a time, there was", 20)).unwrap_err();
    assert!(is_expert(&error), "{error}");
    let text = error.to_string();
    assert!(text.contains("demo.oss: expert ") && text.contains(" bytes at "), "{text}");
    assert_eq!(engine.check_books().unwrap(), 0, "the failed request has given its pages back");
    std::fs::write(&path, whole).unwrap();
    let expected = crate::support::engine().generate(story("Once upon a time", 20)).unwrap();
    assert_eq!(
        engine.generate(story("Once upon a time", 20)).unwrap().token_ids(),
        expected.token_ids()
    );
    assert_eq!(engine.metrics().failed, 1);
}

#[test]
fn a_step_whose_expert_cannot_be_read_once_is_tried_again() {
    let engine = engine_with(EngineOptions { prefix_caching: true, ..options() });
    let faulty = |at, times| story("One day", 20).with_fault(Fault::Unread { at, times });
    let expected = crate::support::engine().generate(story("One day", 20)).unwrap();
    let beside = || Request { ignore_eos: true, ..story("Once upon a time", 60) };
    for at in [0, 7] {
        let other = engine.submit(beside()).unwrap();
        assert_eq!(
            engine.generate(faulty(at, 1)).unwrap().token_ids(),
            expected.token_ids(),
            "{at}"
        );
        assert_eq!(other.collect_all().unwrap().tokens.len(), 60);
    }
    let metrics = engine.metrics();
    assert_eq!((metrics.failed, metrics.shed_bytes), (0, 0), "what is kept stays");
    let error = engine.generate(faulty(3, 2)).unwrap_err();
    assert!(is_expert(&error), "{error}");
    assert_eq!(engine.generate(story("One day", 20)).unwrap().token_ids(), expected.token_ids());
}

#[test]
fn a_model_whose_configuration_has_changed_is_packed_anew() {
    let directory = tempfile::tempdir().unwrap();
    for (name, bytes) in oss_demo::files() {
        std::fs::write(directory.path().join(name), bytes).unwrap();
    }
    let pack_directory = directory.path().join("packed");
    let load = || {
        let pack_directory = Some(pack_directory.clone());
        Engine::load_with(directory.path(), EngineOptions { pack_directory, ..small() }).unwrap()
    };
    let files = || std::fs::read_dir(&pack_directory).unwrap().count();
    let before = load().text().stops().to_vec();
    load();
    assert_eq!(files(), 1);
    let path = directory.path().join("generation_config.json");
    let mut config: serde_json::Value =
        serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    config["eos_token_id"] = 300.into();
    std::fs::write(&path, config.to_string()).unwrap();
    let after = load().text().stops().to_vec();
    assert!(after != before && after.contains(&300), "{before:?}, {after:?}");
    assert_eq!(files(), 2);
}
