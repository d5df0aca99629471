//! Q3_K: 256 columns in halves of 16, `value = d * (scale - 32) * (code - 4)`, in 110 bytes.
//!
//! ```text
//! 0    [32]     bit p of byte l: bit 2 of the code of column 32 p + l
//! 32   [2][32]  bits 2 t and 2 t + 1 of byte l: bits 0, 1 of the code of column 128 i + 32 t + l
//! 96   [8]      low nibbles: bits 0..4 of scales 0..8, high nibbles: of scales 8..16
//! 104  [4]      bits 2 t and 2 t + 1 of byte i: bits 4 and 5 of scale 4 t + i
//! 108  f16      d
//! ```
//!
//! Packed exactly as Q6_K, whose signed scales and 6-bit codes hold this format's: codes are stored
//! 28 higher, so that 32 is zero for both (3,392 bytes to the file's 1,760).

use super::k_scale::put_unit;
use super::q6_k::{Q6K, signed_scale, signed_scales};
use super::{Blocks, ScaleMin, f16_scale, fit};
use crate::bytes::array;
use crate::dtype::Codec;
use crate::planes::Codes;
use crate::record::Place;

pub(crate) enum Q3K {}

pub(crate) const CODEC: Codec = Codec::of_blocks::<Q3K>();

/// What is added to codes so that they mean what Q6_K's do.
const LIFT: u8 = 28;

/// The sixteen scales, less 32, as bytes.
fn scales(block: &[u8]) -> [u8; 16] {
    std::array::from_fn(|half| {
        let low = block[96 + half % 8] >> (4 * (half / 8)) & 0xf;
        let above = block[104 + half % 4] >> (2 * (half / 4)) & 3;
        (low | above << 4).wrapping_sub(32)
    })
}

impl Blocks for Q3K {
    const LEN: usize = 256;
    const BYTES: usize = 110;
    const F16_AT: &'static [usize] = &[108];
    type Codes = <Q6K as Blocks>::Codes;
    type Unpacked = Q6K;

    fn codes(block: &[u8], part: usize) -> Codes {
        let low = array::<32>(block, 32 + part / 4 * 32);
        let above = array::<32>(block, 0);
        std::array::from_fn(|l| {
            LIFT + (low[l] >> (2 * (part % 4)) & 3 | (above[l] >> part & 1) << 2)
        })
    }

    fn level(code: u8) -> i32 {
        Q6K::level(code)
    }

    fn scale_min(block: &[u8], part: usize) -> [ScaleMin; 2] {
        let d = f16_scale::half_at(block, 108);
        let scales = scales(block);
        [signed_scale(d, scales[2 * part]), signed_scale(d, scales[2 * part + 1])]
    }

    fn encode(values: &[f32], block: &mut [u8]) {
        let half = |half: usize| &values[16 * half..16 * half + 16];
        let fits: [f32; 16] = std::array::from_fn(|h| fit::symmetric(half(h), 4));
        let (d, scales) = signed_scales(fits, 32);
        block.fill(0);
        block[108..].copy_from_slice(&d.to_le_bytes());
        for (h, scale) in scales.into_iter().enumerate() {
            let stored = (scale + 32) as u8;
            block[96 + h % 8] |= (stored & 0xf) << (4 * (h / 8));
            block[104 + h % 4] |= stored >> 4 << (2 * (h / 4));
            let scale = d.to_f32() * f32::from(scale);
            let codes: [u8; 16] = fit::codes(half(h), (scale, 0.0), 4, 7);
            for (l, code) in codes.into_iter().enumerate() {
                let l = 16 * (h % 2) + l;
                block[32 + h / 8 * 32 + l] |= (code & 3) << (h / 2 % 4 * 2);
                block[l] |= code >> 2 << (h / 2);
            }
        }
    }

    fn put_tail(block: &[u8], tail: &mut [u8], place: Place) {
        for (half, scale) in scales(block).into_iter().enumerate() {
            tail[16 * half + place.lane] = scale;
        }
        put_unit(&block[108..110], tail, 0, place.lane);
    }

    fn packed_scale_min(tail: &[u8], place: Place) -> [ScaleMin; 2] {
        Q6K::packed_scale_min(tail, place)
    }
}
