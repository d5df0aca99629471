//! One element per unit.

use std::marker::PhantomData;

use super::{Partition, Parts};

/// Unit `u` gets `&mut data[u]`.
pub struct Each<'a, T> {
    start: *mut T,
    len: usize,
    data: PhantomData<&'a mut [T]>,
}

impl<'a, T> Each<'a, T> {
    /// Gives each element of `data` to the unit of its index.
    pub fn new(data: &'a mut [T]) -> Self {
        Self { start: data.as_mut_ptr(), len: data.len(), data: PhantomData }
    }
}

// SAFETY: sharing the partition only lets threads take `&mut T` parts, which is sending `T`.
#[expect(unsafe_code, reason = "holds the start of the slice as a raw pointer")]
unsafe impl<T: Send> Sync for Each<'_, T> {}
// SAFETY: the partition stands for the `&mut [T]` that it was made from.
#[expect(unsafe_code, reason = "holds the start of the slice as a raw pointer")]
unsafe impl<T: Send> Send for Each<'_, T> {}

impl<'p, T> Parts<'p> for Each<'_, T> {
    type Part = &'p mut T;
}

// SAFETY: different units get different elements.
#[expect(unsafe_code, reason = "implements the unsafe trait")]
unsafe impl<T: Send> Partition for Each<'_, T> {
    fn units(&self) -> usize {
        self.len
    }

    unsafe fn part<'p>(&'p self, unit: usize, _worker: usize) -> <Self as Parts<'p>>::Part {
        // SAFETY: `unit < units()` is an index of the slice, asked for once.
        unsafe { &mut *self.start.add(unit) }
    }
}
