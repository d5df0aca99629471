//! The CPU of the caller.

use std::marker::PhantomData;

use super::Team;
use crate::error::Error;
use crate::os::Mask;

/// Keeps the thread that took it on one CPU; dropped, it lets the thread run where it might before.
pub struct AffinityGuard {
    before: Mask,
    /// Another thread could not give it back.
    _of_this_thread: PhantomData<*const ()>,
}

impl Team {
    /// Binds the calling thread, which is worker 0 of the phases that it runs, to the first of the
    /// team's CPUs until the guard is dropped; none where the team is not bound. Meanwhile threads
    /// that it starts inherit that CPU alone, and it is all that [`topology`](crate::topology)
    /// finds.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn pin_caller(&self) -> Result<Option<AffinityGuard>, Error> {
        let Some(&cpu) = self.cpus().first() else { return Ok(None) };
        let bind = || {
            let before = Mask::here()?;
            Mask::of(cpu)?.bind_here()?;
            Ok(before)
        };
        let before = bind().map_err(|cause| Error::Pin { worker: 0, cpu, cause })?;
        Ok(Some(AffinityGuard { before, _of_this_thread: PhantomData }))
    }
}

impl Drop for AffinityGuard {
    fn drop(&mut self) {
        // Refused where none of those CPUs is left to the process: then the thread stays here.
        let _refused = self.before.bind_here();
    }
}
