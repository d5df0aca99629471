//! Contiguous pieces of any lengths.

use std::marker::PhantomData;
use std::ops::Range;
use std::slice;

use super::{Partition, Parts};

/// Unit `u` gets the elements of `spans[u]`.
pub struct Spans<'a, T> {
    start: *mut T,
    spans: &'a [Range<usize>],
    data: PhantomData<&'a mut [T]>,
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
        Self { start: data.as_mut_ptr(), spans, data: PhantomData }
    }
}

// SAFETY: sharing the partition only lets threads take `&mut [T]` parts, which is sending `T`.
#[expect(unsafe_code, reason = "holds the start of the slice as a raw pointer")]
unsafe impl<T: Send> Sync for Spans<'_, T> {}
// SAFETY: the partition stands for the `&mut [T]` that it was made from.
#[expect(unsafe_code, reason = "holds the start of the slice as a raw pointer")]
unsafe impl<T: Send> Send for Spans<'_, T> {}

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
        let span = &self.spans[unit];
        // SAFETY: the constructor has asserted that the span lies inside the borrowed slice, and
        // the caller asks for each unit once.
        unsafe { slice::from_raw_parts_mut(self.start.add(span.start), span.len()) }
    }
}
