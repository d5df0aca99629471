//! Keys and values as floating-point numbers.

use super::{KvCodec, KvFormat, OfF32, PAGE_TOKENS, Rows, lanes, load};
use crate::bytes::array;
use oss_simd::Simd;

/// [`KvFormat::F32`].
#[derive(Debug)]
pub enum F32 {}
/// [`KvFormat::F16`].
#[derive(Debug)]
pub enum F16 {}

/// The width of a number and its conversions are all that differs between these formats.
macro_rules! float_codec {
    ($name:ident, $bits:ty, $store:expr, $decode:expr, $load:expr) => {
        impl KvCodec for $name {
            const FORMAT: KvFormat = KvFormat::$name;
            const BITS: usize = 8 * size_of::<$bits>();
            type Products = OfF32;

            #[inline(always)]
            fn key_bytes(head_dim: usize) -> usize {
                head_dim * PAGE_TOKENS * size_of::<$bits>()
            }

            #[inline(always)]
            fn value_bytes(head_dim: usize) -> usize {
                lanes(head_dim) * PAGE_TOKENS * size_of::<$bits>()
            }

            #[inline(always)]
            fn write_key<S: Simd>(s: S, slot: &mut [u8], position: usize, key: &[f32]) {
                const SIZE: usize = size_of::<$bits>();
                let columns = slot.chunks_exact_mut(16 * PAGE_TOKENS * SIZE);
                for (columns, chunk) in columns.zip(key.chunks(16)) {
                    let bits: [$bits; 16] = $store(s, load(s, chunk));
                    let columns = columns.chunks_exact_mut(PAGE_TOKENS * SIZE);
                    for (column, bits) in columns.zip(&bits[..chunk.len()]) {
                        column[position * SIZE..][..SIZE].copy_from_slice(&bits.to_le_bytes());
                    }
                }
            }

            #[inline(always)]
            fn write_value<S: Simd>(s: S, slot: &mut [u8], position: usize, value: &[f32]) {
                const SIZE: usize = size_of::<$bits>();
                let row_bytes = lanes(value.len()) * SIZE;
                let at = Self::key_bytes(value.len()) + position * row_bytes;
                let row = slot[at..at + row_bytes].chunks_exact_mut(16 * SIZE);
                for (out, chunk) in row.zip(value.chunks(16)) {
                    let bits: [$bits; 16] = $store(s, load(s, chunk));
                    out.copy_from_slice(bytemuck::bytes_of(&bits));
                }
            }

            #[inline(always)]
            fn write_keys<S: Simd>(s: S, slot: &mut [u8], keys: Rows<'_>) {
                const BYTES: usize = PAGE_TOKENS * size_of::<$bits>();
                let (out, _) = slot[..Self::key_bytes(keys.dim)].as_chunks_mut::<BYTES>();
                let columns = keys.columns();
                for (d4, out) in out.as_chunks_mut::<4>().0.iter_mut().enumerate() {
                    for (out, x) in out.iter_mut().zip(columns.at(s, d4)) {
                        let bits: [$bits; 16] = $store(s, x);
                        *out = bytemuck::cast(bits);
                    }
                }
            }

            #[inline(always)]
            fn write_values<S: Simd>(s: S, slot: &mut [u8], values: Rows<'_>) {
                const BYTES: usize = 16 * size_of::<$bits>();
                let (out, _) = slot[Self::key_bytes(values.dim)..].as_chunks_mut::<BYTES>();
                for (i, out) in out.chunks_exact_mut(values.dim / 16).enumerate() {
                    for (out, x) in out.iter_mut().zip(values.chunks(i)) {
                        let bits: [$bits; 16] = $store(s, s.load(x));
                        *out = bytemuck::cast(bits);
                    }
                }
            }

            fn read_key(slot: &[u8], position: usize, key: &mut [f32]) {
                const SIZE: usize = size_of::<$bits>();
                for (column, x) in slot.chunks_exact(PAGE_TOKENS * SIZE).zip(key) {
                    *x = $decode(<$bits>::from_le_bytes(*array(column, position * SIZE)));
                }
            }

            fn read_value(slot: &[u8], position: usize, value: &mut [f32]) {
                const SIZE: usize = size_of::<$bits>();
                let row_bytes = lanes(value.len()) * SIZE;
                let at = Self::key_bytes(value.len()) + position * row_bytes;
                for (bytes, x) in slot[at..].chunks_exact(SIZE).zip(value) {
                    *x = $decode(<$bits>::from_le_bytes(*array(bytes, 0)));
                }
            }

            #[inline(always)]
            fn key_columns<S: Simd>(s: S, slot: &[u8], _: usize, d2: usize) -> [S::F32; 2] {
                const BYTES: usize = PAGE_TOKENS * size_of::<$bits>();
                let column = |d| bytemuck::cast(*array::<BYTES>(slot, d * BYTES));
                [$load(s, column(2 * d2)), $load(s, column(2 * d2 + 1))]
            }

            #[inline(always)]
            fn values<S: Simd>(
                s: S,
                slot: &[u8],
                head_dim: usize,
                p2: usize,
                d16: usize,
            ) -> [S::F32; 2] {
                const BYTES: usize = 16 * size_of::<$bits>();
                let vectors = lanes(head_dim) / 16;
                let begin = Self::key_bytes(head_dim) + d16 * BYTES;
                let row = |p| bytemuck::cast(*array::<BYTES>(slot, begin + p * vectors * BYTES));
                [$load(s, row(2 * p2)), $load(s, row(2 * p2 + 1))]
            }
        }
    };
}

#[inline(always)]
fn load_f32<S: Simd>(s: S, from: [f32; 16]) -> S::F32 {
    s.load(&from)
}

#[inline(always)]
fn load_f16<S: Simd>(s: S, from: [u16; 16]) -> S::F32 {
    s.load_f16(&from)
}

#[inline(always)]
fn store_f32<S: Simd>(s: S, x: S::F32) -> [u32; 16] {
    let mut to = [0.0; 16];
    s.store(x, &mut to);
    to.map(f32::to_bits)
}

/// What is too large is the largest: an infinity in a page would be met by whoever reuses it. What
/// is no number stays none.
#[inline(always)]
fn store_f16<S: Simd>(s: S, x: S::F32) -> [u16; 16] {
    let most = half::f16::MAX.to_f32();
    let x = s.max(s.splat(-most), s.min(s.splat(most), x));
    let mut to = [0; 16];
    s.store_f16(x, &mut to);
    to
}

fn unhalf(bits: u16) -> f32 {
    half::f16::from_bits(bits).to_f32()
}

float_codec!(F32, u32, store_f32, f32::from_bits, load_f32);
float_codec!(F16, u16, store_f16, unhalf, load_f16);
