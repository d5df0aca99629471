//! Equal contiguous pieces of a slice.

use super::raw_slice::RawSlice;
use super::{Partition, Parts};

/// Unit `u` gets the elements `u * chunk .. (u + 1) * chunk`, the last unit what is left.
pub struct Chunks<'a, T> {
    data: RawSlice<'a, T>,
    chunk: usize,
}

impl<'a, T> Chunks<'a, T> {
    /// Splits `data` into pieces of `chunk` elements.
    ///
    /// # Panics
    /// When `chunk` is 0.
    pub fn new(data: &'a mut [T], chunk: usize) -> Self {
        assert!(chunk > 0, "a chunk must have at least 1 element, got {chunk}");
        Self { data: RawSlice::new(data), chunk }
    }
}

impl<'p, T> Parts<'p> for Chunks<'_, T> {
    type Part = &'p mut [T];
}

// SAFETY: the pieces of different units are different ranges of one slice.
#[expect(unsafe_code, reason = "implements the unsafe trait")]
unsafe impl<T: Send> Partition for Chunks<'_, T> {
    fn units(&self) -> usize {
        self.data.len().div_ceil(self.chunk)
    }

    unsafe fn part<'p>(&'p self, unit: usize, _worker: usize) -> <Self as Parts<'p>>::Part {
        let begin = unit * self.chunk;
        let end = begin + self.chunk.min(self.data.len() - begin);
        // SAFETY: `unit < units()` puts the range inside the slice, and the caller asks for each
        // unit once.
        unsafe { self.data.part(begin..end) }
    }
}
