//! An [`InputBuffer`] split among the units of a phase, so that each prepares its own numbers.

use oss_kernels::{CodeBlock, InputBuffer, InputRow, InputRowsMut};
use oss_threads::{Chunks, RowCuts, Tile, Tiles};

/// Values, their sums and the planes of codes, each row by row, where there are some.
pub(crate) type InputRows<'a> = (
    Option<Chunks<'a, f32>>,
    Option<Chunks<'a, f32>>,
    Option<Chunks<'a, CodeBlock>>,
    Option<Chunks<'a, CodeBlock>>,
);

/// The same in rectangles.
pub(crate) type InputTiles<'a> = (
    Option<Tiles<'a, f32>>,
    Option<Tiles<'a, f32>>,
    Option<Tiles<'a, CodeBlock>>,
    Option<Tiles<'a, CodeBlock>>,
);

type Row<'p> = (
    Option<&'p mut [f32]>,
    Option<&'p mut [f32]>,
    Option<&'p mut [CodeBlock]>,
    Option<&'p mut [CodeBlock]>,
);

/// The rectangle of one unit.
pub(crate) type InputTile<'p> = (
    Option<Tile<'p, f32>>,
    Option<Tile<'p, f32>>,
    Option<Tile<'p, CodeBlock>>,
    Option<Tile<'p, CodeBlock>>,
);

/// Splits a buffer by rows.
pub(crate) fn rows(buffer: &mut InputBuffer) -> InputRows<'_> {
    fn split<T>(all: &mut [T], len: usize) -> Option<Chunks<'_, T>> {
        (!all.is_empty()).then(|| Chunks::new(all, len))
    }
    let InputBuffer { stride, values, value_sums, codes: [first, second] } = buffer;
    let blocks = *stride / 32;
    (
        split(values, *stride),
        split(value_sums, *stride / 16),
        split(first, blocks),
        split(second, blocks),
    )
}

/// What a unit of [`rows`] writes.
pub(crate) fn row<'p>((values, value_sums, first, second): Row<'p>) -> InputRow<'p> {
    InputRow {
        values: values.unwrap_or_default(),
        value_sums: value_sums.unwrap_or_default(),
        codes: [first, second].map(Option::unwrap_or_default),
    }
}

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
    let InputBuffer { stride, values, value_sums, codes: [first, second] } = buffer;
    let stride = *stride;
    (
        split(values, stride, rows, block),
        split(value_sums, stride / 16, rows, block / 16),
        split(first, stride / 32, rows, block / 32),
        split(second, stride / 32, rows, block / 32),
    )
}

/// The rows of a unit of [`tiles`].
pub(crate) struct TileRows<'t, 'p>(pub(crate) &'t mut InputTile<'p>);

impl InputRowsMut for TileRows<'_, '_> {
    #[inline]
    fn row(&mut self, row: usize) -> InputRow<'_> {
        fn part<'p, T>(tile: &'p mut Option<Tile<'_, T>>, row: usize) -> &'p mut [T] {
            tile.as_mut().map_or_else(Default::default, |tile| tile.row_mut(row))
        }
        let (values, value_sums, first, second) = &mut *self.0;
        InputRow {
            values: part(values, row),
            value_sums: part(value_sums, row),
            codes: [part(first, row), part(second, row)],
        }
    }
}
