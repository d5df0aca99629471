//! Memory for activations: the one thing of this crate that allocates, before any kernel runs.

use super::{Activation, CodeBlock, Input, InputRow};

/// Memory for an [`Input`], made once by whoever calls the kernels.
#[derive(Clone, Debug)]
pub struct InputBuffer {
    /// Columns of a row.
    pub stride: usize,
    /// See [`Input::values`].
    pub values: Vec<f32>,
    /// See [`Input::value_sums`].
    pub value_sums: Vec<f32>,
    /// See [`Input::codes`].
    pub codes: Vec<CodeBlock>,
    /// Blocks of codes of a row.
    pub row_blocks: usize,
}

impl InputBuffer {
    /// Zeros, with room for the forms that `activation` and narrower ones need.
    #[must_use]
    pub fn new(rows: usize, cols: usize, activation: Activation) -> Self {
        let stride = cols.next_multiple_of(32);
        let row_blocks = activation.planes().max(1) * stride / 32;
        Self {
            stride,
            values: vec![0.0; rows * stride],
            value_sums: vec![0.0; rows * stride / 16],
            codes: vec![CodeBlock::default(); rows * row_blocks],
            row_blocks,
        }
    }

    /// All rows.
    #[must_use]
    pub fn view(&self) -> Input<'_> {
        let Self { stride, values, value_sums, codes, row_blocks } = self;
        Input { stride: *stride, values, value_sums, codes, row_blocks: *row_blocks }
    }

    /// One row, to be written.
    pub fn row(&mut self, row: usize) -> InputRow<'_> {
        let part = |per: usize| row * self.stride / per..(row + 1) * self.stride / per;
        InputRow {
            values: &mut self.values[part(1)],
            value_sums: &mut self.value_sums[part(16)],
            codes: &mut self.codes[row * self.row_blocks..][..self.row_blocks],
        }
    }

    /// Bytes of all forms.
    #[must_use]
    pub fn bytes(&self) -> usize {
        size_of_val(self.values.as_slice())
            + size_of_val(self.value_sums.as_slice())
            + size_of_val(self.codes.as_slice())
    }
}
