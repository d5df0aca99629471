//! Q4_1: 32 columns, `value = d * code + m`, in 20 bytes.
//!
//! ```text
//! 0  f16   d
//! 2  f16   m
//! 4  [16]  low nibbles: codes of columns 0..16, high nibbles: of columns 16..32
//! ```
//!
//! Packed: records of two blocks, 2 x 256 bytes of codes and a 128-byte tail of f16 scales and
//! minima (640 bytes, as many as in the file).

use super::f16_scale::{both, get, half_at, load, put, record_with_min, to_half};
use super::{Blocks, ScaleMin, fit, pair_nibbles, paired_nibbles};
use crate::bytes::array;
use crate::dtype::Codec;
use crate::planes::{Codes, Nibbles, Plane};
use crate::record::{Place, Record};
use crate::unpack::{Block, CodeFormat};
use oss_simd::Simd;

pub(crate) enum Q4_1 {}

pub(crate) const CODEC: Codec = Codec::of_blocks::<Q4_1>();

impl Blocks for Q4_1 {
    const LEN: usize = 32;
    const BYTES: usize = 20;
    const F16_AT: &'static [usize] = &[0, 2];
    type Codes = Nibbles;
    type Unpacked = Q4_1;

    fn codes(block: &[u8], _part: usize) -> Codes {
        paired_nibbles(array(block, 4))
    }

    fn level(code: u8) -> i32 {
        i32::from(code)
    }

    fn scale_min(block: &[u8], _part: usize) -> [ScaleMin; 2] {
        both(half_at(block, 0), -half_at(block, 2))
    }

    fn encode(values: &[f32], block: &mut [u8]) {
        let (scale, min) = fit::affine(values, 15, false);
        let (scale, low) = (to_half(scale), to_half(-min));
        let codes: Codes = fit::codes(values, (scale.to_f32(), -low.to_f32()), 0, 15);
        block[..2].copy_from_slice(&scale.to_le_bytes());
        block[2..4].copy_from_slice(&low.to_le_bytes());
        block[4..].copy_from_slice(&pair_nibbles(&codes));
    }

    fn put_codes(block: &[u8], _part: usize, plane: &mut [u8], lane: usize) {
        Nibbles::put_bytes(array(block, 4), plane, lane);
    }

    fn put_tail(block: &[u8], tail: &mut [u8], place: Place) {
        put(&block[..2], tail, 0, place);
        put(&block[2..4], tail, 1, place);
    }

    fn packed_scale_min(tail: &[u8], place: Place) -> [ScaleMin; 2] {
        both(get(tail, 0, place), -get(tail, 1, place))
    }
}

impl CodeFormat for Q4_1 {
    const MAX_CODE: i32 = 15;
    const ZERO: i32 = 0;
    const HALVES: bool = false;
    const HAS_MIN: bool = true;
    const RECORD: Record = record_with_min(Nibbles::BYTES);

    #[inline(always)]
    fn pair<S: Simd>(s: S, block: Block<'_>, j: usize) -> (S::U8, S::U8) {
        <Self as Blocks>::Codes::pair(s, block.codes, j)
    }

    #[inline(always)]
    fn scales<S: Simd>(s: S, block: Block<'_>) -> (S::F32, S::F32) {
        let scale = load(s, block, 0);
        (scale, scale)
    }

    #[inline(always)]
    fn mins<S: Simd>(s: S, block: Block<'_>) -> (S::F32, S::F32) {
        let min = s.sub(s.splat(-0.0), load(s, block, 1));
        (min, min)
    }
}
