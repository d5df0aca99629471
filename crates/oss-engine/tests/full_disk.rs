//! An engine whose disk is full. Apart from the other tests: a process that is just being started
//! holds a copy of every open file, locks included, and files of cold pages are locked.
#![cfg(unix)]

use std::path::PathBuf;

use oss_engine::{ColdTier, Engine, EngineOptions, Request};
use oss_testing::{again_behind, passes};

const FOLDER: &str = "OSS_ENGINE_FULL_DISK";

fn engine(options: EngineOptions) -> Engine {
    // No system: how short of memory this machine is decides nothing.
    let system_root = PathBuf::from("/no/such/folder");
    let options = EngineOptions { threads: Some(1), system_root, ..options };
    Engine::from_bytes_with(oss_demo::GGUF, options).unwrap()
}

fn ask(engine: &Engine, i: usize) -> Vec<u32> {
    let prompt = format!("{i} little dogs. {}", "They sat down and ate. ".repeat(10));
    engine.generate(Request::text(prompt).max_tokens(8).greedy()).unwrap().token_ids()
}

fn answers(engine: &Engine) -> Vec<Vec<u32>> {
    (0..12).map(|i| ask(engine, i % 6)).collect()
}

/// The system refuses to let a file grow beyond 256 KiB, as a full disk would.
#[test]
fn an_engine_whose_file_takes_no_more_goes_on_without() {
    if let Some(directory) = std::env::var_os(FOLDER) {
        let cold = ColdTier { directory: PathBuf::from(directory), bytes: 16 << 20 };
        let tight = Some(300 << 10);
        let options = EngineOptions { cold: Some(cold), cache_bytes: tight, ..Default::default() };
        let first = engine(options.clone());
        let got = answers(&first);
        let plain = engine(EngineOptions { prefix_caching: false, ..EngineOptions::default() });
        assert_eq!(got, answers(&plain));
        // A new prompt goes where older ones were.
        let newest = ask(&first, 6);
        let counts = first.metrics().tiers.counts.cold;
        assert!(counts.failed_writes > 0 && counts.written_pages > 0, "{counts:?}");
        drop(first);
        let second = engine(options);
        assert_eq!(ask(&second, 6), newest);
        let tiers = second.metrics().tiers;
        assert!(tiers.cold_found + 2 > tiers.asked_pages && tiers.asked_pages > 0, "{tiers:?}");
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let test = "an_engine_whose_file_takes_no_more_goes_on_without";
    let mut limited = again_behind("trap '' XFSZ; ulimit -f 512;", test);
    passes(limited.env(FOLDER, directory.path()));
}
