//! `check loom`: every interleaving of the protocol of `oss-threads`.

use anyhow::Result;

use crate::check::{Figures, Scale};
use crate::shell::{self, cargo};

/// Runs the tests that loom explores. They are built in a folder of their own: the flag is part of
/// every crate's name there, and would have everything else built anew.
pub(crate) fn run(_: Scale) -> Result<Figures> {
    // Only optimised it takes less than a minute.
    let mut command = cargo(&["test", "-p", "oss-threads", "--locked", "--release"]);
    command.args(["--test", "loom"]).env("RUSTFLAGS", "--cfg loom");
    shell::run(command.env("CARGO_TARGET_DIR", shell::target().join("loom")))?;
    Ok(Figures::new())
}
