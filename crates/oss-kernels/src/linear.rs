//! Matrix times rows: `out[t][r] = Σ_k w[r][k] x[t][k]`.
//!
//! One kernel per way of storing weights ([`codes`], [`values`], [`floats`]), generic over format
//! and instruction set. A call computes some groups of 16 output rows for some input rows. The sum
//! over k runs in one fixed order whatever the number of input rows, so that a token's result does
//! not depend on its company.

mod codes;
mod floats;
mod values;

use crate::{Activation, Input};
use oss_quant::{CodeFormat, FloatFormat, Matrix, Visitor};
use oss_simd::Isa;
use std::ops::Range;

/// Output rows in a group of the packed layout.
pub const GROUP_ROWS: usize = 16;

/// One call of [`linear`].
#[derive(Clone, Copy, Debug)]
pub struct Product<'a> {
    /// The weights, `[n, k]`.
    pub matrix: Matrix<'a>,
    /// The activations, `[rows, stride ≥ k]`.
    pub input: Input<'a>,
    /// How they meet.
    pub activation: Activation,
}

/// Multiplies input rows `rows` with the groups `groups` of 16 weight rows each; writes
/// `out[t · 16 groups.len() + r]` for the t-th of `rows` and the r-th of the weight rows. Padding
/// rows of the last group give zeros.
///
/// # Panics
/// When a row or group is outside, or `out` is not `rows.len() × 16 groups.len()`.
pub fn linear(isa: Isa, product: Product<'_>, rows: &[u32], groups: Range<usize>, out: &mut [f32]) {
    let Product { matrix, input, .. } = product;
    let packing = matrix.packing;
    assert!(groups.end <= packing.groups(), "groups {groups:?} of {}", packing.groups());
    assert!(input.stride >= packing.cols, "stride {} of {} columns", input.stride, packing.cols);
    let expected = rows.len() * groups.len() * GROUP_ROWS;
    assert_eq!(out.len(), expected, "rows {} × groups {}", rows.len(), groups.len());
    packing.format.visit(Call { isa, product, rows, groups, out });
}

struct Call<'a, 'b> {
    isa: Isa,
    product: Product<'a>,
    rows: &'b [u32],
    groups: Range<usize>,
    out: &'b mut [f32],
}

impl Visitor for Call<'_, '_> {
    type Output = ();

    fn codes<F: CodeFormat>(self) {
        let Call { isa, product, rows, groups, out } = self;
        if product.activation == Activation::Int8 {
            isa.run(codes::Codes::<F>::new(product, rows, groups, out));
        } else {
            isa.run(values::Values::<F>::new(product, rows, groups, out));
        }
    }

    fn floats<F: FloatFormat>(self) {
        let Call { isa, product, rows, groups, out } = self;
        isa.run(floats::Floats::<F>::new(product, rows, groups, out));
    }
}

/// What the three kernels share: the walk over groups and tiles of input rows.
struct Walk<'a, 'b> {
    product: Product<'a>,
    rows: &'b [u32],
    groups: Range<usize>,
    out: &'b mut [f32],
}

/// Where a tile lies: one group of weight rows, and `n` of the call's input rows from `first`.
#[derive(Clone, Copy)]
struct Place {
    group: usize,
    first: usize,
    n: usize,
}

impl<'a> Walk<'a, '_> {
    fn start(&self) -> Place {
        Place { group: self.groups.start, first: 0, n: 0 }
    }

    /// Goes on to the next tile: 8, 4 or 1 input rows, no more than `widest`. Kernels loop over
    /// this rather than taking a closure: a closure that is not inlined loses the instruction set.
    fn advance(&self, place: &mut Place, widest: usize) -> bool {
        place.first += place.n;
        if place.first >= self.rows.len() {
            (place.group, place.first) = (place.group + 1, 0);
        }
        let left = self.rows.len() - place.first;
        let fits = |n: &usize| *n <= widest && *n <= left;
        place.n = [8, 4, 1].into_iter().find(fits).unwrap_or(0);
        place.n > 0 && place.group < self.groups.end
    }

    /// The weights and the input rows of a tile.
    fn tile(&self, place: Place) -> (&'a [u8], &[u32]) {
        let group_bytes = self.product.matrix.packing.group_bytes();
        let bytes = &self.product.matrix.bytes[place.group * group_bytes..][..group_bytes];
        (bytes, &self.rows[place.first..place.first + place.n])
    }

    /// Where the tile's outputs begin, and how far apart those of two input rows are.
    fn out(&mut self, place: Place) -> (&mut [f32], usize) {
        let columns = self.groups.len() * GROUP_ROWS;
        let column = (place.group - self.groups.start) * GROUP_ROWS;
        (&mut self.out[place.first * columns + column..], columns)
    }
}

/// Stores a tile's vectors: vector t to `out[t · columns..]`.
#[inline(always)]
fn store_tile<S: oss_simd::Simd, const T: usize>(
    s: S,
    tile: [S::F32; T],
    (out, columns): (&mut [f32], usize),
) {
    for (t, v) in tile.into_iter().enumerate() {
        let out = &mut out[t * columns..][..GROUP_ROWS];
        s.store(v, out.try_into().expect("16 outputs"));
    }
}

/// How far ahead weights are asked for, in bytes: the hardware's own streams stop at the end of
/// each page of 4 KiB.
const AHEAD: usize = 3072;

/// Asks for the weights that come [`AHEAD`] of the step'th run of `step_bytes`.
///
/// For single rows only: several tiles of rows walk the same weights, near after the first.
#[inline(always)]
fn prefetch<S: oss_simd::Simd>(s: S, group: &[u8], step: usize, step_bytes: usize) {
    for line in (0..step_bytes).step_by(64) {
        s.prefetch(group, step * step_bytes + line + AHEAD);
    }
}
