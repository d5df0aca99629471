//! Writes a model as a packed `.oss` file: mapped at load, as fast as the machine from the first
//! token. A call that was interrupted is continued by the next.
//!
//! `cargo run --release --example pack -- --model model.gguf --output model.oss`

use anyhow::Result;
use clap::Parser;
use oss_engine::pack::Precision;
use oss_examples::{FileArgs, check_output, pack, run};
use std::path::PathBuf;
use std::process::ExitCode;

/// Packs a model.
#[derive(Parser)]
struct Arguments {
    #[command(flatten)]
    file: FileArgs,
    /// The file to write
    #[arg(long)]
    output: PathBuf,
}

fn main() -> ExitCode {
    run(work)
}

fn work(arguments: &Arguments) -> Result<()> {
    check_output("--output", &arguments.output)?;
    let container = arguments.file.container()?;
    pack(&container, &Precision::default(), &arguments.output)
}
