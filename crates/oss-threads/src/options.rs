//! How a team is made.

use crate::error::Error;
use crate::os::Mask;
use crate::topology::{self, Topology};

/// Options of a team.
#[derive(Clone, Debug)]
pub struct TeamOptions {
    /// Threads, the caller's included.
    pub threads: usize,
    /// Whether each worker is bound to a CPU of its own, see [`TeamOptions::cpus`]. The caller is
    /// when it asks for that: [`Team::pin_caller`](crate::Team::pin_caller).
    pub pin: bool,
}

impl TeamOptions {
    /// The default options for a team of `threads`.
    pub fn new(threads: usize) -> Self {
        Self { threads, pin: false }
    }

    /// The CPUs that the team's threads are to be bound to, the caller's first; empty where they
    /// are not to be. They are those of [`Topology::cpus_for`], within the affinity mask of the
    /// calling thread.
    ///
    /// # Errors
    /// When there are more threads than CPUs ([`Topology::cpu_threads`]), or threads cannot be
    /// bound on this system.
    pub fn cpus(&self) -> Result<Vec<usize>, Error> {
        if !self.pin {
            return Ok(Vec::new());
        }
        let topology = Topology::read()?;
        let (got, expected) = (self.threads, topology.cpu_threads());
        if got > expected {
            return Err(Error::Cpus { got, expected });
        }
        let cpus = topology.cpus_for(got);
        for (worker, &cpu) in cpus.iter().enumerate() {
            Mask::of(cpu).map_err(|cause| Error::Pin { worker, cpu, cause })?;
        }
        Ok(cpus)
    }
}

impl Default for TeamOptions {
    /// As many threads as [`topology::default_threads`] says.
    fn default() -> Self {
        Self::new(topology::default_threads())
    }
}
