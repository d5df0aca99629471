//! A packed matrix times rows, as one phase.

use crate::model::Model;
use crate::state::WorkerScratch;
use crate::weights::Fused;
use oss_kernels::{Activation, Input, Product};
use oss_threads::{Chunks, Columns, PerWorker, Team};
use std::ops::Range;

/// What a product is computed with.
pub(crate) struct Call<'a> {
    pub(crate) model: &'a Model,
    pub(crate) team: &'a Team,
    pub(crate) activation: Activation,
    pub(crate) input: Input<'a>,
    /// The rows of the input.
    pub(crate) rows: &'a [u32],
}

impl Call<'_> {
    /// `out = products + bias`, where there is a bias; `out` is `[rows, matrix rows]`.
    pub(crate) fn write(
        &self,
        matrix: &Fused,
        bias: Option<&[f32]>,
        out: &mut [f32],
        scratch: &mut [WorkerScratch],
    ) {
        self.project(matrix, out, scratch, |to, sums, columns| match bias {
            None => to.copy_from_slice(sums),
            Some(bias) => {
                for ((to, sum), bias) in to.iter_mut().zip(sums).zip(&bias[columns]) {
                    *to = sum + bias;
                }
            }
        });
    }

    /// `out += products + bias`, where there is a bias; `out` is `[rows, matrix rows]`.
    pub(crate) fn add(
        &self,
        matrix: &Fused,
        bias: Option<&[f32]>,
        out: &mut [f32],
        scratch: &mut [WorkerScratch],
    ) {
        self.project(matrix, out, scratch, |to, sums, columns| match bias {
            None => to.iter_mut().zip(sums).for_each(|(to, sum)| *to += sum),
            Some(bias) => {
                for ((to, sum), bias) in to.iter_mut().zip(sums).zip(&bias[columns]) {
                    *to += sum + bias;
                }
            }
        });
    }

    /// Computes all columns of `out` (`[rows, matrix rows]`): `finish(to, sums, columns)` gets the
    /// products of one row and a range of columns, and the place in `out` where they belong.
    fn project(
        &self,
        matrix: &Fused,
        out: &mut [f32],
        scratch: &mut [WorkerScratch],
        finish: impl Fn(&mut [f32], &[f32], Range<usize>) + Sync,
    ) {
        let out = &mut out[..self.rows.len() * matrix.rows];
        let out = (Columns::new(out, matrix.rows, matrix.unit_rows), PerWorker::new(scratch));
        self.team.phase(matrix.units(), out, |unit, (mut tile, scratch)| {
            let (stored, groups, n) = matrix.unit(unit.index);
            let width = 16 * groups.len();
            let matrix = self.model.weights.matrix(stored);
            let product = Product { matrix, input: self.input, activation: self.activation };
            let sums = scratch.multiply(self.model.isa, product, self.rows, groups);
            let columns = tile.columns();
            for (row, sums) in sums.chunks_exact(width).enumerate() {
                finish(tile.row_mut(row), &sums[..n], columns.clone());
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
                let (stored, groups, _) = matrix.unit(row / matrix.unit_rows);
                let lane = row % matrix.unit_rows;
                let group = groups.start + lane / 16;
                let weights = self.model.weights.matrix(stored);
                let product =
                    Product { matrix: weights, input: self.input, activation: self.activation };
                let groups = group..group + 1;
                let sums = scratch.multiply(self.model.isa, product, &[*input_row], groups);
                to[0] = sums[lane % 16];
            });
        }
    }
}
