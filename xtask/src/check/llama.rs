//! `check llama`: llama.cpp loads synthetic files, computes prompts and generates.

use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value as Json, json};

use crate::check::{Figures, Scale, synthetic};
use crate::llama::Llama;
use crate::shell;
use crate::synth::{Format, Options, write};

/// What must have been built before, for this CPU.
pub(crate) fn missing() -> Option<String> {
    Llama::built().err().map(|error| format!("{error:#}"))
}

/// Runs llama.cpp's bench on each file.
pub(crate) fn run(scale: Scale) -> Result<Figures> {
    let llama = Llama::built()?;
    let mut figures = Figures::new();
    if scale == Scale::Full {
        let model = synthetic::gguf("gpt-oss-20b", scale)?;
        figures.insert("gpt-oss-20b".into(), evaluate(&llama, &model.path)?);
        return Ok(figures);
    }
    let folder = shell::scratch("llama")?;
    for shape in ["tiny", "tiny-llama"] {
        let model = folder.path().join(format!("{shape}.gguf"));
        write(&Options::new(shape, Format::Gguf, model.clone()))?;
        let mut found = evaluate(&llama, &model)?;
        found["text"] = json!(continued(&llama, &model)?);
        figures.insert(shape.into(), found);
    }
    Ok(figures)
}

/// Sixteen tokens of prompt and eight of answer, one copy of the weights in memory. How fast that
/// was does not matter here: `cargo xtask compare` measures.
fn evaluate(llama: &Llama, model: &Path) -> Result<Json> {
    let arguments = ["-p", "16", "-n", "8", "-r", "1", "--repack", "0", "-o", "json", "-m"];
    let said = shell::output(llama.tool("llama-bench", &arguments)?.arg(model))?;
    let tests: Vec<Json> = serde_json::from_str(&said).context("what llama-bench printed")?;
    ensure!(tests.len() == 2, "llama-bench ran {} tests, expected 2", tests.len());
    let ran = |test: &Json| test["avg_ts"].as_f64().is_some_and(|speed| speed > 0.0);
    ensure!(tests.iter().all(ran), "llama-bench gives no speed: {said}");
    let count = |name: &str| tests.iter().filter_map(|test| test[name].as_u64()).sum::<u64>();
    Ok(json!({
        "type": tests[0]["model_type"],
        "prompt_tokens": count("n_prompt"),
        "generated_tokens": count("n_gen"),
    }))
}

/// A prompt and eight tokens more, through the file's tokenizer.
fn continued(llama: &Llama, model: &Path) -> Result<String> {
    let mut command = llama.tool("llama-simple", &["-n", "8", "-m"])?;
    let text = shell::output(command.arg(model).arg("Once upon"))?;
    let after = text.split_once("Once upon").map(|(_, after)| after.trim());
    ensure!(after.is_some_and(|after| !after.is_empty()), "llama-simple prints no answer: {text}");
    Ok(text.trim().to_owned())
}
