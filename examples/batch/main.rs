//! Answers many prompts out of a file, many at a time, and writes one JSON object a line.
//!
//! `cargo run --release --example batch -- prompts.jsonl --output answers.jsonl`
//!
//! A line of the input is a prompt, or an object with `prompt`, `prompt_ids` or `messages`. A run
//! that was broken off is continued by the same command: what the output already has is left out.
//! docs/json.md tells what is in the lines.

use anyhow::{Context, Result, bail, ensure};
use clap::Parser;
use oss_engine::{Engine, EngineOptions};
use oss_examples::{EngineArgs, counter, run};
use oss_memory::file;
use std::collections::HashMap;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::{Mutex, PoisonError, mpsc};
use std::time::Instant;

mod input;
mod output;

use input::{Job, Origin};
use output::{Order, Output};

/// Answers many prompts out of a file.
#[derive(Parser)]
struct Arguments {
    #[command(flatten)]
    engine: EngineArgs,
    /// The prompts, one a line
    input: PathBuf,
    /// Where the answers go; without it, to standard output, where nothing can be continued
    #[arg(long)]
    output: Option<PathBuf>,
    /// Writes each answer when it is there, not in the order of the input
    #[arg(long)]
    as_finished: bool,
    /// Prompts that are answered at once; default: as many as the engine runs together
    #[arg(long, alias = "parallel")]
    max_sequences: Option<usize>,
    /// The most tokens of an answer, where its line does not say
    #[arg(long, default_value_t = 256)]
    max_tokens: usize,
    /// Divides the logits; 0 is greedy. Default: the model's own
    #[arg(long)]
    temperature: Option<f32>,
    /// The seed of the draws, where a line does not say: the same for every prompt and run
    #[arg(long, default_value_t = 0)]
    seed: u64,
}

fn main() -> ExitCode {
    run(work)
}

fn work(arguments: &Arguments) -> Result<()> {
    ensure!(arguments.max_sequences != Some(0), "--max-sequences: got 0, expected at least 1");
    if let Some(output) = &arguments.output {
        let is_input = file::is_same(output, &arguments.input);
        ensure!(!is_input, "--output: got the input, expected another file");
    }
    let jobs = input::read(arguments)?;
    let order = if arguments.as_finished { Order::AsFinished } else { Order::Input };
    let (output, done) = match &arguments.output {
        Some(path) => Output::resume(path, order)?,
        None => (Output::print(order), Default::default()),
    };
    let all = jobs.len();
    let jobs = unanswered(jobs, &done)?;
    if jobs.len() < all {
        eprintln!("{} of {all} prompts are answered already", all - jobs.len());
    }
    if jobs.is_empty() {
        return Ok(());
    }
    let engine = arguments.engine.load_with(|options| EngineOptions {
        max_sequences: arguments.max_sequences,
        // Those that are asked for at once may all wait.
        queue_limit: options.queue_limit.max(arguments.max_sequences.unwrap_or(0)),
        ..options
    })?;
    let parallel = arguments.max_sequences.unwrap_or(engine.tuning().max_sequences.value);
    let failed = answer_all(&engine, jobs, parallel, output)?;
    if failed > 0 {
        bail!("{failed} prompts got no answer; the same command tries them again");
    }
    Ok(())
}

/// The jobs that have no answer yet. `done` has the hashes of lines that were answered, by id.
fn unanswered(jobs: Vec<Job>, done: &HashMap<String, String>) -> Result<Vec<Job>> {
    for Origin { id, hash } in jobs.iter().map(|job| &job.origin) {
        let same = done.get(id).is_none_or(|answered| answered == hash);
        ensure!(
            same,
            "prompt {id}: got another line than the one that the output has an answer to, expected \
             the same; what is new needs an id of its own, or another --output"
        );
    }
    Ok(jobs.into_iter().filter(|job| !done.contains_key(&job.origin.id)).collect())
}

/// Answers all jobs, so many at once; returns how many failed.
fn answer_all(
    engine: &Engine,
    jobs: Vec<Job>,
    parallel: usize,
    mut output: Output,
) -> Result<usize> {
    let bar = counter(jobs.len(), "prompts");
    let (begin, mut tokens, mut failed) = (Instant::now(), 0, 0);
    let origins: Vec<Origin> = jobs.iter().map(|job| job.origin.clone()).collect();
    let jobs = Mutex::new(jobs.into_iter().enumerate());
    let take = || jobs.lock().unwrap_or_else(PoisonError::into_inner).next();
    let (results, finished) = mpsc::channel();
    std::thread::scope(|scope| {
        for _ in 0..parallel.min(origins.len()) {
            let results = results.clone();
            let take = &take;
            scope.spawn(move || {
                while let Some((index, job)) = take() {
                    let answer = engine.generate(job.request);
                    // Nobody listens any more when the output could not be written.
                    if results.send((index, answer)).is_err() {
                        return;
                    }
                }
            });
        }
        drop(results);
        for (index, answer) in finished {
            let line = match answer {
                Ok(answer) => {
                    tokens += answer.usage.completion_tokens;
                    Some(output::line(&origins[index], &answer).to_string())
                }
                Err(error) => {
                    failed += 1;
                    bar.suspend(|| eprintln!("prompt {}: {error}", origins[index].id));
                    None
                }
            };
            output.put(index, line).context("the output")?;
            let rate = tokens as f64 / begin.elapsed().as_secs_f64();
            bar.set_message(format!("{rate:.1} tokens/s"));
            bar.inc(1);
        }
        Ok(failed)
    })
    .inspect(|_| bar.finish_and_clear())
}
