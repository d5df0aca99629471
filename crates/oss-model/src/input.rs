//! An [`InputBuffer`] split among the units of a phase, so that each prepares its own numbers.

use oss_kernels::{CodeBlock, InputBuffer, InputRow, MAX_PLANES};
use oss_threads::{Chunks, Tile, Tiles};

/// Values, their sums and the planes of codes, each row by row.
pub(crate) type InputRows<'a> = (
    Chunks<'a, f32>,
    Chunks<'a, f32>,
    Option<Chunks<'a, CodeBlock>>,
    Option<Chunks<'a, CodeBlock>>,
);

/// The same in rectangles.
pub(crate) type InputTiles<'a> =
    (Tiles<'a, f32>, Tiles<'a, f32>, Option<Tiles<'a, CodeBlock>>, Option<Tiles<'a, CodeBlock>>);

type Row<'p> =
    (&'p mut [f32], &'p mut [f32], Option<&'p mut [CodeBlock]>, Option<&'p mut [CodeBlock]>);

/// The rectangle of one unit.
pub(crate) type InputTile<'p> =
    (Tile<'p, f32>, Tile<'p, f32>, Option<Tile<'p, CodeBlock>>, Option<Tile<'p, CodeBlock>>);

/// Splits a buffer by rows.
pub(crate) fn rows(buffer: &mut InputBuffer) -> InputRows<'_> {
    let InputBuffer { stride, values, value_sums, codes } = buffer;
    let [first, second] = used(codes).map(|plane| Some(Chunks::new(plane?, *stride / 32)));
    (Chunks::new(values, *stride), Chunks::new(value_sums, *stride / 16), first, second)
}

/// What a unit of [`rows`] writes.
pub(crate) fn row<'p>((values, value_sums, first, second): Row<'p>) -> InputRow<'p> {
    let codes = [first, second].map(Option::unwrap_or_default);
    InputRow { values, value_sums, codes }
}

/// Splits a buffer into rectangles: rows at `splits`, columns every `block`, which is a multiple
/// of 32.
pub(crate) fn tiles<'a>(
    buffer: &'a mut InputBuffer,
    splits: &'a [usize],
    block: usize,
) -> InputTiles<'a> {
    assert!(block.is_multiple_of(32), "blocks of {block} columns, expected a multiple of 32");
    let InputBuffer { stride, values, value_sums, codes } = buffer;
    let rows = splits.last().copied().unwrap_or(0);
    let cols = |per: usize| rows * *stride / per;
    let [first, second] = used(codes)
        .map(|plane| Some(Tiles::new(&mut plane?[..cols(32)], *stride / 32, splits, block / 32)));
    (
        Tiles::new(&mut values[..cols(1)], *stride, splits, block),
        Tiles::new(&mut value_sums[..cols(16)], *stride / 16, splits, block / 16),
        first,
        second,
    )
}

/// One row of a unit of [`tiles`].
pub(crate) fn tile_row<'p>(tile: &'p mut InputTile<'_>, row: usize) -> InputRow<'p> {
    let (values, value_sums, first, second) = tile;
    let codes = [first, second];
    InputRow {
        values: values.row_mut(row),
        value_sums: value_sums.row_mut(row),
        codes: codes.map(|plane| plane.as_mut().map_or_else(Default::default, |p| p.row_mut(row))),
    }
}

/// The planes that the buffer has.
fn used(codes: &mut [Vec<CodeBlock>; MAX_PLANES]) -> [Option<&mut [CodeBlock]>; MAX_PLANES] {
    codes.each_mut().map(|plane| (!plane.is_empty()).then_some(plane.as_mut_slice()))
}
