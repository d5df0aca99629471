//! Memory that nobody else gets: a process that locks all but a part of what is available, so that
//! another program has as little as on a smaller machine.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::process::{Child, Command, Stdio};

use anyhow::{Context as _, Result, ensure};
use clap::Args;
use oss_memory::pressure::Pressure;
use oss_memory::{Buffer, Pages};

/// How large a balloon is.
#[derive(Args)]
pub(crate) struct Options {
    /// Bytes that are left to others
    #[arg(long)]
    leave: u64,
}

/// Locks memory until standard input ends.
pub(crate) fn run(options: &Options) -> Result<()> {
    // Should memory run out all the same, this process is the one to go.
    fs::write("/proc/self/oom_score_adj", "1000").context("/proc/self/oom_score_adj")?;
    let available = available()?;
    let bytes = available.saturating_sub(options.leave);
    let buffer = Buffer::new(usize::try_from(bytes)?, Pages::Transparent)?;
    buffer.lock().context("the balloon needs the right to lock memory (ulimit -l)")?;
    println!("{bytes}");
    std::io::stdout().flush()?;
    std::io::stdin().read_to_end(&mut Vec::new())?;
    drop(buffer);
    Ok(())
}

/// Bytes that programs could still have.
pub(crate) fn available() -> Result<u64> {
    Pressure::read()?.room.context("the system does not say how much memory is left")
}

/// A balloon in a process of its own; it goes when this is dropped.
pub(crate) struct Balloon {
    process: Child,
    /// Bytes that it locks.
    bytes: u64,
}

impl Balloon {
    /// Leaves others so many bytes.
    pub(crate) fn leave(bytes: u64) -> Result<Balloon> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["balloon", "--leave", &bytes.to_string()]);
        let process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let mut balloon = Balloon { process, bytes: 0 };
        let output = balloon.process.stdout.take().context("the balloon has no output")?;
        let mut line = String::new();
        BufReader::new(output).read_line(&mut line)?;
        ensure!(!line.is_empty(), "the balloon could not lock memory");
        balloon.bytes = line.trim().parse().context(line)?;
        Ok(balloon)
    }

    /// The bytes that it locks; an error where the system has ended it, so that others had more.
    pub(crate) fn check(&mut self) -> Result<u64> {
        let ended = self.process.try_wait()?;
        ensure!(ended.is_none(), "the balloon has ended: {ended:?}, expected one that still locks");
        Ok(self.bytes)
    }
}

impl Drop for Balloon {
    fn drop(&mut self) {
        drop(self.process.stdin.take());
        // It ends with its input; there is nothing to be done if it does not.
        let _ended = self.process.wait();
    }
}
