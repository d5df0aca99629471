//! Ten prompts of varied length and kind, three times each, as somebody would ask them: how many
//! tokens a second, how long until the first token, how much memory, and how much was at hand.
//!
//! `cargo run --release --example ten_prompts -- --model model.gguf --svg speed.svg`
//!
//! The prompts are defined in `prompts.rs`. They are asked one after another, first all ten, then
//! all again: from the second round on a prompt is at hand. With `--json` it prints one object;
//! docs/json.md tells what is in it.

use anyhow::{Context, Result, ensure};
use clap::Parser;
use oss_engine::{ChatRequest, Completion, Engine, Message, Metrics, Request};
use oss_examples::{EngineArgs, check_output, counter, deliver, machine, outln, run};
use oss_memory::file;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

mod prompts;
mod report;

use prompts::Prompt;

/// Asks ten prompts, three times each, and measures.
#[derive(Parser)]
struct Arguments {
    #[command(flatten)]
    engine: EngineArgs,
    /// How often each prompt is asked
    #[arg(long, alias = "runs", default_value_t = 3)]
    repeat: usize,
    /// At most so many tokens of each answer, where the prompt allows more
    #[arg(long)]
    max_tokens: Option<usize>,
    /// The seed of the draws
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Prints one JSON object instead of the table
    #[arg(long)]
    json: bool,
    /// A file for a chart of the speeds
    #[arg(long)]
    svg: Option<PathBuf>,
}

/// One prompt and its answers.
struct Asked {
    prompt: Prompt,
    answers: Vec<Completion>,
}

/// Everything that was measured.
struct Found {
    load_s: f64,
    asked: Vec<Asked>,
    metrics: Metrics,
    resident_bytes: Option<u64>,
}

fn main() -> ExitCode {
    run(work)
}

fn work(arguments: &Arguments) -> Result<()> {
    ensure!(arguments.repeat > 0, "--repeat: got 0, expected at least 1");
    if let Some(path) = &arguments.svg {
        check_output("--svg", path)?;
    }
    let begin = Instant::now();
    let engine = arguments.engine.load()?;
    let load_s = begin.elapsed().as_secs_f64();
    let asked = ask_all(&engine, arguments)?;
    let resident_bytes = machine::resident_peak();
    let found = Found { load_s, asked, metrics: engine.metrics(), resident_bytes };
    let json = report::json(arguments, &engine, &found);
    let draw = || match &arguments.svg {
        Some(path) => Ok(file::write(path, report::chart(&found).svg().as_bytes())?),
        None => Ok(()),
    };
    let wanted = arguments.json.then(|| json.clone());
    deliver(draw, wanted, || outln!("{}", report::markdown(&json)))
}

/// Asks all prompts in turn, as often as wanted.
fn ask_all(engine: &Engine, arguments: &Arguments) -> Result<Vec<Asked>> {
    let asked = prompts::ten().map(|prompt| Asked { prompt, answers: Vec::new() });
    let mut asked = Vec::from(asked);
    let bar = counter(asked.len() * arguments.repeat, "prompts");
    for _ in 0..arguments.repeat {
        for Asked { prompt, answers } in &mut asked {
            let request = request(engine, prompt, arguments);
            let answer = engine.generate(request).with_context(|| prompt.kind.to_owned())?;
            answers.push(answer);
            bar.inc(1);
        }
    }
    bar.finish_and_clear();
    Ok(asked)
}

/// A chat where the model knows one, else a text to be continued.
fn request(engine: &Engine, prompt: &Prompt, arguments: &Arguments) -> Request {
    let most = arguments.max_tokens.unwrap_or(usize::MAX);
    let request = if engine.text().has_chat() {
        // A fixed day, so that prompts are the same tomorrow.
        let date = Some("2025-06-28".to_owned());
        let messages = vec![Message::user(prompt.text.clone())];
        Request::chat(ChatRequest { date, ..ChatRequest::new(messages) })
    } else {
        Request::text(prompt.text.clone())
    };
    request.max_tokens(prompt.max_tokens.min(most)).seed(arguments.seed)
}
