//! Packed files that are not what was written any more.

use std::path::PathBuf;
use std::time::Duration;

use oss_engine::{ColdTier, Engine, EngineOptions, ErrorKind};
use oss_weights::Container;

use crate::support::{self, eventually, options, packed, story, system};

#[test]
fn a_file_that_is_cut_off_while_it_is_mapped_has_requests_refused() {
    let directory = tempfile::tempdir().unwrap();
    let gguf = directory.path().join("demo.gguf");
    std::fs::write(&gguf, oss_demo::GGUF).unwrap();
    // Of the first all matrices are in the map, of the second embeddings alone.
    for path in [packed(directory.path()), gguf] {
        let options = EngineOptions { stream_events: 4, ..options() };
        let engine = Engine::load_with(&path, options).unwrap();
        let paused = engine.submit(story("Once upon a time", 400)).unwrap();
        let mut drawn = 0;
        eventually("the answer waits for its reader", || {
            std::thread::sleep(Duration::from_millis(300));
            let before = std::mem::replace(&mut drawn, engine.metrics().completion_tokens);
            drawn > 0 && drawn == before
        });
        let whole = std::fs::read(&path).unwrap();
        let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
        file.set_len(4096).unwrap();
        let expect_refused = || {
            let error = engine.submit(story("Once upon a time", 4)).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Damaged, "{error:?}");
            let said = error.to_string();
            for part in ["demo.", "4096 bytes", &whole.len().to_string()] {
                assert!(said.contains(part), "{said}");
            }
        };
        expect_refused();
        let error = paused.collect_all().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Damaged, "{error:?}");
        // What has come back may be anything.
        file.set_len(whole.len() as u64).unwrap();
        expect_refused();
    }
}

#[test]
fn an_idle_engine_sees_by_itself_that_its_file_was_cut_off() {
    let directory = tempfile::tempdir().unwrap();
    let path = packed(directory.path());
    let engine = Engine::load_with(&path, options()).unwrap();
    let expected = engine.generate(story("Once upon a time", 8)).unwrap().token_ids();
    assert!(!expected.is_empty());
    let length = path.metadata().unwrap().len();
    let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    file.set_len(4096).unwrap();
    std::thread::sleep(Duration::from_millis(1200));
    file.set_len(length).unwrap();
    let error = engine.submit(story("Once upon a time", 8)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Damaged, "{error:?}");
}

/// What was computed before is not believed by an engine that finds the section whole again.
#[test]
fn a_damaged_section_is_found_in_idle_time_and_requests_are_refused() {
    let story = || story("Once upon a time", 40);
    let right = support::engine().generate(story()).unwrap().token_ids();
    let directory = tempfile::tempdir().unwrap();
    let path = packed(directory.path());
    let packed = Container::open(&path).unwrap();
    let section = packed.packed().unwrap().find("experts.1").unwrap().clone();
    drop(packed);
    let whole = std::fs::read(&path).unwrap();
    let mut damaged = whole.clone();
    damaged[section.offset as usize] ^= 1;

    // There is room.
    system(directory.path(), 900_000);
    for huge_pages in [false, true] {
        std::fs::write(&path, &damaged).unwrap();
        let system_root = directory.path().to_path_buf();
        let kept = directory.path().join(format!("kept, {huge_pages}"));
        let cold = Some(ColdTier { directory: kept.clone(), bytes: 64 << 20 });
        let options = EngineOptions { huge_pages, system_root, stream_events: 4, ..options() };
        let options = EngineOptions { prefix_caching: true, repeat_bytes: 0, cold, ..options };
        let engine = Engine::load_with(&path, options.clone()).unwrap();
        engine.generate(story()).unwrap();
        eventually("keys and values are in the file", || {
            engine.pulse().expect("it runs");
            engine.metrics().tiers.counts.cold.written_pages > 0
        });
        let ask = || engine.submit(story());
        let idle_for_long_enough = || std::thread::sleep(Duration::from_millis(1500));
        // Nothing is compared while a request runs, even if it waits for its reader.
        let running = ask().unwrap();
        idle_for_long_enough();
        drop(ask().unwrap());
        drop(running);
        let mut refused = None;
        eventually("the damage is found", || {
            idle_for_long_enough();
            refused = ask().err();
            refused.is_some()
        });
        let error = refused.unwrap();
        assert_eq!(error.kind(), ErrorKind::Damaged, "{error:?}");
        let said = error.to_string();
        for part in ["demo.oss", "section experts.1", "got", &format!("{:x}", section.checksum)] {
            assert!(said.contains(part), "{said}");
        }
        let file = std::fs::read_dir(&kept).unwrap().next().unwrap().unwrap().path();
        eventually("the file of keys and values is emptied", || {
            engine.pulse().expect("it runs");
            file.metadata().unwrap().len() == 0
        });
        drop(engine);
        assert_eq!(file.metadata().unwrap().len(), 0, "nothing is written at the end");
        std::fs::write(&path, &whole).unwrap();
        for again in [false, true] {
            let engine = Engine::load_with(&path, options.clone()).unwrap();
            let answer = engine.generate(story()).unwrap();
            assert_eq!(answer.token_ids(), right);
            let restored = engine.metrics().tiers.counts.cold.restored_slots;
            let found = (restored > 0, answer.usage.cached_tokens > 0);
            assert_eq!(found, (again, again), "what whole weights gave, and nothing else");
        }
        assert_eq!(std::fs::read_dir(&kept).unwrap().count(), 1, "it is one model");
    }
}

#[test]
fn a_damaged_file_that_an_engine_has_packed_is_packed_anew() {
    let directory = tempfile::tempdir().unwrap();
    let model = directory.path().join("demo.gguf");
    std::fs::write(&model, oss_demo::GGUF).unwrap();
    let folder = directory.path().join("packed");
    // There is room.
    system(directory.path(), 900_000);
    let options = || EngineOptions {
        pack_directory: Some(folder.clone()),
        system_root: directory.path().to_path_buf(),
        ..options()
    };
    let answer = || {
        let engine = Engine::load_with(&model, options()).unwrap();
        engine.generate(story("Once upon a time", 40)).unwrap().token_ids()
    };
    let right = answer();
    let files: Vec<PathBuf> =
        std::fs::read_dir(&folder).unwrap().map(|file| file.unwrap().path()).collect();
    let [path] = &files[..] else { panic!("{files:?}") };
    let whole = std::fs::read(path).unwrap();

    for len in [0, 100, 4096, whole.len() / 2] {
        std::fs::write(path, &whole[..len]).unwrap();
        assert_eq!(answer(), right, "{len} bytes");
        assert!(std::fs::read(path).unwrap() == whole, "{len} bytes");
    }

    let packed = Container::open(path).unwrap();
    let section = packed.packed().unwrap().find("experts.1").unwrap().offset as usize;
    drop(packed);
    let mut damaged = whole.clone();
    damaged[section] ^= 1;
    std::fs::write(path, &damaged).unwrap();
    let engine = Engine::load_with(&model, options()).unwrap();
    eventually("the damage is found", || {
        std::thread::sleep(Duration::from_millis(1500));
        engine.submit(story("Once upon a time", 1)).is_err()
    });
    eventually("the file is removed", || !path.exists());
    drop(engine);
    assert_eq!(answer(), right);
}
