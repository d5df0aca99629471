//! What was measured, as JSON, as a table and as a chart.

use crate::{Arguments, Asked, Found};
use oss_engine::{Completion, Engine};
use oss_examples::chart::{Chart, Kind, Series};
use oss_examples::spread::spread;
use serde_json::{Value, json};
use std::fmt::Write as _;

/// Tokens a second of an answer behind its first token; none where there is no second.
fn speed(answer: &Completion) -> Option<f64> {
    answer.timing.per_token.map(|time| 1.0 / time.as_secs_f64().max(1e-9))
}

fn first_token_ms(answer: &Completion) -> Option<f64> {
    answer.timing.first_token.map(|time| time.as_secs_f64() * 1e3)
}

fn at_hand(answer: &Completion) -> f64 {
    answer.usage.cached_tokens as f64 / answer.usage.prompt_tokens as f64
}

fn one(Asked { prompt, answers }: &Asked) -> Value {
    let of = |number: fn(&Completion) -> Option<f64>| spread(answers.iter().filter_map(number));
    let reasons = answers.iter().map(|answer| answer.finish_reason.as_str());
    json!({
        "kind": prompt.kind,
        "prompt_tokens": answers[0].usage.prompt_tokens,
        "completion_tokens":
            answers.iter().map(|answer| answer.usage.completion_tokens).collect::<Vec<_>>(),
        "finish_reasons": reasons.collect::<Vec<_>>(),
        "tokens_per_s": of(speed),
        "first_token_ms": of(first_token_ms),
        "first_token_ms_first_run": first_token_ms(&answers[0]),
        "cached_share": answers.iter().map(at_hand).collect::<Vec<_>>(),
        "text": answers[0].text,
    })
}

/// The object of docs/json.md.
pub(crate) fn json(arguments: &Arguments, engine: &Engine, found: &Found) -> Value {
    let Found { load_s, asked, metrics, resident_bytes } = found;
    let answers = || asked.iter().flat_map(|asked| &asked.answers);
    let known = metrics.cached_tokens as f64;
    let prompts = known + metrics.computed_prompt_tokens as f64;
    let model = &arguments.engine.model;
    json!({
        "model": model.file.model.as_deref().unwrap_or("demo"),
        "architecture": engine.config().architecture,
        "options": {
            "threads": engine.tuning().threads.value,
            "runs": arguments.repeat,
            "max_tokens": arguments.max_tokens,
            "seed": arguments.seed,
            "activations": engine.activation().name(),
            "kv": model.kv_format.name(),
            "sparse_attention": model.sparse_attention.map(|sparse| sparse.to_string()),
        },
        "load_s": load_s,
        "prompts": asked.iter().map(one).collect::<Vec<_>>(),
        "tokens_per_s": spread(answers().filter_map(speed)),
        "first_token_ms": spread(answers().filter_map(first_token_ms)),
        "prefill_tokens_per_s": metrics.prefill_tokens_per_s(),
        "hits": {
            "prompt_tokens_at_hand": known / prompts.max(1.0),
            "drafts_accepted": metrics.acceptance(),
            "drafted_tokens": metrics.drafted_tokens,
        },
        "memory": {
            "resident_bytes": resident_bytes,
            "weights_bytes": metrics.memory.weights,
            "cache_bytes": metrics.memory.cache,
            "scratch_bytes": metrics.memory.scratch,
        },
    })
}

/// The same for people.
pub(crate) fn markdown(json: &Value) -> String {
    let mut out = String::from(
        "| prompt | tokens | answer | tokens/s: min | median | max | first token, ms: first run | \
         median | at hand |\n|---|---|---|---|---|---|---|---|---|\n",
    );
    let number = |value: &Value, digits: usize| match value.as_f64() {
        Some(number) => format!("{number:.digits$}"),
        None => "-".to_owned(),
    };
    let share = |value: &Value| number(&json!(value.as_f64().map(|share| share * 100.0)), 0);
    for prompt in json["prompts"].as_array().into_iter().flatten() {
        let (speed, first) = (&prompt["tokens_per_s"], &prompt["first_token_ms"]);
        let shares = prompt["cached_share"].as_array();
        // Writing to a string cannot fail.
        let _ = writeln!(
            out,
            "| {} | {} | {} | {} | {} | {} | {} | {} | {} % |",
            prompt["kind"].as_str().unwrap_or_default(),
            prompt["prompt_tokens"],
            prompt["completion_tokens"][0],
            number(&speed["min"], 2),
            number(&speed["median"], 2),
            number(&speed["max"], 2),
            number(&prompt["first_token_ms_first_run"], 1),
            number(&first["median"], 1),
            shares.and_then(|shares| shares.last()).map_or(String::new(), share),
        );
    }
    let (hits, memory) = (&json["hits"], &json["memory"]);
    let megabytes = |name: &str| number(&json!(memory[name].as_f64().map(|b| b / 1e6)), 0);
    let _ = write!(
        out,
        "\nAll: {} tokens/s (median), {} prompt tokens/s computed, {} % of the prompt tokens at \
         hand, {} % of {} drafted tokens accepted. Memory: {} MB resident, of which weights {}, \
         keys and values {}, scratch {}.",
        number(&json["tokens_per_s"]["median"], 2),
        number(&json["prefill_tokens_per_s"], 1),
        share(&hits["prompt_tokens_at_hand"]),
        share(&hits["drafts_accepted"]),
        hits["drafted_tokens"],
        megabytes("resident_bytes"),
        megabytes("weights_bytes"),
        megabytes("cache_bytes"),
        megabytes("scratch_bytes"),
    );
    out
}

/// The speeds of all runs, prompt by prompt.
pub(crate) fn chart(found: &Found) -> Chart {
    let runs = found.asked[0].answers.len();
    let series = (0..runs).map(|run| {
        let speeds = found.asked.iter().map(|asked| speed(&asked.answers[run]).unwrap_or(0.0));
        let points = speeds.enumerate().map(|(index, speed)| (index as f64, speed)).collect();
        Series::new(format!("run {}", run + 1), points)
    });
    Chart {
        title: "Ten prompts".to_owned(),
        x: "prompt".to_owned(),
        y: "tokens/s".to_owned(),
        kind: Kind::Bars(found.asked.iter().map(|asked| asked.prompt.kind.to_owned()).collect()),
        series: series.collect(),
    }
}
