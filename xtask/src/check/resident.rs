//! `check resident`: a large synthetic model decodes within its memory.

use std::fs;
use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use serde_json::json;

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

/// Decodes 16 tokens with the example `generate` and watches its memory.
pub(crate) fn run(scale: Scale) -> Result<Figures> {
    let (shape, limit) = scale.pick(("tiny", 256_000_000), ("gpt-oss-20b", 14_000_000_000u64));
    let model = synthetic(shape)?;
    let program = shell::example("generate")?;
    let model = model.to_str().context("the cache's path is no UTF-8")?;
    let arguments = ["--prompt", "Once upon a time", "--temperature", "0", "--json"];
    let mut command = shell::command(program.to_str().context("path")?, &arguments);
    command.args(["--max-tokens", "16", "--model", model]);
    let start = Instant::now();
    let (printed, peak) = shell::watched(&mut command)?;
    let answer: serde_json::Value = serde_json::from_str(&printed)?;
    let tokens = answer["ids"].as_array().map_or(0, Vec::len);
    ensure!(tokens > 0, "generate gave no tokens: {answer}");
    ensure!(peak > 0, "the memory of the process could not be read");
    ensure!(peak <= limit, "{peak} bytes resident, at most {limit} allowed");
    let mut figures = Figures::new();
    figures.insert("resident_bytes_peak".into(), json!(peak));
    figures.insert("resident_bytes_limit".into(), json!(limit));
    figures.insert("tokens".into(), json!(tokens));
    figures.insert("process_seconds".into(), json!(start.elapsed().as_secs_f64().round()));
    figures.insert("timing".into(), answer["timing"].clone());
    Ok(figures)
}
