//! What an engine costs that has nothing to do. Apart from the other tests: it counts what the
//! whole process takes.
#![cfg(target_os = "linux")]

use std::thread;
use std::time::Duration;

use oss_engine::{ColdTier, Engine, EngineOptions, Request};

/// How soon after its last token an engine is idle.
const SOON: Duration = Duration::from_millis(5);
const WATCHED: Duration = Duration::from_secs(1);
/// After so long what is done once for a packed file is over: its weights are brought onto huge
/// pages, and after a quiet second they are compared with their checksums.
const ONCE: Duration = Duration::from_secs(2);
/// Half a per cent of a processor.
const MOST: Duration = Duration::from_millis(5);

/// Processor time of this process so far, all threads together.
fn processor_time() -> Duration {
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: the pointer is to a place for the structure that the call fills, all of whose bits
    // may be zero.
    #[expect(unsafe_code, reason = "the standard library does not tell")]
    let usage = unsafe {
        assert_eq!(libc::getrusage(libc::RUSAGE_SELF, usage.as_mut_ptr()), 0);
        usage.assume_init()
    };
    let time = |time: libc::timeval| {
        Duration::new(time.tv_sec as u64, 0) + Duration::from_micros(time.tv_usec as u64)
    };
    time(usage.ru_utime) + time(usage.ru_stime)
}

/// With a team of workers, and threads that compress keys and values and that write and read them:
/// none of all these may look around while it waits. With weights in memory, and in a packed file
/// that a thread watches.
#[test]
fn an_engine_is_idle_5_ms_after_its_last_token() {
    for is_packed in [false, true] {
        let directory = tempfile::tempdir().unwrap();
        let folder = |name: &str| directory.path().join(name);
        let options = EngineOptions {
            threads: Some(3),
            cache_bytes: Some(16 << 20),
            warm_bytes: 4 << 20,
            cold: Some(ColdTier { directory: folder("cold"), bytes: 16 << 20 }),
            pack_directory: is_packed.then(|| folder("packed")),
            ..EngineOptions::default()
        };
        let engine = Engine::from_bytes_with(oss_demo::GGUF, options).unwrap();
        assert_eq!(folder("packed").exists(), is_packed);
        if is_packed {
            thread::sleep(ONCE);
        }
        watch(&engine);
    }
}

fn watch(engine: &Engine) {
    let mut watched = Vec::new();
    for round in 0..5 {
        let prompt = format!("{round} little dogs sat down");
        let answer = engine.generate(Request::text(prompt).max_tokens(40).greedy()).unwrap();
        assert!(!answer.tokens.is_empty());
        thread::sleep(SOON);
        let before = processor_time();
        thread::sleep(WATCHED);
        watched.push(processor_time() - before);
        // One quiet second is enough: what the machine does in another is not the engine's.
        if watched.last() < Some(&MOST) {
            return;
        }
    }
    panic!("processor time in idle seconds: {watched:?}, expected less than {MOST:?}");
}
