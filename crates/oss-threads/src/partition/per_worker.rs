//! One element per worker: scratch space.

use std::marker::PhantomData;

use super::{Partition, Parts};

/// Every unit gets `&mut data[worker]`, the scratch of the worker that runs it.
///
/// What a unit finds there was left by any earlier unit of the same worker, so results must not
/// depend on it: which units share a worker differs from run to run.
pub struct PerWorker<'a, T> {
    start: *mut T,
    len: usize,
    data: PhantomData<&'a mut [T]>,
}

impl<'a, T> PerWorker<'a, T> {
    /// Gives element `w` of `data` to worker `w`; the phase panics when there are fewer elements
    /// than the team has threads.
    pub fn new(data: &'a mut [T]) -> Self {
        Self { start: data.as_mut_ptr(), len: data.len(), data: PhantomData }
    }
}

// SAFETY: sharing the partition only lets threads take `&mut T` parts, which is sending `T`.
#[expect(unsafe_code, reason = "holds the start of the slice as a raw pointer")]
unsafe impl<T: Send> Sync for PerWorker<'_, T> {}
// SAFETY: the partition stands for the `&mut [T]` that it was made from.
#[expect(unsafe_code, reason = "holds the start of the slice as a raw pointer")]
unsafe impl<T: Send> Send for PerWorker<'_, T> {}

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
        self.len
    }

    unsafe fn part<'p>(&'p self, _unit: usize, worker: usize) -> <Self as Parts<'p>>::Part {
        // SAFETY: `worker < workers()` is an index of the slice, and the caller's thread is the
        // only one that asks with this `worker` and has dropped its previous part.
        unsafe { &mut *self.start.add(worker) }
    }
}
