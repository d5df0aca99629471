//! An [`InputBuffer`] split among the units of a phase, so that each prepares its own numbers.

use oss_kernels::{CodeBlock, InputBuffer, InputRow, InputRowsMut};
use oss_threads::{RowCuts, Tile, Tiles};

/// Values, their sums, the planes of codes and sums of squares in rectangles, where there are some.
pub(crate) type InputTiles<'a> = (
    Option<Tiles<'a, f32>>,
    Option<Tiles<'a, f32>>,
    Option<Tiles<'a, CodeBlock>>,
    Option<Tiles<'a, CodeBlock>>,
    Option<Tiles<'a, f32>>,
);

/// The rectangle of one unit.
pub(crate) type InputTile<'p> = (
    Option<Tile<'p, f32>>,
    Option<Tile<'p, f32>>,
    Option<Tile<'p, CodeBlock>>,
    Option<Tile<'p, CodeBlock>>,
    Option<Tile<'p, f32>>,
);

/// Splits a buffer into rectangles: rows as they are told, columns every `block`, which is a
/// multiple of 32.
pub(crate) fn tiles<'a>(
    buffer: &'a mut InputBuffer,
    rows: RowCuts<'a>,
    block: usize,
) -> InputTiles<'a> {
    assert!(block.is_multiple_of(32), "blocks of {block} columns, expected a multiple of 32");
    fn split<'a, T>(
        all: &'a mut [T],
        row_len: usize,
        rows: RowCuts<'a>,
        block: usize,
    ) -> Option<Tiles<'a, T>> {
        let used = rows.end() * row_len;
        (!all.is_empty()).then(|| Tiles::new(&mut all[..used], row_len, rows, block))
    }
    let InputBuffer { stride, values, value_sums, codes: [first, second], squares } = buffer;
    let stride = *stride;
    (
        split(values, stride, rows, block),
        split(value_sums, stride / 16, rows, block / 16),
        split(first, stride / 32, rows, block / 32),
        split(second, stride / 32, rows, block / 32),
        split(squares, stride / 32, rows, block / 32),
    )
}

/// The rows of a unit of [`tiles`].
pub(crate) struct TileRows<'t, 'p>(pub(crate) &'t mut InputTile<'p>);

impl TileRows<'_, '_> {
    /// All forms of one of them.
    pub(crate) fn row(&mut self, row: usize) -> InputRow<'_> {
        let (values, value_sums, first, second, squares) = &mut *self.0;
        InputRow {
            values: part(values, row),
            value_sums: part(value_sums, row),
            codes: [part(first, row), part(second, row)],
            squares: part(squares, row),
        }
    }
}

impl InputRowsMut for TileRows<'_, '_> {
    #[inline(always)]
    fn values(&mut self, row: usize) -> &mut [f32] {
        part(&mut self.0.0, row)
    }

    #[inline(always)]
    fn value_sums(&mut self, row: usize) -> &mut [f32] {
        part(&mut self.0.1, row)
    }

    #[inline(always)]
    fn codes(&mut self, row: usize, plane: usize) -> &mut [CodeBlock] {
        part(if plane == 0 { &mut self.0.2 } else { &mut self.0.3 }, row)
    }

    #[inline(always)]
    fn squares(&mut self, row: usize) -> &mut [f32] {
        part(&mut self.0.4, row)
    }
}

/// A row of a form that may be missing.
#[inline(always)]
fn part<'p, T>(tile: &'p mut Option<Tile<'_, T>>, row: usize) -> &'p mut [T] {
    tile.as_mut().map_or_else(Default::default, |tile| tile.row_mut(row))
}
