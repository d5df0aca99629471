//! What does the scheduler cost, beside the model? Microseconds of a step that go to neither
//! forward pass, head nor draws (at most 50 are wanted at 16 sequences): books, plan, text, events.
//! `benches/sampler.rs` measures draws.
//!
//! The figures come from a histogram whose buckets are 26 % wide.

use std::time::Duration;

use oss_engine::{Engine, EngineOptions, Metrics, Request, Speculation, Tune};

/// Tokens of an answer.
const TOKENS: usize = 256;
/// How often everything is measured, interleaved.
const ROUNDS: usize = 5;

fn engine(speculation: Speculation) -> Engine {
    let options = EngineOptions {
        threads: Some(1),
        prefix_caching: false,
        speculation,
        tune: Tune::Off,
        // Nobody reads before the end.
        stream_events: usize::MAX,
        ..EngineOptions::default()
    };
    Engine::from_bytes_with(oss_demo::GGUF, options).expect("the demo model")
}

/// Lets so many sequences decode together.
fn decode(engine: &Engine, sequences: usize) {
    let request = |seed: usize| {
        let request = Request::text("Once upon a time").max_tokens(TOKENS).seed(seed as u64);
        Request { ignore_eos: true, ..request }
    };
    let before = engine.metrics().completed;
    let streams: Vec<_> =
        (0..sequences).map(|seed| engine.submit(request(seed)).expect("a place")).collect();
    // Who waits for an event has to be woken; nobody does.
    while engine.metrics().completed < before + sequences as u64 {
        std::thread::sleep(Duration::from_millis(5));
    }
    for stream in streams {
        let answer = stream.collect_all().expect("an answer");
        assert_eq!(answer.tokens.len(), TOKENS);
    }
}

fn main() {
    let kinds =
        [("one token a step", Speculation::Off), ("drafts where they pay", Speculation::Auto)];
    for sequences in [1, 4, 16] {
        let engines = kinds.map(|(name, speculation)| (name, engine(speculation)));
        for _ in 0..ROUNDS {
            engines.iter().for_each(|(_, engine)| decode(engine, sequences));
        }
        for (name, engine) in engines {
            let Metrics { overhead, step_time, .. } = engine.metrics();
            // What else the machine does falls into few of the steps.
            let [quarter, half, most] = [0.25, 0.5, 0.9].map(|q| overhead.quantile(q) * 1e6);
            let all = step_time.quantile(0.5) * 1e6;
            println!("{sequences:2} sequences, {name}: {half:.0} us of {all:.0} us a step");
            println!("    {quarter:.0} in a quarter, {most:.0} in nine tenths of the steps");
        }
    }
}
