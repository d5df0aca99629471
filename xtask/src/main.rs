//! The chores of oss-engine: `cargo xtask --help` lists them.

use std::process::ExitCode;

use clap::{Parser, Subcommand};

mod balloon;
mod bench;
mod check;
mod ci;
mod compare;
mod cost;
mod fetch;
mod llama;
mod prompt;
mod quiet;
mod record;
mod shell;
mod synth;
mod tidy;

/// The chores of oss-engine.
#[derive(Parser)]
#[command(name = "cargo xtask")]
struct Arguments {
    #[command(subcommand)]
    chore: Chore,
}

#[derive(Subcommand)]
enum Chore {
    /// Checks the invariants of docs/architecture.md
    Tidy,
    /// Runs everything that must pass
    Ci,
    /// Runs a long check; the full run is recorded in benches/record
    Check(check::Options),
    /// Measures llama.cpp beside this engine, in turn, on the same file
    Compare(compare::Options),
    /// Measures what layers, context, threads and experts add to the time of a token
    Cost(cost::Options),
    /// Writes a synthetic checkpoint
    Synth(synth::Options),
    /// Locks memory until its input ends, as `check larger` needs it
    #[command(hide = true)]
    Balloon(balloon::Options),
    /// Downloads a reference model, or a tool of CI, and prints its path
    Fetch {
        /// smollm2 or cargo-deny
        name: String,
    },
}

fn main() -> ExitCode {
    let result = match Arguments::parse().chore {
        Chore::Ci => ci::run(),
        Chore::Check(options) => check::run(&options),
        Chore::Tidy => tidy::run(),
        Chore::Compare(options) => compare::run(&options),
        Chore::Cost(options) => cost::run(&options),
        Chore::Balloon(options) => balloon::run(&options),
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
