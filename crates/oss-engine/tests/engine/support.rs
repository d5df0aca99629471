//! Engines and requests of the demo model.

use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};

use oss_engine::{Activation, Engine, EngineOptions, KvFormat, Request, Tune};
use oss_weights::{Container, Encoded};

/// One thread, and every prompt computed: the plain engine that others are held against. What else
/// runs on the machine is out of sight: neither its speed nor its want of memory counts.
pub(crate) fn options() -> EngineOptions {
    EngineOptions {
        threads: Some(1),
        cache_bytes: Some(32 << 20),
        prefix_caching: false,
        tune: Tune::Off,
        system_root: "/no/such/folder".into(),
        ..EngineOptions::default()
    }
}

/// Computes as exactly as the references.
pub(crate) fn exact() -> EngineOptions {
    EngineOptions { activation: Activation::F32, kv_format: KvFormat::F32, ..options() }
}

pub(crate) fn engine_with(options: EngineOptions) -> Engine {
    Engine::from_bytes_with(oss_demo::GGUF, options).unwrap()
}

/// One engine for all tests that need no options of their own.
pub(crate) fn engine() -> &'static Engine {
    static ENGINE: OnceLock<Engine> = OnceLock::new();
    ENGINE.get_or_init(|| engine_with(options()))
}

/// Prompts of many lengths, of text alone.
pub(crate) fn prompts(n: usize) -> Vec<String> {
    let openings = ["Once upon a time", "There was a", "One day, Ben and Mia", "The little dog"];
    (0..n).map(|i| openings[i % 4].to_owned() + &" and then the rain came".repeat(i / 2)).collect()
}

/// 700 tokens that no other kind begins with.
pub(crate) fn tokens(kind: usize) -> Vec<u32> {
    (0..700).map(|i| (300 + kind * 400 + i * i % 397) as u32).collect()
}

/// Bytes of a page of keys and values.
pub(crate) fn page_bytes() -> usize {
    engine().check_books().unwrap(); // it has started, and its numbers are there
    engine().metrics().pages[0].page_bytes
}

pub(crate) fn story(prompt: &str, tokens: usize) -> Request {
    Request::text(prompt).max_tokens(tokens).greedy()
}

/// The demo model as a packed file.
pub(crate) fn packed(directory: &Path) -> PathBuf {
    let path = directory.join("demo.oss");
    let demo = Container::from_bytes("demo", oss_demo::GGUF, Vec::new()).unwrap();
    oss_model::pack_to_file(&demo, &oss_model::Precision::default(), &path, None).unwrap();
    path
}

/// Where a byte of one of the demo model's tensors stands in its file: one that no sample of the
/// tensor holds, at a sixth of it.
pub(crate) fn within(tensor: &str) -> usize {
    let demo = Container::from_bytes("demo", oss_demo::GGUF, Vec::new()).unwrap();
    let Encoded::Plain(bytes) = demo.tensor(tensor).unwrap().data else { panic!("two parts") };
    assert!(bytes.len() > 32 << 10, "{} bytes, which samples may cover", bytes.len());
    bytes.as_ptr().addr() - oss_demo::GGUF.as_ptr().addr() + bytes.len() / 6
}

/// A system of 1,000,000 kB that has so much left.
pub(crate) fn system(root: &Path, available_kb: usize) {
    std::fs::create_dir_all(root.join("proc")).unwrap();
    let text = format!("MemTotal: 1000000 kB\nMemAvailable: {available_kb} kB\n");
    // Replaced at once: the engine may be reading it.
    std::fs::write(root.join("new"), text).unwrap();
    std::fs::rename(root.join("new"), root.join("proc/meminfo")).unwrap();
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Runs async code without a runtime.
pub(crate) fn block_on<T>(future: impl Future<Output = T>) -> T {
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut context = Context::from_waker(&waker);
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(result) = future.as_mut().poll(&mut context) {
            return result;
        }
        thread::park();
    }
}

/// Waits, within reason, until something holds.
pub(crate) fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let begin = std::time::Instant::now();
    while !holds() {
        assert!(begin.elapsed().as_secs() < 20, "not within 20 s: {what}");
        thread::sleep(std::time::Duration::from_millis(2));
    }
}
