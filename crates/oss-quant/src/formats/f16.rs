//! F16: IEEE half precision.
//!
//! Packed: `[column][16 rows]`.

use super::Floats;
use crate::bytes::array;
use crate::dtype::Codec;
use crate::formats::f16_scale::load_half;
use crate::unpack::FloatFormat;
use oss_simd::Simd;

pub(crate) enum F16 {}

pub(crate) const CODEC: Codec = Codec::of_floats::<F16>();

impl Floats for F16 {
    const BYTES: usize = 2;

    fn offset(lane: usize, column: usize) -> usize {
        2 * (16 * column + lane)
    }

    #[inline(always)]
    fn decode<S: Simd>(s: S, bytes: &[u8]) -> S::F32 {
        load_half(s, bytes, 0)
    }

    fn encode(value: f32, bytes: &mut [u8]) {
        bytes.copy_from_slice(&half::f16::from_f32(value).to_le_bytes());
    }
}

impl FloatFormat for F16 {
    #[inline(always)]
    fn pair<S: Simd>(s: S, group: &[u8], k: usize) -> [S::F32; 2] {
        let pair = array::<64>(group, 32 * k);
        [load_half(s, pair, 0), load_half(s, pair, 32)]
    }
}
