//! Parts of a buffer with owners of their own.

use std::fmt;
use std::ops::{Deref, DerefMut, Range};
use std::slice;
use std::sync::Arc;

use crate::Buffer;

/// A part of a [`Buffer`] that somebody else may own than the other parts, as a thread that fills
/// it. The memory is given back with its last piece.
///
/// ```
/// use oss_memory::{Buffer, Pages};
///
/// let whole = Buffer::new(1 << 20, Pages::Ordinary)?.into_piece();
/// let (mut left, right) = whole.split(4096);
/// std::thread::scope(|scope| scope.spawn(|| left.fill(1)).join()).unwrap();
/// let whole = left.join(right);
/// assert_eq!((whole.len(), whole[4095], whole[4096]), (1 << 20, 1, 0));
/// # Ok::<(), oss_memory::Error>(())
/// ```
pub struct Piece {
    /// Keeps the memory; its bytes are reached through pieces alone.
    owner: Arc<Buffer>,
    /// Where the buffer begins.
    start: *mut u8,
    /// The bytes of this piece: no other piece of the buffer has them.
    range: Range<usize>,
}

// SAFETY: a piece is the only way to its bytes, as `Box<[u8]>` would be.
#[expect(unsafe_code, reason = "holds the start of the buffer as a raw pointer")]
unsafe impl Send for Piece {}
// SAFETY: a shared piece lends its bytes for reading only.
#[expect(unsafe_code, reason = "holds the start of the buffer as a raw pointer")]
unsafe impl Sync for Piece {}

impl fmt::Debug for Piece {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Piece").field("range", &self.range).finish_non_exhaustive()
    }
}

impl Buffer {
    /// The whole buffer as one piece.
    pub fn into_piece(mut self) -> Piece {
        let (start, range) = (self.as_mut_ptr(), 0..self.len());
        Piece { owner: Arc::new(self), start, range }
    }
}

impl Piece {
    /// Cuts the piece in two, the first with `at` bytes.
    ///
    /// # Panics
    /// When it has not that many.
    pub fn split(self, at: usize) -> (Self, Self) {
        let Self { owner, start, range } = self;
        assert!(at <= range.len(), "{at} bytes of a piece of {}", range.len());
        let middle = range.start + at;
        let first = Self { owner: owner.clone(), start, range: range.start..middle };
        (first, Self { owner, start, range: middle..range.end })
    }

    /// Puts the piece and the one behind it together again.
    ///
    /// # Panics
    /// When `next` is not the one behind it.
    #[expect(clippy::needless_pass_by_value, reason = "its bytes are this piece's from now on")]
    pub fn join(self, next: Self) -> Self {
        let together = Arc::ptr_eq(&self.owner, &next.owner) && self.range.end == next.range.start;
        assert!(together, "{:?} is not followed by {:?} of its buffer", self.range, next.range);
        Self { owner: self.owner, start: self.start, range: self.range.start..next.range.end }
    }
}

impl Deref for Piece {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the range lies within the buffer, which `owner` keeps: `split` and `join` checked
        // it, and no other piece has these bytes.
        #[expect(unsafe_code, reason = "a part of a buffer with an owner of its own")]
        unsafe {
            slice::from_raw_parts(self.start.add(self.range.start), self.range.len())
        }
    }
}

impl DerefMut for Piece {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`, and `&mut self` is the only access to this piece.
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

    fn piece(bytes: usize) -> Piece {
        Buffer::new(bytes, Pages::Ordinary).expect("memory").into_piece()
    }

    #[test]
    fn pieces_are_filled_by_threads_of_their_own_and_join_in_order() {
        let mut rest = piece(10_000);
        let mut pieces = Vec::new();
        for len in [1, 4095, 0, 4096] {
            let (first, left) = rest.split(len);
            pieces.push(first);
            rest = left;
        }
        pieces.push(rest);
        std::thread::scope(|scope| {
            for (number, piece) in pieces.iter_mut().enumerate() {
                scope.spawn(move || piece.fill(number as u8 + 1));
            }
        });
        let whole = pieces.into_iter().reduce(Piece::join).expect("five pieces");
        let expected = [(1, 1), (2, 4095), (4, 4096), (5, 1808)];
        let expected: Vec<u8> = expected.into_iter().flat_map(|(x, n)| vec![x; n]).collect();
        assert!(whole[..] == expected[..]);
    }

    #[test]
    fn memory_lives_as_long_as_its_last_piece() {
        let (first, mut last) = piece(8192).split(4096);
        drop(first);
        last.fill(7);
        assert_eq!(last.iter().map(|byte| u64::from(*byte)).sum::<u64>(), 7 * 4096);
        assert!(piece(0).is_empty());
    }

    #[test]
    #[should_panic(expected = "0..10 is not followed by 0..10 of its buffer")]
    fn pieces_of_other_buffers_do_not_join() {
        drop(piece(10).join(piece(10)));
    }

    #[test]
    #[should_panic(expected = "11 bytes of a piece of 10")]
    fn a_piece_is_not_cut_beyond_its_end() {
        drop(piece(10).split(11));
    }
}
