//! The chores of oss-engine: `cargo xtask --help` lists them.

use std::process::ExitCode;

use clap::{Parser, Subcommand};

mod fetch;
mod synth;

/// The chores of oss-engine.
#[derive(Parser)]
#[command(name = "cargo xtask")]
struct Arguments {
    #[command(subcommand)]
    chore: Chore,
}

#[derive(Subcommand)]
enum Chore {
    /// Writes a synthetic checkpoint
    Synth(synth::Options),
    /// Downloads a reference model and prints its path
    Fetch {
        /// smollm2
        name: String,
    },
}

fn main() -> ExitCode {
    let result = match Arguments::parse().chore {
        Chore::Synth(options) => synth::run(&options),
        Chore::Fetch { name } => fetch::run(&name),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
