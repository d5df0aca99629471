//! A packed matrix times rows, as one phase.

use super::norm::{Next, Normed, NormedTiles};
use super::router;
use crate::model::Model;
use crate::state::WorkerScratch;
use crate::tiling::Tiling;
use crate::weights::Fused;
use oss_kernels::{Activation, Input, Product, expect_soon};
use oss_quant::GROUP_ROWS;
use oss_threads::{PerWorker, Team, Tiles};

/// What a product is computed with.
pub(crate) struct Call<'a> {
    pub(crate) model: &'a Model,
    pub(crate) team: &'a Team,
    pub(crate) tiling: Tiling,
    pub(crate) activation: Activation,
    pub(crate) input: Input<'a>,
    /// What an input row's products are multiplied by, for all rows of the input; nothing for
    /// empty.
    pub(crate) factors: &'a [f32],
    /// The rows of the input that are multiplied.
    pub(crate) rows: &'a [u32],
}

/// Where products go.
pub(crate) enum To<'a> {
    /// They take the place of what is there.
    Write(&'a mut [f32]),
    /// They are added to the residual stream, which is normalised for what comes next.
    Add(&'a mut [f32], &'a mut Normed, Next<'a>),
}

/// Where products go, and in what pieces.
struct Out<'a> {
    numbers: &'a mut [f32],
    unit_rows: usize,
    /// Whether they are added to what is there.
    adds: bool,
    /// What takes the pieces, and where what it leaves goes.
    rider: Option<(Next<'a>, NormedTiles<'a>)>,
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
        let n_rows = self.rows.len();
        let unit_rows = matrix.unit_rows(self.tiling, (n_rows, 1), self.team.threads());
        match to {
            To::Write(numbers) => {
                let out = Out { numbers, unit_rows, adds: false, rider: None };
                self.run((matrix, bias), out, scratch);
            }
            To::Add(x, normed, next) if unit_rows.is_multiple_of(router::BLOCK) => {
                let rider = Some((next, next.tiles(normed, self.tiling.cuts(n_rows), unit_rows)));
                let out = Out { numbers: x, unit_rows, adds: true, rider };
                self.run((matrix, bias), out, scratch);
                next.finish(normed, n_rows);
            }
            // In narrow models, pieces of rows would take longer than whole rows afterwards.
            To::Add(x, normed, next) => {
                let out = Out { numbers: &mut *x, unit_rows, adds: true, rider: None };
                self.run((matrix, bias), out, scratch);
                next.run(self.team, &x[..n_rows * matrix.rows], normed);
            }
        }
    }

    /// The same, in the pieces that `out` says.
    fn run(
        &self,
        (matrix, bias): (&Fused, Option<&[f32]>),
        out: Out<'_>,
        scratch: &mut [WorkerScratch],
    ) {
        let Out { numbers, unit_rows, adds, rider } = out;
        let (next, normed) = rider.unzip();
        let cuts = self.tiling.cuts(self.rows.len());
        let numbers = &mut numbers[..self.rows.len() * matrix.rows];
        let tiles = Tiles::new(numbers, matrix.rows, cuts, unit_rows);
        let blocks = tiles.column_blocks();
        let units = cuts.ranges() * blocks;
        let parts = (tiles, normed, PerWorker::new(scratch));
        self.team.phase(units, parts, |unit, (mut tile, normed, scratch)| {
            let mut rider = next.zip(normed);
            let (stored, groups, n) = matrix.unit(unit.index % blocks, unit_rows);
            let rows = &self.rows[tile.row_range()];
            let width = GROUP_ROWS * groups.len();
            let matrix = self.model.weights.matrix(stored);
            let product = Product { matrix, input: self.input, activation: self.activation };
            for row in 0..rows.len() {
                expect_soon(self.model.isa, tile.row_mut(row));
            }
            if let Some((next, normed)) = &mut rider {
                next.expect(rows.len(), tile.columns(), normed);
            }
            let sums = scratch.multiply(self.model.isa, product, rows, groups);
            let bias = bias.map(|bias| &bias[tile.columns()]);
            for (row, sums) in sums.chunks_exact_mut(width).enumerate() {
                let sums = &mut sums[..n];
                if let Some(factor) = self.factor(rows[row]) {
                    sums.iter_mut().for_each(|sum| *sum *= factor);
                }
                if let Some(bias) = bias {
                    sums.iter_mut().zip(bias).for_each(|(sum, bias)| *sum += bias);
                }
                let to = tile.row_mut(row);
                if adds {
                    sums.iter_mut().zip(&*to).for_each(|(sum, to)| *sum += to);
                }
                to.copy_from_slice(sums);
            }
            if let Some((next, normed)) = &mut rider {
                next.take((sums, width), tile.columns(), normed);
            }
        });
    }

    /// What the products of a row of the input are multiplied by.
    fn factor(&self, row: u32) -> Option<f32> {
        (!self.factors.is_empty()).then(|| self.factors[row as usize])
    }
}
