//! A packed matrix times rows, as one phase.

use crate::model::Model;
use crate::state::WorkerScratch;
use crate::weights::Fused;
use oss_kernels::{Activation, GROUP_ROWS, Input, Product, expect_soon};
use oss_threads::{Chunks, PerWorker, RowCuts, Team, Tiles};

/// Cuts the input rows of a matrix that all of them meet: what a unit's rows hold stays in a
/// second-level cache while the matrix passes by.
pub(crate) const fn cuts(rows: usize) -> RowCuts<'static> {
    RowCuts::Every { rows, block: 128 }
}

/// What a product is computed with.
pub(crate) struct Call<'a> {
    pub(crate) model: &'a Model,
    pub(crate) team: &'a Team,
    pub(crate) activation: Activation,
    pub(crate) input: Input<'a>,
    /// The rows of the input.
    pub(crate) rows: &'a [u32],
}

/// Where products go.
pub(crate) enum To<'a> {
    /// They take the place of what is there.
    Write(&'a mut [f32]),
    /// They are added to it.
    Add(&'a mut [f32]),
}

impl Call<'_> {
    /// Products with all rows of a matrix, plus the bias where there is one; to
    /// `[rows, matrix rows]`.
    pub(crate) fn project(
        &self,
        matrix: &Fused,
        bias: Option<&[f32]>,
        to: To<'_>,
        scratch: &mut [WorkerScratch],
    ) {
        let (out, adds) = match to {
            To::Write(out) => (out, false),
            To::Add(out) => (out, true),
        };
        let out = &mut out[..self.rows.len() * matrix.rows];
        let cuts = cuts(self.rows.len());
        let unit_rows = matrix.unit_rows(self.rows.len());
        let tiles = Tiles::new(out, matrix.rows, cuts, unit_rows);
        let blocks = tiles.column_blocks();
        let units = cuts.ranges() * blocks;
        self.team.phase(units, (tiles, PerWorker::new(scratch)), |unit, (mut tile, scratch)| {
            let (stored, groups, n) = matrix.unit(unit.index % blocks, unit_rows);
            let rows = &self.rows[tile.row_range()];
            let width = 16 * groups.len();
            let matrix = self.model.weights.matrix(stored);
            let product = Product { matrix, input: self.input, activation: self.activation };
            for row in 0..rows.len() {
                expect_soon(self.model.isa, tile.row_mut(row));
            }
            let sums = scratch.multiply(self.model.isa, product, rows, groups);
            let bias = bias.map(|bias| &bias[tile.columns()]);
            for (row, sums) in sums.chunks_exact_mut(width).enumerate() {
                let sums = &mut sums[..n];
                if let Some(bias) = bias {
                    sums.iter_mut().zip(bias).for_each(|(sum, bias)| *sum += bias);
                }
                let to = tile.row_mut(row);
                if adds {
                    to.iter_mut().zip(sums).for_each(|(to, sum)| *to += *sum);
                } else {
                    to.copy_from_slice(sums);
                }
            }
        });
    }

    /// Computes only the matrix rows `ids`, `out` is `[rows, ids]`.
    pub(crate) fn some_rows(
        &self,
        matrix: &Fused,
        ids: &[u32],
        out: &mut [f32],
        scratch: &mut [WorkerScratch],
    ) {
        let n = ids.len();
        for (input_row, out) in self.rows.iter().zip(out.chunks_exact_mut(n.max(1))) {
            let parts = (Chunks::new(out, 1), PerWorker::new(scratch));
            self.team.phase(n, parts, |unit, (to, scratch)| {
                let row = ids[unit.index] as usize;
                assert!(row < matrix.rows, "row {row} of {}", matrix.rows);
                let (stored, groups, _) = matrix.unit(row / GROUP_ROWS, GROUP_ROWS);
                let weights = self.model.weights.matrix(stored);
                let product =
                    Product { matrix: weights, input: self.input, activation: self.activation };
                let sums = scratch.multiply(self.model.isa, product, &[*input_row], groups);
                to[0] = sums[row % GROUP_ROWS];
            });
        }
    }
}
