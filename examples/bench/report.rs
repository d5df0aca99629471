//! What was measured, as JSON, as a table and as a chart.

use crate::Arguments;
use crate::bench::{Found, Run};
use oss_examples::chart::{Chart, Kind, Series};
use oss_examples::spread::spread;
use oss_testing::median;
use serde_json::{Value, json};

fn joules(runs: &[Run]) -> Option<f64> {
    let all: Option<Vec<f64>> = runs.iter().map(|run| run.joules).collect();
    median(all?.into_iter().zip(runs).map(|(joules, run)| joules / run.tokens as f64))
}

/// The object of docs/json.md.
pub(crate) fn json(arguments: &Arguments, found: &Found) -> Value {
    let bytes = found.bytes_per_token as f64;
    let operations = 2.0 * found.products_per_token.all;
    let of_bytes = found.products_per_token.of_bytes.map(|products| 2.0 * products);
    let (prefills, decodes) = (&found.prefills, &found.decodes);
    let gigabytes = median(decodes.iter().map(Run::bytes_per_s)).map(|rate| rate / 1e9);
    let share = decodes.iter().map(|run| run.bytes_per_s() / found.read_rate_around(run));
    let of_reading = decodes.iter().map(|run| run.bytes_per_s() / run.weights_read_rate);
    let computed = |run: &Run| run.tokens_per_s() * operations;
    let of_peak = |run: &Run| Some(run.tokens_per_s() * of_bytes? / found.int8_peak);
    let rate = |runs: &[Run]| spread(runs.iter().map(Run::tokens_per_s));
    let prefill = json!({
        "tokens_per_s": rate(prefills),
        "gop_per_s": median(prefills.iter().map(computed)).map(|rate| rate / 1e9),
        "share_of_int8_peak": median(prefills.iter().filter_map(of_peak)),
        "joules_per_token": joules(prefills),
    });
    let decode = json!({
        "tokens_per_s": rate(decodes),
        "step_ms": spread(decodes.iter().flat_map(|run| &run.steps).map(|step| step * 1e3)),
        "weights_gb_per_s": gigabytes,
        "share_of_read_bandwidth": median(share),
        "share_of_reading_the_weights": median(of_reading),
        "distinct_experts_per_layer": found.distinct_experts,
        "joules_per_token": joules(decodes),
    });
    json!({
        "model": arguments.model.file.model.as_deref().unwrap_or("demo"),
        "architecture": found.architecture,
        "options": {
            "threads": found.threads,
            "pin": arguments.model.pin,
            "prompt_tokens": arguments.prompt_tokens,
            "gen_tokens": arguments.gen_tokens,
            "depth": arguments.depth,
            "batch": arguments.batch,
            "repeat": arguments.repeat,
            "pause_s": arguments.pause.as_secs_f64(),
            "huge_pages": arguments.model.huge_pages,
            "placement": arguments.model.placement.name(),
            "activations": found.activations,
            "kv": arguments.model.kv_format.name(),
            "sparse_attention": arguments.model.sparse_attention.map(|sparse| sparse.to_string()),
        },
        "machine": {
            "isa": found.isa.to_string(),
            "read_gb_per_s": spread(found.read_rates.iter().map(|rate| rate / 1e9)),
            "read_with": found.read_way.to_string(),
            "weights_read_gb_per_s":
                spread(found.weights_read_rates.iter().map(|rate| rate / 1e9)),
            "int8_peak_gop_per_s": found.int8_peak / 1e9,
        },
        "weights_bytes_per_token": found.bytes_per_token,
        "operations_per_prompt_token": operations,
        "bound": {
            "decode_tokens_per_s": found.read_rate() / bytes,
            "prefill_tokens_per_s": of_bytes.map(|operations| found.int8_peak / operations),
        },
        "prefill": if prefills.is_empty() { Value::Null } else { prefill },
        "decode": if decodes.is_empty() { Value::Null } else { decode },
        "load_s": found.load_s,
        "first_token_ms": found.first_token_s * 1e3,
        "resident_bytes": found.resident_bytes,
    })
}

/// The same for people.
pub(crate) fn markdown(json: &Value) -> String {
    let number = |path: &str, scale: f64, digits: usize| {
        let value = json.pointer(path).and_then(Value::as_f64)?;
        Some(format!("{:.digits$}", value * scale))
    };
    let speed = |part: &str| {
        let of = |which: &str| number(&format!("/{part}/tokens_per_s/{which}"), 1.0, 2);
        Some(format!("{} ({} to {})", of("median")?, of("min")?, of("max")?))
    };
    let options = &json["options"];
    let count = |name: &str| options[name].to_string();
    let prefill = format!("prefill of {}, tokens/s", count("prompt_tokens"));
    let decode = format!("decode of {}, tokens/s", count("gen_tokens"));
    let rows: [(&str, Option<String>); 18] = [
        (&prefill, speed("prefill")),
        ("prefill, GOP/s", number("/prefill/gop_per_s", 1.0, 1)),
        ("prefill, % of the int8 peak", number("/prefill/share_of_int8_peak", 100.0, 1)),
        ("prefill, J/token", number("/prefill/joules_per_token", 1.0, 3)),
        (&decode, speed("decode")),
        ("decode, GB/s of weights", number("/decode/weights_gb_per_s", 1.0, 2)),
        ("decode, % of the read bandwidth", number("/decode/share_of_read_bandwidth", 100.0, 1)),
        (
            "decode, % of reading the same weights",
            number("/decode/share_of_reading_the_weights", 100.0, 1),
        ),
        ("decode, J/token", number("/decode/joules_per_token", 1.0, 3)),
        (
            "different experts a layer and step",
            number("/decode/distinct_experts_per_layer", 1.0, 1),
        ),
        ("read bandwidth, GB/s", number("/machine/read_gb_per_s/median", 1.0, 2)),
        (
            "the same where the weights lie, GB/s",
            number("/machine/weights_read_gb_per_s/median", 1.0, 2),
        ),
        ("int8 peak, GOP/s", number("/machine/int8_peak_gop_per_s", 1.0, 1)),
        ("bound of prefill, tokens/s", number("/bound/prefill_tokens_per_s", 1.0, 1)),
        ("bound of decode, one sequence, tokens/s", number("/bound/decode_tokens_per_s", 1.0, 2)),
        ("load, s", number("/load_s", 1.0, 3)),
        ("first token after load, ms", number("/first_token_ms", 1.0, 1)),
        ("resident at most, MB", number("/resident_bytes", 1e-6, 0)),
    ];
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let head = format!(
        "{} ({}), {} threads, {} sequences at depth {}, {} with {} activations and {} keys\n",
        text(&json["model"]),
        text(&json["architecture"]),
        count("threads"),
        count("batch"),
        count("depth"),
        text(&json["machine"]["isa"]),
        text(&options["activations"]),
        text(&options["kv"]),
    );
    let table =
        rows.into_iter().filter_map(|(name, value)| Some(format!("| {name} | {} |", value?)));
    let lines = ["| what | figure |".to_owned(), "|---|---|".to_owned()].into_iter().chain(table);
    let lines: Vec<String> = std::iter::once(head).chain(lines).collect();
    lines.join("\n")
}

/// The decoding speed token by token, and the bound.
pub(crate) fn chart(found: &Found) -> Chart {
    let speed = |run: &Run| {
        let per_step = run.tokens as f64 / run.steps.len() as f64;
        let points = run.steps.iter().enumerate();
        points.map(|(n, step)| (n as f64 + 1.0, per_step / step)).collect::<Vec<_>>()
    };
    let runs = found.decodes.iter().enumerate();
    let mut series: Vec<Series> =
        runs.map(|(n, run)| Series::new(format!("run {}", n + 1), speed(run))).collect();
    let end = found.decodes.first().map_or(1, |run| run.steps.len()) as f64;
    let bound = found.read_rate() / found.bytes_per_token as f64;
    let bound = Series::new("bound of one sequence", vec![(1.0, bound), (end, bound)]);
    series.push(Series { dashed: true, ..bound });
    Chart {
        title: "Decoding, token by token".to_owned(),
        x: "token".to_owned(),
        y: "tokens per second".to_owned(),
        kind: Kind::Lines,
        series,
    }
}
