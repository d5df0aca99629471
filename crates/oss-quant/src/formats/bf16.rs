//! BF16: the upper half of a single-precision number.
//!
//! Packed: `[column pair][16 rows][2 columns]`, which is what bf16 dot products want, and zeros in
//! place of numbers below 2^-50: processors that add bf16 products at once take what is denormal
//! for zero, and so nothing is (see [`Simd::add_bf16`]).

use super::Floats;
use crate::bytes::array;
use crate::dtype::Codec;
use crate::unpack::FloatFormat;
use oss_simd::{LEAST_BF16, Simd};

pub(crate) enum Bf16 {}

pub(crate) const CODEC: Codec = Codec::of_floats::<Bf16>();

/// The bits of the least number that is not packed as zero.
const LEAST: u16 = (LEAST_BF16.to_bits() >> 16) as u16;

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

    #[inline]
    fn pack(bytes: &mut [u8]) {
        let magnitude = u16::from_le_bytes(*array(bytes, 0)) & 0x7fff;
        if magnitude < LEAST {
            bytes.fill(0);
        }
    }
}

impl FloatFormat for Bf16 {
    const IS_BF16: bool = true;

    #[inline(always)]
    fn pair<S: Simd>(s: S, group: &[u8], k: usize) -> [S::F32; 2] {
        s.bf16_halves(s.u8_as_i32(s.load_u8(array(group, 32 * k))))
    }
}
