//! What is asked for while groups of weights are multiplied.

use super::{Shared, ask_for_weights};
use oss_quant::CodeFormat;
use oss_simd::{Reading, Simd};

/// What is asked for while a group is read, see [`Source`](super::codes::Source).
pub(super) trait Asking: Copy {
    fn for_rows(self, first: usize, n: usize) -> Self;
    fn ask<S, F, const T: usize, const N: usize>(self, s: S, group: &[u8], block: usize, j: usize)
    where
        S: Simd,
        F: CodeFormat;
}

/// What comes a while after in the same group, or in that after it.
#[derive(Clone, Copy)]
pub(super) struct Onward {
    /// Bytes from the group's first to the end of the matrix.
    pub(super) left: usize,
    /// How memory is read fastest.
    pub(super) reading: Reading,
}

impl Asking for Onward {
    #[inline(always)]
    fn for_rows(self, _: usize, _: usize) -> Self {
        self
    }
    #[inline(always)]
    fn ask<S, F, const T: usize, const N: usize>(self, s: S, group: &[u8], block: usize, j: usize)
    where
        S: Simd,
        F: CodeFormat,
    {
        let Self { left, reading } = self;
        // As many lines as a block touches where its first byte begins one.
        let lines = F::BLOCK_BYTES.div_ceil(64);
        let (from, to) = (j * lines / 4, (j + 1) * lines / 4);
        let bytes = const { T == 1 && F::MAX_CODE >= 128 };
        let ahead = match const { takes_as_long::<S, F>(T) } {
            true => reading.ahead_of_products,
            false if bytes => reading.ahead_of_bytes,
            false => reading.ahead,
        };
        let at = block * F::BLOCK_BYTES + ahead / N;
        // After the end of a group comes the one that is read after those beside it.
        let beside = if at < group.len() { 0 } else { (N - 1) * group.len() };
        // A branch that the compiler moves no products over: it would begin those of a whole block,
        // with more sums than registers hold, and end up at half the speed.
        if at + beside < left {
            let (at, len) = (at + beside + 64 * from, 64 * (to - from));
            // Codes of 8 bits are read 1 to 5 % faster by asking twice, and so are two streams.
            if bytes {
                ask_for_weights::<S, T, 2>(s, group, at, len);
            } else {
                ask_for_weights::<S, T, N>(s, group, at, len);
            }
        }
    }
}

/// Whether so many rows' products of a block take about as long as reading it: Zen 5 with two
/// threads, which reads 10 to 20 bytes in the time of two products of vectors.
const fn takes_as_long<S: Simd, F: CodeFormat>(rows: usize) -> bool {
    S::REGISTERS >= 32 && 50 * rows <= F::BLOCK_BYTES && F::BLOCK_BYTES <= 100 * rows
}

impl Asking for Shared<'_> {
    #[inline(always)]
    fn for_rows(self, first: usize, n: usize) -> Self {
        self.for_rows(first, n)
    }
    #[inline(always)]
    fn ask<S, F, const T: usize, const N: usize>(self, s: S, _: &[u8], block: usize, j: usize)
    where
        S: Simd,
        F: CodeFormat,
    {
        self.ask(s, 4 * block + j);
    }
}
