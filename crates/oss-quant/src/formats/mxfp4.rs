//! MXFP4: 32 columns, `value = 2^(e - 127) * e2m1`, in 17 bytes (OCP Microscaling Formats 1.0).
//!
//! ```text
//! 0  e8m0  e
//! 1  [16]  low nibbles: codes of columns 0..16, high nibbles: of columns 16..32
//! ```
//!
//! Published weights keep codes and scales apart ([`plain_block`] joins them): in each 16 bytes,
//! byte `i` holds column `2 i` in its low nibble and column `2 i + 1` in its high one.
//!
//! The codes are doubled, so that they are integers, and the scale is halved: `2^(e - 128)`. Both
//! are exact for every `e`, subnormal scales of `e = 0` and `e = 1` included; nothing is clamped.
//! Minus zero reads as zero. `e = 255` is not a number: rows with it decode to NaN, and packing
//! refuses them.
//!
//! Packed: records of four blocks, 4 x 256 bytes of codes and a 64-byte tail, `[4 blocks][16 rows]`
//! of e8m0 (1,088 bytes, as many as in the file).

use super::f16_scale::both;
use super::{Blocks, ScaleMin, pair_nibbles, paired_nibbles};
use crate::bytes::array;
use crate::dtype::Codec;
use crate::planes::{Codes, Nibbles, Plane};
use crate::record::{Place, Record};
use crate::unpack::{Block, CodeFormat};
use oss_simd::Simd;

pub(crate) enum Mxfp4 {}

pub(crate) const CODEC: Codec = Codec::of_blocks::<Mxfp4>();

/// Twice what the codes stand for, plus 12.
const TABLE: [u8; 16] = [12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0];

/// The same, plus 128.
const TABLE_128: [u8; 16] =
    [128, 129, 130, 131, 132, 134, 136, 140, 128, 127, 126, 125, 124, 122, 120, 116];

/// Bytes of the codes of a block in a separate code plane.
pub(crate) const SPLIT_CODES: usize = 16;

/// The scale byte that is not a number.
const NAN: u8 = 255;

/// The largest scale byte under which every code is a finite `f32`.
const LARGEST_FINITE: u8 = 252;

/// A file block out of a block of separate codes and its scale.
pub(crate) fn plain_block(codes: &[u8; 16], scale: u8) -> [u8; 17] {
    let nibble = |column: usize| codes[column / 2] >> (4 * (column % 2)) & 0xf;
    let mut block = [scale; 17];
    for (column, byte) in block[1..].iter_mut().enumerate() {
        *byte = nibble(column) | nibble(column + 16) << 4;
    }
    block
}

/// `2^(e - 128)`, half of the scale.
fn halved_scale(e: u8) -> f32 {
    match e {
        NAN => f32::NAN,
        // The smallest power that the shift below reaches is 2^-127, for e = 1.
        0 => f32::from_bits(0x0020_0000),
        1 => f32::from_bits(0x0040_0000),
        _ => f32::from_bits(u32::from(e - 1) << 23),
    }
}

/// The nearest e2m1 code, ties to even, for a value that the scale has been divided out of.
fn nearest(x: f32) -> u8 {
    let magnitude = match x.abs() {
        x if x <= 0.25 => 0,
        x if x < 0.75 => 1,
        x if x <= 1.25 => 2,
        x if x < 1.75 => 3,
        x if x <= 2.5 => 4,
        x if x < 3.5 => 5,
        x if x <= 5.0 => 6,
        _ => 7,
    };
    // Minus zero is not written.
    if x < 0.0 && magnitude > 0 { 8 | magnitude } else { magnitude }
}

/// The codes under the scale `e`, and their squared error in units of the scale.
fn encode_with(values: &[f32], e: u8) -> (Codes, f64) {
    let scale = 2.0 * f64::from(halved_scale(e));
    let mut error = 0.0;
    let codes = std::array::from_fn(|column| {
        let x = f64::from(values[column]) / scale;
        let code = nearest(x as f32);
        error += (0.5 * f64::from(Mxfp4::level(code)) - x).powi(2);
        code
    });
    (codes, error * scale * scale)
}

impl Blocks for Mxfp4 {
    const LEN: usize = 32;
    const BYTES: usize = 17;
    const F16_AT: &'static [usize] = &[];
    type Codes = Nibbles;
    type Unpacked = Mxfp4;

    fn codes(block: &[u8], _part: usize) -> Codes {
        paired_nibbles(array(block, 1))
    }

    fn level(code: u8) -> i32 {
        i32::from(TABLE[usize::from(code)]) - 12
    }

    fn scale_min(block: &[u8], _part: usize) -> [ScaleMin; 2] {
        both(halved_scale(block[0]), 0.0)
    }

    /// The better, by squared error, of the scale that leaves the largest value between 4 and 8
    /// (codes end at 6) and of its double.
    fn encode(values: &[f32], block: &mut [u8]) {
        let largest = values.iter().fold(0.0_f32, |m, x| m.max(x.abs()));
        let exponent = if largest == 0.0 { -127 } else { f64::from(largest).log2().floor() as i32 };
        let mut e = (exponent - 2 + 127).clamp(0, i32::from(LARGEST_FINITE)) as u8;
        let (mut codes, error) = encode_with(values, e);
        if e < LARGEST_FINITE {
            let (wider, wider_error) = encode_with(values, e + 1);
            if wider_error < error {
                (e, codes) = (e + 1, wider);
            }
        }
        block[0] = e;
        block[1..].copy_from_slice(&pair_nibbles(&codes));
    }

    fn check(block: &[u8]) -> Result<(), u16> {
        if block[0] == NAN { Err(NAN.into()) } else { Ok(()) }
    }

    fn put_codes(block: &[u8], _part: usize, plane: &mut [u8], lane: usize) {
        Nibbles::put_bytes(array(block, 1), plane, lane);
    }

    fn put_tail(block: &[u8], tail: &mut [u8], place: Place) {
        tail[16 * place.block + place.lane] = block[0];
    }

    fn packed_scale_min(tail: &[u8], place: Place) -> [ScaleMin; 2] {
        both(halved_scale(tail[16 * place.block + place.lane]), 0.0)
    }
}

impl CodeFormat for Mxfp4 {
    const MAX_CODE: i32 = 24;
    const ZERO: i32 = 12;
    const HALVES: bool = false;
    const HAS_MIN: bool = false;
    const RECORD: Record = Record { blocks: 4, code_bytes: Nibbles::BYTES, tail_bytes: 64 };

    #[inline(always)]
    fn zero<S: Simd>() -> i32 {
        if S::DOT_IS_EXACT { 128 } else { Self::ZERO }
    }

    #[inline(always)]
    fn pair<S: Simd>(s: S, block: Block<'_>, j: usize) -> (S::U8, S::U8) {
        let table = if Self::zero::<S>() == 128 { &TABLE_128 } else { &TABLE };
        s.nibble_lut(s.table(table), Nibbles::raw(s, block.codes, j))
    }

    #[inline(always)]
    fn scales<S: Simd>(s: S, block: Block<'_>) -> (S::F32, S::F32) {
        let scale = scales(s, array(block.tail, 16 * block.index));
        (scale, scale)
    }
}

/// `2^(e - 128)` of sixteen rows.
#[inline(always)]
fn scales<S: Simd>(s: S, e: &[u8; 16]) -> S::F32 {
    let shifted = s.shl_i32::<23>(s.load_u8_i32(e));
    // As a number, `e << 23` is 2^(e - 127), but for e = 0: there it must be 2^-127.
    let least = s.splat_i32(0x0040_0000);
    let scale = s.select_gt_i32((shifted, least), shifted, least);
    s.mul(s.i32_as_f32(scale), s.splat(0.5))
}
