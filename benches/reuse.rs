//! How much sooner comes the first token of a prompt that is known? Seconds to the first token of
//! a prompt that nobody has seen, of one that shares all but its last 16 tokens with an earlier
//! one, of an exact repeat, and of the same with one more token; of one that shares and of one that
//! repeats after a restart, from the file of cold pages; and of one decoding step, for scale.
//!
//! `cargo bench -p oss-engine --bench reuse` measures the demo model. The environment chooses
//! otherwise: `OSS_BENCH_MODEL` (a model file), `OSS_BENCH_THREADS`, `OSS_BENCH_PROMPT` (tokens of
//! the prompt, 1500), `OSS_BENCH_REPEAT` (rounds, each with another prompt).

#[path = "support/engine.rs"]
mod engine;

use engine::{load, number};
use oss_engine::{ColdTier, Engine, Request};
use oss_testing::median;

const NEW_TOKENS: usize = 16;

/// Seconds to the first token, tokens of the prompt that were known, seconds of a step after it.
fn ask(engine: &Engine, prompt: &[u32]) -> (f64, usize, f64) {
    let request = Request { ignore_stops: true, ..Request::tokens(prompt).max_tokens(8).greedy() };
    let answer = engine.generate(request).expect("an answer");
    let first = answer.timing.first_token.expect("a token").as_secs_f64();
    let step = answer.timing.per_token.expect("several tokens").as_secs_f64();
    (first, answer.usage.cached_tokens, step)
}

/// Tokens that differ from round to round and from ending to ending.
fn prompt(engine: &Engine, round: usize, tokens: usize, ending: usize) -> Vec<u32> {
    let vocabulary = engine.config().vocabulary;
    let mut prompt: Vec<u32> = (0..tokens)
        .map(|i| ((i * i * 31 + i * 7 + round * 1013 + 3) % vocabulary) as u32)
        .collect();
    let end = prompt.len() - NEW_TOKENS;
    for (i, token) in prompt[end..].iter_mut().enumerate() {
        *token = ((i * 17 + ending * 101 + 5) % vocabulary) as u32;
    }
    prompt
}

fn main() {
    let directory = tempfile::tempdir().expect("a folder");
    let cold = ColdTier { directory: directory.path().to_path_buf(), bytes: 4 << 30 };
    let rounds = number("OSS_BENCH_REPEAT").unwrap_or(3);
    let asked = [
        ("never seen", 0, 0),
        ("shared but for 16 tokens", 1, 0),
        ("exact repeat", 0, 0),
        ("the same and one token", 0, 1),
    ];
    let restarted = ["after a restart: shared but for 16 tokens", "after a restart: exact repeat"];
    let mut times: Vec<(&str, Vec<f64>, usize)> = Vec::new();
    let mut note = |name: &'static str, seconds: f64, known: usize| match times
        .iter_mut()
        .find(|(other, ..)| *other == name)
    {
        Some((_, all, _)) => all.push(seconds),
        None => times.push((name, vec![seconds], known)),
    };
    let engine = load(Some(cold.clone()));
    let tokens = number("OSS_BENCH_PROMPT").unwrap_or(1500).min(engine.context_len() - 32);
    ask(&engine, &prompt(&engine, 1000, 64, 0)); // everything has been touched once
    for round in 0..rounds {
        for (name, ending, more) in asked {
            let mut prompt = prompt(&engine, round, tokens, ending);
            prompt.extend(0..more);
            let (first, known, step) = ask(&engine, &prompt);
            note(name, first, known);
            note("one decoding step", step, 0);
        }
    }
    drop(engine);
    let engine = load(Some(cold.clone()));
    ask(&engine, &prompt(&engine, 2000, 64, 0));
    for round in 0..rounds {
        for (name, ending) in restarted.into_iter().zip([2, 0]) {
            let (first, known, _) = ask(&engine, &prompt(&engine, round, tokens, ending));
            note(name, first, known);
        }
    }
    let unseen = median(times[0].1.iter().copied()).expect("rounds");
    println!("{} layers, prompt of {tokens} tokens, {rounds} rounds", engine.config().layers.len());
    println!("{:45} {:>12} {:>8} {:>8}", "", "median ms", "times", "known");
    for (name, seconds, known) in times {
        let seconds = median(seconds).expect("rounds");
        println!("{name:45} {:12.2} {:8.1} {known:8}", 1e3 * seconds, unseen / seconds);
    }
    println!("tiers: {:?}", engine.metrics().tiers);
}
