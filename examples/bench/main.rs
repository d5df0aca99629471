//! How fast a model runs here, and how much of what the machine gives that is: prefill and decode
//! in tokens per second, as shares of the read bandwidth and of the int8 peak that the same run
//! measures, interleaved with the model's own runs.
//!
//! `cargo run --release --example bench -- --model model.gguf --prompt-tokens 512 --gen-tokens 64`
//!
//! It drives the forward pass without sampling, on tokens that differ from sequence to sequence and
//! position to position. With `--json` it prints one object; docs/json.md tells what is in it.

use anyhow::Result;
use clap::Parser;
use oss_engine::parse_duration;
use oss_examples::{ModelArgs, check_output, deliver, outln, run};
use oss_memory::file;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

mod bench;
mod report;

use bench::Bench;

/// Measures a model's speed.
#[derive(Parser, Clone, Debug)]
struct Arguments {
    #[command(flatten)]
    model: ModelArgs,
    /// Tokens of the prompt; 0: no prefill is measured
    #[arg(long, default_value_t = 512)]
    prompt_tokens: usize,
    /// Tokens that each sequence generates; 0: no decoding is measured
    #[arg(long, default_value_t = 64)]
    gen_tokens: usize,
    /// Positions that a sequence has before prompt or answer
    #[arg(long, default_value_t = 0)]
    depth: usize,
    /// Sequences that decode together
    #[arg(long, default_value_t = 1)]
    batch: usize,
    /// How often everything is measured
    #[arg(long, default_value_t = 5)]
    repeat: usize,
    /// How long nothing is done before each prefill and each decoding, such as 500ms
    #[arg(long, value_parser = parse_duration, default_value = "0s")]
    pause: Duration,
    /// Prints one JSON object instead of the table
    #[arg(long)]
    json: bool,
    /// A file for a chart of the decoding speed, token by token
    #[arg(long)]
    svg: Option<PathBuf>,
}

fn main() -> ExitCode {
    run(work)
}

fn work(arguments: &Arguments) -> Result<()> {
    if let Some(path) = &arguments.svg {
        check_output("--svg", path)?;
    }
    let found = Bench::load(arguments)?.run(arguments)?;
    let json = report::json(arguments, &found);
    let draw = || match &arguments.svg {
        Some(path) => Ok(file::write(path, report::chart(&found).svg().as_bytes())?),
        None => Ok(()),
    };
    let wanted = arguments.json.then(|| json.clone());
    deliver(draw, wanted, || outln!("{}", report::markdown(&json)))
}
