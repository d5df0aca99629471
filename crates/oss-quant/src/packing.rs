//! P16: sixteen output rows side by side, so that a vector's lanes are rows.

use crate::bytes::array;
use crate::decode;
use crate::dtype::Dtype;
use crate::error::{Error, Result};
use crate::formats::mxfp4::{SPLIT_CODES, plain_block};
use crate::formats::{Blocks, Floats};
use crate::packed::Packed;
use crate::record::Place;
use oss_simd::Isa;

/// Rows of a group.
pub const GROUP_ROWS: usize = 16;

/// Columns of a block; packed rows are padded with zeros to whole blocks.
pub const BLOCK_COLS: usize = 32;

/// A tensor, or one row of it, as its file holds it.
///
/// The bytes are *not* aligned to the element type: safetensors promises nothing, and a file in
/// memory may start anywhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encoded<'a> {
    /// Elements or blocks, and rows, one after another without gaps.
    Plain(&'a [u8]),
    /// Codes and scales apart, as the published gpt-oss checkpoints hold MXFP4.
    Split {
        /// 16 bytes for each block of 32; byte `i` holds element `2 i` in its low and `2 i + 1` in
        /// its high nibble.
        codes: &'a [u8],
        /// One e8m0 scale for each block.
        scales: &'a [u8],
    },
}

/// The shape and format of a packed matrix.
///
/// Sixteen rows make a group, and a group is contiguous: groups can be packed, mapped and read on
/// their own. Its bytes are drawn in `docs/formats/p16.md`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Packing {
    /// The format.
    pub format: Packed,
    /// Output rows.
    pub rows: usize,
    /// Columns, which are the inputs.
    pub cols: usize,
}

/// A packed matrix.
#[derive(Clone, Copy, Debug)]
pub struct Matrix<'a> {
    /// Its shape and format.
    pub packing: Packing,
    /// Its groups, one after the other: `packing.bytes()` bytes.
    pub bytes: &'a [u8],
}

impl<'a> Matrix<'a> {
    /// A matrix over packed bytes.
    ///
    /// # Errors
    /// [`Error::Bytes`] when they are not `packing.bytes()` long.
    pub fn new(packing: Packing, bytes: &'a [u8]) -> Result<Matrix<'a>> {
        let expected = packing.bytes();
        if bytes.len() != expected {
            return Err(Error::Bytes { what: "the packed matrix", got: bytes.len(), expected });
        }
        Ok(Matrix { packing, bytes })
    }

    /// The bytes of group `g`.
    pub fn group(&self, g: usize) -> &'a [u8] {
        let bytes = self.packing.group_bytes();
        &self.bytes[g * bytes..(g + 1) * bytes]
    }
}

impl Packing {
    /// How a `rows` x `cols` matrix of `dtype` is packed.
    ///
    /// # Errors
    /// [`Error::NotAWeight`]; [`Error::Columns`] when `cols` is not whole file blocks;
    /// [`Error::TooLarge`].
    pub fn for_dtype(dtype: Dtype, rows: usize, cols: usize) -> Result<Packing> {
        let packing = Packing { format: Packed::for_dtype(dtype)?, rows, cols };
        let expected = dtype.block_len();
        if !cols.is_multiple_of(expected) {
            return Err(Error::Columns { dtype, got: cols, expected });
        }
        let bytes = packing.checked_group_bytes().and_then(|b| b.checked_mul(packing.groups()));
        match bytes {
            Some(bytes) if isize::try_from(bytes).is_ok() => Ok(packing),
            _ => Err(Error::TooLarge { dtype, got_rows: rows, got_cols: cols }),
        }
    }

    /// Groups of sixteen rows, the last one padded.
    pub fn groups(&self) -> usize {
        self.rows.div_ceil(GROUP_ROWS)
    }

    /// Blocks of 32 columns in a row, the last one padded.
    pub fn n_blocks(&self) -> usize {
        self.cols.div_ceil(BLOCK_COLS)
    }

    /// Columns of a packed row, padding included: a multiple of 32.
    pub fn padded_cols(&self) -> usize {
        self.n_blocks() * BLOCK_COLS
    }

    /// Bytes of a group: a multiple of 64.
    pub fn group_bytes(&self) -> usize {
        self.checked_group_bytes().expect("for_dtype has checked the size")
    }

    /// Bytes of the matrix.
    pub fn bytes(&self) -> usize {
        self.groups() * self.group_bytes()
    }

    fn checked_group_bytes(&self) -> Option<usize> {
        let n_blocks = self.n_blocks();
        with_format!(self.format,
            B => B::RECORD.group_bytes(n_blocks),
            F => n_blocks.checked_mul(BLOCK_COLS * GROUP_ROWS * F::BYTES))
    }

    /// Packs group `g` out of source rows given by their index in the matrix.
    ///
    /// Rows beyond the matrix are not asked for; they become zeros.
    ///
    /// # Errors
    /// [`Error::Bytes`] when `out` or a source row has the wrong length; [`Error::NotSplit`] for
    /// separate planes of a type other than MXFP4; [`Error::ScaleNotFinite`].
    pub fn pack_group<'a>(
        &self,
        g: usize,
        row: impl Fn(usize) -> Encoded<'a>,
        out: &mut [u8],
    ) -> Result<()> {
        assert!(g < self.groups(), "group {g} of {}", self.groups());
        let expected = self.group_bytes();
        if out.len() != expected {
            return Err(Error::Bytes { what: "the packed group", got: out.len(), expected });
        }
        // Rows beyond the matrix stay like this: in every format zero bytes are worth zero.
        out.fill(0);
        let first = g * GROUP_ROWS;
        let mut rows = [None; GROUP_ROWS];
        for index in first..self.rows.min(first + GROUP_ROWS) {
            rows[index - first] = Some(self.checked(row(index))?);
        }
        with_format!(self.format,
            B => pack_codes::<B>(self, first, &rows, out)?,
            F => pack_floats::<F>(&rows, out));
        Ok(())
    }

    /// The row, if its slices have the lengths of a source row.
    fn checked<'a>(&self, row: Encoded<'a>) -> Result<Encoded<'a>> {
        let lengths = match row {
            Encoded::Plain(bytes) => {
                let dtype = self.format.dtype();
                let expected = self.cols / dtype.block_len() * dtype.block_bytes();
                [("the source row", bytes.len(), expected); 2]
            }
            Encoded::Split { .. } if self.format != Packed::Mxfp4 => {
                return Err(Error::NotSplit { got: self.format.dtype(), expected: Dtype::Mxfp4 });
            }
            Encoded::Split { codes, scales } => {
                let n = self.n_blocks();
                let codes = ("the source row's code plane", codes.len(), n * SPLIT_CODES);
                [codes, ("the source row's scale plane", scales.len(), n)]
            }
        };
        for (what, got, expected) in lengths {
            if got != expected {
                return Err(Error::Bytes { what, got, expected });
            }
        }
        Ok(row)
    }

    /// Decodes one row of the packed matrix: what `dequantise_row` gives for the source row.
    ///
    /// # Panics
    /// When `bytes` is not the matrix, `row` is outside of it, or `out` is not `cols` long.
    pub fn unpack_row(&self, isa: Isa, bytes: &[u8], row: usize, out: &mut [f32]) {
        assert_eq!(bytes.len(), self.bytes(), "bytes of the matrix (left), expected (right)");
        assert!(row < self.rows, "row {row} of {}", self.rows);
        assert_eq!(out.len(), self.cols, "length of the output (left), columns (right)");
        let group = &bytes[row / GROUP_ROWS * self.group_bytes()..][..self.group_bytes()];
        let row = (group, row % GROUP_ROWS);
        with_format!(self.format,
            B => decode::packed_codes::<B>(isa, row, out),
            F => decode::packed_floats::<F>(isa, row, out));
    }
}

/// Packs a group: block after block, so that both sides are walked once.
fn pack_codes<B: Blocks>(
    packing: &Packing,
    first: usize,
    rows: &[Option<Encoded<'_>>; GROUP_ROWS],
    out: &mut [u8],
) -> Result<()> {
    for index in 0..packing.cols / B::LEN {
        for (lane, row) in rows.iter().enumerate() {
            let joined;
            let block = match *row {
                None => break,
                Some(Encoded::Plain(bytes)) => &bytes[index * B::BYTES..][..B::BYTES],
                Some(Encoded::Split { codes, scales }) => {
                    joined = plain_block(array(codes, index * SPLIT_CODES), scales[index]);
                    &joined[..]
                }
            };
            if let Err(got) = B::check(block) {
                return Err(Error::ScaleNotFinite { row: first + lane, block: index, got });
            }
            pack_block::<B>(packing.n_blocks(), index, (block, lane), out);
        }
    }
    Ok(())
}

/// Packs file block `index` of one row.
fn pack_block<B: Blocks>(
    n_blocks: usize,
    index: usize,
    (block, lane): (&[u8], usize),
    out: &mut [u8],
) {
    let parts = B::LEN / BLOCK_COLS;
    let first = index * parts;
    for part in 0..parts {
        let plane = &mut out[B::RECORD.codes_at(first + part)..][..B::RECORD.code_bytes];
        B::put_codes(block, part, plane, lane);
    }
    let tail = &mut out[B::RECORD.tail_at(n_blocks, first)..][..B::RECORD.tail_bytes];
    B::put_tail(block, tail, Place { block: first % B::RECORD.blocks, lane });
}

/// Packs a group, 32 columns at a time, so that both sides are walked once.
fn pack_floats<F: Floats>(rows: &[Option<Encoded<'_>>; GROUP_ROWS], out: &mut [u8]) {
    let tile_bytes = BLOCK_COLS * F::BYTES;
    for (tile, out) in out.chunks_exact_mut(GROUP_ROWS * tile_bytes).enumerate() {
        for (lane, row) in rows.iter().enumerate() {
            // Rows with separate planes have been refused.
            let Some(Encoded::Plain(bytes)) = row else { break };
            let numbers = bytes[tile * tile_bytes..].chunks_exact(F::BYTES).take(BLOCK_COLS);
            for (column, number) in numbers.enumerate() {
                let packed = &mut out[F::offset(lane, column)..][..F::BYTES];
                packed.copy_from_slice(number);
                F::pack(packed);
            }
        }
    }
}

impl Encoded<'_> {
    /// Decodes a source row of `dtype`, as [`Dtype::dequantise_row`] does.
    ///
    /// # Errors
    /// As [`Dtype::dequantise_row`]; [`Error::NotSplit`] for separate planes of a type other than
    /// MXFP4.
    pub fn dequantise(self, isa: Isa, dtype: Dtype, out: &mut [f32]) -> Result<()> {
        let (codes, scales) = match self {
            Encoded::Plain(bytes) => return dtype.dequantise_row(isa, bytes, out),
            Encoded::Split { codes, scales } => (codes, scales),
        };
        if dtype != Dtype::Mxfp4 {
            return Err(Error::NotSplit { got: dtype, expected: Dtype::Mxfp4 });
        }
        let (blocks, rest) = codes.as_chunks::<SPLIT_CODES>();
        if !out.len().is_multiple_of(BLOCK_COLS) {
            return Err(Error::Columns { dtype, got: out.len(), expected: BLOCK_COLS });
        }
        let n_blocks = out.len() / BLOCK_COLS;
        if blocks.len() != n_blocks || !rest.is_empty() {
            let expected = n_blocks * SPLIT_CODES;
            return Err(Error::Bytes { what: "the row's code plane", got: codes.len(), expected });
        }
        if scales.len() != n_blocks {
            let (what, got) = ("the row's scale plane", scales.len());
            return Err(Error::Bytes { what, got, expected: n_blocks });
        }
        for ((codes, &scale), out) in blocks.iter().zip(scales).zip(out.chunks_mut(BLOCK_COLS)) {
            dtype.dequantise_row(isa, &plain_block(codes, scale), out)?;
        }
        Ok(())
    }
}
