//! Keys and values as 4-bit codes.
//!
//! The dimensions are taken in blocks of 32 (the last one padded with zeros). A block of one
//! position has an f16 scale and codes 0..16 that stand for −8..8; code byte `i` holds dimension
//! `i` in its low nibble and dimension `16 + i` in its high one.
//!
//! ```text
//! keys    [blocks][16 i][16 positions] bytes, then [blocks][16 positions] f16
//! values  [16 positions][blocks][16 i] bytes, then [16 positions][blocks] f16
//! ```

use super::rows::Columns;
use super::{KvCodec, KvFormat, OfF32, PAGE_TOKENS, Rows, load};
use crate::bytes::array;
use crate::formats::f16_scale::to_half;
use crate::formats::fit;
use oss_simd::Simd;

/// [`KvFormat::Int4`].
#[derive(Debug)]
pub enum Int4 {}

/// Bytes of the codes of a block, for all positions.
const CODES: usize = 16 * PAGE_TOKENS;
/// Bytes of the scales of a block, for all positions.
const SCALES: usize = 2 * PAGE_TOKENS;

#[inline(always)]
fn blocks(head_dim: usize) -> usize {
    head_dim.div_ceil(32)
}

/// One block's scale bits and its sixteen code bytes.
#[inline(always)]
fn encode<S: Simd>(s: S, values: &[f32]) -> (u16, [u8; 16]) {
    let (low, high) = values.split_at(values.len().min(16));
    let (low, high) = (load(s, low), load(s, high));
    // Zero, or not a number where a value is not finite.
    let check = s.add(s.sub(low, low), s.sub(high, high));
    if s.reduce_add(check).is_nan() {
        return (half::f16::NAN.to_bits(), [0x88; 16]);
    }
    // The value of largest magnitude, the first of several, becomes code 0, which stands for -8.
    let largest = s.reduce_max(s.max(s.abs(low), s.abs(high)));
    let is_extreme = |x: &f32| x.abs() == largest && *x != 0.0;
    let extreme = values.iter().copied().find(is_extreme).unwrap_or(0.0);
    let scale = to_half(extreme / -8.0);
    (scale.to_bits(), codes(s, [low, high], s.splat(fit::inverse(scale.to_f32()))))
}

/// The bits of sixteen positions' scales of a block, and what to multiply by to get codes; none
/// where a value is not finite.
#[inline(always)]
fn scales<S: Simd>(s: S, columns: &Columns<'_>, block: usize) -> Option<([u16; 16], S::F32)> {
    let (mut largest, mut extreme, mut check) = (s.zero(), s.zero(), s.zero());
    for d4 in 8 * block..8 * block + 8 {
        for x in columns.at(s, d4) {
            let size = s.abs(x);
            extreme = s.select_lt(largest, size, x, extreme);
            largest = s.max(size, largest);
            check = s.add(check, s.sub(x, x));
        }
    }
    let mut bits = [0; 16];
    let most = s.splat(half::f16::MAX.to_f32());
    let scale = s.max(s.min(s.div(extreme, s.splat(-8.0)), most), s.sub(s.zero(), most));
    s.store_f16(scale, &mut bits);
    let inverse = s.div(s.splat(1.0), s.load_f16(&bits));
    let inverse = s.select_lt(s.abs(inverse), s.splat(f32::INFINITY), inverse, s.zero());
    (!s.reduce_add(check).is_nan()).then_some((bits, inverse))
}

/// The code bytes of two times sixteen values.
#[inline(always)]
fn codes<S: Simd>(s: S, [low, high]: [S::F32; 2], inverse: S::F32) -> [u8; 16] {
    let (low, high) = (code(s, low, inverse), code(s, high, inverse));
    let both = s.or_i32(low, s.shl_i32::<4>(high));
    let signed = s.select_gt_i32((both, s.splat_i32(127)), s.sub_i32(both, s.splat_i32(256)), both);
    let mut bytes = [0; 16];
    s.store_i8(signed, &mut bytes);
    bytemuck::cast(bytes)
}

/// The nearest codes, ties to even.
#[inline(always)]
fn code<S: Simd>(s: S, x: S::F32, inverse: S::F32) -> S::I32 {
    let inside = s.max(s.min(s.mul(x, inverse), s.splat(7.0)), s.splat(-8.0));
    s.add_i32(s.round_i32(inside), s.splat_i32(8))
}

fn decode(scale: u16, byte: u8, d: usize) -> f32 {
    let code = (byte >> (4 * (d / 16))) & 0xf;
    f32::from(code as i8 - 8) * half::f16::from_bits(scale).to_f32()
}

/// Sixteen code bytes' low (`high == 0`) or high nibbles, less 8.
#[inline(always)]
fn centred<S: Simd>(s: S, codes: &[u8; 16], high: usize) -> S::F32 {
    let bytes = s.load_u8_i32(codes);
    let nibbles = if high == 0 { s.and_i32(bytes, s.splat_i32(15)) } else { s.shr_i32::<4>(bytes) };
    s.i32_to_f32(s.sub_i32(nibbles, s.splat_i32(8)))
}

impl KvCodec for Int4 {
    const FORMAT: KvFormat = KvFormat::Int4;
    const BITS: usize = 4;
    type Products = OfF32;

    #[inline(always)]
    fn key_bytes(head_dim: usize) -> usize {
        blocks(head_dim) * (CODES + SCALES)
    }

    #[inline(always)]
    fn value_bytes(head_dim: usize) -> usize {
        blocks(head_dim) * (CODES + SCALES)
    }

    #[inline(always)]
    fn write_key<S: Simd>(s: S, slot: &mut [u8], position: usize, key: &[f32]) {
        let (codes, rest) = slot.split_at_mut(blocks(key.len()) * CODES);
        for (block, values) in key.chunks(32).enumerate() {
            let (scale, bytes) = encode(s, values);
            for (i, byte) in bytes.into_iter().enumerate() {
                codes[block * CODES + i * PAGE_TOKENS + position] = byte;
            }
            let at = block * SCALES + 2 * position;
            rest[at..at + 2].copy_from_slice(&scale.to_le_bytes());
        }
    }

    #[inline(always)]
    fn write_value<S: Simd>(s: S, slot: &mut [u8], position: usize, value: &[f32]) {
        let n = blocks(value.len());
        let tile = &mut slot[Self::key_bytes(value.len())..];
        let (codes, scales) = tile.split_at_mut(n * CODES);
        for (block, values) in value.chunks(32).enumerate() {
            let (scale, bytes) = encode(s, values);
            let unit = position * n + block;
            codes[16 * unit..16 * unit + 16].copy_from_slice(&bytes);
            scales[2 * unit..2 * unit + 2].copy_from_slice(&scale.to_le_bytes());
        }
    }

    #[inline(always)]
    fn write_keys<S: Simd>(s: S, slot: &mut [u8], keys: Rows<'_>) {
        let columns = keys.columns();
        for block in 0..keys.dim / 32 {
            let Some((scales, inverses)) = scales(s, &columns, block) else {
                for i in 0..PAGE_TOKENS {
                    Self::write_key(s, slot, i, keys.row(i));
                }
                return;
            };
            let (out, _) = slot[block * CODES..][..CODES].as_chunks_mut();
            for (d4, out) in out.as_chunks_mut::<4>().0.iter_mut().enumerate() {
                let low = columns.at(s, 8 * block + d4);
                let high = columns.at(s, 8 * block + 4 + d4);
                for (out, (low, high)) in out.iter_mut().zip(low.into_iter().zip(high)) {
                    *out = codes(s, [low, high], inverses);
                }
            }
            let at = keys.dim / 32 * CODES + block * SCALES;
            slot[at..at + SCALES].copy_from_slice(bytemuck::bytes_of(&scales));
        }
    }

    #[inline(always)]
    fn write_values<S: Simd>(s: S, slot: &mut [u8], values: Rows<'_>) {
        let (n, columns) = (values.dim / 32, values.columns());
        for block in 0..n {
            let Some((scales, inverses)) = scales(s, &columns, block) else {
                for i in 0..PAGE_TOKENS {
                    Self::write_value(s, slot, i, values.row(i));
                }
                return;
            };
            let tile = &mut slot[Self::key_bytes(values.dim)..];
            let (units, tail) = tile.split_at_mut(n * CODES);
            let mut numbers = [0.0; 16];
            s.store(inverses, &mut numbers);
            for (position, (scale, inverse)) in scales.iter().zip(numbers).enumerate() {
                let (unit, halves) = (position * n + block, values.chunks(position));
                let halves = [s.load(&halves[2 * block]), s.load(&halves[2 * block + 1])];
                let bytes = codes(s, halves, s.splat(inverse));
                units[16 * unit..16 * unit + 16].copy_from_slice(&bytes);
                tail[2 * unit..2 * unit + 2].copy_from_slice(&scale.to_le_bytes());
            }
        }
    }

    fn read_key(slot: &[u8], position: usize, key: &mut [f32]) {
        let scales = blocks(key.len()) * CODES;
        for (d, x) in key.iter_mut().enumerate() {
            let block = d / 32;
            let scale = *array(slot, scales + block * SCALES + 2 * position);
            let byte = slot[block * CODES + (d % 16) * PAGE_TOKENS + position];
            *x = decode(u16::from_le_bytes(scale), byte, d % 32);
        }
    }

    fn read_value(slot: &[u8], position: usize, value: &mut [f32]) {
        let n = blocks(value.len());
        let tile = &slot[Self::key_bytes(value.len())..];
        for (d, x) in value.iter_mut().enumerate() {
            let unit = position * n + d / 32;
            let scale = *array(tile, n * CODES + 2 * unit);
            *x = decode(u16::from_le_bytes(scale), tile[16 * unit + d % 16], d % 32);
        }
    }

    #[inline(always)]
    fn key_columns<S: Simd>(s: S, slot: &[u8], head_dim: usize, d2: usize) -> [S::F32; 2] {
        // Both dimensions are in the same block, and in the same halves of their bytes.
        let (block, half) = (d2 / 16, d2 / 8 % 2);
        let at = block * CODES + 2 * d2 % 16 * PAGE_TOKENS;
        let scales = *array::<SCALES>(slot, blocks(head_dim) * CODES + block * SCALES);
        let scales = s.load_f16(&bytemuck::cast(scales));
        let first = centred(s, array::<16>(slot, at), half);
        let second = centred(s, array::<16>(slot, at + PAGE_TOKENS), half);
        [s.mul(first, scales), s.mul(second, scales)]
    }

    #[inline(always)]
    fn values<S: Simd>(s: S, slot: &[u8], head_dim: usize, p2: usize, d16: usize) -> [S::F32; 2] {
        let n = blocks(head_dim);
        let unit = 2 * p2 * n + d16 / 2;
        [value(s, slot, n, unit, d16 % 2), value(s, slot, n, unit + n, d16 % 2)]
    }
}

/// Half of a unit of values: one position's block, of which it has `n`.
#[inline(always)]
fn value<S: Simd>(s: S, slot: &[u8], n: usize, unit: usize, half: usize) -> S::F32 {
    let tile = n * (CODES + SCALES);
    let codes = array::<16>(slot, tile + 16 * unit);
    let scale = u16::from_le_bytes(*array(slot, tile + n * CODES + 2 * unit));
    s.mul(centred(s, codes, half), s.load_f16(&[scale; 16]))
}
