//! Tails of the formats with 256 columns: small integers per 16 or 32 columns, and one or two f16.
//!
//! ```text
//! 0    256 bytes  the small integers, each kind as [its columns][16 rows]
//! 256  f16[16]    d, the unit of the scales, per row
//! 288  f16[16]    dmin, the unit of the minima (zero in formats without)
//! ```

use super::half_scale::{half_at, load_half};
use crate::bytes::array;
use crate::record::Record;
use oss_simd::Simd;

/// Where `d` lies in a tail; `dmin` follows.
pub(super) const UNITS: usize = 256;

/// Records of eight blocks: one file block per row.
pub(crate) const fn record(code_bytes: usize) -> Record {
    Record { blocks: 8, code_bytes, tail_bytes: UNITS + 64 }
}

/// Two bytes of a file block to `d` (`which` 0) or `dmin` (`which` 1) of a row.
pub(crate) fn put_unit(bytes: &[u8], tail: &mut [u8], which: usize, lane: usize) {
    let at = UNITS + 32 * which + 2 * lane;
    tail[at..at + 2].copy_from_slice(bytes);
}

/// `d` (`which` 0) or `dmin` (`which` 1) of a row.
pub(crate) fn unit(tail: &[u8], which: usize, lane: usize) -> f32 {
    half_at(tail, UNITS + 32 * which + 2 * lane)
}

/// The unsigned integers at `at`, times `d` (`which` 0) or `dmin` (`which` 1), of sixteen rows.
#[inline(always)]
pub(crate) fn scaled<S: Simd>(s: S, tail: &[u8], which: usize, at: usize) -> S::F32 {
    let integers = s.i32_to_f32(s.load_u8_i32(array(tail, at)));
    s.mul(load_half(s, tail, UNITS + 32 * which), integers)
}

/// As [`scaled`] by `d`, for signed integers.
#[inline(always)]
pub(crate) fn scaled_signed<S: Simd>(s: S, tail: &[u8], at: usize) -> S::F32 {
    let integers = bytemuck::cast(*array::<16>(tail, at));
    s.mul(load_half(s, tail, UNITS), s.i32_to_f32(s.load_i8_i32(&integers)))
}

/// Eight 6-bit scales and eight 6-bit minima out of twelve bytes.
///
/// Bytes 0..4 hold scales 0..4, bytes 4..8 minima 0..4; their upper two bits are the upper bits of
/// scales and minima 4..8, whose low nibbles (scales) and high nibbles (minima) are bytes 8..12.
pub(crate) fn six_bits(bytes: &[u8; 12]) -> ([u8; 8], [u8; 8]) {
    let scale = |i: usize| match i {
        0..4 => bytes[i] & 63,
        _ => bytes[i + 4] & 0xf | bytes[i - 4] >> 6 << 4,
    };
    let min = |i: usize| match i {
        0..4 => bytes[i + 4] & 63,
        _ => bytes[i + 4] >> 4 | bytes[i] >> 6 << 4,
    };
    (std::array::from_fn(scale), std::array::from_fn(min))
}

/// The inverse of [`six_bits`].
pub(crate) fn pack_six_bits(scales: &[u8; 8], mins: &[u8; 8]) -> [u8; 12] {
    std::array::from_fn(|i| match i {
        0..4 => scales[i] | scales[i + 4] >> 4 << 6,
        4..8 => mins[i - 4] | mins[i] >> 4 << 6,
        _ => scales[i - 4] & 0xf | mins[i - 4] << 4,
    })
}

/// A unit for integers up to `top` that reaches the largest of the (non-negative) steps.
pub(crate) fn unit_for(steps: impl Iterator<Item = f32>, top: f32) -> half::f16 {
    super::half_scale::to_half(steps.fold(0.0, f32::max) / top)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn six_bit_scales_and_minima_survive_twelve_bytes() {
        let scales = [0, 63, 5, 17, 33, 62, 1, 48];
        let mins = [63, 0, 44, 9, 16, 15, 32, 31];
        assert_eq!(six_bits(&pack_six_bits(&scales, &mins)), (scales, mins));
    }
}
