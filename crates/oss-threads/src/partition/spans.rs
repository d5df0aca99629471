//! Contiguous pieces of any lengths.

use std::ops::Range;

use super::raw_slice::RawSlice;
use super::{Partition, Parts};

/// Unit `u` gets the elements of `spans[u]`.
pub struct Spans<'a, T> {
    data: RawSlice<'a, T>,
    spans: &'a [Range<usize>],
}

impl<'a, T> Spans<'a, T> {
    /// Gives the elements `spans[u]` of `data` to unit `u`.
    ///
    /// # Panics
    /// When the spans are not ascending and disjoint, or pass the end of `data`.
    pub fn new(data: &'a mut [T], spans: &'a [Range<usize>]) -> Self {
        let mut end = 0;
        for (unit, span) in spans.iter().enumerate() {
            assert!(
                end <= span.start && span.start <= span.end,
                "span {unit} is {span:?}, expected it to ascend from {end}"
            );
            end = span.end;
        }
        assert!(end <= data.len(), "spans end at {end}, but there are {} elements", data.len());
        Self { data: RawSlice::new(data), spans }
    }
}

impl<'p, T> Parts<'p> for Spans<'_, T> {
    type Part = &'p mut [T];
}

// SAFETY: the constructor has asserted that the spans do not overlap.
#[expect(unsafe_code, reason = "implements the unsafe trait")]
unsafe impl<T: Send> Partition for Spans<'_, T> {
    fn units(&self) -> usize {
        self.spans.len()
    }

    unsafe fn part<'p>(&'p self, unit: usize, _worker: usize) -> <Self as Parts<'p>>::Part {
        // SAFETY: the constructor has asserted that the span lies inside the slice, and the caller
        // asks for each unit once.
        unsafe { self.data.part(self.spans[unit].clone()) }
    }
}
