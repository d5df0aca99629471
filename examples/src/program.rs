//! How programs begin and end.

use crate::outln;
use anyhow::{Error, Result};
use clap::Parser;
use oss_engine::with_flags;
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
    let program = A::command();
    with_flags(&format!("{error:#}"), program.get_arguments().filter_map(clap::Arg::get_long))
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
    }

    #[test]
    fn an_error_names_the_flags_that_the_program_has() {
        for (library, flags) in [
            ("option context_len: got 0", "--context-len: got 0"),
            ("option queue_limit: got 0", "option queue_limit: got 0"),
        ] {
            let outcome: Result<()> = Err(Error::msg(library)).context("loading");
            assert_eq!(told::<Arguments>(&outcome.unwrap_err()), format!("loading: {flags}"));
        }
    }
}
