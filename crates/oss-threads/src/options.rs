//! How a team is made.

use std::time::Duration;

use crate::topology;

/// Whether workers are bound to cores.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pin {
    /// Never: the system's scheduler places them.
    #[default]
    Never,
    /// When this process may use the whole machine, the machine has little else to do, and every
    /// thread gets a core of its own.
    Auto,
    /// Always, to CPUs of the inherited mask: one of each core first. Threads beyond the number of
    /// CPUs share them.
    Always,
}

/// Options of a team.
#[derive(Clone, Debug)]
pub struct TeamOptions {
    /// Threads, the caller's included.
    pub threads: usize,
    /// Whether workers are bound to cores. The caller's thread never is.
    pub pin: Pin,
    /// How long a waiting thread polls before it yields. It sleeps after 1 ms in all.
    pub spin: Duration,
}

impl TeamOptions {
    /// The default options for a team of `threads`.
    pub fn new(threads: usize) -> Self {
        Self { threads, pin: Pin::default(), spin: Duration::from_micros(50) }
    }
}

impl Default for TeamOptions {
    /// As many threads as [`topology::default_threads`] says.
    fn default() -> Self {
        Self::new(topology::default_threads())
    }
}
