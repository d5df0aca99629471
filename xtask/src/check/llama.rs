//! `check llama`: llama.cpp loads synthetic files, computes prompts and generates.

use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value as Json, json};

use crate::check::{Figures, Scale, resident};
use crate::fetch;
use crate::llama::{Llama, NOT_BUILT};
use crate::shell;
use crate::synth::{Format, Options, write};

/// What must have been built before.
pub(crate) fn missing() -> Option<String> {
    Llama::built().is_none().then(|| NOT_BUILT.to_owned())
}

/// Runs llama.cpp's bench on each file.
pub(crate) fn run(scale: Scale) -> Result<Figures> {
    let llama = Llama::built().context(NOT_BUILT)?;
    let mut figures = Figures::new();
    if scale == Scale::Full {
        let model = resident::synthetic("gpt-oss-20b")?;
        figures.insert("gpt-oss-20b".into(), evaluate(&llama, &model)?);
        return Ok(figures);
    }
    let cache = fetch::cache()?;
    std::fs::create_dir_all(&cache)?;
    let folder = tempfile::tempdir_in(&cache)?;
    for shape in ["tiny", "tiny-llama"] {
        let model = folder.path().join(format!("{shape}.gguf"));
        write(&Options::new(shape, Format::Gguf, model.clone()))?;
        figures.insert(shape.into(), evaluate(&llama, &model)?);
    }
    Ok(figures)
}

/// Sixteen tokens of prompt and eight of answer; gives tokens per second of both.
fn evaluate(llama: &Llama, model: &Path) -> Result<Json> {
    let model = model.to_str().context("the cache's path is no UTF-8")?;
    let arguments = ["-m", model, "-p", "16", "-n", "8", "-r", "1", "--repack", "0", "-o", "json"];
    let said = shell::output(&mut llama.tool("llama-bench", &arguments)?)?;
    let tests: Vec<Json> = serde_json::from_str(&said).context("what llama-bench printed")?;
    ensure!(tests.len() == 2, "llama-bench ran {} tests, expected 2", tests.len());
    let speed = |test: &Json| test["avg_ts"].as_f64().filter(|speed| *speed > 0.0);
    let speeds: Vec<f64> = tests.iter().filter_map(speed).collect();
    ensure!(speeds.len() == 2, "llama-bench gives no speed: {said}");
    let text = shell::output(&mut llama.tool("llama-simple", &["-m", model, "-n", "8", "Once"])?)?;
    ensure!(text.contains("Once"), "llama-simple does not repeat its prompt: {text}");
    Ok(json!({ "type": tests[0]["model_type"], "tokens_per_s": speeds, "text": text.trim() }))
}
