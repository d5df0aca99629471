//! Packed files that are not what was written any more.

use std::time::Duration;

use oss_engine::weights::Container;
use oss_engine::{Engine, EngineOptions, Error, model};

use crate::support::{eventually, options, story};

#[test]
fn a_damaged_section_is_found_in_idle_time_and_requests_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("demo.oss");
    let demo = Container::from_bytes("demo", oss_demo::GGUF, Vec::new()).unwrap();
    model::pack_to_file(&demo, &model::Precision::default(), &path, None).unwrap();
    let packed = Container::open(&path).unwrap();
    let section = packed.packed().unwrap().find("experts.1").unwrap().clone();
    drop(packed);
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[section.offset as usize] ^= 1;
    std::fs::write(&path, bytes).unwrap();

    // A system that says that there is room.
    std::fs::create_dir_all(directory.path().join("proc")).unwrap();
    let text = "MemTotal: 1000000 kB\nMemAvailable: 900000 kB\n";
    std::fs::write(directory.path().join("proc/meminfo"), text).unwrap();
    for huge_pages in [false, true] {
        let system_root = directory.path().to_path_buf();
        let options = EngineOptions { huge_pages, system_root, stream_events: 4, ..options() };
        let engine = Engine::load_with(&path, options).unwrap();
        let ask = || engine.submit(story("Once upon a time", 40));
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
        assert!(matches!(error, Error::Model(model::Error::Damaged(_))), "{error:?}");
        let said = error.to_string();
        for part in ["demo.oss", "section experts.1", "got", &format!("{:x}", section.checksum)] {
            assert!(said.contains(part), "{said}");
        }
    }
}
