//! What kernels see of a format: vectors of codes, scales and minima, or columns of floats.

use crate::record::{RUN_BLOCKS, Record, RecordBytes};
use oss_simd::Simd;

/// 32 columns of a group of 16 packed rows, see [`CodeFormat::block`].
#[derive(Clone, Copy, Debug)]
pub struct Block<'a> {
    /// Its codes.
    pub(crate) codes: &'a [u8],
    /// What the scales of its record are made of.
    pub(crate) tail: &'a [u8],
    /// Which block of its record it is.
    pub(crate) index: usize,
}

/// A format of integer codes: `value = scale * (code - zero) - min`.
///
/// Lanes are rows. The functions are `#[inline(always)]` and must end up inside
/// [`Kernel::run`](oss_simd::Kernel::run).
pub trait CodeFormat: 'static {
    /// The largest code, where zero is [`CodeFormat::ZERO`].
    const MAX_CODE: i32;
    /// The code of zero, unless [`CodeFormat::zero`] says otherwise.
    const ZERO: i32;
    /// Whether columns 0..16 and 16..32 of a block have scales (and minima) of their own.
    const HALVES: bool;
    /// Whether a minimum is subtracted.
    const HAS_MIN: bool;
    /// How blocks are gathered with their scales.
    const RECORD: Record;
    /// Bytes of a block in a group, its share of the scales included.
    const BLOCK_BYTES: usize = Self::RECORD.block_bytes();

    /// A block of a group (see [`Packing`](crate::Packing)) whose rows have `n_blocks`. Bounds are
    /// checked here, once for all that is read of the block.
    ///
    /// # Panics
    /// When the block is not in the group.
    #[inline(always)]
    fn block(group: &[u8], n_blocks: usize, block: usize) -> Block<'_> {
        Self::RECORD.block(group, n_blocks, block)
    }

    /// The record of a group whose rows have `n_blocks` that begins with the block `first`.
    ///
    /// # Panics
    /// When it is not in the group.
    #[inline(always)]
    fn record(group: &[u8], n_blocks: usize, first: usize) -> RecordBytes<'_> {
        Self::RECORD.bytes(group, n_blocks, first)
    }

    /// A block of a record, found sooner than in its group.
    ///
    /// # Panics
    /// When the record has fewer blocks.
    #[inline(always)]
    fn block_of(record: RecordBytes<'_>, index: usize) -> Block<'_> {
        Self::RECORD.block_of(record, index)
    }

    /// The [`RUN_BLOCKS`] blocks from `first` on, which begins a record, where
    /// [records make runs](Record::has_runs). Bounds are checked here, once for all.
    ///
    /// # Panics
    /// When they are not all in the group.
    #[inline(always)]
    fn run(group: &[u8], first: usize) -> [Block<'_>; RUN_BLOCKS] {
        Self::RECORD.run(group, first)
    }

    /// The code of zero. 128 where products of bytes are exact ([`Simd::DOT_IS_EXACT`]) and it
    /// costs nothing: then what a sum of products starts with is known of the activations alone.
    #[inline(always)]
    #[must_use]
    fn zero<S: Simd>() -> i32 {
        Self::ZERO
    }

    /// Code vectors `j` (columns `4 j..4 j + 4`) and `4 + j` (columns `16 + 4 j..`), `j` in 0..4:
    /// byte `4 r + b` is the code of row `r`, column `4 j + b`.
    fn pair<S: Simd>(s: S, block: Block<'_>, j: usize) -> (S::U8, S::U8);

    /// The scales of columns 0..16 and of columns 16..32; equal without `HALVES`.
    fn scales<S: Simd>(s: S, block: Block<'_>) -> (S::F32, S::F32);

    /// The minima of columns 0..16 and of columns 16..32; zero without `HAS_MIN`.
    #[inline(always)]
    fn mins<S: Simd>(s: S, _block: Block<'_>) -> (S::F32, S::F32) {
        (s.zero(), s.zero())
    }
}

/// A format of floating-point numbers.
pub trait FloatFormat: 'static {
    /// Whether a group is `[column pair][16 rows][2 columns]` of bf16 numbers, none of them below
    /// 2^-50: each 64 bytes are what [`Simd::bf16_pairs`] takes.
    const IS_BF16: bool = false;

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
