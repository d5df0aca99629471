//! `check loom`: every interleaving of the protocol of `oss-threads`.

use anyhow::Result;

use crate::check::tests::figures;
use crate::check::{Figures, Scale};
use crate::shell::{self, cargo};

/// Runs the tests that loom explores, of which there must be some: without the flag there is none.
/// They are built in a folder of their own: the flag is part of every crate's name there, and would
/// have everything else built anew.
pub(crate) fn run(_: Scale) -> Result<Figures> {
    // Only optimised it takes less than a minute.
    let mut command = cargo(&["test", "-p", "oss-threads", "--locked", "--release"]);
    // Cargo would take those instead.
    command.args(["--test", "loom"]).env_remove("CARGO_ENCODED_RUSTFLAGS");
    command.env("RUSTFLAGS", "--cfg loom");
    // Each interleaving maps stacks and unmaps them, for which the tests of a process wait for each
    // other: two at a time they take 138 s where one after the other takes 83.
    command.env("RUST_TEST_THREADS", "1");
    figures(command.env("CARGO_TARGET_DIR", shell::target()?.join("loom")))
}
