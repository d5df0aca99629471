//! How fast a model runs here, and how much of what the machine gives that is: prefill and decode
//! in tokens per second, as shares of the read bandwidth and of the int8 peak that the same run
//! measures, interleaved with the model's own runs.
//!
//! `cargo run --release --example bench -- --model model.gguf --prompt-tokens 512 --gen-tokens 64`
//!
//! It drives the forward page without sampling, on tokens that differ from sequence to sequence and
//! position to position. With `--json` it prints one object; docs/json.md tells what is in it.

use anyhow::Result;
use clap::Parser;
use oss_examples::{ModelArgs, check_output, outln};
use oss_memory::file;
use std::path::PathBuf;

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
    /// Seconds of idleness before each prefill and each decoding
    #[arg(long, default_value_t = 0.0)]
    pause: f64,
    /// Prints one JSON object instead of the table
    #[arg(long)]
    json: bool,
    /// A file for a chart of the decoding speed, token by token
    #[arg(long)]
    svg: Option<PathBuf>,
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    if let Some(path) = &arguments.svg {
        check_output("--svg", path)?;
    }
    let found = Bench::load(&arguments)?.run(&arguments)?;
    let json = report::json(&arguments, &found);
    // Before anything is printed, which ends the program where nobody reads; and a chart that
    // cannot be written takes no figures along.
    let draw = |path| file::write(path, report::chart(&found).svg().as_bytes());
    let drawn = arguments.svg.as_deref().map(draw).transpose();
    if arguments.json {
        outln!("{json}");
    } else {
        outln!("{}", report::markdown(&json));
    }
    drawn?;
    Ok(())
}
