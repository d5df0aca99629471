//! The engine that the environment asks for.

use oss_engine::{ColdTier, Engine, EngineOptions, Speculation, Tune};

/// The number of that name in the environment.
pub(crate) fn number(name: &str) -> Option<usize> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name}: got {text}, expected a number")))
}

/// `OSS_BENCH_MODEL` (a model file; the demo model without it) on `OSS_BENCH_THREADS`, in
/// `OSS_BENCH_MEMORY` megabytes (`max_memory`; no limit without it), with nothing that depends on
/// the text or on probes; weights stay in the pages of their file, because moving them would slow
/// the first seconds.
pub(crate) fn load(cold: Option<ColdTier>) -> Engine {
    let options = EngineOptions {
        threads: number("OSS_BENCH_THREADS"),
        max_memory: number("OSS_BENCH_MEMORY").map(|megabytes| megabytes * 1_000_000),
        cold,
        huge_pages: false,
        speculation: Speculation::Off,
        tune: Tune::Off,
        ..EngineOptions::default()
    };
    match std::env::var("OSS_BENCH_MODEL") {
        Ok(path) => Engine::load_with(path, options),
        Err(_) => Engine::from_bytes_with(oss_demo::GGUF, options),
    }
    .expect("a model that loads")
}
