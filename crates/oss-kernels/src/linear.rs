//! Matrix times rows: `out[t][r] = Σ_k w[r][k] x[t][k]`.
//!
//! One kernel per way of storing weights ([`codes`], [`values`], [`floats`]), generic over format
//! and instruction set; many rows of codes go by way of [`panel`]. A call computes some groups of
//! 16 output rows for some input rows. The sum over k runs in one fixed order whatever the number
//! of input rows, so that a token's result does not depend on its company.

mod codes;
mod floats;
mod panel;
mod values;

pub use panel::Panel;

use crate::input::{CodeBlock, MAX_PLANES};
use crate::prefetch::{ask, ask_twice};
use crate::{Activation, Input};
use oss_quant::{CodeFormat, FloatFormat, Matrix, Visitor};
use oss_simd::{Isa, Kernel, Simd};
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
/// rows of the last group give zeros. `panel` is scratch, and so is what `out` has beyond the
/// products: room for one set of them for each plane of codes.
///
/// # Panics
/// When a row or group is outside, `out` is not [`out_len`] long, or the input lacks the form that
/// the matrix takes.
pub fn linear(
    isa: Isa,
    product: Product<'_>,
    (rows, groups): (&[u32], Range<usize>),
    panel: &mut Panel,
    out: &mut [f32],
) {
    let Product { matrix, input, activation } = product;
    let packing = matrix.packing;
    assert!(groups.end <= packing.groups(), "groups {groups:?} of {}", packing.groups());
    assert!(input.stride >= packing.cols, "stride {} of {} columns", input.stride, packing.cols);
    let expected = out_len(activation, rows.len(), groups.len());
    assert_eq!(out.len(), expected, "rows {} × groups {}", rows.len(), groups.len());
    let walk = Walk { product, rows, groups, planes: 1, out };
    packing.format.visit(Call { isa, walk, panel });
}

/// The numbers that [`linear`] needs for `rows` input rows and `groups` groups of weight rows.
#[must_use]
pub const fn out_len(activation: Activation, rows: usize, groups: usize) -> usize {
    let planes = if activation.planes() > 1 { activation.planes() } else { 1 };
    planes * rows * groups * GROUP_ROWS
}

struct Call<'a, 'b> {
    isa: Isa,
    walk: Walk<'a, 'b>,
    panel: &'b mut Panel,
}

impl Visitor for Call<'_, '_> {
    type Output = ();

    fn codes<F: CodeFormat>(self) {
        let Call { isa, mut walk, panel } = self;
        let planes = walk.product.activation.planes();
        if planes == 0 {
            return isa.run(values::Values::<F>::new(walk));
        }
        walk.planes = planes;
        if walk.code_rows() < panel::PANEL_ROWS {
            isa.run(codes::Codes::<F>::new(&mut walk));
        } else {
            panel::multiply::<F>(isa, &mut walk, panel);
        }
        if planes > 1 {
            isa.run(AddPlanes(walk));
        }
    }

    fn floats<F: FloatFormat>(self) {
        self.isa.run(floats::Floats::<F>::new(self.walk));
    }
}

/// The groups and input rows of a call, and where their products go. Where codes are multiplied,
/// each plane of a row is a row of its own until the end.
struct Walk<'a, 'b> {
    product: Product<'a>,
    rows: &'b [u32],
    groups: Range<usize>,
    planes: usize,
    out: &'b mut [f32],
}

impl<'a> Walk<'a, '_> {
    /// The bytes of a group.
    fn group(&self, index: usize) -> &'a [u8] {
        self.product.matrix.group(index)
    }

    /// How many rows of codes there are.
    const fn code_rows(&self) -> usize {
        self.rows.len() * self.planes
    }

    /// One of them.
    #[inline(always)]
    fn code_row(&self, index: usize) -> &'a [CodeBlock] {
        // By a constant, where it could be any number: dividing takes time.
        const { assert!(MAX_PLANES == 2) };
        let (row, plane) = if self.planes == 1 { (index, 0) } else { (index / 2, index % 2) };
        self.product.input.plane(self.rows[row] as usize, plane)
    }

    /// Where the products of a group with the call's `row`-th row go.
    #[inline(always)]
    fn out(&mut self, group: usize, row: usize) -> &mut [f32; GROUP_ROWS] {
        let columns = self.groups.len() * GROUP_ROWS;
        let at = row * columns + (group - self.groups.start) * GROUP_ROWS;
        (&mut self.out[at..at + GROUP_ROWS]).try_into().expect("16 outputs")
    }
}

/// Adds the products of each row's planes, the coarse one first.
struct AddPlanes<'a, 'b>(Walk<'a, 'b>);

impl Kernel for AddPlanes<'_, '_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Walk { rows, groups, planes, out, .. } = self.0;
        let (out, _) = out.as_chunks_mut::<GROUP_ROWS>();
        for row in 0..rows.len() {
            for group in 0..groups.len() {
                let first = row * planes * groups.len() + group;
                let mut sum = s.load(&out[first]);
                for plane in 1..planes {
                    sum = s.add(sum, s.load(&out[first + plane * groups.len()]));
                }
                s.store(sum, &mut out[row * groups.len() + group]);
            }
        }
    }
}

/// How far ahead weights are asked for, in bytes of all groups that are read at the same time.
const AHEAD: usize = 4096;
