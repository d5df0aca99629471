//! Software prefetch.

use crate::{CodeBlock, InputRowsMut, MAX_PLANES};
use oss_quant::Matrix;
use oss_simd::{CacheLevel, Isa, Kernel, PrefetchPolicy, Simd};
use std::hint::cold_path;
use std::ops::Range;

/// Prefetches numbers that will be read or written a while later: cache lines that another core
/// wrote last take long to arrive, and stores wait for one after the other.
pub fn prefetch_f32(isa: Isa, numbers: &[f32]) {
    isa.run(Prefetch { bytes: bytemuck::cast_slice(numbers), len: size_of_val(numbers) });
}

/// Prefetches the codes of `n` rows that will be written a while later.
pub fn prefetch_rows(isa: Isa, rows: &mut impl InputRowsMut, n: usize) {
    for row in 0..n {
        for plane in 0..MAX_PLANES {
            let blocks = rows.codes(row, plane);
            let len = size_of_val(blocks);
            if let Some(CodeBlock { codes, .. }) = blocks.first() {
                isa.run(Prefetch { bytes: bytemuck::cast_slice(codes), len });
            }
        }
    }
}

/// Prefetches some columns of a matrix, in all of its rows.
pub fn prefetch_columns(isa: Isa, matrix: Matrix<'_>, columns: Range<usize>) {
    for group in 0..matrix.packing.groups() {
        let group = matrix.group(group);
        // Columns lie one after the other, but for what blocks of codes have beside them.
        let at = |column: usize| column * group.len() / matrix.packing.cols;
        let bytes = &group[at(columns.start)..];
        isa.run(Prefetch { bytes, len: at(columns.end) - at(columns.start) });
    }
}

/// `len` bytes from the first of `bytes` on.
struct Prefetch<'a> {
    bytes: &'a [u8],
    len: usize,
}

impl Kernel for Prefetch<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        // Up to the line in which the last byte lies, wherever lines begin.
        prefetch(s, self.bytes, 0, self.len + 63);
    }
}

/// Prefetches the lines of `len` bytes from `at` on.
#[inline(always)]
pub(crate) fn prefetch<S: Simd>(s: S, bytes: &[u8], at: usize, len: usize) {
    for line in (0..len).step_by(64) {
        s.prefetch(bytes, at + line);
    }
}

/// The same to one of the caches.
#[inline(always)]
pub(crate) fn prefetch_to<S: Simd>(s: S, level: CacheLevel, bytes: &[u8], at: usize, len: usize) {
    if level == CacheLevel::First {
        prefetch(s, bytes, at, len);
    } else {
        // Out of the way, as in `WeightPrefetch::prefetch`.
        cold_path();
        for line in (0..len).step_by(64) {
            s.prefetch_second(bytes, at + line);
        }
    }
}

/// How weights are prefetched: up to which byte to the first-level cache, and up to which to the
/// second-level one. One of the two is 0.
#[derive(Clone, Copy)]
pub(crate) struct WeightPrefetch {
    first: usize,
    second: usize,
    /// Bytes between the times that a line is prefetched to the second-level cache, by how often it
    /// is prefetched again.
    steps: [usize; 3],
}

impl WeightPrefetch {
    /// Up to `end`.
    #[inline(always)]
    pub(crate) fn new(policy: PrefetchPolicy, end: usize) -> Self {
        let (first, second) = match policy.level {
            CacheLevel::First => (end, 0),
            CacheLevel::Second => (0, end),
        };
        let steps = [1, 2, 3].map(|times| policy.distance / times);
        Self { first, second, steps }
    }

    /// Prefetches the lines of some bytes after `at` of weights that ROWS rows meet, to the
    /// first-level cache each line so many times; none where `at` is beyond the end. A single row
    /// reads weights once, and in a second-level cache they would take the place of what the next
    /// phase needs, its code first; several rows may come back to them. To the second-level cache
    /// each line is prefetched once, and `again` so many times at even distances where memory
    /// bounds the products: some prefetches seem to be dropped while too many lines are on their
    /// way.
    #[inline(always)]
    pub(crate) fn prefetch<S: Simd, const ROWS: usize, const TIMES: usize>(
        self,
        s: S,
        bytes: &[u8],
        at: usize,
        after: Range<usize>,
        again: usize,
    ) {
        if at < self.first {
            each_line::<TIMES>(at, after, |line| match const { ROWS == 1 } {
                true => s.prefetch_once(bytes, line),
                false => s.prefetch(bytes, line),
            });
        } else {
            // Out of the way, so that the above jumps over nothing: branches that are taken cost
            // more than what they save where a block takes a few nanoseconds.
            cold_path();
            if at < self.second {
                for n in 0..=again {
                    let at = at.wrapping_sub(n * self.steps[again]);
                    each_line::<1>(at, after.clone(), |line| s.prefetch_second(bytes, line));
                }
            }
        }
    }
}

/// Calls with each line of some bytes after `at`, so many times.
#[inline(always)]
fn each_line<const TIMES: usize>(at: usize, after: Range<usize>, prefetch: impl Fn(usize)) {
    // From 0, so that the compiler sees how many lines there are.
    for line in (0..after.len()).step_by(64) {
        prefetch(at + after.start + line);
        if const { TIMES > 1 } {
            prefetch(at + after.start + line);
        }
    }
}

/// What comes next. The tiles of some rows prefetch it together while they meet something else,
/// each its rows' share, evenly.
#[derive(Clone, Copy)]
pub(crate) struct SharedPrefetch<'a> {
    bytes: &'a [u8],
    /// Bytes that a row prefetches, in all and at a time.
    row: (usize, usize),
    /// Where a tile begins, and how much it prefetches at a time.
    tile: (usize, usize),
}

impl<'a> SharedPrefetch<'a> {
    /// For so many rows, each of which prefetches so many times.
    #[inline(always)]
    pub(crate) fn new(bytes: &'a [u8], rows: usize, times: usize) -> Self {
        let share = bytes.len().div_ceil(rows);
        Self { bytes, row: (share, share.div_ceil(times)), tile: (0, 0) }
    }

    /// For the tile of the `n` rows from `first` on.
    #[inline(always)]
    pub(crate) fn for_rows(self, first: usize, n: usize) -> Self {
        Self { tile: (first * self.row.0, n * self.row.1), ..self }
    }

    /// Prefetches for the i-th time.
    #[inline(always)]
    pub(crate) fn prefetch<S: Simd>(self, s: S, i: usize) {
        s.prefetch(self.bytes, self.tile.0 + i * self.tile.1);
    }
}
