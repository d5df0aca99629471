//! What do answers that are streaming notice of a long prompt that arrives? The median gap between
//! the tokens of some streams before, beside and after it, the worst one while the prompt is
//! computed, and how long its first token takes beside them.
//!
//! `cargo bench -p oss-engine --bench arrival` measures the demo model. The environment chooses
//! otherwise: `OSS_BENCH_MODEL` (a model file), `OSS_BENCH_THREADS`, `OSS_BENCH_PROMPT` (tokens of
//! the prompt, 2000), `OSS_BENCH_STREAMS` (4).

#[path = "support/engine.rs"]
mod engine;

use engine::{load, number};
use oss_engine::{Engine, Event, Request};
use oss_testing::median;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Tokens of each stream before the prompt arrives.
const BEFORE: usize = 16;

/// A request for tokens that no other has.
fn request(engine: &Engine, number: usize, prompt: usize, tokens: usize) -> Request {
    let vocabulary = engine.config().vocabulary;
    let prompt: Vec<u32> =
        (0..prompt).map(|i| ((i * i * 31 + i * 7 + number * 1013) % vocabulary) as u32).collect();
    Request { ignore_eos: true, ..Request::tokens(prompt).max_tokens(tokens).greedy() }
}

fn main() {
    let engine = load(None);
    let streams = number("OSS_BENCH_STREAMS").unwrap_or(4);
    let prompt = number("OSS_BENCH_PROMPT").unwrap_or(2000).min(engine.context_len() - 32);
    // Before the prompt, beside it, after its answer.
    let (time, gaps) = (AtomicUsize::new(0), [const { Mutex::new(Vec::new()) }; 3]);
    let mut first_token = Duration::ZERO;
    thread::scope(|scope| {
        let waiting: Vec<_> = (0..streams)
            .map(|number| {
                let (engine, time, gaps) = (&engine, &time, &gaps);
                scope.spawn(move || {
                    let most = engine.context_len() - 64;
                    let stream = engine.submit(request(engine, number, 16, most)).expect("room");
                    let (mut last, mut tokens) = (Instant::now(), [0; 3]);
                    for _ in stream.filter(|event| matches!(event, Ok(Event::Token(_)))) {
                        let (now, time) = (Instant::now(), time.load(Ordering::Relaxed));
                        let gap = (now - last).as_secs_f64();
                        last = now;
                        tokens[time] += 1;
                        // The first ones have waited for the prompts of others.
                        if time == 1 || tokens[time] > BEFORE / 2 {
                            gaps[time].lock().expect("no panic").push(gap);
                        }
                        if tokens[2] > 2 * BEFORE {
                            return;
                        }
                    }
                })
            })
            .collect();
        while gaps[0].lock().expect("no panic").len() < streams * BEFORE {
            let ended = waiting.iter().any(thread::ScopedJoinHandle::is_finished);
            assert!(!ended, "a stream ended before the prompt arrived");
            thread::sleep(Duration::from_millis(1));
        }
        time.store(1, Ordering::Relaxed);
        let answer = engine.generate(request(&engine, streams, prompt, 1)).expect("an answer");
        first_token = answer.timing.first_token.expect("a token");
        time.store(2, Ordering::Relaxed);
        waiting.into_iter().for_each(|stream| stream.join().expect("no panic"));
    });
    let [before, during, after] = gaps.map(|gaps| gaps.into_inner().expect("no panic"));
    let worst = during.iter().copied().fold(0.0, f64::max);
    let [before, beside, after] = [before, during, after].map(|gaps| median(gaps).expect("gaps"));
    println!("{streams} streams, a prompt of {prompt} tokens");
    println!("gap between tokens, median before  {:9.1} ms", 1e3 * before);
    println!("the same beside the prompt         {:9.1} ms", 1e3 * beside);
    println!("the same after it                  {:9.1} ms", 1e3 * after);
    println!(
        "the worst beside the prompt        {:9.1} ms, {:.2} times those before, {:.2} those after",
        1e3 * worst,
        worst / before,
        worst / after
    );
    println!("first token of the prompt          {:9.1} ms", 1e3 * first_token.as_secs_f64());
}
