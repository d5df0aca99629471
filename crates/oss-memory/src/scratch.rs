//! Working memory that is sized once and handed out in pieces.
//!
//! ```
//! use oss_memory::{Pages, Scratch, ScratchSize};
//!
//! let size = ScratchSize::new().with::<f32>(2880).with::<i8>(2880);
//! let mut scratch = Scratch::new(size, Pages::Default)?;
//! let mut frame = scratch.frame();
//! let (hidden, codes) = (frame.take::<f32>(2880), frame.take::<i8>(2880));
//! hidden[0] = 1.0;
//! codes[0] = 127;
//! # Ok::<(), oss_memory::Error>(())
//! ```

use bytemuck::Pod;

use crate::{Buffer, Pages, Result};

/// Every piece begins at a multiple of so many bytes: a cache line, and the widest vector.
const ALIGNMENT: usize = 64;

/// Adds up what a [`Scratch`] must hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ScratchSize {
    bytes: usize,
}

impl ScratchSize {
    /// Nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Room for one more piece of `len` elements.
    ///
    /// # Panics
    /// When the sum passes the address space.
    #[must_use]
    pub fn with<T: Pod>(self, len: usize) -> Self {
        let bytes = len.checked_mul(size_of::<T>()).and_then(padded);
        let sum = bytes.and_then(|bytes| self.bytes.checked_add(bytes));
        let Some(bytes) = sum else {
            panic!("{len} elements of {} bytes pass the address space", size_of::<T>())
        };
        Self { bytes }
    }

    /// The larger of two sizes, for frames that are not alive at the same time.
    #[must_use]
    pub fn max(self, other: Self) -> Self {
        Self { bytes: self.bytes.max(other.bytes) }
    }

    /// The sum in bytes.
    pub fn bytes(self) -> usize {
        self.bytes
    }
}

fn padded(bytes: usize) -> Option<usize> {
    bytes.checked_next_multiple_of(ALIGNMENT)
}

/// Working memory, sized once.
#[derive(Debug)]
pub struct Scratch {
    buffer: Buffer,
}

impl Scratch {
    /// Memory for pieces that add up to `size`.
    ///
    /// # Errors
    /// When the system has not that much address space.
    pub fn new(size: ScratchSize, pages: Pages) -> Result<Self> {
        Ok(Self { buffer: Buffer::new(size.bytes, pages)? })
    }

    /// Bytes in all.
    pub fn bytes(&self) -> usize {
        self.buffer.len()
    }

    /// Begins to hand out pieces, from the front. The pieces of an earlier frame are gone.
    pub fn frame(&mut self) -> Frame<'_> {
        Frame { rest: &mut self.buffer }
    }
}

/// Hands out disjoint pieces of a [`Scratch`].
#[derive(Debug)]
pub struct Frame<'a> {
    rest: &'a mut [u8],
}

impl<'a> Frame<'a> {
    /// The next `len` elements, beginning at a multiple of 64 bytes. They hold what an earlier
    /// frame left there.
    ///
    /// # Panics
    /// When the scratch is used up.
    pub fn take<T: Pod>(&mut self, len: usize) -> &'a mut [T] {
        let bytes = len.checked_mul(size_of::<T>());
        let room = self.rest.len();
        let Some((bytes, padded)) = bytes.zip(bytes.and_then(padded)).filter(|both| both.1 <= room)
        else {
            panic!("{len} elements of {} bytes, expected at most {room} bytes", size_of::<T>())
        };
        let (piece, rest) = std::mem::take(&mut self.rest).split_at_mut(padded);
        self.rest = rest;
        bytemuck::cast_slice_mut(&mut piece[..bytes])
    }

    /// A frame of what is left; when it ends, its pieces can be handed out again.
    pub fn inner(&mut self) -> Frame<'_> {
        Frame { rest: self.rest }
    }

    /// Bytes that are left.
    pub fn room(&self) -> usize {
        self.rest.len()
    }
}

#[cfg(test)]
mod tests {
    use super::{Pages, Scratch, ScratchSize};

    #[test]
    fn pieces_are_aligned_disjoint_and_exactly_what_was_sized() {
        let size = ScratchSize::new().with::<u8>(1).with::<f32>(100).with::<u64>(0).with::<u8>(65);
        assert_eq!(size.bytes(), 64 + 448 + 128);
        let mut scratch = Scratch::new(size, Pages::Default).expect("memory");
        let mut frame = scratch.frame();
        let (first, second) = (frame.take::<u8>(1), frame.take::<f32>(100));
        first.fill(1);
        second.fill(2.0);
        assert!(frame.take::<u64>(0).is_empty());
        {
            let mut inner = frame.inner();
            inner.take::<u8>(65).fill(3);
            assert_eq!(inner.room(), 0);
        }
        let third = frame.take::<u8>(65);
        assert!(
            third.as_ptr().addr().is_multiple_of(64) && second.as_ptr().addr().is_multiple_of(64)
        );
        assert_eq!((first[0], second[99], third[64]), (1, 2.0, 3));
    }

    #[test]
    #[should_panic(expected = "17 elements of 4 bytes, expected at most 64 bytes")]
    fn taking_more_than_was_sized_panics() {
        let mut scratch = Scratch::new(ScratchSize::new().with::<f32>(16), Pages::Default);
        scratch.as_mut().expect("memory").frame().take::<f32>(17);
    }
}
