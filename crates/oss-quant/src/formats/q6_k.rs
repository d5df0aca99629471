//! Q6_K: 256 columns in halves of 16, `value = d * scale * (code - 32)`, in 210 bytes.
//!
//! ```text
//! 0    [2][64]  low nibbles: codes of columns 128 i + l, high nibbles: of columns 128 i + 64 + l
//! 128  [2][32]  bits 2 t and 2 t + 1 of byte l: bits 4, 5 of the code of column 128 i + 32 t + l
//! 192  i8[16]   scales
//! 208  f16      d
//! ```
//!
//! Packed: records of eight blocks, 8 x 384 bytes of codes and a 320-byte tail: [16 halves][16
//! rows] i8 scales, then d (3,392 bytes to the file's 3,360).

use super::k_scale::{put_unit, record, scaled_signed, unit};
use super::{Blocks, ScaleMin, f16_scale, fit};
use crate::bytes::array;
use crate::dtype::Codec;
use crate::planes::{Codes, NibblesAndPairs, Plane};
use crate::record::{Place, Record};
use crate::unpack::{Block, CodeFormat};
use oss_simd::Simd;

pub(crate) enum Q6K {}

pub(crate) const CODEC: Codec = Codec::of_blocks::<Q6K>();

/// What a signed scale byte stands for.
pub(crate) fn signed_scale(d: f32, scale: u8) -> ScaleMin {
    ScaleMin { scale: d * f32::from(i8::from_le_bytes([scale])), min: 0.0 }
}

/// A unit, and multiples of it in `-limit..limit` near the sixteen scales.
pub(crate) fn signed_scales(scales: [f32; 16], limit: i32) -> (half::f16, [i8; 16]) {
    let extreme = scales.iter().fold(0.0_f32, |m, &x| if x.abs() > m.abs() { x } else { m });
    let d = f16_scale::to_half(extreme / -limit as f32);
    let inverse = fit::inverse(d.to_f32());
    (d, scales.map(|scale| fit::code(scale, inverse, -limit, limit - 1) as i8))
}

impl Blocks for Q6K {
    const LEN: usize = 256;
    const BYTES: usize = 210;
    const F16_AT: &'static [usize] = &[208];
    type Codes = NibblesAndPairs;
    type Unpacked = Q6K;

    fn codes(block: &[u8], part: usize) -> Codes {
        let (i, t) = (part / 4, part % 4);
        let low = array::<32>(block, 64 * i + 32 * (t % 2));
        let above = array::<32>(block, 128 + 32 * i);
        std::array::from_fn(|l| low[l] >> (4 * (t / 2)) & 0xf | (above[l] >> (2 * t) & 3) << 4)
    }

    fn level(code: u8) -> i32 {
        i32::from(code) - 32
    }

    fn scale_min(block: &[u8], part: usize) -> [ScaleMin; 2] {
        let d = f16_scale::half_at(block, 208);
        [signed_scale(d, block[192 + 2 * part]), signed_scale(d, block[193 + 2 * part])]
    }

    fn encode(values: &[f32], block: &mut [u8]) {
        let half = |half: usize| &values[16 * half..16 * half + 16];
        let fits: [f32; 16] = std::array::from_fn(|h| fit::symmetric(half(h), 32));
        let (d, scales) = signed_scales(fits, 128);
        block.fill(0);
        block[208..].copy_from_slice(&d.to_le_bytes());
        for (h, scale) in scales.into_iter().enumerate() {
            block[192 + h] = scale.to_le_bytes()[0];
            let scale = d.to_f32() * f32::from(scale);
            let codes: [u8; 16] = fit::codes(half(h), (scale, 0.0), 32, 63);
            let (i, t) = (h / 8, h / 2 % 4);
            for (l, code) in codes.into_iter().enumerate() {
                let l = 16 * (h % 2) + l;
                block[64 * i + 32 * (t % 2) + l] |= (code & 0xf) << (4 * (t / 2));
                block[128 + 32 * i + l] |= code >> 4 << (2 * t);
            }
        }
    }

    fn put_tail(block: &[u8], tail: &mut [u8], place: Place) {
        for half in 0..16 {
            tail[16 * half + place.lane] = block[192 + half];
        }
        put_unit(&block[208..210], tail, 0, place.lane);
    }

    fn packed_scale_min(tail: &[u8], place: Place) -> [ScaleMin; 2] {
        let d = unit(tail, 0, place.lane);
        let at = 32 * place.block + place.lane;
        [signed_scale(d, tail[at]), signed_scale(d, tail[at + 16])]
    }
}

impl CodeFormat for Q6K {
    const MAX_CODE: i32 = 63;
    const ZERO: i32 = 32;
    const HALVES: bool = true;
    const HAS_MIN: bool = false;
    const RECORD: Record = record(NibblesAndPairs::BYTES);

    #[inline(always)]
    fn pair<S: Simd>(s: S, block: Block<'_>, j: usize) -> (S::U8, S::U8) {
        <Self as Blocks>::Codes::pair(s, block.codes, j)
    }

    #[inline(always)]
    fn scales<S: Simd>(s: S, block: Block<'_>) -> (S::F32, S::F32) {
        let at = 32 * block.index;
        (scaled_signed(s, block.tail, at), scaled_signed(s, block.tail, at + 16))
    }
}
