//! Keys and values as floating-point numbers.

use super::{KvCodec, KvFormat, PAGE_TOKENS, lanes};
use crate::bytes::array;
use half::slice::HalfFloatSliceExt;
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
                let columns = slot.chunks_exact_mut(16 * PAGE_TOKENS * SIZE);
                for (columns, chunk) in columns.zip(key.chunks(16)) {
                    let bits: [$bits; 16] = $encode(padded(chunk));
                    let columns = columns.chunks_exact_mut(PAGE_TOKENS * SIZE);
                    for (column, bits) in columns.zip(&bits[..chunk.len()]) {
                        column[position * SIZE..][..SIZE].copy_from_slice(&bits.to_le_bytes());
                    }
                }
            }

            fn write_value(slot: &mut [u8], position: usize, value: &[f32]) {
                const SIZE: usize = size_of::<$bits>();
                let row_bytes = lanes(value.len()) * SIZE;
                let at = Self::key_bytes(value.len()) + position * row_bytes;
                let row = slot[at..at + row_bytes].chunks_exact_mut(16 * SIZE);
                for (out, chunk) in row.zip(value.chunks(16)) {
                    let bits: [$bits; 16] = $encode(padded(chunk));
                    out.copy_from_slice(bytemuck::bytes_of(&bits));
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

/// Up to sixteen numbers, the rest zero.
fn padded(chunk: &[f32]) -> [f32; 16] {
    let mut all = [0.0; 16];
    all[..chunk.len()].copy_from_slice(chunk);
    all
}

fn single(numbers: [f32; 16]) -> [u32; 16] {
    numbers.map(f32::to_bits)
}

fn half(numbers: [f32; 16]) -> [u16; 16] {
    // All at once: the conversion looks for hardware support each time that it is called.
    let mut halves = [half::f16::ZERO; 16];
    halves.convert_from_f32_slice(&numbers);
    halves.map(half::f16::to_bits)
}

fn unhalf(bits: u16) -> f32 {
    half::f16::from_bits(bits).to_f32()
}

fn brain(numbers: [f32; 16]) -> [u16; 16] {
    numbers.map(|x| half::bf16::from_f32(x).to_bits())
}

fn unbrain(bits: u16) -> f32 {
    half::bf16::from_bits(bits).to_f32()
}

float_codec!(F32, u32, single, f32::from_bits, load_f32);
float_codec!(F16, u16, half, unhalf, load_f16);
float_codec!(Bf16, u16, brain, unbrain, load_bf16);
