//! Keys and values as floating-point numbers.

use super::{KvCodec, KvFormat, PAGE_TOKENS, lanes};
use crate::bytes::array;
use oss_simd::Simd;

/// [`KvFormat::F32`].
#[derive(Debug)]
pub enum F32 {}
/// [`KvFormat::F16`].
#[derive(Debug)]
pub enum F16 {}
/// [`KvFormat::Bf16`].
#[derive(Debug)]
pub enum Bf16 {}

/// The width of a number and its conversions are all that differs between these formats.
macro_rules! float_codec {
    ($name:ident, $bits:ty, $encode:expr, $decode:expr, $load:expr) => {
        impl KvCodec for $name {
            const FORMAT: KvFormat = KvFormat::$name;

            #[inline(always)]
            fn key_bytes(head_dim: usize) -> usize {
                head_dim * PAGE_TOKENS * size_of::<$bits>()
            }

            #[inline(always)]
            fn value_bytes(head_dim: usize) -> usize {
                lanes(head_dim) * PAGE_TOKENS * size_of::<$bits>()
            }

            fn write_key(slot: &mut [u8], position: usize, key: &[f32]) {
                const SIZE: usize = size_of::<$bits>();
                let columns = slot.chunks_exact_mut(PAGE_TOKENS * SIZE);
                for (column, &x) in columns.zip(key) {
                    let bits: $bits = $encode(x);
                    column[position * SIZE..][..SIZE].copy_from_slice(&bits.to_le_bytes());
                }
            }

            fn write_value(slot: &mut [u8], position: usize, value: &[f32]) {
                const SIZE: usize = size_of::<$bits>();
                let row_bytes = lanes(value.len()) * SIZE;
                let at = Self::key_bytes(value.len()) + position * row_bytes;
                let row = &mut slot[at..at + row_bytes];
                row[value.len() * SIZE..].fill(0);
                for (out, &x) in row.chunks_exact_mut(SIZE).zip(value) {
                    let bits: $bits = $encode(x);
                    out.copy_from_slice(&bits.to_le_bytes());
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
            fn key_column<S: Simd>(s: S, slot: &[u8], _head_dim: usize, d: usize) -> S::F32 {
                const BYTES: usize = PAGE_TOKENS * size_of::<$bits>();
                $load(s, bytemuck::cast(*array::<BYTES>(slot, d * BYTES)))
            }

            #[inline(always)]
            fn value<S: Simd>(
                s: S,
                slot: &[u8],
                head_dim: usize,
                position: usize,
                d16: usize,
            ) -> S::F32 {
                const BYTES: usize = 16 * size_of::<$bits>();
                let vectors = lanes(head_dim) / 16;
                let at = Self::key_bytes(head_dim) + (position * vectors + d16) * BYTES;
                $load(s, bytemuck::cast(*array::<BYTES>(slot, at)))
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
fn load_bf16<S: Simd>(s: S, from: [u16; 16]) -> S::F32 {
    s.load_bf16(&from)
}

fn half(x: f32) -> u16 {
    half::f16::from_f32(x).to_bits()
}

fn unhalf(bits: u16) -> f32 {
    half::f16::from_bits(bits).to_f32()
}

fn brain(x: f32) -> u16 {
    half::bf16::from_f32(x).to_bits()
}

fn unbrain(bits: u16) -> f32 {
    half::bf16::from_bits(bits).to_f32()
}

float_codec!(F32, u32, f32::to_bits, f32::from_bits, load_f32);
float_codec!(F16, u16, half, unhalf, load_f16);
float_codec!(Bf16, u16, brain, unbrain, load_bf16);
