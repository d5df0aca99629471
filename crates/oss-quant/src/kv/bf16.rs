//! Keys and values in bf16, in pairs: a 32-bit lane becomes two numbers with a shift and a mask.

use super::{KvCodec, KvFormat, OfBf16, PAGE_TOKENS, Rows, lanes, load};
use crate::bytes::array;
use oss_simd::{Bf16Pairs, Simd};

/// [`KvFormat::Bf16`].
///
/// ```text
/// keys    [head_dim / 2][16 positions][2]   dimensions 2 d and 2 d + 1 next to each other
/// values  [8][lanes][2]                     positions 2 p and 2 p + 1 next to each other
/// ```
#[derive(Debug)]
pub enum Bf16 {}

/// Bytes of sixteen pairs.
const PAIRS: usize = 64;

impl KvCodec for Bf16 {
    const FORMAT: KvFormat = KvFormat::Bf16;
    const BITS: usize = 16;
    type Products = OfBf16;

    #[inline(always)]
    fn key_bytes(head_dim: usize) -> usize {
        head_dim.div_ceil(2) * PAIRS
    }

    #[inline(always)]
    fn value_bytes(head_dim: usize) -> usize {
        lanes(head_dim) / 16 * (PAGE_TOKENS / 2) * PAIRS
    }

    #[inline(always)]
    fn write_key<S: Simd>(s: S, slot: &mut [u8], position: usize, key: &[f32]) {
        let columns = slot[..Self::key_bytes(key.len())].chunks_mut(8 * PAIRS);
        for (columns, chunk) in columns.zip(key.chunks(16)) {
            let mut bits = [0; 16];
            s.store_u16(s.shr_i32::<16>(s.round_bf16_flushed(load(s, chunk))), &mut bits);
            let pairs: [[u8; 4]; 8] = bytemuck::cast(bits);
            for (column, pair) in columns.chunks_exact_mut(PAIRS).zip(&pairs) {
                column[4 * position..][..4].copy_from_slice(pair);
            }
        }
    }

    #[inline(always)]
    fn write_value<S: Simd>(s: S, slot: &mut [u8], position: usize, value: &[f32]) {
        let row_bytes = lanes(value.len()) / 16 * PAIRS;
        let at = Self::key_bytes(value.len()) + position / 2 * row_bytes;
        let (row, _) = slot[at..at + row_bytes].as_chunks_mut::<PAIRS>();
        for (pairs, chunk) in row.iter_mut().zip(value.chunks(16)) {
            let [first, second] = s.bf16_numbers(pairs_at(s, pairs, 0));
            let bits = s.round_bf16_flushed(load(s, chunk));
            let (first, second) = match position % 2 {
                0 => (bits, s.f32_as_i32(second)),
                _ => (s.f32_as_i32(first), bits),
            };
            *pairs = paired(s, first, second);
        }
    }

    #[inline(always)]
    fn write_keys<S: Simd>(s: S, slot: &mut [u8], keys: Rows<'_>) {
        let (out, _) = slot[..Self::key_bytes(keys.dim)].as_chunks_mut::<PAIRS>();
        let columns = keys.columns();
        for (d4, [first, second]) in out.as_chunks_mut().0.iter_mut().enumerate() {
            let [a, b, c, d] = columns.at(s, d4);
            *first = paired(s, s.round_bf16_flushed(a), s.round_bf16_flushed(b));
            *second = paired(s, s.round_bf16_flushed(c), s.round_bf16_flushed(d));
        }
    }

    #[inline(always)]
    fn write_values<S: Simd>(s: S, slot: &mut [u8], values: Rows<'_>) {
        let (pairs, _) = slot[Self::key_bytes(values.dim)..].as_chunks_mut::<PAIRS>();
        for (p2, row) in pairs.chunks_exact_mut(values.dim / 16).enumerate() {
            let both = values.chunks(2 * p2).iter().zip(values.chunks(2 * p2 + 1));
            for (pairs, (a, b)) in row.iter_mut().zip(both) {
                *pairs =
                    paired(s, s.round_bf16_flushed(s.load(a)), s.round_bf16_flushed(s.load(b)));
            }
        }
    }

    fn read_key(slot: &[u8], position: usize, key: &mut [f32]) {
        for (d, x) in key.iter_mut().enumerate() {
            *x = decode(slot, d / 2 * PAIRS + 4 * position + 2 * (d % 2));
        }
    }

    fn read_value(slot: &[u8], position: usize, value: &mut [f32]) {
        let row_bytes = lanes(value.len()) / 16 * PAIRS;
        let row = &slot[Self::key_bytes(value.len()) + position / 2 * row_bytes..];
        for (d, x) in value.iter_mut().enumerate() {
            *x = decode(row, 4 * d + 2 * (position % 2));
        }
    }

    #[inline(always)]
    fn key_columns<S: Simd>(s: S, slot: &[u8], _: usize, d2: usize) -> Bf16Pairs<S::F32> {
        pairs_at(s, slot, d2 * PAIRS)
    }

    #[inline(always)]
    fn values<S: Simd>(
        s: S,
        slot: &[u8],
        head_dim: usize,
        p2: usize,
        d16: usize,
    ) -> Bf16Pairs<S::F32> {
        let at = Self::key_bytes(head_dim) + (p2 * (lanes(head_dim) / 16) + d16) * PAIRS;
        pairs_at(s, slot, at)
    }
}

/// The sixteen pairs at so many bytes.
#[inline(always)]
fn pairs_at<S: Simd>(s: S, slot: &[u8], at: usize) -> Bf16Pairs<S::F32> {
    s.bf16_pairs(s.load_i32(&bytemuck::cast(*array::<PAIRS>(slot, at))))
}

/// Sixteen pairs of numbers, which are in the upper halves of the lanes.
#[inline(always)]
fn paired<S: Simd>(s: S, first: S::I32, second: S::I32) -> [u8; PAIRS] {
    let mut to = [0; 16];
    s.store_i32(s.or_i32(second, s.shr_i32::<16>(first)), &mut to);
    bytemuck::cast(to)
}

/// The number at so many bytes.
fn decode(bytes: &[u8], at: usize) -> f32 {
    half::bf16::from_bits(u16::from_le_bytes(*array(bytes, at))).to_f32()
}
