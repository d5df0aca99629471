//! Equal contiguous pieces of a slice.

use std::marker::PhantomData;
use std::slice;

use super::{Partition, Parts};

/// Unit `u` gets the elements `u * chunk .. (u + 1) * chunk`, the last unit what is left.
pub struct Chunks<'a, T> {
    start: *mut T,
    len: usize,
    chunk: usize,
    data: PhantomData<&'a mut [T]>,
}

impl<'a, T> Chunks<'a, T> {
    /// Splits `data` into pieces of `chunk` elements.
    ///
    /// # Panics
    /// When `chunk` is 0.
    pub fn new(data: &'a mut [T], chunk: usize) -> Self {
        assert!(chunk > 0, "a chunk must have at least 1 element, got {chunk}");
        Self { start: data.as_mut_ptr(), len: data.len(), chunk, data: PhantomData }
    }
}

// SAFETY: sharing the partition only lets threads take `&mut [T]` parts, which is sending `T`.
#[expect(unsafe_code, reason = "holds the start of the slice as a raw pointer")]
unsafe impl<T: Send> Sync for Chunks<'_, T> {}
// SAFETY: the partition stands for the `&mut [T]` that it was made from.
#[expect(unsafe_code, reason = "holds the start of the slice as a raw pointer")]
unsafe impl<T: Send> Send for Chunks<'_, T> {}

impl<'p, T> Parts<'p> for Chunks<'_, T> {
    type Part = &'p mut [T];
}

// SAFETY: the pieces of different units are different ranges of one slice.
#[expect(unsafe_code, reason = "implements the unsafe trait")]
unsafe impl<T: Send> Partition for Chunks<'_, T> {
    fn units(&self) -> usize {
        self.len.div_ceil(self.chunk)
    }

    unsafe fn part<'p>(&'p self, unit: usize, _worker: usize) -> <Self as Parts<'p>>::Part {
        let begin = unit * self.chunk;
        let len = self.chunk.min(self.len - begin);
        // SAFETY: `unit < units()` puts `begin..begin + len` inside the borrowed slice, and the
        // caller asks for each unit once.
        unsafe { slice::from_raw_parts_mut(self.start.add(begin), len) }
    }
}
