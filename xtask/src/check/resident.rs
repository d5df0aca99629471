//! `check resident`: synthetic models load and decode within their memory.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use anyhow::{Result, ensure};
use serde_json::{Value, json};

use crate::check::{Figures, Scale, synthetic};
use crate::prompt;
use crate::shell;
use crate::synth::Shape;

/// Positions that the packed file's prompt and answer fill.
const CONTEXT: usize = 4096;
/// Tokens of an answer.
const ANSWER: usize = 16;

/// What the machine must offer.
pub(crate) fn missing() -> Option<String> {
    let linux = fs::metadata("/proc/self/status").is_ok();
    (!linux).then(|| "needs /proc to read a process's memory".to_owned())
}

/// Loads a mixture and a dense model, which are packed in memory, and a packed mixture, and watches
/// that.
pub(crate) fn run(scale: Scale) -> Result<Figures> {
    let models = scale.pick(
        // Both take some 90 MB.
        [("tiny", 128_000_000), ("tiny-llama", 128_000_000)],
        [("gpt-oss-20b", 14_000_000_000u64), ("tinyllama", 1_400_000_000)],
    );
    let program = shell::example("generate", scale.profile())?;
    let mut figures = Figures::new();
    // The packed file first: while it is made, another one lies on the disk besides.
    let shape = scale.pick("small", "gpt-oss-20b");
    figures.insert(format!("{shape}, packed"), packed(&program, shape, scale)?);
    for (shape, limit) in models {
        figures.insert(shape.to_owned(), decode(&program, shape, limit, scale)?);
    }
    Ok(figures)
}

/// Fills a whole context from the packed file of `check larger`, in no more memory than the file,
/// its keys and values (in bf16) and little else take: less than a second copy of the weights.
fn packed(program: &Path, shape: &str, scale: Scale) -> Result<Value> {
    let besides = scale.pick(90_000_000, 500_000_000);
    let file = synthetic::packed(shape, scale)?;
    let file_bytes = fs::metadata(&file.path)?.len();
    let Shape { layers, kv_heads, head_dim, .. } = Shape::named(shape)?;
    let kv_bytes = (CONTEXT * layers * 2 * kv_heads * head_dim * 2) as u64;
    let limit = file_bytes + kv_bytes + besides;
    // Without --json, which asks for the logits of the whole prompt.
    let mut command = generate(program, &file.path);
    command.args(["--prompt-ids", &prompt::ids(0..CONTEXT - ANSWER), "--ignore-eos"]);
    command.args(["--context-len", &CONTEXT.to_string()]);
    let (seconds, _, peak) = within(limit, shape, &mut command)?;
    Ok(json!({
        "resident_bytes_peak": peak,
        "resident_bytes_limit": limit,
        "file_bytes": file_bytes,
        "kv_bytes": kv_bytes,
        "positions": CONTEXT,
        "process_seconds": seconds,
    }))
}

/// Decodes in no more than `limit` bytes of memory.
fn decode(program: &Path, shape: &str, limit: u64, scale: Scale) -> Result<Value> {
    let file = synthetic::gguf(shape, scale)?;
    let mut command = generate(program, &file.path);
    command.args(["--prompt", "Once upon a time", "--temperature", "0", "--json"]);
    let (seconds, printed, peak) = within(limit, shape, &mut command)?;
    let answer: Value = serde_json::from_str(&printed)?;
    let tokens = answer["ids"].as_array().map_or(0, Vec::len);
    ensure!(tokens > 0, "generate gave no tokens: {answer}");
    Ok(json!({
        "resident_bytes_peak": peak,
        "resident_bytes_limit": limit,
        "file_bytes": fs::metadata(&file.path)?.len(),
        "tokens": tokens,
        "process_seconds": seconds,
        "timing": answer["timing"],
    }))
}

/// The example `generate` on a model, for an answer of [`ANSWER`] tokens.
fn generate(program: &Path, model: &Path) -> Command {
    let mut command = shell::measured(program, &["--max-tokens", &ANSWER.to_string(), "--model"]);
    command.arg(model);
    command
}

/// Runs a command in no more than `limit` bytes of memory: whole seconds, what it printed, and what
/// it had resident.
fn within(limit: u64, shape: &str, command: &mut Command) -> Result<(f64, String, u64)> {
    let start = Instant::now();
    let (printed, peak) = shell::watched(command)?;
    ensure!(peak > 0, "the memory of the process could not be read");
    ensure!(peak <= limit, "{shape}: {peak} bytes resident, at most {limit} allowed");
    Ok((start.elapsed().as_secs_f64().round(), printed, peak))
}
