//! Tails of formats with an f16 scale (and perhaps a minimum) per 32 columns: two blocks each.
//!
//! ```text
//! [2 blocks][16 rows] f16 scales, then, for formats with minima, [2 blocks][16 rows] f16 minima
//! ```

use super::ScaleMin;
use crate::bytes::array;
use crate::record::{Place, Record};
use crate::unpack::Block;
use oss_simd::Simd;

/// Records of a format without minima.
pub(crate) const fn record(code_bytes: usize) -> Record {
    Record { blocks: 2, code_bytes, tail_bytes: 64 }
}

/// Records of a format with minima.
pub(crate) const fn record_with_min(code_bytes: usize) -> Record {
    Record { blocks: 2, code_bytes, tail_bytes: 128 }
}

/// Whether the f16 of these bits is neither infinite nor no number.
pub(crate) const fn is_finite(bits: u16) -> bool {
    const EXPONENT: u16 = 0x7c00;
    bits & EXPONENT != EXPONENT
}

/// The number whose f16 bytes are at `at`.
pub(crate) fn half_at(bytes: &[u8], at: usize) -> f32 {
    half::f16::from_le_bytes(*array(bytes, at)).to_f32()
}

/// The nearest f16, kept within its range.
pub(crate) fn to_half(x: f32) -> half::f16 {
    half::f16::from_f32(x.clamp(half::f16::MIN.to_f32(), half::f16::MAX.to_f32()))
}

/// Two bytes of a file block to the scale (`which` 0) or the minimum (`which` 1) of a place.
pub(crate) fn put(bytes: &[u8], tail: &mut [u8], which: usize, place: Place) {
    let at = 64 * which + 32 * place.block + 2 * place.lane;
    tail[at..at + 2].copy_from_slice(bytes);
}

/// The scale (`which` 0) or the minimum (`which` 1) of a place.
pub(crate) fn get(tail: &[u8], which: usize, place: Place) -> f32 {
    half_at(tail, 64 * which + 32 * place.block + 2 * place.lane)
}

/// One scale and minimum for both halves of a block.
pub(crate) fn both(scale: f32, min: f32) -> [ScaleMin; 2] {
    [ScaleMin { scale, min }; 2]
}

/// The scales (`which` 0) or minima (`which` 1) of 16 rows.
#[inline(always)]
pub(crate) fn load<S: Simd>(s: S, block: Block<'_>, which: usize) -> S::F32 {
    load_half(s, block.tail, 64 * which + 32 * block.index)
}

/// Sixteen f16 at `at`, of any alignment.
#[inline(always)]
pub(crate) fn load_half<S: Simd>(s: S, bytes: &[u8], at: usize) -> S::F32 {
    s.load_f16(&bytemuck::cast(*array::<32>(bytes, at)))
}
