//! How products are cut into units of work.

use crate::weights::UNIT_ROWS;
use oss_threads::RowCuts;

/// How the products of a step are cut into units of work. What is best depends on caches and cores;
/// no bit of a result depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tiling {
    /// The most input rows of a unit where a matrix meets all rows of a step: what they hold stays
    /// in a second-level cache while the unit's part of the matrix passes by.
    pub input_rows: usize,
    /// Matrix rows of a unit that many input rows meet; a multiple of 64.
    pub matrix_rows: usize,
    /// The most matrix rows of a unit that few input rows meet; 64 times a power of two.
    pub wide_rows: usize,
}

impl Default for Tiling {
    fn default() -> Self {
        Self::DEFAULT
    }
}

impl Tiling {
    /// What does well without measuring.
    pub const DEFAULT: Self =
        Self { input_rows: 128, matrix_rows: UNIT_ROWS, wide_rows: 4 * UNIT_ROWS };

    /// Whether units can be cut so.
    #[must_use]
    pub const fn is_possible(&self) -> bool {
        self.input_rows > 0
            && self.matrix_rows > 0
            && self.matrix_rows.is_multiple_of(UNIT_ROWS)
            && self.wide_rows.is_multiple_of(UNIT_ROWS)
            && (self.wide_rows / UNIT_ROWS).is_power_of_two()
    }

    /// Cuts the input rows of a matrix that all of them meet.
    pub(crate) const fn cuts(&self, rows: usize) -> RowCuts<'static> {
        RowCuts::Every { rows, block: self.input_rows }
    }
}
