//! Parts of a buffer with owners of their own.

use std::fmt;
use std::ops::{Deref, DerefMut, Range};
use std::slice;
use std::sync::Arc;

use crate::Buffer;

/// A part of a [`Buffer`] that somebody else may own than the other parts, as a thread that fills
/// it. The memory is given back with its last slice.
///
/// ```
/// use oss_memory::{Buffer, Pages};
///
/// let whole = Buffer::new(1 << 20, Pages::Ordinary)?.into_owned_slice();
/// let (mut left, right) = whole.split(4096);
/// std::thread::scope(|scope| scope.spawn(|| left.fill(1)).join()).unwrap();
/// let whole = left.join(right);
/// assert_eq!((whole.len(), whole[4095], whole[4096]), (1 << 20, 1, 0));
/// # Ok::<(), oss_memory::Error>(())
/// ```
pub struct OwnedSlice {
    /// Keeps the memory; its bytes are reached through slices alone.
    owner: Arc<Buffer>,
    /// Where the buffer begins.
    start: *mut u8,
    /// The bytes of this slice: no other slice of the buffer has them.
    range: Range<usize>,
}

// SAFETY: a slice is the only way to its bytes, as `Box<[u8]>` would be.
#[expect(unsafe_code, reason = "holds the start of the buffer as a raw pointer")]
unsafe impl Send for OwnedSlice {}
// SAFETY: a shared slice lends its bytes for reading only.
#[expect(unsafe_code, reason = "holds the start of the buffer as a raw pointer")]
unsafe impl Sync for OwnedSlice {}

impl fmt::Debug for OwnedSlice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OwnedSlice").field("range", &self.range).finish_non_exhaustive()
    }
}

impl Buffer {
    /// The whole buffer as one slice.
    pub fn into_owned_slice(mut self) -> OwnedSlice {
        let (start, range) = (self.as_mut_ptr(), 0..self.len());
        OwnedSlice { owner: Arc::new(self), start, range }
    }
}

impl OwnedSlice {
    /// Cuts the slice in two, the first with `at` bytes.
    ///
    /// # Panics
    /// When it has not that many.
    pub fn split(self, at: usize) -> (Self, Self) {
        let Self { owner, start, range } = self;
        assert!(at <= range.len(), "{at} bytes of a slice of {}", range.len());
        let middle = range.start + at;
        let first = Self { owner: owner.clone(), start, range: range.start..middle };
        (first, Self { owner, start, range: middle..range.end })
    }

    /// Puts the slice and the one behind it together again.
    ///
    /// # Panics
    /// When `next` is not the one behind it.
    #[expect(clippy::needless_pass_by_value, reason = "its bytes are this slice's from now on")]
    pub fn join(self, next: Self) -> Self {
        let together = Arc::ptr_eq(&self.owner, &next.owner) && self.range.end == next.range.start;
        assert!(together, "{:?} is not followed by {:?} of its buffer", self.range, next.range);
        Self { owner: self.owner, start: self.start, range: self.range.start..next.range.end }
    }
}

impl Deref for OwnedSlice {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the range lies within the buffer, which `owner` keeps: `split` and `join` checked
        // it, and no other slice has these bytes.
        #[expect(unsafe_code, reason = "a part of a buffer with an owner of its own")]
        unsafe {
            slice::from_raw_parts(self.start.add(self.range.start), self.range.len())
        }
    }
}

impl DerefMut for OwnedSlice {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`, and `&mut self` is the only access to this slice.
        #[expect(unsafe_code, reason = "a part of a buffer with an owner of its own")]
        unsafe {
            slice::from_raw_parts_mut(self.start.add(self.range.start), self.range.len())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Pages;

    fn slice(bytes: usize) -> OwnedSlice {
        Buffer::new(bytes, Pages::Ordinary).expect("memory").into_owned_slice()
    }

    #[test]
    fn slices_are_filled_by_threads_of_their_own_and_join_in_order() {
        let mut rest = slice(10_000);
        let mut slices = Vec::new();
        for len in [1, 4095, 0, 4096] {
            let (first, left) = rest.split(len);
            slices.push(first);
            rest = left;
        }
        slices.push(rest);
        std::thread::scope(|scope| {
            for (number, slice) in slices.iter_mut().enumerate() {
                scope.spawn(move || slice.fill(number as u8 + 1));
            }
        });
        let whole = slices.into_iter().reduce(OwnedSlice::join).expect("five slices");
        let expected = [(1, 1), (2, 4095), (4, 4096), (5, 1808)];
        let expected: Vec<u8> = expected.into_iter().flat_map(|(x, n)| vec![x; n]).collect();
        assert!(whole[..] == expected[..]);
    }

    #[test]
    fn memory_lives_as_long_as_its_last_slice() {
        let (first, mut last) = slice(8192).split(4096);
        drop(first);
        last.fill(7);
        assert_eq!(last.iter().map(|byte| u64::from(*byte)).sum::<u64>(), 7 * 4096);
        assert!(slice(0).is_empty());
    }

    #[test]
    #[should_panic(expected = "0..10 is not followed by 0..10 of its buffer")]
    fn slices_of_other_buffers_do_not_join() {
        drop(slice(10).join(slice(10)));
    }

    #[test]
    #[should_panic(expected = "11 bytes of a slice of 10")]
    fn a_slice_is_not_cut_beyond_its_end() {
        drop(slice(10).split(11));
    }
}
