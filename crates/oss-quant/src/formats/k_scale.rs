//! Tails of the formats with 256 columns: small integers per 16 or 32 columns, and one or two f16.
//!
//! ```text
//! 0    256 bytes  the small integers, each kind as [its columns][16 rows]
//! 256  f16[16]    d, the unit of the scales, per row
//! 288  f16[16]    dmin, the unit of the minima (zero in formats without)
//! ```

use super::f16_scale::{both, half_at, load_half, to_half};
use super::{ScaleMin, fit};
use crate::bytes::array;
use crate::record::{Place, Record};
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

/// A unit for integers up to `top` that reaches the largest of the (non-negative) numbers.
pub(crate) fn unit_for(numbers: impl Iterator<Item = f32>, top: f32) -> half::f16 {
    to_half(numbers.fold(0.0, f32::max) / top)
}

/// The first sixteen bytes of a block of Q4_K or Q5_K: d, dmin, and both [`six_bits`].
pub(crate) mod head {
    use super::*;

    /// Scale and minimum of one part.
    pub(crate) fn scale_min(block: &[u8], part: usize) -> [ScaleMin; 2] {
        let (scales, mins) = six_bits(array(block, 4));
        let scale = half_at(block, 0) * f32::from(scales[part]);
        let min = half_at(block, 2) * f32::from(mins[part]);
        both(scale, min)
    }

    /// Fills the head of a block of these values whose codes go up to `top`, and zeroes the rest.
    pub(crate) fn encode(values: &[f32], top: i32, block: &mut [u8]) {
        let part = |part: usize| &values[32 * part..32 * part + 32];
        let fits: [(f32, f32); 8] = std::array::from_fn(|p| fit::affine(part(p), top, true));
        let d = unit_for(fits.iter().map(|fit| fit.0), 63.0);
        let dmin = unit_for(fits.iter().map(|fit| fit.1), 63.0);
        let integer =
            |number: f32, unit: half::f16| fit::code(number, fit::inverse(unit.to_f32()), 0, 63);
        let scales = fits.map(|fit| integer(fit.0, d) as u8);
        let mins = fits.map(|fit| integer(fit.1, dmin) as u8);
        block.fill(0);
        block[..2].copy_from_slice(&d.to_le_bytes());
        block[2..4].copy_from_slice(&dmin.to_le_bytes());
        block[4..16].copy_from_slice(&pack_six_bits(&scales, &mins));
    }

    /// Stores the head of a row's block in the tail of the record.
    pub(crate) fn put_tail(block: &[u8], tail: &mut [u8], place: Place) {
        let (scales, mins) = six_bits(array(block, 4));
        for part in 0..8 {
            tail[16 * part + place.lane] = scales[part];
            tail[128 + 16 * part + place.lane] = mins[part];
        }
        put_unit(&block[..2], tail, 0, place.lane);
        put_unit(&block[2..4], tail, 1, place.lane);
    }

    /// As [`scale_min`], of a packed block.
    pub(crate) fn packed_scale_min(tail: &[u8], place: Place) -> [ScaleMin; 2] {
        let at = 16 * place.block + place.lane;
        let scale = unit(tail, 0, place.lane) * f32::from(tail[at]);
        let min = unit(tail, 1, place.lane) * f32::from(tail[128 + at]);
        both(scale, min)
    }
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
