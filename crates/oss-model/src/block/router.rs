//! The router, asked by whoever has just computed some columns of the stream: what it says of a row
//! is a sum over blocks of columns, which are added up in their order once all are there.

use crate::model::Model;
use crate::weights::{Fused, UNIT_ROWS};
use oss_kernels::{
    Activation, CodeBlock, Input, InputRowsMut, Product, Weighed, expect_columns, linear_columns,
    prepare_weighed,
};
use oss_quant::GROUP_ROWS;
use oss_threads::Tile;
use std::ops::Range;

/// Columns of the stream whose products with a router are added up before others are added.
pub(crate) const BLOCK: usize = UNIT_ROWS;

/// Rows that ask a router together: its weights are loaded once for them, and none of their sums
/// waits for another.
const ASKED_ROWS: usize = 8;

/// Groups of experts whose logits are computed together.
const ASKED_GROUPS: usize = 2;

/// The numbers of the rows that ask.
const ROW_NUMBERS: [u32; ASKED_ROWS] = [0, 1, 2, 3, 4, 5, 6, 7];

/// A block of columns of the rows that ask a router.
struct Asked {
    values: [f32; ASKED_ROWS * BLOCK],
    value_sums: [f32; ASKED_ROWS * BLOCK / 16],
}

impl InputRowsMut for Asked {
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
    pub(crate) weights: &'a Fused,
}

impl Router<'_> {
    /// Logits that one block of columns has for a row: those of the experts, and padding.
    pub(crate) fn padded(&self) -> usize {
        self.weights.rows.next_multiple_of(GROUP_ROWS)
    }

    /// Asks for the columns that [`Self::ask`] will read.
    pub(crate) fn expect(&self, columns: Range<usize>) {
        for (_, stored) in &self.weights.parts {
            let matrix = self.model.weights.matrix(stored);
            expect_columns(self.model.isa, matrix, columns.clone());
        }
    }

    /// Leaves what some columns of the stream add to the logits, block by block: `x` is
    /// `[rows, width]` and has them first in each row.
    pub(crate) fn ask(
        &self,
        (x, width): (&[f32], usize),
        columns: Range<usize>,
        logits: &mut Tile<'_, f32>,
    ) {
        let n_rows = x.len() / width;
        for first in (0..n_rows).step_by(ASKED_ROWS) {
            let rows = first..n_rows.min(first + ASKED_ROWS);
            let x = &x[rows.start * width..rows.end * width];
            for (index, column) in columns.clone().step_by(BLOCK).enumerate() {
                let block = column..columns.end.min(column + BLOCK);
                let x = &x[column - columns.start..];
                self.ask_block((x, width), block, (index, rows.clone(), logits));
            }
        }
    }

    /// The same of one block, the unit's `index`-th, and so many rows as ask together.
    fn ask_block(
        &self,
        (x, width): (&[f32], usize),
        block: Range<usize>,
        (index, rows, logits): (usize, Range<usize>, &mut Tile<'_, f32>),
    ) {
        let isa = self.model.isa;
        let mut asked = Asked { values: [0.0; _], value_sums: [0.0; _] };
        let gain = &self.gain[block.clone()];
        prepare_weighed(isa, Activation::F32, Weighed { x, width, gain }, &mut asked);
        let (values, value_sums) = (&asked.values, &asked.value_sums);
        let input = Input { stride: BLOCK, values, value_sums, codes: [&[], &[]] };
        let padded = self.padded();
        let numbers = &ROW_NUMBERS[..rows.len()];
        for (first, stored) in &self.weights.parts {
            let matrix = self.model.weights.matrix(stored);
            let product = Product { matrix, input, activation: Activation::F32 };
            let all = stored.packing.groups();
            for group in (0..all).step_by(ASKED_GROUPS) {
                let groups = group..all.min(group + ASKED_GROUPS);
                let len = groups.len() * GROUP_ROWS;
                let mut sums = [0.0; ASKED_ROWS * ASKED_GROUPS * GROUP_ROWS];
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
