//! `check resident`: a large synthetic model decodes within its memory.

use std::fs;
use std::process::Stdio;
use std::thread;
use std::time::{Duration, Instant};

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

/// Decodes 16 tokens with the example `generate` and watches its memory.
pub(crate) fn run(scale: Scale) -> Result<Figures> {
    let (shape, limit) = scale.pick(("tiny", 256_000_000), ("gpt-oss-20b", 14_000_000_000u64));
    let cache = fetch::cache()?;
    fs::create_dir_all(&cache)?;
    let model = cache.join(format!("synth-{shape}-1.gguf"));
    if !model.exists() {
        write(&Options::new(shape, Format::Gguf, model.clone()))?;
    }
    let build = ["build", "--release", "-p", "oss-examples", "--example", "generate"];
    shell::run(&mut shell::cargo(&build))?;
    let program = shell::target().join("release/examples/generate");
    let model = model.to_str().context("the cache's path is no UTF-8")?;
    let arguments = ["--prompt", "Once upon a time", "--temperature", "0", "--json"];
    let mut command = shell::command(program.to_str().context("path")?, &arguments);
    command.args(["--max-tokens", "16", "--model", model]).stdout(Stdio::piped());
    let start = Instant::now();
    let mut child = command.spawn()?;
    let mut peak = 0;
    while child.try_wait()?.is_none() {
        peak = peak.max(high_water(child.id()).unwrap_or(0));
        thread::sleep(Duration::from_millis(5));
    }
    let output = child.wait_with_output()?;
    ensure!(output.status.success(), "generate: {}", output.status);
    let answer: serde_json::Value = serde_json::from_slice(&output.stdout)?;
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

/// The largest resident size that a process has had, in bytes.
fn high_water(process: u32) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let line = status.lines().find(|line| line.starts_with("VmHWM:"))?;
    Some(line.split_whitespace().nth(1)?.parse::<u64>().ok()? * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_high_water_mark_of_a_process_is_read() {
        if missing().is_none() {
            let peak = high_water(std::process::id()).expect("this process has a status");
            assert!(peak > 100_000, "{peak}");
        }
    }
}
