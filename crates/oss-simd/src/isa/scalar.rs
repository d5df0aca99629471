//! Plain Rust: runs everywhere, and is what the other instruction sets are tested against.

use crate::{Kernel, Simd, array_of};
use half::f16;

/// Sixteen lanes in an array.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scalar(());

impl Scalar {
    pub(crate) const fn new() -> Self {
        Self(())
    }
}

#[inline(always)]
fn map<T: Copy, U: Copy>(a: [T; 16], f: impl Fn(T) -> U) -> [U; 16] {
    array_of(|i| f(a[i]))
}

#[inline(always)]
fn zip<T: Copy, U: Copy, V: Copy>(a: [T; 16], b: [U; 16], f: impl Fn(T, U) -> V) -> [V; 16] {
    array_of(|i| f(a[i], b[i]))
}

#[inline(always)]
fn tree<T: Copy>(mut x: [T; 16], f: impl Fn(T, T) -> T) -> T {
    let mut n = 8;
    while n > 0 {
        for i in 0..n {
            x[i] = f(x[i], x[i + n]);
        }
        n /= 2;
    }
    x[0]
}

#[inline(always)]
fn dot(sum: [i32; 16], codes: [u8; 64], quad: i32) -> [i32; 16] {
    let quad = quad.to_le_bytes();
    array_of(|r| {
        (0..4).fold(sum[r], |s, b| s + i32::from(codes[4 * r + b]) * i32::from(quad[b] as i8))
    })
}

impl Simd for Scalar {
    type F32 = [f32; 16];
    type I32 = [i32; 16];
    type U8 = [u8; 64];
    type Dot = [i32; 16];
    type Signed = [i8; 64];

    const NAME: &'static str = "scalar";
    const REGISTERS: usize = 1;
    const DOT_IS_EXACT: bool = true;

    #[inline(always)]
    fn outline<K: Kernel>(self, part: K) -> K::Output {
        part.run(self)
    }

    #[inline(always)]
    fn splat(self, x: f32) -> [f32; 16] {
        [x; 16]
    }
    #[inline(always)]
    fn load(self, from: &[f32; 16]) -> [f32; 16] {
        *from
    }
    #[inline(always)]
    fn store(self, x: [f32; 16], to: &mut [f32; 16]) {
        *to = x;
    }
    #[inline(always)]
    fn add(self, a: [f32; 16], b: [f32; 16]) -> [f32; 16] {
        zip(a, b, |a, b| a + b)
    }
    #[inline(always)]
    fn sub(self, a: [f32; 16], b: [f32; 16]) -> [f32; 16] {
        zip(a, b, |a, b| a - b)
    }
    #[inline(always)]
    fn mul(self, a: [f32; 16], b: [f32; 16]) -> [f32; 16] {
        zip(a, b, |a, b| a * b)
    }
    #[inline(always)]
    fn div(self, a: [f32; 16], b: [f32; 16]) -> [f32; 16] {
        zip(a, b, |a, b| a / b)
    }
    #[inline(always)]
    fn fma(self, a: [f32; 16], b: [f32; 16], c: [f32; 16]) -> [f32; 16] {
        array_of(|i| a[i].mul_add(b[i], c[i]))
    }
    #[inline(always)]
    fn max(self, a: [f32; 16], b: [f32; 16]) -> [f32; 16] {
        zip(a, b, |a, b| if a > b { a } else { b })
    }
    #[inline(always)]
    fn min(self, a: [f32; 16], b: [f32; 16]) -> [f32; 16] {
        zip(a, b, |a, b| if a < b { a } else { b })
    }
    #[inline(always)]
    fn select_lt(self, a: [f32; 16], b: [f32; 16], x: [f32; 16], y: [f32; 16]) -> [f32; 16] {
        array_of(|i| if a[i] < b[i] { x[i] } else { y[i] })
    }
    #[inline(always)]
    fn round_i32(self, x: [f32; 16]) -> [i32; 16] {
        map(x, |x| x.round_ties_even() as i32)
    }
    #[inline(always)]
    fn i32_to_f32(self, x: [i32; 16]) -> [f32; 16] {
        map(x, |x| x as f32)
    }
    #[inline(always)]
    fn f32_as_i32(self, x: [f32; 16]) -> [i32; 16] {
        map(x, |x| x.to_bits() as i32)
    }
    #[inline(always)]
    fn i32_as_f32(self, x: [i32; 16]) -> [f32; 16] {
        map(x, |x| f32::from_bits(x as u32))
    }
    #[inline(always)]
    fn reduce_add(self, x: [f32; 16]) -> f32 {
        tree(x, |a, b| a + b)
    }
    #[inline(always)]
    fn reduce_max(self, x: [f32; 16]) -> f32 {
        tree(x, |a, b| if a > b { a } else { b })
    }
    #[inline(always)]
    fn load_f16(self, from: &[u16; 16]) -> [f32; 16] {
        map(*from, |x| f16::from_bits(x).to_f32())
    }
    #[inline(always)]
    fn store_f16(self, x: [f32; 16], to: &mut [u16; 16]) {
        *to = map(x, |x| f16::from_f32(x).to_bits());
    }
    #[inline(always)]
    fn load_quads(self, from: [&[f32; 4]; 4]) -> [f32; 16] {
        array_of(|lane| from[lane / 4][lane % 4])
    }
    #[inline(always)]
    fn transpose_quads(self, rows: [[f32; 16]; 4]) -> [[f32; 16]; 4] {
        array_of(|i| array_of(|lane| rows[lane % 4][lane - lane % 4 + i]))
    }

    #[inline(always)]
    fn splat_i32(self, x: i32) -> [i32; 16] {
        [x; 16]
    }
    #[inline(always)]
    fn load_i32(self, from: &[i32; 16]) -> [i32; 16] {
        *from
    }
    #[inline(always)]
    fn store_i32(self, x: [i32; 16], to: &mut [i32; 16]) {
        *to = x;
    }
    #[inline(always)]
    fn add_i32(self, a: [i32; 16], b: [i32; 16]) -> [i32; 16] {
        zip(a, b, i32::wrapping_add)
    }
    #[inline(always)]
    fn sub_i32(self, a: [i32; 16], b: [i32; 16]) -> [i32; 16] {
        zip(a, b, i32::wrapping_sub)
    }
    #[inline(always)]
    fn mul_i32(self, a: [i32; 16], b: [i32; 16]) -> [i32; 16] {
        zip(a, b, i32::wrapping_mul)
    }
    #[inline(always)]
    fn and_i32(self, a: [i32; 16], b: [i32; 16]) -> [i32; 16] {
        zip(a, b, |a, b| a & b)
    }
    #[inline(always)]
    fn or_i32(self, a: [i32; 16], b: [i32; 16]) -> [i32; 16] {
        zip(a, b, |a, b| a | b)
    }
    #[inline(always)]
    fn shl_i32<const N: u32>(self, x: [i32; 16]) -> [i32; 16] {
        map(x, |x| x << N)
    }
    #[inline(always)]
    fn shr_i32<const N: u32>(self, x: [i32; 16]) -> [i32; 16] {
        map(x, |x| ((x as u32) >> N) as i32)
    }
    #[inline(always)]
    fn select_gt_i32(
        self,
        (a, b): ([i32; 16], [i32; 16]),
        x: [i32; 16],
        y: [i32; 16],
    ) -> [i32; 16] {
        array_of(|i| if a[i] > b[i] { x[i] } else { y[i] })
    }
    #[inline(always)]
    fn reduce_add_i32(self, x: [i32; 16]) -> i32 {
        tree(x, i32::wrapping_add)
    }
    #[inline(always)]
    fn load_u8_i32(self, from: &[u8; 16]) -> [i32; 16] {
        map(*from, i32::from)
    }
    #[inline(always)]
    fn load_i8_i32(self, from: &[i8; 16]) -> [i32; 16] {
        map(*from, i32::from)
    }
    #[inline(always)]
    fn load_u16_i32(self, from: &[u16; 16]) -> [i32; 16] {
        map(*from, i32::from)
    }
    #[inline(always)]
    fn store_i8(self, x: [i32; 16], to: &mut [i8; 16]) {
        *to = map(x, |x| x as i8);
    }
    #[inline(always)]
    fn store_u16(self, x: [i32; 16], to: &mut [u16; 16]) {
        *to = map(x, |x| x as u16);
    }

    #[inline(always)]
    fn load_u8(self, from: &[u8; 64]) -> [u8; 64] {
        *from
    }
    #[inline(always)]
    fn store_u8(self, x: [u8; 64], to: &mut [u8; 64]) {
        *to = x;
    }
    #[inline(always)]
    fn u8_as_i32(self, x: [u8; 64]) -> [i32; 16] {
        array_of(|r| i32::from_le_bytes(array_of(|b| x[4 * r + b])))
    }
    #[inline(always)]
    fn i32_as_u8(self, x: [i32; 16]) -> [u8; 64] {
        array_of(|i| x[i / 4].to_le_bytes()[i % 4])
    }
    #[inline(always)]
    fn table(self, entries: &[u8; 16]) -> [u8; 64] {
        array_of(|i| entries[i % 16])
    }
    #[inline(always)]
    fn nibble_lut(self, table: [u8; 64], x: [u8; 64]) -> ([u8; 64], [u8; 64]) {
        (array_of(|i| table[usize::from(x[i] & 15)]), array_of(|i| table[usize::from(x[i] >> 4)]))
    }

    #[inline(always)]
    fn dot_start(self, zero: u8, sums: i32) -> [i32; 16] {
        [super::start(zero, sums); 16]
    }
    #[inline(always)]
    fn dot_zero_point_128(self, zero_point_sum: i32) -> [i32; 16] {
        [zero_point_sum; 16]
    }
    #[inline(always)]
    fn dot(self, sum: [i32; 16], codes: [u8; 64], quad: i32) -> [i32; 16] {
        dot(sum, codes, quad)
    }
    #[inline(always)]
    fn dot_sum(self, sum: [i32; 16]) -> [i32; 16] {
        sum
    }
    #[inline(always)]
    fn signed(self, codes: [u8; 64], zero: u8) -> [i8; 64] {
        array_of(|i| codes[i].wrapping_sub(zero) as i8)
    }
    #[inline(always)]
    fn dot_signed(self, sum: [i32; 16], bytes: [i8; 64], quad: i32) -> [i32; 16] {
        let quad = quad.to_le_bytes();
        array_of(|r| {
            (0..4).fold(sum[r], |s, b| s + i32::from(bytes[4 * r + b]) * i32::from(quad[b] as i8))
        })
    }

    #[inline(always)]
    fn prefetch(self, _base: &[u8], _offset: usize) {}
    #[inline(always)]
    fn prefetch_once(self, _base: &[u8], _offset: usize) {}
    #[inline(always)]
    fn prefetch_second(self, _base: &[u8], _offset: usize) {}
}
