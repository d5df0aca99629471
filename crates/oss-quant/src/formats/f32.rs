//! F32: IEEE single precision.
//!
//! Packed: `[column][16 rows]`.

use super::Floats;
use crate::bytes::array;
use crate::dtype::Codec;
use crate::unpack::FloatFormat;
use oss_simd::Simd;

pub(crate) enum F32 {}

pub(crate) const CODEC: Codec = Codec::of_floats::<F32>();

impl Floats for F32 {
    const BYTES: usize = 4;

    fn offset(lane: usize, column: usize) -> usize {
        4 * (16 * column + lane)
    }

    #[inline(always)]
    fn decode<S: Simd>(s: S, bytes: &[u8]) -> S::F32 {
        s.load(&bytemuck::cast(*array::<64>(bytes, 0)))
    }

    fn encode(value: f32, bytes: &mut [u8]) {
        bytes.copy_from_slice(&value.to_le_bytes());
    }
}

impl FloatFormat for F32 {
    #[inline(always)]
    fn pair<S: Simd>(s: S, group: &[u8], k: usize) -> [S::F32; 2] {
        let pair = array::<128>(group, 64 * k);
        [Self::decode(s, pair), Self::decode(s, &pair[64..])]
    }
}
