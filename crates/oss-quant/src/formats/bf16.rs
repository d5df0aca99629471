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

    fn decode(bytes: &[u8]) -> f32 {
        half::bf16::from_le_bytes(*array(bytes, 0)).to_f32()
    }

    fn encode(value: f32, bytes: &mut [u8]) {
        bytes.copy_from_slice(&half::bf16::from_f32(value).to_le_bytes());
    }
}

impl FloatFormat for Bf16 {
    #[inline(always)]
    fn columns<S: Simd>(s: S, group: &[u8], k: usize) -> [S::F32; 4] {
        let quad = array::<128>(group, 32 * k);
        let first = s.u8_as_i32(s.load_u8(array(quad, 0)));
        let second = s.u8_as_i32(s.load_u8(array(quad, 64)));
        let even = |pair| s.i32_as_f32(s.shl_i32::<16>(pair));
        let upper = s.splat_i32(0xffff_0000_u32 as i32);
        let odd = |pair| s.i32_as_f32(s.and_i32(pair, upper));
        [even(first), odd(first), even(second), odd(second)]
    }
}
