//! A slice of which threads hold different parts.

use std::marker::PhantomData;
use std::ops::Range;
use std::slice;

/// A mutably borrowed slice that hands out parts of itself; whoever asks for them sees to it that
/// they are disjoint.
pub(super) struct RawSlice<'a, T> {
    start: *mut T,
    len: usize,
    data: PhantomData<&'a mut [T]>,
}

// SAFETY: sharing it only lets threads take `&mut [T]` parts, which is sending `T`.
#[expect(unsafe_code, reason = "holds the start of the slice as a raw pointer")]
unsafe impl<T: Send> Sync for RawSlice<'_, T> {}
// SAFETY: it stands for the `&mut [T]` that it was made from.
#[expect(unsafe_code, reason = "holds the start of the slice as a raw pointer")]
unsafe impl<T: Send> Send for RawSlice<'_, T> {}

impl<'a, T> RawSlice<'a, T> {
    pub(super) fn new(data: &'a mut [T]) -> Self {
        Self { start: data.as_mut_ptr(), len: data.len(), data: PhantomData }
    }

    /// Elements.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// The same slice, for as long as this one is borrowed.
    pub(super) fn reborrow(&self) -> RawSlice<'_, T> {
        RawSlice { ..*self }
    }

    /// The elements of `range`.
    ///
    /// # Safety
    /// `range` ascends and lies inside the slice, and no other part with one of its elements is
    /// alive.
    #[expect(unsafe_code, reason = "the promise of disjointness cannot be checked by the compiler")]
    #[expect(clippy::mut_from_ref, reason = "parts are disjoint, as the caller promises")]
    pub(super) unsafe fn part(&self, range: Range<usize>) -> &mut [T] {
        let Range { start, end } = range;
        debug_assert!(start <= end && end <= self.len, "{start}..{end} of {} elements", self.len);
        // SAFETY: the range lies inside the borrowed slice, and nobody else has its elements, both
        // of which the caller promises.
        unsafe { slice::from_raw_parts_mut(self.start.add(start), end - start) }
    }
}
