//! Keys and values as signed bytes.
//!
//! ```text
//! keys    [head_dim][16] i8, then [16] f32: the scale of each position
//! values  [16][lanes] i8, then [16] f32
//! ```
//!
//! The scale is the largest magnitude of the position's vector over 127; a vector with a value that
//! is not finite gets the scale NaN, so that the damage shows.

use super::rows::Columns;
use super::{KvCodec, KvFormat, OfF32, PAGE_TOKENS, Rows, lanes, load};
use crate::bytes::array;
use oss_simd::Simd;

/// [`KvFormat::Int8`].
#[derive(Debug)]
pub enum Int8 {}

const SCALES: usize = PAGE_TOKENS * size_of::<f32>();

/// The scale of a vector, and what to multiply by to get codes.
#[inline(always)]
fn scale_of<S: Simd>(s: S, values: &[f32]) -> (f32, f32) {
    let (mut largest, mut check) = (s.zero(), s.zero());
    for chunk in values.chunks(16) {
        let x = load(s, chunk);
        largest = s.max(s.abs(x), largest);
        // Zero, or not a number where x is not finite.
        check = s.add(check, s.sub(x, x));
    }
    if s.reduce_add(check).is_nan() {
        return (f32::NAN, 0.0);
    }
    let scale = s.reduce_max(largest) / 127.0;
    // Below this the inverse overflows; such a vector is zero for every purpose.
    if scale < f32::MIN_POSITIVE { (0.0, 0.0) } else { (scale, 1.0 / scale) }
}

/// [`scale_of`] of sixteen positions.
#[inline(always)]
fn scales_of<S: Simd>(s: S, columns: &Columns<'_>) -> (S::F32, S::F32) {
    let (mut largest, mut check) = (s.zero(), s.zero());
    for d4 in 0..columns.len() {
        for x in columns.at(s, d4) {
            largest = s.max(s.abs(x), largest);
            check = s.add(check, s.sub(x, x));
        }
    }
    let scale = s.div(largest, s.splat(127.0));
    let (tiny, inverse) = (s.splat(f32::MIN_POSITIVE), s.div(s.splat(1.0), scale));
    let inverse = s.select_lt(scale, tiny, s.zero(), inverse);
    let scale = s.select_lt(scale, tiny, s.zero(), scale);
    let (check, one) = (s.abs(check), s.splat(1.0));
    let scale = s.select_lt(check, one, scale, s.splat(f32::NAN));
    (scale, s.select_lt(check, one, inverse, s.zero()))
}

/// The nearest codes, ties to even; 0 for what is not finite.
#[inline(always)]
fn codes<S: Simd>(s: S, x: S::F32, inverse: S::F32) -> [u8; 16] {
    let scaled = s.mul(x, inverse);
    let scaled = s.select_lt(s.abs(x), s.splat(f32::INFINITY), scaled, s.zero());
    let inside = s.max(s.min(scaled, s.splat(127.0)), s.splat(-127.0));
    let mut codes = [0; 16];
    s.store_i8(s.round_i32(inside), &mut codes);
    bytemuck::cast(codes)
}

/// The lanes.
#[inline(always)]
fn stored<S: Simd>(s: S, x: S::F32) -> [f32; 16] {
    let mut to = [0.0; 16];
    s.store(x, &mut to);
    to
}

fn decode(code: u8, scale: f32) -> f32 {
    f32::from(i8::from_le_bytes([code])) * scale
}

fn put_scale(tile: &mut [u8], position: usize, scale: f32) {
    let at = tile.len() - SCALES + position * size_of::<f32>();
    tile[at..at + size_of::<f32>()].copy_from_slice(&scale.to_le_bytes());
}

fn get_scale(tile: &[u8], position: usize) -> f32 {
    f32::from_le_bytes(*array(tile, tile.len() - SCALES + position * size_of::<f32>()))
}

impl KvCodec for Int8 {
    const FORMAT: KvFormat = KvFormat::Int8;
    const BITS: usize = 8;
    type Products = OfF32;

    #[inline(always)]
    fn key_bytes(head_dim: usize) -> usize {
        head_dim * PAGE_TOKENS + SCALES
    }

    #[inline(always)]
    fn value_bytes(head_dim: usize) -> usize {
        lanes(head_dim) * PAGE_TOKENS + SCALES
    }

    #[inline(always)]
    fn write_key<S: Simd>(s: S, slot: &mut [u8], position: usize, key: &[f32]) {
        let tile = &mut slot[..Self::key_bytes(key.len())];
        let (scale, inverse) = scale_of(s, key);
        let inverse = s.splat(inverse);
        for (columns, chunk) in tile.chunks_mut(16 * PAGE_TOKENS).zip(key.chunks(16)) {
            let codes = codes(s, load(s, chunk), inverse);
            let columns = columns.chunks_exact_mut(PAGE_TOKENS);
            for (column, code) in columns.zip(&codes[..chunk.len()]) {
                column[position] = *code;
            }
        }
        put_scale(tile, position, scale);
    }

    #[inline(always)]
    fn write_value<S: Simd>(s: S, slot: &mut [u8], position: usize, value: &[f32]) {
        let tile = &mut slot[Self::key_bytes(value.len())..];
        let (scale, inverse) = scale_of(s, value);
        let inverse = s.splat(inverse);
        let row = &mut tile[position * lanes(value.len())..][..lanes(value.len())];
        for (out, chunk) in row.chunks_exact_mut(16).zip(value.chunks(16)) {
            out.copy_from_slice(&codes(s, load(s, chunk), inverse));
        }
        put_scale(tile, position, scale);
    }

    #[inline(always)]
    fn write_keys<S: Simd>(s: S, slot: &mut [u8], keys: Rows<'_>) {
        let columns = keys.columns();
        let (scales, inverses) = scales_of(s, &columns);
        let (out, tail) = slot.split_at_mut(keys.dim * PAGE_TOKENS);
        let (out, _) = out.as_chunks_mut::<PAGE_TOKENS>();
        for (d4, out) in out.as_chunks_mut::<4>().0.iter_mut().enumerate() {
            for (out, x) in out.iter_mut().zip(columns.at(s, d4)) {
                *out = codes(s, x, inverses);
            }
        }
        tail[..SCALES].copy_from_slice(bytemuck::bytes_of(&stored(s, scales)));
    }

    #[inline(always)]
    fn write_values<S: Simd>(s: S, slot: &mut [u8], values: Rows<'_>) {
        let (scales, inverses) = scales_of(s, &values.columns());
        let tile = &mut slot[Self::key_bytes(values.dim)..];
        let (rows, tail) = tile.split_at_mut(values.dim * PAGE_TOKENS);
        let rows = rows.chunks_exact_mut(values.dim).zip(stored(s, inverses));
        for (i, (row, inverse)) in rows.enumerate() {
            for (out, x) in row.as_chunks_mut().0.iter_mut().zip(values.chunks(i)) {
                *out = codes(s, s.load(x), s.splat(inverse));
            }
        }
        tail.copy_from_slice(bytemuck::bytes_of(&stored(s, scales)));
    }

    fn read_key(slot: &[u8], position: usize, key: &mut [f32]) {
        let tile = &slot[..Self::key_bytes(key.len())];
        let scale = get_scale(tile, position);
        for (column, x) in tile.chunks_exact(PAGE_TOKENS).zip(key) {
            *x = decode(column[position], scale);
        }
    }

    fn read_value(slot: &[u8], position: usize, value: &mut [f32]) {
        let tile = &slot[Self::key_bytes(value.len())..];
        let scale = get_scale(tile, position);
        let row = &tile[position * lanes(value.len())..];
        for (&code, x) in row.iter().zip(value) {
            *x = decode(code, scale);
        }
    }

    #[inline(always)]
    fn key_columns<S: Simd>(s: S, slot: &[u8], head_dim: usize, d2: usize) -> [S::F32; 2] {
        let scales: [f32; 16] = bytemuck::cast(*array::<64>(slot, head_dim * PAGE_TOKENS));
        let scales = s.load(&scales);
        let at = 2 * d2 * PAGE_TOKENS;
        [numbers(s, slot, at, scales), numbers(s, slot, at + PAGE_TOKENS, scales)]
    }

    #[inline(always)]
    fn values<S: Simd>(s: S, slot: &[u8], head_dim: usize, p2: usize, d16: usize) -> [S::F32; 2] {
        let row = lanes(head_dim);
        let at = Self::key_bytes(head_dim) + 2 * p2 * row + 16 * d16;
        let scales = Self::slot_bytes(head_dim) - SCALES + 2 * p2 * size_of::<f32>();
        let scale = |at| s.splat(f32::from_le_bytes(*array(slot, at)));
        [
            numbers(s, slot, at, scale(scales)),
            numbers(s, slot, at + row, scale(scales + size_of::<f32>())),
        ]
    }
}

/// The sixteen codes at so many bytes, times their scales.
#[inline(always)]
fn numbers<S: Simd>(s: S, slot: &[u8], at: usize, scales: S::F32) -> S::F32 {
    let codes: [i8; 16] = bytemuck::cast(*array::<16>(slot, at));
    s.mul(s.i32_to_f32(s.load_i8_i32(&codes)), scales)
}
