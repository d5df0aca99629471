//! The router, fused into the phase that computes columns of the residual stream: a row's logits
//! are sums over blocks of columns, which are added up in their order once all are there.

use crate::model::Model;
use crate::weights::{PackedMatrix, UNIT_ROWS};
use oss_kernels::{
    Activation, CodeBlock, GainedRows, Input, InputRowsMut, Product, linear_columns,
    prefetch_columns, prepare_with_gain,
};
use oss_quant::GROUP_ROWS;
use oss_threads::Tile;
use std::ops::Range;

/// Columns of the stream whose products with a router are added up before others are added.
pub(crate) const BLOCK: usize = UNIT_ROWS;

/// Rows that are routed together: the router's weights are loaded once for them, and none of their
/// sums waits for another.
const ROUTER_ROWS: usize = 8;

/// Groups of experts whose logits are computed together.
const ROUTER_GROUPS: usize = 2;

/// The numbers of the rows that are routed together.
const ROW_NUMBERS: [u32; ROUTER_ROWS] = [0, 1, 2, 3, 4, 5, 6, 7];

/// A block of columns of the rows that are routed together.
struct RouterInput {
    values: [f32; ROUTER_ROWS * BLOCK],
    value_sums: [f32; ROUTER_ROWS * BLOCK / 16],
}

impl InputRowsMut for RouterInput {
    fn values(&mut self, row: usize) -> &mut [f32] {
        &mut self.values[row * BLOCK..][..BLOCK]
    }
    fn value_sums(&mut self, row: usize) -> &mut [f32] {
        &mut self.value_sums[row * BLOCK / 16..][..BLOCK / 16]
    }
    fn codes(&mut self, _: usize, _: usize) -> &mut [CodeBlock] {
        &mut []
    }
    fn squares(&mut self, _: usize) -> &mut [f32] {
        &mut []
    }
}

/// A layer's router, and the gains that its columns of the stream are multiplied by.
#[derive(Clone, Copy)]
pub(crate) struct Router<'a> {
    pub(crate) model: &'a Model,
    pub(crate) gain: &'a [f32],
    pub(crate) weights: &'a PackedMatrix,
}

impl Router<'_> {
    /// Logits that one block of columns has for a row: those of the experts, and padding.
    pub(crate) fn padded(&self) -> usize {
        self.weights.rows.next_multiple_of(GROUP_ROWS)
    }

    /// Prefetches the columns that [`Self::partial_logits`] will read.
    pub(crate) fn prefetch(&self, columns: Range<usize>) {
        for (_, location) in &self.weights.parts {
            let matrix = self.model.weights.matrix(location);
            prefetch_columns(self.model.isa, matrix, columns.clone());
        }
    }

    /// Leaves what some columns of the stream add to the logits, block by block: `x` is
    /// `[rows, width]` and has them first in each row.
    pub(crate) fn partial_logits(
        &self,
        (x, width): (&[f32], usize),
        columns: Range<usize>,
        logits: &mut Tile<'_, f32>,
    ) {
        let n_rows = x.len() / width;
        for first in (0..n_rows).step_by(ROUTER_ROWS) {
            let rows = first..n_rows.min(first + ROUTER_ROWS);
            let x = &x[rows.start * width..rows.end * width];
            for (index, column) in columns.clone().step_by(BLOCK).enumerate() {
                let block = column..columns.end.min(column + BLOCK);
                let x = &x[column - columns.start..];
                self.block_logits((x, width), block, (index, rows.clone(), logits));
            }
        }
    }

    /// The same of one block, the unit's `index`-th, and of rows that are routed together.
    fn block_logits(
        &self,
        (x, width): (&[f32], usize),
        block: Range<usize>,
        (index, rows, logits): (usize, Range<usize>, &mut Tile<'_, f32>),
    ) {
        let isa = self.model.isa;
        let mut gained = RouterInput { values: [0.0; _], value_sums: [0.0; _] };
        let gain = &self.gain[block.clone()];
        prepare_with_gain(isa, Activation::F32, GainedRows { x, width, gain }, &mut gained);
        let (values, value_sums) = (&gained.values, &gained.value_sums);
        let input = Input { stride: BLOCK, values, value_sums, codes: [&[], &[]] };
        let padded = self.padded();
        let numbers = &ROW_NUMBERS[..rows.len()];
        for (first, location) in &self.weights.parts {
            let matrix = self.model.weights.matrix(location);
            let product = Product { matrix, input, activation: Activation::F32 };
            let all = location.packing.groups();
            for group in (0..all).step_by(ROUTER_GROUPS) {
                let groups = group..all.min(group + ROUTER_GROUPS);
                let len = groups.len() * GROUP_ROWS;
                let mut sums = [0.0; ROUTER_ROWS * ROUTER_GROUPS * GROUP_ROWS];
                let sums = &mut sums[..rows.len() * len];
                linear_columns(isa, product, (numbers, groups), block.clone(), sums);
                let at = padded * index + first + GROUP_ROWS * group;
                for (row, sums) in rows.clone().zip(sums.chunks_exact(len)) {
                    logits.row_mut(row)[at..][..len].copy_from_slice(sums);
                }
            }
        }
    }
}
