//! Where the codes of a packed block lie: 32 columns of 16 rows.
//!
//! Spread out, a block is eight *code vectors* of 64 bytes. Byte `4 r + b` of code vector `i` is
//! the code at row `r`, column `4 i + b`, which is the order that byte-dot instructions want.
//! Narrower codes share vectors:
//!
//! ```text
//! Bytes     8 vectors   vector i: code vector i
//! Nibbles   4 vectors   vector j: code vector j in the low nibbles, 4 + j in the high ones
//! Bits      1 vector    bit i of each byte: bit 4 of code vector i
//! Pairs     2 vectors   vector h, bits 2t and 2t + 1: two bits of code vector 4 h + t
//! ```
//!
//! A plane may be two of these, one after the other: nibbles and the bits above them.

use crate::bytes::array;
use oss_simd::Simd;

/// The codes of one row of a block, by column.
pub(crate) type Codes = [u8; 32];

/// A way to store the codes of a block.
pub(crate) trait Plane: 'static {
    /// Bytes of a block, a multiple of 64.
    const BYTES: usize;
    /// Stores one row. The bytes of `block` that belong to the row must be zero.
    fn put(codes: &Codes, block: &mut [u8], lane: usize);
    /// Reads one row.
    fn get(block: &[u8], lane: usize) -> Codes;
    /// Code vectors `j` and `4 + j` of a block.
    fn pair<S: Simd>(s: S, block: &[u8], j: usize) -> (S::U8, S::U8);
}

/// Four neighbouring columns of one row.
fn quad(codes: &Codes, i: usize) -> u32 {
    u32::from_le_bytes(*array(codes, 4 * i))
}

fn set_quad(codes: &mut Codes, i: usize, quad: u32) {
    codes[4 * i..4 * i + 4].copy_from_slice(&quad.to_le_bytes());
}

/// The 32-bit lane `lane` of vector `vector`.
fn word(block: &[u8], vector: usize, lane: usize) -> u32 {
    u32::from_le_bytes(*array(block, 64 * vector + 4 * lane))
}

fn or_word(block: &mut [u8], vector: usize, lane: usize, bits: u32) {
    let all = word(block, vector, lane) | bits;
    block[64 * vector + 4 * lane..][..4].copy_from_slice(&all.to_le_bytes());
}

const LOW_1: u32 = 0x0101_0101;
const LOW_2: u32 = 0x0303_0303;
const LOW_4: u32 = 0x0f0f_0f0f;

#[inline(always)]
fn mask<S: Simd>(s: S, x: S::I32, mask: u32) -> S::I32 {
    s.and_i32(x, s.splat_i32(mask as i32))
}

#[inline(always)]
fn vector<S: Simd>(s: S, bytes: &[u8], at: usize) -> S::I32 {
    s.u8_as_i32(s.load_u8(array(bytes, at)))
}

/// 8-bit codes.
pub(crate) enum Bytes {}

impl Plane for Bytes {
    const BYTES: usize = 512;

    fn put(codes: &Codes, block: &mut [u8], lane: usize) {
        for i in 0..8 {
            or_word(block, i, lane, quad(codes, i));
        }
    }

    fn get(block: &[u8], lane: usize) -> Codes {
        let mut codes = [0; 32];
        for i in 0..8 {
            set_quad(&mut codes, i, word(block, i, lane));
        }
        codes
    }

    #[inline(always)]
    fn pair<S: Simd>(s: S, block: &[u8], j: usize) -> (S::U8, S::U8) {
        (s.load_u8(array(block, 64 * j)), s.load_u8(array(block, 64 * (4 + j))))
    }
}

/// 4-bit codes.
pub(crate) enum Nibbles {}

impl Nibbles {
    /// Stores one row whose byte `i` already holds columns `i` and `16 + i`.
    pub(crate) fn put_bytes(bytes: &[u8; 16], block: &mut [u8], lane: usize) {
        for j in 0..4 {
            or_word(block, j, lane, u32::from_le_bytes(*array(bytes, 4 * j)));
        }
    }

    /// The vector as stored, for a look-up of both nibbles.
    #[inline(always)]
    pub(crate) fn raw<S: Simd>(s: S, block: &[u8], j: usize) -> S::U8 {
        s.load_u8(array(block, 64 * j))
    }

    #[inline(always)]
    fn pair_i32<S: Simd>(s: S, block: &[u8], j: usize) -> (S::I32, S::I32) {
        let both = vector(s, block, 64 * j);
        (mask(s, both, LOW_4), mask(s, s.shr_i32::<4>(both), LOW_4))
    }
}

impl Plane for Nibbles {
    const BYTES: usize = 256;

    fn put(codes: &Codes, block: &mut [u8], lane: usize) {
        for j in 0..4 {
            let both = (quad(codes, j) & LOW_4) | (quad(codes, 4 + j) & LOW_4) << 4;
            or_word(block, j, lane, both);
        }
    }

    fn get(block: &[u8], lane: usize) -> Codes {
        let mut codes = [0; 32];
        for j in 0..4 {
            let both = word(block, j, lane);
            set_quad(&mut codes, j, both & LOW_4);
            set_quad(&mut codes, 4 + j, both >> 4 & LOW_4);
        }
        codes
    }

    #[inline(always)]
    fn pair<S: Simd>(s: S, block: &[u8], j: usize) -> (S::U8, S::U8) {
        let (low, high) = Nibbles::pair_i32(s, block, j);
        (s.i32_as_u8(low), s.i32_as_u8(high))
    }
}

/// 5-bit codes: nibbles, then a plane of bits.
pub(crate) enum NibblesAndBits {}

impl Plane for NibblesAndBits {
    const BYTES: usize = 320;

    fn put(codes: &Codes, block: &mut [u8], lane: usize) {
        Nibbles::put(codes, block, lane);
        let bits = (0..8).fold(0, |bits, i| bits | (quad(codes, i) >> 4 & LOW_1) << i);
        or_word(block, 4, lane, bits);
    }

    fn get(block: &[u8], lane: usize) -> Codes {
        let mut codes = Nibbles::get(block, lane);
        let bits = word(block, 4, lane);
        for i in 0..8 {
            let all = quad(&codes, i) | (bits >> i & LOW_1) << 4;
            set_quad(&mut codes, i, all);
        }
        codes
    }

    #[inline(always)]
    fn pair<S: Simd>(s: S, block: &[u8], j: usize) -> (S::U8, S::U8) {
        let (low, high) = Nibbles::pair_i32(s, block, j);
        let bits = vector(s, block, 256);
        // Bit j, and bit 4 + j, to bit 4; what crosses into a neighbouring byte is masked away.
        let (for_low, for_high) = match j {
            0 => (s.shl_i32::<4>(bits), bits),
            1 => (s.shl_i32::<3>(bits), s.shr_i32::<1>(bits)),
            2 => (s.shl_i32::<2>(bits), s.shr_i32::<2>(bits)),
            _ => (s.shl_i32::<1>(bits), s.shr_i32::<3>(bits)),
        };
        let low = s.or_i32(low, mask(s, for_low, LOW_1 << 4));
        let high = s.or_i32(high, mask(s, for_high, LOW_1 << 4));
        (s.i32_as_u8(low), s.i32_as_u8(high))
    }
}

/// 6-bit codes: nibbles, then a plane of pairs.
pub(crate) enum NibblesAndPairs {}

impl Plane for NibblesAndPairs {
    const BYTES: usize = 384;

    fn put(codes: &Codes, block: &mut [u8], lane: usize) {
        Nibbles::put(codes, block, lane);
        let above: Codes = std::array::from_fn(|column| codes[column] >> 4);
        Pairs::put(&above, &mut block[256..], lane);
    }

    fn get(block: &[u8], lane: usize) -> Codes {
        let low = Nibbles::get(block, lane);
        let above = Pairs::get(&block[256..], lane);
        std::array::from_fn(|column| low[column] | above[column] << 4)
    }

    #[inline(always)]
    fn pair<S: Simd>(s: S, block: &[u8], j: usize) -> (S::U8, S::U8) {
        let (low, high) = Nibbles::pair_i32(s, block, j);
        let (first, second) = (vector(s, block, 256), vector(s, block, 320));
        let (for_low, for_high) = match j {
            0 => (s.shl_i32::<4>(first), s.shl_i32::<4>(second)),
            1 => (s.shl_i32::<2>(first), s.shl_i32::<2>(second)),
            2 => (first, second),
            _ => (s.shr_i32::<2>(first), s.shr_i32::<2>(second)),
        };
        let low = s.or_i32(low, mask(s, for_low, LOW_2 << 4));
        let high = s.or_i32(high, mask(s, for_high, LOW_2 << 4));
        (s.i32_as_u8(low), s.i32_as_u8(high))
    }
}

/// 2-bit codes.
pub(crate) enum Pairs {}

impl Plane for Pairs {
    const BYTES: usize = 128;

    fn put(codes: &Codes, block: &mut [u8], lane: usize) {
        for h in 0..2 {
            let pairs =
                (0..4).fold(0, |pairs, t| pairs | (quad(codes, 4 * h + t) & LOW_2) << (2 * t));
            or_word(block, h, lane, pairs);
        }
    }

    fn get(block: &[u8], lane: usize) -> Codes {
        let mut codes = [0; 32];
        for i in 0..8 {
            set_quad(&mut codes, i, word(block, i / 4, lane) >> (2 * (i % 4)) & LOW_2);
        }
        codes
    }

    #[inline(always)]
    fn pair<S: Simd>(s: S, block: &[u8], j: usize) -> (S::U8, S::U8) {
        let (first, second) = (vector(s, block, 0), vector(s, block, 64));
        let (low, high) = match j {
            0 => (first, second),
            1 => (s.shr_i32::<2>(first), s.shr_i32::<2>(second)),
            2 => (s.shr_i32::<4>(first), s.shr_i32::<4>(second)),
            _ => (s.shr_i32::<6>(first), s.shr_i32::<6>(second)),
        };
        (s.i32_as_u8(mask(s, low, LOW_2)), s.i32_as_u8(mask(s, high, LOW_2)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check<P: Plane>(bits: u32) {
        let mut block = vec![0; P::BYTES];
        let rows: Vec<Codes> = (0..16_u32)
            .map(|lane| {
                std::array::from_fn(|column| {
                    let mixed = (lane * 32 + column as u32).wrapping_mul(2_654_435_761) >> 13;
                    (mixed & ((1 << bits) - 1)) as u8
                })
            })
            .collect();
        for (lane, codes) in rows.iter().enumerate() {
            P::put(codes, &mut block, lane);
        }
        for (lane, codes) in rows.iter().enumerate() {
            assert_eq!(P::get(&block, lane), *codes, "lane {lane} of {bits}-bit codes");
        }
    }

    #[test]
    fn every_plane_gives_back_the_rows_that_it_was_given() {
        check::<Bytes>(8);
        check::<Nibbles>(4);
        check::<NibblesAndBits>(5);
        check::<NibblesAndPairs>(6);
        check::<Pairs>(2);
    }

    #[test]
    fn nibbles_lie_as_the_drawing_says() {
        let mut block = vec![0; Nibbles::BYTES];
        let mut codes = [0; 32];
        codes[6] = 0x5; // column 4 j + b with j = 1, b = 2
        codes[16 + 6] = 0xa;
        Nibbles::put(&codes, &mut block, 3);
        assert_eq!(block[64 + 4 * 3 + 2], 0xa5);
        assert_eq!(block.iter().filter(|byte| **byte != 0).count(), 1);
    }
}
