//! Writes a model as a packed `.oss` file: mapped at load, as fast as the machine from the first
//! token. A call that was interrupted is continued by the next.
//!
//! `cargo run --release --example pack -- --model model.gguf --output model.oss`

use anyhow::{Context, Result};
use clap::Parser;
use oss_engine::model::{Precision, pack_to_file};
use oss_examples::{ModelArgs, bar};
use std::path::PathBuf;

/// Packs a model.
#[derive(Parser)]
struct Arguments {
    #[command(flatten)]
    model: ModelArgs,
    /// The file to write
    #[arg(long)]
    output: PathBuf,
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let container = arguments.model.container()?;
    let bar = bar(0, "packing");
    let show = |done, total| {
        bar.set_length(total);
        bar.set_position(done);
    };
    pack_to_file(&container, &Precision::default(), &arguments.output, Some(&show))
        .with_context(|| format!("cannot write {}", arguments.output.display()))?;
    bar.finish_and_clear();
    Ok(())
}
