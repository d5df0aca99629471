//! Q2_K: 256 columns in halves of 16, `value = d * scale * code - dmin * min`, in 84 bytes.
//!
//! ```text
//! 0    [16]     low nibble: scale of the half, high nibble: its minimum
//! 16   [2][32]  bits 2 t and 2 t + 1 of byte l: code of column 128 i + 32 t + l
//! 80   f16      d
//! 82   f16      dmin
//! ```
//!
//! Packed: records of eight blocks, 8 x 128 bytes of codes and a 320-byte tail: [16 halves][16
//! rows] bytes of scale and minimum as in the file, then d and dmin (1,344 bytes, as many as in the
//! file).

use super::k_scale::{UNITS, put_unit, record, unit, unit_for};
use super::{Blocks, ScaleMin, f16_scale, fit};
use crate::bytes::array;
use crate::dtype::Codec;
use crate::planes::{Codes, Pairs, Plane};
use crate::record::{Place, Record};
use crate::unpack::{Block, CodeFormat};
use oss_simd::Simd;

pub(crate) enum Q2K {}

pub(crate) const CODEC: Codec = Codec::of_blocks::<Q2K>();

fn scale_min(d: f32, dmin: f32, both: u8) -> ScaleMin {
    ScaleMin { scale: d * f32::from(both & 0xf), min: dmin * f32::from(both >> 4) }
}

/// The nibbles of sixteen rows, times their unit.
#[inline(always)]
fn scaled<S: Simd>(s: S, tail: &[u8], half: usize, which: usize) -> S::F32 {
    let both = s.load_u8_i32(array(tail, 16 * half));
    let nibble = if which == 0 { s.and_i32(both, s.splat_i32(15)) } else { s.shr_i32::<4>(both) };
    let unit = f16_scale::load_half(s, tail, UNITS + 32 * which);
    s.mul(unit, s.i32_to_f32(nibble))
}

impl Blocks for Q2K {
    const LEN: usize = 256;
    const BYTES: usize = 84;
    const F16_AT: &'static [usize] = &[80, 82];
    type Codes = Pairs;
    type Unpacked = Q2K;

    fn codes(block: &[u8], part: usize) -> Codes {
        array::<32>(block, 16 + part / 4 * 32).map(|pairs| pairs >> (2 * (part % 4)) & 3)
    }

    fn level(code: u8) -> i32 {
        i32::from(code)
    }

    fn scale_min(block: &[u8], part: usize) -> [ScaleMin; 2] {
        let (d, dmin) = (f16_scale::half_at(block, 80), f16_scale::half_at(block, 82));
        [scale_min(d, dmin, block[2 * part]), scale_min(d, dmin, block[2 * part + 1])]
    }

    fn encode(values: &[f32], block: &mut [u8]) {
        let half = |half: usize| &values[16 * half..16 * half + 16];
        let fits: [(f32, f32); 16] = std::array::from_fn(|h| fit::affine(half(h), 3, true));
        let d = unit_for(fits.iter().map(|fit| fit.0), 15.0);
        let dmin = unit_for(fits.iter().map(|fit| fit.1), 15.0);
        let integer = |number: f32, unit: half::f16| {
            fit::code(number, fit::inverse(unit.to_f32()), 0, 15) as u8
        };
        block.fill(0);
        block[80..82].copy_from_slice(&d.to_le_bytes());
        block[82..].copy_from_slice(&dmin.to_le_bytes());
        for (h, (scale, min)) in fits.into_iter().enumerate() {
            block[h] = integer(scale, d) | integer(min, dmin) << 4;
            let ScaleMin { scale, min } = scale_min(d.to_f32(), dmin.to_f32(), block[h]);
            let codes: [u8; 16] = fit::codes(half(h), (scale, min), 0, 3);
            let bytes = &mut block[16 + h / 8 * 32 + h % 2 * 16..][..16];
            for (byte, code) in bytes.iter_mut().zip(codes) {
                *byte |= code << (h / 2 % 4 * 2);
            }
        }
    }

    fn put_tail(block: &[u8], tail: &mut [u8], place: Place) {
        for half in 0..16 {
            tail[16 * half + place.lane] = block[half];
        }
        put_unit(&block[80..82], tail, 0, place.lane);
        put_unit(&block[82..84], tail, 1, place.lane);
    }

    fn packed_scale_min(tail: &[u8], place: Place) -> [ScaleMin; 2] {
        let (d, dmin) = (unit(tail, 0, place.lane), unit(tail, 1, place.lane));
        let at = 32 * place.block + place.lane;
        [scale_min(d, dmin, tail[at]), scale_min(d, dmin, tail[at + 16])]
    }
}

impl CodeFormat for Q2K {
    const MAX_CODE: i32 = 3;
    const ZERO: i32 = 0;
    const HALVES: bool = true;
    const HAS_MIN: bool = true;
    const RECORD: Record = record(Pairs::BYTES);

    #[inline(always)]
    fn pair<S: Simd>(s: S, block: Block<'_>, j: usize) -> (S::U8, S::U8) {
        <Self as Blocks>::Codes::pair(s, block.codes, j)
    }

    #[inline(always)]
    fn scales<S: Simd>(s: S, block: Block<'_>) -> (S::F32, S::F32) {
        let half = 2 * block.index;
        (scaled(s, block.tail, half, 0), scaled(s, block.tail, half + 1, 0))
    }

    #[inline(always)]
    fn mins<S: Simd>(s: S, block: Block<'_>) -> (S::F32, S::F32) {
        let half = 2 * block.index;
        (scaled(s, block.tail, half, 1), scaled(s, block.tail, half + 1, 1))
    }
}
