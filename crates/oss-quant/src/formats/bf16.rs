//! BF16: the upper half of a single-precision number.
//!
//! Packed: `[column pair][16 rows][2 columns]`, which is what bf16 dot products want.

use super::Floats;
use crate::bytes::array;
use crate::dtype::Codec;
use crate::unpack::FloatFormat;
use oss_simd::Simd;

pub(crate) enum Bf16 {}

pub(crate) const CODEC: Codec = Codec::of_floats::<Bf16>();

impl Floats for Bf16 {
    const BYTES: usize = 2;

    fn offset(lane: usize, column: usize) -> usize {
        64 * (column / 2) + 4 * lane + 2 * (column % 2)
    }

    #[inline(always)]
    fn decode<S: Simd>(s: S, bytes: &[u8]) -> S::F32 {
        s.load_bf16(&bytemuck::cast(*array::<32>(bytes, 0)))
    }

    fn encode(value: f32, bytes: &mut [u8]) {
        bytes.copy_from_slice(&half::bf16::from_f32(value).to_le_bytes());
    }
}

impl FloatFormat for Bf16 {
    #[inline(always)]
    fn pair<S: Simd>(s: S, group: &[u8], k: usize) -> [S::F32; 2] {
        s.bf16_halves(s.u8_as_i32(s.load_u8(array(group, 32 * k))))
    }
}
