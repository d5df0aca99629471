//! Q4_0: 32 columns, `value = d * (code - 8)`, in 18 bytes.
//!
//! ```text
//! 0  f16   d
//! 2  [16]  low nibbles: codes of columns 0..16, high nibbles: of columns 16..32
//! ```
//!
//! Packed: records of two blocks, 2 x 256 bytes of codes and a 64-byte tail of f16 scales
//! (576 bytes, as many as in the file).

use super::f16_scale::{both, get, half_at, load, put, record, to_half};
use super::{Blocks, ScaleMin, fit, pair_nibbles, paired_nibbles};
use crate::bytes::array;
use crate::dtype::Codec;
use crate::planes::{Codes, Nibbles, Plane};
use crate::record::{Place, Record};
use crate::unpack::{Block, CodeFormat};
use oss_simd::Simd;

pub(crate) enum Q4_0 {}

pub(crate) const CODEC: Codec = Codec::of_blocks::<Q4_0>();

/// The codes, plus 120.
const TABLE_128: [u8; 16] =
    [120, 121, 122, 123, 124, 125, 126, 127, 128, 129, 130, 131, 132, 133, 134, 135];

impl Blocks for Q4_0 {
    const LEN: usize = 32;
    const BYTES: usize = 18;
    const F16_AT: &'static [usize] = &[0];
    type Codes = Nibbles;
    type Unpacked = Q4_0;

    fn codes(block: &[u8], _part: usize) -> Codes {
        paired_nibbles(array(block, 2))
    }

    fn level(code: u8) -> i32 {
        i32::from(code) - 8
    }

    fn scale_min(block: &[u8], _part: usize) -> [ScaleMin; 2] {
        both(half_at(block, 0), 0.0)
    }

    fn encode(values: &[f32], block: &mut [u8]) {
        let scale = to_half(fit::symmetric(values, 8));
        let codes: Codes = fit::codes(values, (scale.to_f32(), 0.0), 8, 15);
        block[..2].copy_from_slice(&scale.to_le_bytes());
        block[2..].copy_from_slice(&pair_nibbles(&codes));
    }

    fn put_codes(block: &[u8], _part: usize, plane: &mut [u8], lane: usize) {
        Nibbles::put_bytes(array(block, 2), plane, lane);
    }

    fn put_tail(block: &[u8], tail: &mut [u8], place: Place) {
        put(&block[..2], tail, 0, place);
    }

    fn packed_scale_min(tail: &[u8], place: Place) -> [ScaleMin; 2] {
        both(get(tail, 0, place), 0.0)
    }
}

impl CodeFormat for Q4_0 {
    const MAX_CODE: i32 = 15;
    const ZERO: i32 = 8;
    const HALVES: bool = false;
    const HAS_MIN: bool = false;
    const RECORD: Record = record(Nibbles::BYTES);

    #[inline(always)]
    fn zero<S: Simd>() -> i32 {
        if S::DOT_IS_EXACT && S::LUT_IS_AS_FAST_AS_MASKS { 128 } else { Self::ZERO }
    }

    #[inline(always)]
    fn pair<S: Simd>(s: S, block: Block<'_>, j: usize) -> (S::U8, S::U8) {
        if Self::zero::<S>() == 128 {
            s.nibble_lut(s.table(&TABLE_128), Nibbles::raw(s, block.codes, j))
        } else {
            Nibbles::pair(s, block.codes, j)
        }
    }

    #[inline(always)]
    fn scales<S: Simd>(s: S, block: Block<'_>) -> (S::F32, S::F32) {
        let scale = load(s, block, 0);
        (scale, scale)
    }
}
