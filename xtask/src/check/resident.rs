//! `check resident`: synthetic models load and decode within their memory.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use crate::check::{Figures, Scale};
use crate::fetch;
use crate::shell;
use crate::synth::{Format, Options, write};

/// What the machine must offer.
pub(crate) fn missing() -> Option<String> {
    let linux = fs::metadata("/proc/self/status").is_ok();
    (!linux).then(|| "needs /proc to read a process's memory".to_owned())
}

/// A synthetic GGUF file in the cache directory, written unless it is there.
pub(crate) fn synthetic(shape: &str) -> Result<PathBuf> {
    let cache = fetch::cache()?;
    fs::create_dir_all(&cache)?;
    let model = cache.join(format!("synth-{shape}-1.gguf"));
    if !model.exists() {
        write(&Options::new(shape, Format::Gguf, model.clone()))?;
    }
    Ok(model)
}

/// Loads a mixture and a dense model, which are packed in memory, and watches that.
pub(crate) fn run(scale: Scale) -> Result<Figures> {
    let models = scale.pick(
        [("tiny", 256_000_000), ("tiny-llama", 256_000_000)],
        [("gpt-oss-20b", 14_000_000_000u64), ("tinyllama", 1_400_000_000)],
    );
    let program = shell::example("generate", scale.profile())?;
    let mut figures = Figures::new();
    for (shape, limit) in models {
        figures.insert(shape.to_owned(), decode(&program, shape, limit)?);
    }
    Ok(figures)
}

/// Decodes 16 tokens with the example `generate`, in no more than `limit` bytes of memory.
fn decode(program: &Path, shape: &str, limit: u64) -> Result<Value> {
    let model = synthetic(shape)?;
    let model = model.to_str().context("the cache's path is no UTF-8")?;
    let arguments = ["--prompt", "Once upon a time", "--temperature", "0", "--json"];
    let mut command = shell::command(program.to_str().context("path")?, &arguments);
    command.args(["--max-tokens", "16", "--model", model]);
    let start = Instant::now();
    let (printed, peak) = shell::watched(&mut command)?;
    let answer: Value = serde_json::from_str(&printed)?;
    let tokens = answer["ids"].as_array().map_or(0, Vec::len);
    ensure!(tokens > 0, "generate gave no tokens: {answer}");
    ensure!(peak > 0, "the memory of the process could not be read");
    ensure!(peak <= limit, "{shape}: {peak} bytes resident, at most {limit} allowed");
    Ok(json!({
        "resident_bytes_peak": peak,
        "resident_bytes_limit": limit,
        "file_bytes": fs::metadata(model)?.len(),
        "tokens": tokens,
        "process_seconds": start.elapsed().as_secs_f64().round(),
        "timing": answer["timing"],
    }))
}
