//! Asking for memory before it is needed.

use crate::{CodeBlock, InputRowsMut, MAX_PLANES};
use oss_quant::Matrix;
use oss_simd::{Isa, Kernel, Simd};
use std::ops::Range;

/// Asks for numbers that will be read or written a while later: lines that others wrote last are
/// far away, and writing waits for one after the other.
pub fn expect_soon(isa: Isa, numbers: &[f32]) {
    isa.run(Expect { bytes: bytemuck::cast_slice(numbers), len: size_of_val(numbers) });
}

/// Asks for the codes of `n` rows that will be written a while later.
pub fn expect_rows(isa: Isa, rows: &mut impl InputRowsMut, n: usize) {
    for row in 0..n {
        for plane in 0..MAX_PLANES {
            let blocks = rows.codes(row, plane);
            let len = size_of_val(blocks);
            if let Some(CodeBlock { codes, .. }) = blocks.first() {
                isa.run(Expect { bytes: bytemuck::cast_slice(codes), len });
            }
        }
    }
}

/// Asks for some columns of a matrix, in all of its rows.
pub fn expect_columns(isa: Isa, matrix: Matrix<'_>, columns: Range<usize>) {
    for group in 0..matrix.packing.groups() {
        let group = matrix.group(group);
        // Columns lie one after the other, but for what blocks of codes have beside them.
        let at = |column: usize| column * group.len() / matrix.packing.cols;
        let bytes = &group[at(columns.start)..];
        isa.run(Expect { bytes, len: at(columns.end) - at(columns.start) });
    }
}

/// `len` bytes from the first of `bytes` on.
struct Expect<'a> {
    bytes: &'a [u8],
    len: usize,
}

impl Kernel for Expect<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        // Up to the line in which the last byte lies, wherever lines begin.
        ask(s, self.bytes, 0, self.len + 63);
    }
}

/// Asks for the lines of `len` bytes from `at` on.
#[inline(always)]
pub(crate) fn ask<S: Simd>(s: S, bytes: &[u8], at: usize, len: usize) {
    for line in (0..len).step_by(64) {
        s.prefetch(bytes, at + line);
    }
}

/// The same for weights that ROWS rows meet, each line so many times. A single row reads them once,
/// and in a second-level cache they would take the place of what the next phase needs, its code
/// first; several rows may come back to them.
#[inline(always)]
pub(crate) fn ask_for_weights<S: Simd, const ROWS: usize, const TIMES: usize>(
    s: S,
    bytes: &[u8],
    at: usize,
    len: usize,
) {
    let ask = |line| match const { ROWS == 1 } {
        true => s.prefetch_once(bytes, at + line),
        false => s.prefetch(bytes, at + line),
    };
    // From 0, so that the compiler sees how many lines there are.
    for line in (0..len).step_by(64) {
        ask(line);
        if const { TIMES > 1 } {
            ask(line);
        }
    }
}

/// What comes next. The tiles of some rows ask for it together while they meet something else,
/// each for its rows' share, evenly.
#[derive(Clone, Copy)]
pub(crate) struct Shared<'a> {
    bytes: &'a [u8],
    /// Bytes that a row asks for, in all and at a time.
    row: (usize, usize),
    /// Where a tile begins, and how much it asks for at a time.
    tile: (usize, usize),
}

impl<'a> Shared<'a> {
    /// For so many rows, each of which asks so many times.
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

    /// Asks for the i-th time.
    #[inline(always)]
    pub(crate) fn ask<S: Simd>(self, s: S, i: usize) {
        s.prefetch(self.bytes, self.tile.0 + i * self.tile.1);
    }
}
