//! How much sooner comes the first token of a prompt that is known? Seconds to the first token of
//! a prompt that nobody has seen, of one that shares all but its last 16 tokens with an earlier
//! one, of an exact repeat, and of the same with one more token; of one that shares and of one that
//! repeats after a restart, from the file of cold pages; and of one decoding step, for scale. What
//! is wanted stands beside it: of the 20B shape with a prompt of 1500 tokens.
//!
//! `cargo bench -p oss-engine --bench reuse` measures the demo model. The environment chooses
//! otherwise: `OSS_BENCH_MODEL` (a model file), `OSS_BENCH_THREADS`, `OSS_BENCH_PROMPT` (tokens of
//! the prompt, 1500), `OSS_BENCH_REPEAT` (rounds, each with another prompt).

#[path = "support/engine.rs"]
mod engine;

use engine::{load, number};
use oss_engine::{ColdTier, Engine, Request};
use oss_memory::file::{self, Map, RandomAccess};
use oss_testing::median;
use std::path::Path;

const NEW_TOKENS: usize = 16;

/// When a first token has to come.
#[derive(Clone, Copy)]
enum Wanted {
    /// So many times sooner than that of a prompt that nobody has seen, at least.
    Sooner(f64),
    /// After so many milliseconds, at most.
    Milliseconds(f64),
    /// After so many decoding steps, at most.
    Steps(f64),
}

impl Wanted {
    /// In words, and whether `seconds` hold to it beside those of an unseen prompt and of a step.
    fn judge(self, seconds: f64, unseen: f64, step: f64) -> (String, bool) {
        match self {
            Self::Sooner(times) => (format!("{times} times"), unseen >= times * seconds),
            Self::Milliseconds(most) => (format!("{most} ms"), 1e3 * seconds <= most),
            Self::Steps(most) => (format!("{most} steps"), seconds <= most * step),
        }
    }
}

/// A prompt that is asked for in each round, and what came of it.
struct Case {
    name: &'static str,
    /// Which of its round's endings it has, and how many tokens behind it.
    ending: usize,
    more: u32,
    wanted: Option<Wanted>,
    /// Seconds to the first token.
    seconds: Vec<f64>,
    /// Tokens that were known.
    known: usize,
}

impl Case {
    const fn new(name: &'static str, ending: usize, more: u32, wanted: Option<Wanted>) -> Self {
        Self { name, ending, more, wanted, seconds: Vec::new(), known: 0 }
    }

    /// Asks; seconds of a step after the first token.
    fn ask(&mut self, engine: &Engine, round: usize, tokens: usize) -> f64 {
        let mut prompt = prompt(engine, round, tokens, self.ending);
        prompt.extend(0..self.more);
        let (first, known, step) = ask(engine, &prompt);
        self.seconds.push(first);
        self.known = known;
        step
    }
}

/// Seconds to the first token, tokens of the prompt that were known, seconds of a step after it.
fn ask(engine: &Engine, prompt: &[u32]) -> (f64, usize, f64) {
    let request = Request { ignore_eos: true, ..Request::tokens(prompt).max_tokens(8).greedy() };
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

/// Has the system drop what it keeps of the files of a folder, so that they come from the disk.
fn forget(directory: &Path) {
    for path in file::list(directory).expect("the folder") {
        // What has not been written yet would stay.
        RandomAccess::open(&path).and_then(|kept| kept.sync()).expect("a file on the disk");
        let map = Map::open(&path).expect("a file");
        map.evict(0..map.bytes().len()).expect("a system that forgets");
    }
}

fn main() {
    let directory = tempfile::tempdir().expect("a folder");
    let cold = ColdTier { directory: directory.path().to_path_buf(), bytes: 4 << 30 };
    let rounds = number("OSS_BENCH_REPEAT").unwrap_or(3);
    let mut cases = [
        Case::new("never seen", 0, 0, None),
        Case::new("shared but for 16 tokens", 1, 0, Some(Wanted::Sooner(20.0))),
        Case::new("exact repeat", 0, 0, Some(Wanted::Milliseconds(100.0))),
        Case::new("the same and one token", 0, 1, Some(Wanted::Steps(1.5))),
    ];
    let (shared, repeated) =
        ("after a restart: shared but for 16 tokens", "after a restart: exact repeat");
    let mut restarted = [
        Case::new(shared, 2, 0, Some(Wanted::Sooner(8.0))),
        Case::new(repeated, 0, 0, Some(Wanted::Sooner(8.0))),
    ];
    let mut engine = load(Some(cold.clone()));
    let tokens = number("OSS_BENCH_PROMPT").unwrap_or(1500).min(engine.context_len() - 32);
    ask(&engine, &prompt(&engine, 1000, 64, 0)); // everything has been touched once
    let mut steps = Vec::new();
    for round in 0..rounds {
        steps.extend(cases.iter_mut().map(|case| case.ask(&engine, round, tokens)));
    }
    for (restart, case) in restarted.iter_mut().enumerate() {
        // An engine of its own: what one case brings into memory, another would find there.
        drop(engine);
        forget(directory.path());
        engine = load(Some(cold.clone()));
        ask(&engine, &prompt(&engine, 2000 + restart, 64, 0));
        for round in 0..rounds {
            case.ask(&engine, round, tokens);
        }
    }
    let middle = |seconds: &[f64]| median(seconds.iter().copied()).expect("rounds");
    let (unseen, step) = (middle(&cases[0].seconds), middle(&steps));
    println!("{} layers, prompt of {tokens} tokens, {rounds} rounds", engine.config().layers.len());
    println!("{:45} {:>10} {:>8} {:>6}  wanted", "", "median ms", "times", "known");
    for Case { name, wanted, seconds, known, .. } in cases.iter().chain(&restarted) {
        let seconds = middle(seconds);
        let verdict = wanted.map_or_else(String::new, |wanted| {
            let (words, held) = wanted.judge(seconds, unseen, step);
            format!("{words:10} {}", if held { "held" } else { "not held" })
        });
        let (ms, times) = (1e3 * seconds, unseen / seconds);
        println!("{name:45} {ms:10.2} {times:8.1} {known:6}  {verdict}");
    }
    println!("{:45} {:10.2} {:8.1}", "one decoding step", 1e3 * step, unseen / step);
    println!("tiers, after the last restart: {:?}", engine.metrics().tiers);
}
