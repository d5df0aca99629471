//! Q5_0: 32 columns, `value = d * (code - 16)`, in 22 bytes.
//!
//! ```text
//! 0  f16   d
//! 2  u32   bit c: bit 4 of the code of column c
//! 6  [16]  low nibbles: codes of columns 0..16, high nibbles: of columns 16..32
//! ```
//!
//! Packed: records of two blocks, 2 x 320 bytes of codes and a 64-byte tail of f16 scales
//! (704 bytes, as many as in the file).

use super::f16_scale::{both, get, half_at, load, put, record, to_half};
use super::{Blocks, ScaleMin, fit, pair_nibbles, paired_nibbles, with_fifth_bits};
use crate::bytes::array;
use crate::dtype::Codec;
use crate::planes::{Codes, NibblesAndBits, Plane};
use crate::record::{Place, Record};
use crate::unpack::{Block, CodeFormat};
use oss_simd::Simd;

pub(crate) enum Q5_0 {}

pub(crate) const CODEC: Codec = Codec::of_blocks::<Q5_0>();

impl Blocks for Q5_0 {
    const LEN: usize = 32;
    const BYTES: usize = 22;
    const F16_AT: &'static [usize] = &[0];
    type Codes = NibblesAndBits;
    type Unpacked = Q5_0;

    fn codes(block: &[u8], _part: usize) -> Codes {
        let above = u32::from_le_bytes(*array(block, 2));
        with_fifth_bits(paired_nibbles(array(block, 6)), above)
    }

    fn level(code: u8) -> i32 {
        i32::from(code) - 16
    }

    fn scale_min(block: &[u8], _part: usize) -> [ScaleMin; 2] {
        both(half_at(block, 0), 0.0)
    }

    fn encode(values: &[f32], block: &mut [u8]) {
        let scale = to_half(fit::symmetric(values, 16));
        let codes: Codes = fit::codes(values, (scale.to_f32(), 0.0), 16, 31);
        block[..2].copy_from_slice(&scale.to_le_bytes());
        let above = (0..32).fold(0, |above, c| above | u32::from(codes[c] >> 4) << c);
        block[2..6].copy_from_slice(&above.to_le_bytes());
        block[6..].copy_from_slice(&pair_nibbles(&codes));
    }

    fn put_tail(block: &[u8], tail: &mut [u8], place: Place) {
        put(&block[..2], tail, 0, place);
    }

    fn packed_scale_min(tail: &[u8], place: Place) -> [ScaleMin; 2] {
        both(get(tail, 0, place), 0.0)
    }
}

impl CodeFormat for Q5_0 {
    const MAX_CODE: i32 = 31;
    const ZERO: i32 = 16;
    const HALVES: bool = false;
    const HAS_MIN: bool = false;
    const RECORD: Record = record(NibblesAndBits::BYTES);

    #[inline(always)]
    fn pair<S: Simd>(s: S, block: Block<'_>, j: usize) -> (S::U8, S::U8) {
        <Self as Blocks>::Codes::pair(s, block.codes, j)
    }

    #[inline(always)]
    fn scales<S: Simd>(s: S, block: Block<'_>) -> (S::F32, S::F32) {
        let scale = load(s, block, 0);
        (scale, scale)
    }
}
