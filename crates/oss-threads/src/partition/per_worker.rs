//! One element per worker: scratch space.

use super::raw_slice::RawSlice;
use super::{Partition, Parts};

/// Every unit gets `&mut data[worker]`, the scratch of the worker that runs it.
///
/// What a unit finds there was left by any earlier unit of the same worker, so results must not
/// depend on it: which units share a worker differs from run to run.
pub struct PerWorker<'a, T> {
    data: RawSlice<'a, T>,
}

impl<'a, T> PerWorker<'a, T> {
    /// Gives element `w` of `data` to worker `w`; the phase panics when there are fewer elements
    /// than the team has threads.
    pub fn new(data: &'a mut [T]) -> Self {
        Self { data: RawSlice::new(data) }
    }
}

impl<'p, T> Parts<'p> for PerWorker<'_, T> {
    type Part = &'p mut T;
}

// SAFETY: different workers get different elements, and one worker holds one part at a time.
#[expect(unsafe_code, reason = "implements the unsafe trait")]
unsafe impl<T: Send> Partition for PerWorker<'_, T> {
    fn units(&self) -> usize {
        usize::MAX
    }

    fn workers(&self) -> usize {
        self.data.len()
    }

    unsafe fn part<'p>(&'p self, _unit: usize, worker: usize) -> <Self as Parts<'p>>::Part {
        // SAFETY: `worker < workers()` is an index of the slice, and the caller's thread is the
        // only one that asks with this `worker` and has dropped its previous part.
        let part = unsafe { self.data.part(worker..worker + 1) };
        &mut part[0]
    }
}
