//! How programs begin and end.

use crate::outln;
use anyhow::{Error, Result};
use clap::{Command, Parser};
use serde_json::Value;
use std::process::ExitCode;

/// Reads a program's flags and does its work; what goes wrong is told on standard error.
pub fn run<A: Parser>(work: fn(&A) -> Result<()>) -> ExitCode {
    match work(&A::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {}", told::<A>(&error));
            ExitCode::FAILURE
        }
    }
}

/// An error with all that led to it, on one line. Options of the library are called by the flags
/// that set them.
#[must_use]
pub fn told<A: Parser>(error: &Error) -> String {
    flagged(format!("{error:#}"), &A::command())
}

/// A flag is its option's name with dashes.
fn flagged(mut message: String, program: &Command) -> String {
    for flag in program.get_arguments().filter_map(clap::Arg::get_long) {
        let option = flag.replace('-', "_");
        let named = [
            (format!("`{option}`"), format!("--{flag}")),
            (format!("sampling option {option}: "), format!("--{flag}: ")),
            (format!("option {option}: "), format!("--{flag}: ")),
            (format!("option {option}."), format!("--{flag}: ")),
        ];
        for (library, flag) in named {
            message = message.replace(&library, &flag);
        }
    }
    message
}

/// Writes a program's file, then prints what it found, as one object of JSON or for people.
///
/// # Errors
/// When the file cannot be written; what was found is printed all the same.
pub fn deliver(
    write: impl FnOnce() -> Result<()>,
    json: Option<Value>,
    plain: impl FnOnce(),
) -> Result<()> {
    // Before anything is printed, which ends the program where nobody reads.
    let written = write();
    match json {
        Some(json) => outln!("{json}"),
        None => plain(),
    }
    written
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::Context;

    #[derive(Parser)]
    struct Arguments {
        #[arg(long)]
        context_len: Option<usize>,
        #[arg(long)]
        sparse_attention: Option<usize>,
        #[arg(long)]
        top_p: Option<usize>,
        #[arg(long)]
        max_memory: Option<usize>,
    }

    #[test]
    fn an_error_names_the_flags_that_the_program_has() {
        for (library, flags) in [
            ("option context_len: got 0", "--context-len: got 0"),
            ("option sparse_attention.window: got 0", "--sparse-attention: window: got 0"),
            ("sampling option top_p: got 2", "--top-p: got 2"),
            ("budget (`max_memory`), folder (`cold`)", "budget (--max-memory), folder (`cold`)"),
            ("option queue_limit: got 0", "option queue_limit: got 0"),
        ] {
            let outcome: Result<()> = Err(Error::msg(library)).context("loading");
            assert_eq!(told::<Arguments>(&outcome.unwrap_err()), format!("loading: {flags}"));
        }
    }
}
