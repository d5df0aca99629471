//! An engine whose disk is full. Apart from the other tests: a process that is just being started
//! holds a copy of every open file, locks included, and files of cold pages are locked.
#![cfg(unix)]

use std::path::PathBuf;
use std::process::Command;

use oss_engine::{ColdTier, Engine, EngineOptions, Request};

const FOLDER: &str = "OSS_ENGINE_FULL_DISK";

fn answers(options: EngineOptions) -> (Vec<Vec<u32>>, Engine) {
    // No system: how short of memory this machine is decides nothing.
    let system_root = PathBuf::from("/no/such/folder");
    let options = EngineOptions { threads: Some(1), system_root, ..options };
    let engine = Engine::from_bytes_with(oss_demo::GGUF, options).unwrap();
    let ask = |i: usize| {
        let prompt = format!("{i} little dogs. {}", "They sat down and ate. ".repeat(10));
        engine.generate(Request::text(prompt).max_tokens(8).greedy()).unwrap().ids()
    };
    ((0..12).map(|i| ask(i % 6)).collect(), engine)
}

/// The system refuses to let a file grow beyond 256 KiB, as a full disk would.
#[test]
fn an_engine_whose_file_takes_no_more_goes_on_without() {
    if let Some(directory) = std::env::var_os(FOLDER) {
        let cold = ColdTier { directory: PathBuf::from(directory), bytes: 16 << 20 };
        let tight = Some(300 << 10);
        let options = EngineOptions { cold: Some(cold), cache_bytes: tight, ..Default::default() };
        let (got, engine) = answers(options);
        let plain = EngineOptions { reuse_prefixes: false, ..EngineOptions::default() };
        assert_eq!(got, answers(plain).0);
        let counts = engine.metrics().tiers.counts.cold;
        assert!(counts.failed_writes > 0 && counts.written_pages > 0, "{counts:?}");
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let script = "trap '' XFSZ; ulimit -f 512; exec \"$0\" --exact \"$1\"";
    let output = Command::new("sh")
        .args(["-c", script])
        .arg(std::env::current_exe().expect("the test's own program"))
        .arg("an_engine_whose_file_takes_no_more_goes_on_without")
        .env(FOLDER, directory.path())
        .output()
        .expect("a shell");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}
