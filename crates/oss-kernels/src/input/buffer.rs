//! Memory for activations: what this crate allocates for kernels, before any runs.

use super::{Activation, CodeBlock, Input, InputRow, InputRowsMut, MAX_PLANES};

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
    pub codes: [Vec<CodeBlock>; MAX_PLANES],
    /// `[rows, stride / 32]`, or empty: see [`InputRow::squares`].
    pub squares: Vec<f32>,
}

impl InputBuffer {
    /// Zeros, with room for the forms that `activation` and narrower ones need.
    #[must_use]
    pub fn new(rows: usize, cols: usize, activation: Activation) -> Self {
        Self::with_forms(rows, cols, activation, true)
    }

    /// The same without room for numbers where `activation` is codes: for inputs that no matrix of
    /// floating-point weights reads.
    #[must_use]
    pub fn for_codes(rows: usize, cols: usize, activation: Activation) -> Self {
        Self::with_forms(rows, cols, activation, activation.planes() == 0)
    }

    fn with_forms(rows: usize, cols: usize, activation: Activation, numbers: bool) -> Self {
        let stride = cols.next_multiple_of(32);
        let blocks = |plane| if plane < activation.planes() { rows * stride / 32 } else { 0 };
        let columns = if numbers { rows * stride } else { 0 };
        Self {
            stride,
            values: vec![0.0; columns],
            value_sums: vec![0.0; columns / 16],
            codes: std::array::from_fn(|plane| vec![CodeBlock::default(); blocks(plane)]),
            squares: Vec::new(),
        }
    }

    /// The same with room for the sums of squares of rows with gains.
    #[must_use]
    pub fn with_squares(mut self, rows: usize) -> Self {
        self.squares = vec![0.0; rows * self.stride / 32];
        self
    }

    /// Takes the same memory for as many rows of fewer columns; what was in it has no meaning then.
    ///
    /// # Panics
    /// When there are more columns than ever before.
    pub fn set_cols(&mut self, rows: usize, cols: usize) {
        self.stride = cols.next_multiple_of(32);
        let (got, expected) = (rows * self.stride, self.values.len().max(32 * self.codes[0].len()));
        assert!(got <= expected, "{got} numbers in a buffer of {expected}");
    }

    /// All rows.
    #[must_use]
    pub fn view(&self) -> Input<'_> {
        let Self { stride, values, value_sums, codes, .. } = self;
        Input { stride: *stride, values, value_sums, codes: codes.each_ref().map(Vec::as_slice) }
    }

    /// One row, to be written.
    pub fn row(&mut self, row: usize) -> InputRow<'_> {
        let Self { stride, values, value_sums, codes, squares } = self;
        let stride = *stride;
        InputRow {
            values: part(values, row, stride),
            value_sums: part(value_sums, row, stride / 16),
            codes: codes.each_mut().map(|codes| part(codes, row, stride / 32)),
            squares: part(squares, row, stride / 32),
        }
    }

    /// Bytes of all forms.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let numbers = [&self.values, &self.value_sums, &self.squares];
        numbers.into_iter().map(|numbers| size_of_val(numbers.as_slice())).sum::<usize>()
            + self.codes.iter().map(|codes| size_of_val(codes.as_slice())).sum::<usize>()
    }
}

impl InputRowsMut for InputBuffer {
    fn values(&mut self, row: usize) -> &mut [f32] {
        part(&mut self.values, row, self.stride)
    }

    fn value_sums(&mut self, row: usize) -> &mut [f32] {
        part(&mut self.value_sums, row, self.stride / 16)
    }

    fn codes(&mut self, row: usize, plane: usize) -> &mut [CodeBlock] {
        part(&mut self.codes[plane], row, self.stride / 32)
    }

    fn squares(&mut self, row: usize) -> &mut [f32] {
        part(&mut self.squares, row, self.stride / 32)
    }
}

/// Row `row` of what may be empty.
fn part<T>(all: &mut [T], row: usize, len: usize) -> &mut [T] {
    if all.is_empty() { &mut [] } else { &mut all[row * len..][..len] }
}
