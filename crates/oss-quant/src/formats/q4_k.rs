//! Q4_K: 256 columns in parts of 32, `value = d * scale * code - dmin * min`, in 144 bytes.
//!
//! ```text
//! 0    f16     d
//! 2    f16     dmin
//! 4    [12]    6-bit scales and minima of the eight parts
//! 16   [4][32]  low nibbles: codes of part 2 i, high nibbles: of part 2 i + 1
//! ```
//!
//! Packed: records of eight blocks, 8 x 256 bytes of codes and a 320-byte tail: [8 parts][16
//! rows] u8 scales, as many minima, then d and dmin (2368 bytes to the file's 2304).

use super::k_scale::{head, record, scaled};
use super::{Blocks, ScaleMin, fit};
use crate::bytes::array;
use crate::dtype::Codec;
use crate::planes::{Codes, Nibbles, Plane};
use crate::record::{Place, Record};
use crate::unpack::{Block, CodeFormat};
use oss_simd::Simd;

pub(crate) enum Q4K {}

pub(crate) const CODEC: Codec = Codec::of_blocks::<Q4K>();

impl Blocks for Q4K {
    const LEN: usize = 256;
    const BYTES: usize = 144;
    const F16_AT: &'static [usize] = &[0, 2];
    type Codes = Nibbles;
    type Unpacked = Q4K;

    fn codes(block: &[u8], part: usize) -> Codes {
        let bytes = array::<32>(block, 16 + part / 2 * 32);
        bytes.map(|both| both >> (4 * (part % 2)) & 0xf)
    }

    fn level(code: u8) -> i32 {
        i32::from(code)
    }

    fn scale_min(block: &[u8], part: usize) -> [ScaleMin; 2] {
        head::scale_min(block, part)
    }

    fn encode(values: &[f32], block: &mut [u8]) {
        head::encode(values, Self::MAX_CODE, block);
        for part in 0..8 {
            let ScaleMin { scale, min } = Self::scale_min(block, part)[0];
            let codes: Codes = fit::codes(&values[32 * part..], (scale, min), 0, Self::MAX_CODE);
            let bytes = &mut block[16 + part / 2 * 32..][..32];
            for (byte, code) in bytes.iter_mut().zip(codes) {
                *byte |= code << (4 * (part % 2));
            }
        }
    }

    fn put_tail(block: &[u8], tail: &mut [u8], place: Place) {
        head::put_tail(block, tail, place);
    }

    fn packed_scale_min(tail: &[u8], place: Place) -> [ScaleMin; 2] {
        head::packed_scale_min(tail, place)
    }
}

impl CodeFormat for Q4K {
    const MAX_CODE: i32 = 15;
    const ZERO: i32 = 0;
    const HALVES: bool = false;
    const HAS_MIN: bool = true;
    const RECORD: Record = record(Nibbles::BYTES);

    #[inline(always)]
    fn pair<S: Simd>(s: S, block: Block<'_>, j: usize) -> (S::U8, S::U8) {
        <Self as Blocks>::Codes::pair(s, block.codes, j)
    }

    #[inline(always)]
    fn scales<S: Simd>(s: S, block: Block<'_>) -> (S::F32, S::F32) {
        let scale = scaled(s, block.tail, 0, 16 * block.index);
        (scale, scale)
    }

    #[inline(always)]
    fn mins<S: Simd>(s: S, block: Block<'_>) -> (S::F32, S::F32) {
        let min = scaled(s, block.tail, 1, 128 + 16 * block.index);
        (min, min)
    }
}
