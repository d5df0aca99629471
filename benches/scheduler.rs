//! What does the scheduler cost, beside the model? Microseconds of a step that go to neither
//! forward pass nor head (at most 50 are wanted at 16 sequences): books, plan, draws, text, events.
//!
//! The demo model's 2,048 logits make draws cheap; `benches/sampler.rs` measures larger ones.

use oss_engine::{Engine, EngineOptions, Metrics, Request, Speculation, Tune};

/// Tokens of an answer.
const TOKENS: usize = 256;
/// How often everything is measured, interleaved.
const ROUNDS: usize = 5;

fn engine(speculation: Speculation) -> Engine {
    let options = EngineOptions {
        threads: Some(1),
        reuse_prefixes: false,
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
        Request { ignore_stops: true, ..request }
    };
    let streams: Vec<_> =
        (0..sequences).map(|seed| engine.submit(request(seed)).expect("a place")).collect();
    for stream in streams {
        let answer = stream.collect_all().expect("an answer");
        assert_eq!(answer.tokens.len(), TOKENS);
    }
}

/// Steps, and microseconds of overhead and of all in each, between two moments.
fn between(before: &Metrics, after: &Metrics) -> (u64, f64, f64) {
    let steps = after.overhead.count() - before.overhead.count();
    let mean = |before: f64, after: f64| (after - before) / steps as f64 * 1e6;
    let overhead = mean(before.overhead.sum(), after.overhead.sum());
    (steps, overhead, mean(before.step_time.sum(), after.step_time.sum()))
}

fn main() {
    let kinds =
        [("one token a step", Speculation::Off), ("drafts where they pay", Speculation::Auto)];
    let engines = kinds.map(|(name, speculation)| (name, engine(speculation)));
    for sequences in [1, 4, 16] {
        let mut found = engines.each_ref().map(|_| Vec::new());
        for _ in 0..ROUNDS {
            for ((_, engine), found) in engines.iter().zip(&mut found) {
                let before = engine.metrics();
                decode(engine, sequences);
                found.push(between(&before, &engine.metrics()));
            }
        }
        for ((name, _), mut found) in engines.iter().zip(found) {
            found.sort_by(|(_, a, _), (_, b, _)| a.total_cmp(b));
            let (steps, overhead, all) = found[ROUNDS / 2];
            let (least, most) = (found[0].1, found[ROUNDS - 1].1);
            println!("{sequences:2} sequences, {name}: {overhead:.1} us of {all:.1} us a step");
            println!("    median of {ROUNDS} rounds, {least:.1} to {most:.1}; {steps} steps each");
        }
    }
}
