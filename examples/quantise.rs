//! Writes a model as a packed `.oss` file with fewer bits for its weights: as few as keep its loss
//! within a limit, by measuring what each place of the model takes.
//!
//! `cargo run --release --example quantise -- --model model.safetensors --output small.oss`
//!
//! With `--json` it prints one object; docs/json.md tells what is in it.

use anyhow::{Context, Result, ensure};
use clap::Parser;
use oss_engine::quantise::{Plan, Quantise, Trial};
use oss_engine::{ChatRequest, Container, Dtype, Message, Request, Special, Text};
use oss_examples::{EngineArgs, check_output, counter, deliver, outln, pack, run};
use serde_json::{Value, json};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

/// What the model is asked to write where no text is given.
const BEGINNINGS: [&str; 8] = [
    "Tell a short story about a journey.",
    "How does a bicycle stay upright?",
    "Write a function that sorts a list of numbers, and explain it.",
    "What happened in the year 1969?",
    "Write a letter to a friend who has moved to another town.",
    "A train leaves at 9:40 and takes 3 hours and 35 minutes. When does it arrive?",
    "List ten kinds of fruit with their colours.",
    "Explain how rain is made.",
];

/// Flags of the engine that runs where the model has to write its texts itself.
const OF_AN_ENGINE: [&str; 16] = [
    "isa",
    "kv_format",
    "sparse_attention",
    "pin",
    "huge_pages",
    "placement",
    "pages",
    "speculation",
    "tune",
    "context_len",
    "max_memory",
    "pack_directory",
    "eviction",
    "no_prefix_caching",
    "cold",
    "cold_bytes",
];

/// Packs a model in fewer bits.
#[derive(Parser)]
struct Arguments {
    #[command(flatten)]
    engine: EngineArgs,
    /// The packed file to write; without it, the plan is only shown
    #[arg(long)]
    output: Option<PathBuf>,
    /// The largest loss in per cent: by how much the perplexity may rise, on text as the model
    /// would write it
    #[arg(long, default_value_t = 1.0)]
    max_loss: f64,
    /// The types to try, such as q8_0,q4_1
    #[arg(long, value_delimiter = ',', value_parser = dtype)]
    types: Vec<Dtype>,
    /// A file with text of the kind that the model is for; may be given several times. Default:
    /// what the model itself writes
    #[arg(long, conflicts_with_all = OF_AN_ENGINE)]
    text: Vec<PathBuf>,
    /// How many tokens are read for each trial, and as many again for the whole plan
    #[arg(long, default_value_t = 512)]
    tokens: usize,
    /// Prints one JSON object
    #[arg(long)]
    json: bool,
}

fn dtype(name: &str) -> Result<Dtype, String> {
    Dtype::from_name(name).map_err(|error| error.to_string())
}

fn main() -> ExitCode {
    run(work)
}

fn work(arguments: &Arguments) -> Result<()> {
    if let Some(output) = &arguments.output {
        check_output("--output", output)?;
    }
    let container = Arc::new(arguments.engine.model.file.container()?);
    let over = arguments.output.as_ref().filter(|output| container.has_file(output));
    ensure!(over.is_none(), "--output: got a file of the model, expected another");
    let defaults = Quantise::default();
    let quantise = Quantise {
        max_loss: arguments.max_loss / 100.0,
        types: if arguments.types.is_empty() { defaults.types } else { arguments.types.clone() },
        activation: arguments.engine.model.activation,
        threads: arguments.engine.model.threads,
    };
    quantise.check(&container)?;
    let mut texts = match arguments.text.as_slice() {
        [] => own_texts(arguments)?,
        files => read(&container, files)?,
    };
    cut(&mut texts, 2 * arguments.tokens);

    let bar = counter(0, "trials");
    let mut trials = Vec::new();
    let plan = quantise.plan(container.clone(), &texts, &mut |trial: Trial| {
        bar.set_length(trial.of as u64);
        bar.set_position(trial.done as u64);
        trials.push(trial);
    })?;
    bar.finish_and_clear();
    let write = || match &arguments.output {
        Some(output) => pack(&container, &plan.precision, output),
        None => Ok(()),
    };
    let json = arguments.json.then(|| contract(&plan, &trials));
    deliver(write, json, || list(&plan, &trials))
}

/// Texts that the model writes itself.
fn own_texts(arguments: &Arguments) -> Result<Vec<Vec<u32>>> {
    let engine = arguments.engine.load()?;
    let each = (2 * arguments.tokens).div_ceil(BEGINNINGS.len());
    let streams = BEGINNINGS.iter().zip(1..).map(|(beginning, seed)| {
        let request = if engine.text().has_chat() {
            // A fixed day, so that texts and plan are the same tomorrow.
            let date = Some("2025-06-28".to_owned());
            let messages = vec![Message::user(*beginning)];
            Request::chat(ChatRequest { date, ..ChatRequest::new(messages) })
        } else {
            Request::text(*beginning)
        };
        engine.submit(request.seed(seed).max_tokens(each))
    });
    let streams = streams.collect::<oss_engine::Result<Vec<_>>>()?;
    let answers = streams.into_iter().map(|stream| {
        let answer = stream.collect_all()?;
        let written = answer.tokens.iter().map(|token| token.id);
        Ok(answer.prompt_token_ids.iter().copied().chain(written).collect())
    });
    answers.collect()
}

/// The tokens of some files.
fn read(container: &Container, files: &[PathBuf]) -> Result<Vec<Vec<u32>>> {
    let text = Text::from_container(container)?;
    let tokens = |file: &PathBuf| {
        let read = std::fs::read_to_string(file);
        let read = read.with_context(|| format!("cannot read {}", file.display()))?;
        Ok(text.encode(&read, Special::AsText)?)
    };
    files.iter().map(tokens).collect()
}

/// Keeps as many tokens of all texts, of each its beginning.
fn cut(texts: &mut [Vec<u32>], tokens: usize) {
    let mut left = tokens;
    let n = texts.len();
    for (index, text) in texts.iter_mut().enumerate() {
        text.truncate(left / (n - index));
        left -= text.len();
    }
}

/// One object with everything.
fn contract(plan: &Plan, trials: &[Trial]) -> Value {
    let trial = |trial: &Trial| {
        json!({
            "site": trial.site.to_string(),
            "type": trial.dtype.name(),
            "bytes": trial.bytes,
            "loss": trial.loss,
        })
    };
    json!({
        "loss": plan.loss,
        "same_token": plan.same_token,
        "bytes_per_token_before": plan.bytes_before,
        "bytes_per_token": plan.bytes_after,
        "precision": plan.precision.to_json(),
        "trials": trials.iter().map(trial).collect::<Vec<_>>(),
    })
}

/// What was chosen, and what it costs alone.
fn list(plan: &Plan, trials: &[Trial]) {
    for (site, dtype) in &plan.changed {
        let alone = trials.iter().find(|trial| trial.site == *site && trial.dtype == *dtype);
        let alone = alone.map_or(f64::NAN, |trial| 100.0 * trial.loss);
        outln!("{:28} {:6} {alone:8.4} % alone", site.to_string(), dtype.name());
    }
    let mega = |bytes: usize| bytes as f64 / 1e6;
    let (before, after) = (mega(plan.bytes_before), mega(plan.bytes_after));
    outln!("weights of a token: {before:.1} -> {after:.1} MB");
    let (loss, same) = (100.0 * plan.loss, 100.0 * plan.same_token);
    outln!("loss {loss:.3} %, the likeliest token is the same at {same:.1} % of the positions");
}
