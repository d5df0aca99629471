//! A packed matrix times rows, as one phase.

use super::norm::{NextNorm, Normed};
use crate::model::Model;
use crate::state::WorkerScratch;
use crate::tiling::Tiling;
use crate::weights::{FINE_ROWS, PackedMatrix};
use oss_kernels::{Activation, Input, Product, prefetch_f32};
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
    Add(&'a mut [f32], &'a mut Normed, NextNorm<'a>),
}

impl Call<'_> {
    /// Products with all rows of a matrix, plus the bias where there is one; to
    /// `[rows, matrix rows]`.
    pub(crate) fn project(
        &self,
        matrix: &PackedMatrix,
        bias: Option<&[f32]>,
        to: To<'_>,
        scratch: &mut [WorkerScratch],
    ) {
        let (numbers, mut stream) = match to {
            To::Write(numbers) => (numbers, None),
            To::Add(x, normed, next) => (x, Some((normed, next))),
        };
        let (n_rows, adds) = (self.rows.len(), stream.is_some());
        let least = stream.as_ref().map_or(FINE_ROWS, |(_, next)| next.block());
        let unit_rows = matrix.unit_rows(self.tiling, (n_rows, 1), (self.team.threads(), least));
        // In narrow models, pieces of rows would take longer than whole rows afterwards.
        let fused = unit_rows.is_multiple_of(least);
        let cuts = self.tiling.cuts(n_rows);
        let (next, normed) = match &mut stream {
            Some((normed, next)) if fused => {
                (Some(*next), Some(next.tiles(normed, cuts, unit_rows)))
            }
            _ => (None, None),
        };
        let numbers = &mut numbers[..n_rows * matrix.rows];
        let tiles = Tiles::new(&mut *numbers, matrix.rows, cuts, unit_rows);
        let blocks = tiles.column_blocks();
        let units = cuts.ranges() * blocks;
        let parts = (tiles, normed, PerWorker::new(scratch));
        self.team.phase(units, parts, |unit, (mut tile, normed, scratch)| {
            let mut next = next.zip(normed);
            let (location, groups, n) = matrix.unit(unit.index % blocks, unit_rows);
            let rows = &self.rows[tile.row_range()];
            let width = GROUP_ROWS * groups.len();
            let matrix = self.model.weights.matrix(location);
            let product = Product { matrix, input: self.input, activation: self.activation };
            for row in 0..rows.len() {
                prefetch_f32(self.model.isa, tile.row_mut(row));
            }
            if let Some((next, normed)) = &mut next {
                next.prefetch(rows.len(), tile.columns(), normed);
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
            if let Some((next, normed)) = &mut next {
                next.emit((sums, width), tile.columns(), normed);
            }
        });
        match stream {
            Some((normed, next)) if fused => next.finish(normed, n_rows),
            Some((normed, next)) => next.run(self.team, numbers, normed),
            None => {}
        }
    }

    /// What the products of a row of the input are multiplied by.
    fn factor(&self, row: u32) -> Option<f32> {
        (!self.factors.is_empty()).then(|| self.factors[row as usize])
    }
}
