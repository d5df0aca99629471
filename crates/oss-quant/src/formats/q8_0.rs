//! Q8_0: 32 columns, `value = d * q` with signed bytes, in 34 bytes.
//!
//! ```text
//! 0  f16     d
//! 2  i8[32]  q
//! ```
//!
//! Codes are stored as unsigned bytes, 128 more than `q`.
//!
//! Packed: records of two blocks, 2 x 512 bytes of codes and a 64-byte tail of f16 scales
//! (1088 bytes, as many as in the file).

use super::f16_scale::{both, get, half_at, load, put, record, to_half};
use super::{Blocks, ScaleMin, fit};
use crate::bytes::array;
use crate::dtype::Codec;
use crate::planes::{Bytes, Codes, Plane};
use crate::record::{Place, Record};
use crate::unpack::{Block, CodeFormat};
use oss_simd::Simd;

pub(crate) enum Q8_0 {}

pub(crate) const CODEC: Codec = Codec::of_blocks::<Q8_0>();

impl Blocks for Q8_0 {
    const LEN: usize = 32;
    const BYTES: usize = 34;
    const F16_AT: &'static [usize] = &[0];
    type Codes = Bytes;
    type Unpacked = Q8_0;

    fn codes(block: &[u8], _part: usize) -> Codes {
        array::<32>(block, 2).map(|code| code ^ 0x80)
    }

    fn level(code: u8) -> i32 {
        i32::from(code) - 128
    }

    fn scale_min(block: &[u8], _part: usize) -> [ScaleMin; 2] {
        both(half_at(block, 0), 0.0)
    }

    fn encode(values: &[f32], block: &mut [u8]) {
        let largest = values.iter().fold(0.0_f32, |m, x| m.max(x.abs()));
        let scale = to_half(largest / 127.0);
        let codes: Codes = fit::codes(values, (scale.to_f32(), 0.0), 128, 255);
        block[..2].copy_from_slice(&scale.to_le_bytes());
        block[2..].copy_from_slice(&codes.map(|code| code ^ 0x80));
    }

    fn put_tail(block: &[u8], tail: &mut [u8], place: Place) {
        put(&block[..2], tail, 0, place);
    }

    fn packed_scale_min(tail: &[u8], place: Place) -> [ScaleMin; 2] {
        both(get(tail, 0, place), 0.0)
    }
}

impl CodeFormat for Q8_0 {
    const MAX_CODE: i32 = 255;
    const ZERO: i32 = 128;
    const HALVES: bool = false;
    const HAS_MIN: bool = false;
    const RECORD: Record = record(Bytes::BYTES);

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
