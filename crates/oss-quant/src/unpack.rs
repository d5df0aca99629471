//! What kernels see of a format: vectors of codes, scales and minima, or columns of floats.

use oss_simd::Simd;

/// A format of integer codes: `value = scale * (code - ZERO) - min`.
///
/// All functions take one group of 16 packed rows (see [`Packing`](crate::Packing)), the number of
/// 32-column blocks in its rows, and the block. Lanes are rows. They are `#[inline(always)]` and
/// must end up inside [`Kernel::run`](oss_simd::Kernel::run).
pub trait CodeFormat: 'static {
    /// The largest code.
    const MAX_CODE: i32;
    /// The code of zero.
    const ZERO: i32;
    /// Whether columns 0..16 and 16..32 of a block have scales (and minima) of their own.
    const HALVES: bool;
    /// Whether a minimum is subtracted.
    const HAS_MIN: bool;
    /// Bytes of a block in a group, its share of the scales included.
    const BLOCK_BYTES: usize;

    /// Code vectors `j` (columns `4 j..4 j + 4`) and `4 + j` (columns `16 + 4 j..`), `j` in 0..4:
    /// byte `4 r + b` is the code of row `r`, column `4 j + b`.
    fn pair<S: Simd>(s: S, group: &[u8], n_blocks: usize, block: usize, j: usize)
    -> (S::U8, S::U8);

    /// The scales of columns 0..16 and of columns 16..32; equal without `HALVES`.
    fn scales<S: Simd>(s: S, group: &[u8], n_blocks: usize, block: usize) -> (S::F32, S::F32);

    /// The minima of columns 0..16 and of columns 16..32; zero without `HAS_MIN`.
    #[inline(always)]
    fn mins<S: Simd>(s: S, _group: &[u8], _n_blocks: usize, _block: usize) -> (S::F32, S::F32) {
        (s.zero(), s.zero())
    }
}

/// A format of floating-point numbers.
pub trait FloatFormat: 'static {
    /// Columns `k` (even) and `k + 1` of one group of 16 packed rows; lanes are rows.
    fn pair<S: Simd>(s: S, group: &[u8], k: usize) -> [S::F32; 2];
}

/// Something to do with a format known at compile time, see
/// [`Packed::visit`](crate::Packed::visit).
pub trait Visitor {
    /// What it returns.
    type Output;
    /// Does it for a format of codes.
    fn codes<F: CodeFormat>(self) -> Self::Output;
    /// Does it for a format of floats.
    fn floats<F: FloatFormat>(self) -> Self::Output;
}
