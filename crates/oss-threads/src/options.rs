//! How a team is made.

use std::time::Duration;

/// Whether workers are bound to cores.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pin {
    /// Never: the system's scheduler places them.
    #[default]
    Never,
    /// When this process may use the whole machine and the machine has little else to do.
    Auto,
    /// Always, to the cores that the process may use.
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

impl Default for TeamOptions {
    fn default() -> Self {
        Self { threads: 1, pin: Pin::default(), spin: Duration::from_micros(50) }
    }
}
