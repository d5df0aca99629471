//! Q4_K: 256 columns in parts of 32, `value = d * scale * code - dmin * min`, in 144 bytes.
//!
//! ```text
//! 0    f16     d
//! 2    f16     dmin
//! 4    [12]    6-bit scales and minima of the eight parts
//! 16   [4][32]  low nibbles: codes of part 2 i, high nibbles: of part 2 i + 1
//! ```
//!
//! Packed: records of eight blocks, 8 x 256 bytes of codes and a 320-byte tail: [8 parts][16
//! rows] u8 scales, as many minima, then d and dmin (2368 bytes to the file's 2304).

use super::k_scale::{pack_six_bits, put_unit, record, scaled, six_bits, unit, unit_for};
use super::{Blocks, Step, fit, half_scale};
use crate::bytes::array;
use crate::dtype::Codec;
use crate::planes::{Codes, Nibbles, Plane};
use crate::record::{Place, Record};
use crate::unpack::{Block, CodeFormat};
use oss_simd::Simd;

pub(crate) enum Q4K {}

pub(crate) const CODEC: Codec = Codec::of_blocks::<Q4K>();

impl Blocks for Q4K {
    const LEN: usize = 256;
    const BYTES: usize = 144;
    const HALVES_AT: &'static [usize] = &[0, 2];
    type Codes = Nibbles;
    type Unpacked = Q4K;

    fn codes(block: &[u8], part: usize) -> Codes {
        let bytes = array::<32>(block, 16 + part / 2 * 32);
        bytes.map(|both| both >> (4 * (part % 2)) & 0xf)
    }

    fn meaning(code: u8) -> i32 {
        i32::from(code)
    }

    fn steps(block: &[u8], part: usize) -> [Step; 2] {
        let (scales, mins) = six_bits(array(block, 4));
        let scale = half_scale::half_at(block, 0) * f32::from(scales[part]);
        let min = half_scale::half_at(block, 2) * f32::from(mins[part]);
        half_scale::both(scale, min)
    }

    fn encode(values: &[f32], block: &mut [u8]) {
        let part = |part: usize| &values[32 * part..32 * part + 32];
        let fits: [(f32, f32); 8] = std::array::from_fn(|p| fit::affine(part(p), 15, true));
        let d = unit_for(fits.iter().map(|fit| fit.0), 63.0);
        let dmin = unit_for(fits.iter().map(|fit| fit.1), 63.0);
        let integer =
            |step: f32, unit: half::f16| fit::code(step, fit::inverse(unit.to_f32()), 0, 63) as u8;
        let scales = fits.map(|fit| integer(fit.0, d));
        let mins = fits.map(|fit| integer(fit.1, dmin));
        block.fill(0);
        block[..2].copy_from_slice(&d.to_le_bytes());
        block[2..4].copy_from_slice(&dmin.to_le_bytes());
        block[4..16].copy_from_slice(&pack_six_bits(&scales, &mins));
        for part in 0..8 {
            let Step { scale, min } = Self::steps(block, part)[0];
            let codes: Codes = fit::codes(&values[32 * part..], (scale, min), 0, 15);
            let bytes = &mut block[16 + part / 2 * 32..][..32];
            for (byte, code) in bytes.iter_mut().zip(codes) {
                *byte |= code << (4 * (part % 2));
            }
        }
    }

    fn put_tail(block: &[u8], tail: &mut [u8], place: Place) {
        let (scales, mins) = six_bits(array(block, 4));
        for part in 0..8 {
            tail[16 * part + place.lane] = scales[part];
            tail[128 + 16 * part + place.lane] = mins[part];
        }
        put_unit(&block[..2], tail, 0, place.lane);
        put_unit(&block[2..4], tail, 1, place.lane);
    }

    fn packed_steps(tail: &[u8], place: Place) -> [Step; 2] {
        let at = 16 * place.block + place.lane;
        let scale = unit(tail, 0, place.lane) * f32::from(tail[at]);
        let min = unit(tail, 1, place.lane) * f32::from(tail[128 + at]);
        half_scale::both(scale, min)
    }
}

impl CodeFormat for Q4K {
    const MAX_CODE: i32 = 15;
    const ZERO: i32 = 0;
    const HALVES: bool = false;
    const HAS_MIN: bool = true;
    const RECORD: Record = record(Nibbles::BYTES);

    #[inline(always)]
    fn pair<S: Simd>(s: S, block: Block<'_>, j: usize) -> (S::U8, S::U8) {
        <Self as Blocks>::Codes::pair(s, block.codes, j)
    }

    #[inline(always)]
    fn scales<S: Simd>(s: S, block: Block<'_>) -> (S::F32, S::F32) {
        let scale = scaled(s, block.tail, 0, 16 * block.index);
        (scale, scale)
    }

    #[inline(always)]
    fn mins<S: Simd>(s: S, block: Block<'_>) -> (S::F32, S::F32) {
        let min = scaled(s, block.tail, 1, 128 + 16 * block.index);
        (min, min)
    }
}
