//! An engine's tuning as JSON.

use oss_engine::{Choice, Origin, Tuning};
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
    let threads = |profile: &oss_engine::ThreadProfile| {
        json!({
            "threads": profile.threads,
            "read_gb_per_s": profile.read_bytes_per_s / 1e9,
            "gproducts_per_s": profile.products_per_s / 1e9,
            "phase_us": profile.phase_s * 1e6,
        })
    };
    let peak = |(name, products): &(String, f64)| (name.clone(), json!(products / 1e9));
    json!({
        "origin": origin,
        "path": path,
        "measuring_s": tuning.profile.seconds,
        "by_threads": tuning.profile.threads.iter().map(threads).collect::<Vec<_>>(),
        "peak_gproducts_per_s": tuning.profile.peaks.iter().map(peak).collect::<Map<_, _>>(),
        "threads": choice(&tuning.threads),
        "prefill_chunk": choice(&tuning.prefill_chunk),
        "max_rows": choice(&tuning.max_rows),
        "max_sequences": choice(&tuning.max_sequences),
    })
}

fn choice(choice: &Choice) -> Value {
    let Choice { value, given, reason } = choice;
    json!({ "value": value, "given": given, "reason": reason })
}
