//! What does holding an answer to a grammar cost? The first request of an engine with one (it makes
//! a tree of the model's tokens), compiling a grammar, and a token of the answer, beside a free
//! one.
//!
//! `cargo bench -p oss-engine --bench grammar` measures the demo model, whose vocabulary is small.
//! `OSS_BENCH_MODEL` chooses another file, `OSS_BENCH_THREADS` the threads.

#[path = "support/engine.rs"]
mod engine;

use engine::load;
use oss_engine::{Engine, Grammar, Request};
use oss_testing::median;
use serde_json::{Value, json};
use std::time::Instant;

/// Tokens of an answer.
const TOKENS: usize = 128;
/// How often everything is measured, in turn.
const ROUNDS: u64 = 9;

/// An object of so many fields, strings and numbers.
fn fields(count: usize) -> Value {
    let kinds = [json!({"type": "string"}), json!({"type": "integer"})];
    let names: Vec<String> = (0..count).map(|i| format!("field_{i}")).collect();
    let properties: serde_json::Map<String, Value> =
        names.iter().zip(kinds.iter().cycle()).map(|(n, kind)| (n.clone(), kind.clone())).collect();
    json!({"type": "object", "properties": properties, "required": names})
}

/// Milliseconds until a request is taken, and of each of its tokens after the first.
fn measure(engine: &Engine, grammar: Option<Grammar>, seed: u64) -> (f64, Option<f64>) {
    let mut request = Request::text("Once upon a time").max_tokens(TOKENS).seed(seed);
    request.ignore_eos = grammar.is_none();
    request.grammar = grammar;
    let begin = Instant::now();
    let stream = engine.submit(request).expect("a place");
    let taken = begin.elapsed().as_secs_f64();
    let answer = stream.collect_all().expect("an answer");
    (1e3 * taken, answer.timing.per_token.map(|time| 1e3 * time.as_secs_f64()))
}

fn main() {
    let engine = load(None);
    let text = Grammar::regex("(.|\\n)*");
    let (first, _) = measure(&engine, Some(text.clone()), 0);
    println!(
        "{} tokens; the first request with a grammar {first:.1} ms",
        engine.config().vocabulary
    );
    let kinds = [
        ("free", None),
        ("any text", Some(text)),
        (
            "a list of strings",
            Some(Grammar::json_schema(json!({
                "type": "array", "items": {"type": "string"}, "minItems": 99,
            }))),
        ),
        ("an object of 4 fields", Some(Grammar::json_schema(fields(4)))),
        ("an object of 100 fields", Some(Grammar::json_schema(fields(100)))),
    ];
    let mut all = vec![(Vec::new(), Vec::new()); kinds.len()];
    for seed in 1..=ROUNDS {
        for ((_, grammar), (taken, tokens)) in kinds.iter().zip(&mut all) {
            let (submitted, token) = measure(&engine, grammar.clone(), seed);
            taken.push(submitted);
            tokens.extend(token);
        }
    }
    println!("{:24} {:>12} {:>12}", "", "taken, ms", "a token, ms");
    for ((name, _), (taken, tokens)) in kinds.iter().zip(all) {
        let [taken, token] = [taken, tokens].map(|times| median(times).expect("times"));
        println!("{name:24} {taken:12.2} {token:12.3}");
    }
}
