//! The formats: one file each, with the block as files store it, its arithmetic, its quantiser and
//! its packed form.

use crate::bytes::array;
use crate::decode;
use crate::dtype::Codec;
use crate::planes::{Codes, Plane};
use crate::record::{Place, Record};
use crate::unpack::CodeFormat;
use oss_simd::Simd;

pub(crate) mod bf16;
pub(crate) mod f16;
pub(crate) mod f16_scale;
pub(crate) mod f32;
pub(crate) mod fit;
pub(crate) mod iq4_nl;
pub(crate) mod k_scale;
pub(crate) mod mxfp4;
pub(crate) mod q2_k;
pub(crate) mod q3_k;
pub(crate) mod q4_0;
pub(crate) mod q4_1;
pub(crate) mod q4_k;
pub(crate) mod q5_0;
pub(crate) mod q5_1;
pub(crate) mod q5_k;
pub(crate) mod q6_k;
pub(crate) mod q8_0;

/// A number of the formats' arithmetic (the module `f32` hides the name here).
type Number = std::primitive::f32;

/// What turns sixteen codes into numbers: `value = scale * level(code) - min`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct ScaleMin {
    pub(crate) scale: Number,
    pub(crate) min: Number,
}

/// A format of integer codes, as files hold it and as it is packed.
///
/// A file block has `LEN / 32` *parts* of 32 columns; a part becomes one packed block.
pub(crate) trait Blocks: 'static {
    /// Columns of a file block.
    const LEN: usize;
    /// Bytes of a file block.
    const BYTES: usize;
    /// Where a file block has f16 scales and minima.
    const F16_AT: &'static [usize];
    /// How codes are stored when packed.
    type Codes: Plane;
    /// What kernels unpack it with.
    type Unpacked: CodeFormat;
    /// How packed blocks are gathered with their scales.
    const RECORD: Record = Self::Unpacked::RECORD;

    /// The codes of one part of a file block.
    fn codes(block: &[u8], part: usize) -> Codes;
    /// What a code stands for before scaling; a signed byte holds it.
    fn level(code: u8) -> i32;
    /// Scale and minimum of columns 0..16 and 16..32 of one part.
    fn scale_min(block: &[u8], part: usize) -> [ScaleMin; 2];
    /// Encodes `LEN` finite values.
    fn encode(values: &[Number], block: &mut [u8]);

    /// Refuses a damaged block, of which a scale or minimum is not finite: its bits.
    fn check(block: &[u8]) -> Result<(), u16> {
        let mut scales = Self::F16_AT.iter().map(|at| u16::from_le_bytes(*array(block, *at)));
        scales.find(|bits| !f16_scale::is_finite(*bits)).map_or(Ok(()), Err)
    }
    /// Stores the codes of one part where the plane wants them.
    fn put_codes(block: &[u8], part: usize, plane: &mut [u8], lane: usize) {
        Self::Codes::put(&Self::codes(block, part), plane, lane);
    }
    /// Stores what a file block's scales are made of in the tail of the record; `place` is the
    /// place of its first part.
    fn put_tail(block: &[u8], tail: &mut [u8], place: Place);
    /// Scales and minima of a packed block, by the arithmetic of [`Blocks::scale_min`].
    fn packed_scale_min(tail: &[u8], place: Place) -> [ScaleMin; 2];
}

/// A format of floating-point numbers, as files hold it and as it is packed.
pub(crate) trait Floats: 'static {
    /// Bytes of a number.
    const BYTES: usize;
    /// Bytes from the start of a packed group to the number of this row and column.
    fn offset(lane: usize, column: usize) -> usize;
    /// Sixteen numbers out of the first `16 BYTES` bytes, one after the other.
    fn decode<S: Simd>(s: S, bytes: &[u8]) -> S::F32;
    /// The bytes of the nearest number.
    fn encode(value: Number, bytes: &mut [u8]);
    /// Changes a number's bytes to those that are packed for it.
    #[inline]
    fn pack(_: &mut [u8]) {}
}

impl Codec {
    /// Reads and writes rows of a format of codes.
    pub(crate) const fn of_blocks<B: Blocks>() -> Codec {
        fn quantise<B: Blocks>(values: &[Number], out: &mut [u8]) {
            for (values, block) in values.chunks_exact(B::LEN).zip(out.chunks_exact_mut(B::BYTES)) {
                B::encode(values, block);
            }
        }
        Codec { dequantise: decode::row_of_codes::<B>, quantise: quantise::<B> }
    }

    /// Reads and writes rows of a format of floats.
    pub(crate) const fn of_floats<F: Floats>() -> Codec {
        fn quantise<F: Floats>(values: &[Number], out: &mut [u8]) {
            for (x, bytes) in values.iter().zip(out.chunks_exact_mut(F::BYTES)) {
                F::encode(*x, bytes);
            }
        }
        Codec { dequantise: decode::row_of_floats::<F>, quantise: quantise::<F> }
    }
}

/// The codes of 32 columns out of bytes that hold columns `i` and `16 + i`.
pub(crate) fn paired_nibbles(bytes: &[u8; 16]) -> Codes {
    std::array::from_fn(|c| if c < 16 { bytes[c] & 0xf } else { bytes[c - 16] >> 4 })
}

/// Bytes that hold the low nibbles of the codes of columns `i` and `16 + i`.
pub(crate) fn pair_nibbles(codes: &Codes) -> [u8; 16] {
    std::array::from_fn(|i| (codes[i] & 0xf) | codes[16 + i] << 4)
}

/// The codes with bit `c` of `above` as bit 4 of the code of column `c`.
pub(crate) fn with_fifth_bits(mut codes: Codes, above: u32) -> Codes {
    for (i, quad) in codes.as_chunks_mut::<4>().0.iter_mut().enumerate() {
        // The product has bit k of these four at bit 8 k, and the others where the mask is zero.
        let four = above >> (4 * i) & 0xf;
        let spread = (four * 0x0020_4081) & 0x0101_0101;
        *quad = (u32::from_le_bytes(*quad) | spread << 4).to_le_bytes();
    }
    codes
}
