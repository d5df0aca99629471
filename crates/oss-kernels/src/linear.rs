//! Matrix times rows: `out[t][r] = Σ_k w[r][k] x[t][k]`.
//!
//! One kernel per way of storing weights ([`codes`], [`values`], [`floats`]), generic over
//! format and instruction set; many rows of codes go by way of [`panel`] or [`wide`], many rows
//! of bf16 by way of [`pairs`]. A call computes some groups of 16 output rows for some input
//! rows. The sum over k runs in one fixed order whatever the number of input rows, so that a
//! token's result does not depend on its company.

mod codes;
mod floats;
mod pairs;
mod panel;
mod prefetch;
mod values;
mod wide;

pub use panel::Panel;

use crate::input::{CodeBlock, MAX_PLANES};
use crate::prefetch::{SharedPrefetch, WeightPrefetch};
use crate::{Activation, Input};
use oss_quant::{CodeFormat, FloatFormat, GROUP_ROWS, Matrix, Visitor};
use oss_simd::{Isa, PrefetchPolicy};
use std::marker::PhantomData;
use std::ops::Range;

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
/// rows of the last group give zeros. `panel` is scratch.
///
/// # Panics
/// When a row or group is outside, `out` has another length, or the input lacks the form that
/// the matrix takes.
pub fn linear(
    isa: Isa,
    product: Product<'_>,
    (rows, groups): (&[u32], Range<usize>),
    panel: &mut Panel,
    out: &mut [f32],
) {
    linear_with_prefetch(isa, PrefetchPolicy::detect(), product, (rows, groups), panel, out);
}

/// The same, with weights read as another processor reads them fastest: products do not depend on
/// it.
///
/// # Panics
/// As [`linear`].
pub fn linear_with_prefetch(
    isa: Isa,
    policy: PrefetchPolicy,
    product: Product<'_>,
    (rows, groups): (&[u32], Range<usize>),
    panel: &mut Panel,
    out: &mut [f32],
) {
    let columns = 0..product.matrix.packing.cols;
    let planes = product.activation.planes();
    let gemm = Gemm::new(product, (rows, groups, columns), planes, out);
    Gemm { policy, ..gemm }.run(isa, Some(panel));
}

/// The same for some of the matrix' columns alone, which begin at a multiple of 32: the input has
/// them only. Multiplies numbers, not codes.
///
/// # Panics
/// When a row, group or column is outside, `out` has another length, or the input lacks the form
/// that the matrix takes.
pub fn linear_columns(
    isa: Isa,
    product: Product<'_>,
    (rows, groups): (&[u32], Range<usize>),
    columns: Range<usize>,
    out: &mut [f32],
) {
    let cols = product.matrix.packing.cols;
    assert!(columns.end <= cols, "columns {columns:?} of {cols}");
    assert!(columns.start.is_multiple_of(32), "columns from {}, no multiple of 32", columns.start);
    Gemm::new(product, (rows, groups, columns), 0, out).run(isa, None);
}

struct Call<'a, 'b> {
    isa: Isa,
    gemm: Gemm<'a, 'b>,
    /// Where all columns are multiplied.
    panel: Option<&'b mut Panel>,
}

impl Visitor for Call<'_, '_> {
    type Output = ();

    fn codes<F: CodeFormat>(self) {
        let Call { isa, mut gemm, panel } = self;
        if gemm.planes == 0 {
            isa.run(values::Values::<F>::new(gemm));
        } else if gemm.code_rows() < panel::PANEL_ROWS {
            isa.run(codes::Codes::<F>::new(&mut gemm));
        } else {
            let panel = panel.expect("a panel for rows of codes");
            let call = wide::WideProducts::<F> { gemm, wide: &mut panel.wide, format: PhantomData };
            let Some(mut gemm) = isa.run(call) else { return };
            panel::multiply::<F>(isa, &mut gemm, panel);
        }
    }

    fn floats<F: FloatFormat>(self) {
        let Call { isa, gemm, panel } = self;
        let by_pairs = F::IS_BF16 && gemm.product.activation != Activation::F32;
        let gemm = match panel {
            Some(Panel { factors, .. }) if by_pairs && gemm.rows.len() >= pairs::PAIR_ROWS => {
                let Some(gemm) = isa.run(pairs::Pairs { gemm, factors }) else { return };
                gemm
            }
            _ => gemm,
        };
        isa.run(floats::Floats::<F>::new(gemm));
    }
}

/// The groups and input rows of a call, and where their products go. Where codes are multiplied,
/// each plane of a row is a row of codes, the coarse one before the fine one.
struct Gemm<'a, 'b> {
    product: Product<'a>,
    rows: &'b [u32],
    groups: Range<usize>,
    /// All, but where numbers are multiplied. The input's first is the first of these.
    columns: Range<usize>,
    planes: usize,
    /// How memory is read fastest.
    policy: PrefetchPolicy,
    out: &'b mut [f32],
}

impl<'a, 'b> Gemm<'a, 'b> {
    #[inline(always)]
    fn new(
        product: Product<'a>,
        (rows, groups, columns): (&'b [u32], Range<usize>, Range<usize>),
        planes: usize,
        out: &'b mut [f32],
    ) -> Self {
        let (all, stride) = (product.matrix.packing.groups(), product.input.stride);
        assert!(groups.end <= all, "groups {groups:?} of {all}");
        assert!(stride >= columns.len(), "stride {stride} of {} columns", columns.len());
        let expected = rows.len() * groups.len() * GROUP_ROWS;
        assert_eq!(out.len(), expected, "rows {} × groups {}", rows.len(), groups.len());
        if columns.is_empty() {
            out.fill(0.0);
        }
        Self { product, rows, groups, columns, planes, policy: PrefetchPolicy::detect(), out }
    }

    #[inline(always)]
    fn run(self, isa: Isa, panel: Option<&'b mut Panel>) {
        let format = self.product.matrix.packing.format;
        format.visit(Call { isa, gemm: self, panel });
    }

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

    /// Where the products of G neighbouring groups with the call's `row`-th row go.
    #[inline(always)]
    fn out<const G: usize>(&mut self, group: usize, row: usize) -> &mut [[f32; GROUP_ROWS]; G] {
        let columns = self.groups.len() * GROUP_ROWS;
        let at = row * columns + (group - self.groups.start) * GROUP_ROWS;
        let (groups, _) = self.out[at..][..G * GROUP_ROWS].as_chunks_mut();
        groups.try_into().expect("G groups")
    }
}
