//! Rectangles of a row-major matrix.

use std::ops::Range;

use super::raw_slice::RawSlice;
use super::{Partition, Parts};

/// A row-major matrix `[rows, row_len]` that is cut into blocks of columns.
struct Matrix<'a, T> {
    data: RawSlice<'a, T>,
    rows: usize,
    row_len: usize,
    block: usize,
}

impl<'a, T> Matrix<'a, T> {
    fn new(data: &'a mut [T], row_len: usize, block: usize) -> Self {
        assert!(block > 0, "a block must have at least 1 column, got {block}");
        let rows = if data.is_empty() { 0 } else { data.len() / row_len.max(1) };
        assert!(
            rows * row_len == data.len(),
            "{} elements do not form rows of {row_len}",
            data.len()
        );
        Self { data: RawSlice::new(data), rows, row_len, block }
    }

    fn column_blocks(&self) -> usize {
        self.row_len.div_ceil(self.block)
    }

    /// The rectangle of `rows` and one block of columns; both lie inside the matrix.
    fn tile<'p>(&'p self, rows: Range<usize>, column_block: usize) -> Tile<'p, T> {
        let begin = column_block * self.block;
        let columns = begin..self.row_len.min(begin + self.block);
        Tile { data: self.data.reborrow(), row_len: self.row_len, rows, columns }
    }
}

/// A rectangle of a matrix, the part of one unit of [`Tiles`].
///
/// Rows of a tile are not next to each other in memory, so it hands them out one by one.
pub struct Tile<'p, T> {
    /// All of the matrix, of which only the tile's rectangle may be touched.
    data: RawSlice<'p, T>,
    row_len: usize,
    rows: Range<usize>,
    columns: Range<usize>,
}

impl<T> Tile<'_, T> {
    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.rows.len()
    }

    /// Where the tile's rows lie in the matrix.
    pub fn row_range(&self) -> Range<usize> {
        self.rows.clone()
    }

    /// Where the tile's columns lie in the matrix.
    pub fn columns(&self) -> Range<usize> {
        self.columns.clone()
    }

    /// The tile's elements of its row `row`, counted from the tile's first row.
    ///
    /// # Panics
    /// When the tile has no such row.
    pub fn row_mut(&mut self, row: usize) -> &mut [T] {
        assert!(row < self.rows.len(), "row {row} of a tile that has {}", self.rows.len());
        let begin = (self.rows.start + row) * self.row_len + self.columns.start;
        // SAFETY: rows and columns were checked against the matrix by the partition that made this
        // tile, no other tile has these elements, and `&mut self` lends one row at a time.
        #[expect(unsafe_code, reason = "a row of a rectangle is not a slice of the tile")]
        unsafe {
            self.data.part(begin..begin + self.columns.len())
        }
    }
}

/// Where the rows of a matrix are cut into ranges.
#[derive(Clone, Copy, Debug)]
pub enum RowCuts<'a> {
    /// Range `r` is `borders[r]..borders[r + 1]`; borders ascend, and ranges may be empty.
    At(&'a [usize]),
    /// The first so many `rows`, cut every `block`; the last range may be shorter.
    Every {
        /// Rows of all ranges.
        rows: usize,
        /// Rows of a range, at least 1.
        block: usize,
    },
}

impl RowCuts<'_> {
    /// One past the last row of all ranges.
    pub fn end(&self) -> usize {
        match self {
            Self::At(borders) => borders.last().copied().unwrap_or(0),
            Self::Every { rows, .. } => *rows,
        }
    }

    /// Number of ranges.
    pub fn ranges(&self) -> usize {
        match self {
            Self::At(borders) => borders.len().saturating_sub(1),
            Self::Every { rows, block } => rows.div_ceil(*block),
        }
    }

    /// A range of rows.
    ///
    /// # Panics
    /// When there is no such range.
    pub fn range(&self, index: usize) -> Range<usize> {
        match *self {
            Self::At(borders) => borders[index]..borders[index + 1],
            Self::Every { rows, block } => {
                let begin = index * block;
                assert!(begin < rows, "range {index} of {}", self.ranges());
                begin..rows.min(begin + block)
            }
        }
    }
}

/// Unit `r * column_blocks + c` owns row range `r` and column block `c` of a matrix.
pub struct Tiles<'a, T> {
    matrix: Matrix<'a, T>,
    rows: RowCuts<'a>,
}

impl<'a, T> Tiles<'a, T> {
    /// Cuts the row-major matrix `data` `[rows, row_len]` into rectangles: rows as they are told,
    /// columns every `block`.
    ///
    /// # Panics
    /// When a block is 0, `data` is not a whole number of rows, or the borders do not ascend or
    /// pass the last row.
    pub fn new(data: &'a mut [T], row_len: usize, rows: RowCuts<'a>, block: usize) -> Self {
        let matrix = Matrix::new(data, row_len, block);
        match rows {
            RowCuts::At(borders) => {
                for pair in borders.windows(2) {
                    let (got, before) = (pair[1], pair[0]);
                    assert!(before <= got, "row borders must ascend, got {before} before {got}");
                }
            }
            RowCuts::Every { block, .. } => {
                assert!(block > 0, "a block must have at least 1 row, got {block}");
            }
        }
        let (last, there) = (rows.end(), matrix.rows);
        assert!(last <= there, "row ranges end at {last}, but there are {there} rows");
        Self { matrix, rows }
    }

    /// Number of column blocks: unit `u` is row range `u / column_blocks`.
    pub fn column_blocks(&self) -> usize {
        self.matrix.column_blocks()
    }
}

impl<'p, T> Parts<'p> for Tiles<'_, T> {
    type Part = Tile<'p, T>;
}

// SAFETY: the constructor has asserted that row ranges do not overlap, nor do column blocks.
#[expect(unsafe_code, reason = "implements the unsafe trait")]
unsafe impl<T: Send> Partition for Tiles<'_, T> {
    fn units(&self) -> usize {
        self.rows.ranges() * self.matrix.column_blocks()
    }

    unsafe fn part<'p>(&'p self, unit: usize, _worker: usize) -> <Self as Parts<'p>>::Part {
        let blocks = self.matrix.column_blocks();
        self.matrix.tile(self.rows.range(unit / blocks), unit % blocks)
    }
}
