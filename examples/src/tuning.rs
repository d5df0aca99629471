//! An engine's tuning as JSON.

use oss_engine::Tuning;
use oss_engine::tuning::{Choice, Origin, PrefetchPolicy, ThreadProfile, TiledStep, Tiling};
use serde_json::{Map, Value, json};

/// The object of docs/json.md.
#[must_use]
pub fn contract(tuning: &Tuning) -> Value {
    let (origin, path) = match &tuning.origin {
        Origin::Stored(path) => ("stored", Some(path)),
        Origin::AtLoad => ("at_load", None),
        Origin::OnRequest => ("on_request", None),
        _ => ("unmeasured", None),
    };
    let threads = |profile: &ThreadProfile| {
        json!({
            "threads": profile.threads,
            "read_gb_per_s": profile.read_bytes_per_s / 1e9,
            "gproducts_per_s": profile.products_per_s / 1e9,
            "phase_us": profile.phase_s * 1e6,
        })
    };
    let peak = |(name, products): &(String, f64)| (name.clone(), json!(products / 1e9));
    let step = |step: &TiledStep| {
        let TiledStep { tiling, seconds } = step;
        json!({ "tiling": sizes(tiling), "seconds": seconds })
    };
    let steps = |steps: &[TiledStep]| steps.iter().map(step).collect::<Vec<_>>();
    let prefetch = |(name, seconds): &(String, f64)| (name.clone(), json!(seconds));
    let measured = tuning.profile.steps.as_ref().map(|measured| {
        json!({
            "threads": measured.threads,
            "rows": measured.rows,
            "prompts": steps(&measured.prompts),
            "answers": steps(&measured.answers),
            "prefetches": measured.prefetches.iter().map(prefetch).collect::<Map<_, _>>(),
        })
    });
    json!({
        "origin": origin,
        "path": path,
        "measuring_s": tuning.profile.seconds,
        "by_threads": tuning.profile.threads.iter().map(threads).collect::<Vec<_>>(),
        "peak_gproducts_per_s": tuning.profile.peaks.iter().map(peak).collect::<Map<_, _>>(),
        "steps": measured,
        "threads": choice(&tuning.threads, |value| json!(value)),
        "cpus": choice(&tuning.cpus, |value| json!(value)),
        "prefill_chunk": choice(&tuning.prefill_chunk, |value| json!(value)),
        "max_rows": choice(&tuning.max_batched_tokens, |value| json!(value)),
        "max_sequences": choice(&tuning.max_sequences, |value| json!(value)),
        "tiling": choice(&tuning.tiling, sizes),
        "prefetch": choice(&tuning.prefetch, |policy: &PrefetchPolicy| json!(policy.name())),
    })
}

fn choice<T>(choice: &Choice<T>, json: impl Fn(&T) -> Value) -> Value {
    let Choice { value, given, reason } = choice;
    json!({ "value": json(value), "given": given, "reason": reason })
}

fn sizes(tiling: &Tiling) -> Value {
    let Tiling { input_rows, matrix_rows, wide_rows } = tiling;
    json!({ "input_rows": input_rows, "matrix_rows": matrix_rows, "wide_rows": wide_rows })
}
