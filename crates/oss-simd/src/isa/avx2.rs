//! AVX2 with FMA and F16C, and the same with byte dot products (AVX-VNNI).
#![expect(unsafe_code, reason = "intrinsics, and loads through array references")]

use super::trampolines;
use crate::{Kernel, Simd};
use std::arch::x86_64::*;

/// Two 256-bit registers per vector, lanes 0..8 and 8..16; `DOT` when there is `vpdpbusd`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Avx2<const DOT: bool>(());

impl<const DOT: bool> Avx2<DOT> {
    /// # Safety
    /// The processor must have the features of this type's row in `isa.rs`.
    pub(crate) const unsafe fn new() -> Self {
        Self(())
    }
}

type F = [__m256; 2];
type I = [__m256i; 2];

/// The same instruction on both halves.
macro_rules! both {
    ($f:path, $($a:expr),*) => { [$f($($a[0]),*), $f($($a[1]),*)] };
}

add_products!(__m256i, ymm_reg, "avx2");

impl<const DOT: bool> Simd for Avx2<DOT> {
    type F32 = F;
    type I32 = I;
    type U8 = I;
    type Dot = I;
    /// Magnitudes, and the bytes themselves for their signs.
    type Signed = (I, I);

    const NAME: &'static str = if DOT { "avx2vnni" } else { "avx2" };
    const REGISTERS: usize = 8;
    const DOT_IS_EXACT: bool = DOT;
    // It takes as many instructions, and half as many for two planes; and a tile spills nothing.
    const DOT_WIDE_IS_FASTER: bool = !DOT;

    #[inline(always)]
    fn outline<K: Kernel>(self, part: K) -> K::Output {
        // SAFETY: `self` proves the features.
        unsafe {
            if DOT { trampolines::avx2_vnni::run(part) } else { trampolines::avx2::run(part) }
        }
    }

    ops! {
        fn splat(x: f32) -> F = [_mm256_set1_ps(x); 2];
        fn load(from: &[f32; 16]) -> F =
            [_mm256_loadu_ps(from.as_ptr()), _mm256_loadu_ps(from.as_ptr().add(8))];
        fn store(x: F, to: &mut [f32; 16]) = {
            _mm256_storeu_ps(to.as_mut_ptr(), x[0]);
            _mm256_storeu_ps(to.as_mut_ptr().add(8), x[1]);
        };
        fn add(a: F, b: F) -> F = both!(_mm256_add_ps, a, b);
        fn sub(a: F, b: F) -> F = both!(_mm256_sub_ps, a, b);
        fn mul(a: F, b: F) -> F = both!(_mm256_mul_ps, a, b);
        fn div(a: F, b: F) -> F = both!(_mm256_div_ps, a, b);
        fn fma(a: F, b: F, c: F) -> F = both!(_mm256_fmadd_ps, a, b, c);
        fn max(a: F, b: F) -> F = both!(_mm256_max_ps, a, b);
        fn min(a: F, b: F) -> F = both!(_mm256_min_ps, a, b);
        fn select_lt(a: F, b: F, x: F, y: F) -> F = [
            _mm256_blendv_ps(y[0], x[0], _mm256_cmp_ps::<_CMP_LT_OQ>(a[0], b[0])),
            _mm256_blendv_ps(y[1], x[1], _mm256_cmp_ps::<_CMP_LT_OQ>(a[1], b[1])),
        ];
        fn round_i32(x: F) -> I = both!(_mm256_cvtps_epi32, x);
        fn i32_to_f32(x: I) -> F = both!(_mm256_cvtepi32_ps, x);
        fn f32_as_i32(x: F) -> I = both!(_mm256_castps_si256, x);
        fn i32_as_f32(x: I) -> F = both!(_mm256_castsi256_ps, x);
        fn reduce_add(x: F) -> f32 = {
            let x = _mm256_add_ps(x[0], x[1]);
            let x = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps::<1>(x));
            let x = _mm_add_ps(x, _mm_movehl_ps(x, x));
            _mm_cvtss_f32(_mm_add_ss(x, _mm_shuffle_ps::<1>(x, x)))
        };
        fn reduce_max(x: F) -> f32 = {
            let x = _mm256_max_ps(x[0], x[1]);
            let x = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps::<1>(x));
            let x = _mm_max_ps(x, _mm_movehl_ps(x, x));
            _mm_cvtss_f32(_mm_max_ss(x, _mm_shuffle_ps::<1>(x, x)))
        };
        fn load_f16(from: &[u16; 16]) -> F = [
            _mm256_cvtph_ps(_mm_loadu_si128(from.as_ptr().cast())),
            _mm256_cvtph_ps(_mm_loadu_si128(from.as_ptr().add(8).cast())),
        ];
        fn store_f16(x: F, to: &mut [u16; 16]) = {
            let low = _mm256_cvtps_ph::<{ _MM_FROUND_TO_NEAREST_INT }>(x[0]);
            let high = _mm256_cvtps_ph::<{ _MM_FROUND_TO_NEAREST_INT }>(x[1]);
            _mm_storeu_si128(to.as_mut_ptr().cast(), low);
            _mm_storeu_si128(to.as_mut_ptr().add(8).cast(), high);
        };
        fn load_quads(from: [&[f32; 4]; 4]) -> F = {
            let [a, b, c, d] = from;
            [
                _mm256_loadu2_m128(b.as_ptr(), a.as_ptr()),
                _mm256_loadu2_m128(d.as_ptr(), c.as_ptr()),
            ]
        };
        fn transpose_quads(rows: [F; 4]) -> [F; 4] = {
            let [a, b, c, d] = rows;
            let low = quads!(
                _mm256_unpacklo_ps, _mm256_unpackhi_ps, _mm256_shuffle_ps, a[0], b[0], c[0], d[0]
            );
            let high = quads!(
                _mm256_unpacklo_ps, _mm256_unpackhi_ps, _mm256_shuffle_ps, a[1], b[1], c[1], d[1]
            );
            [[low[0], high[0]], [low[1], high[1]], [low[2], high[2]], [low[3], high[3]]]
        };

        fn splat_i32(x: i32) -> I = [_mm256_set1_epi32(x); 2];
        fn load_i32(from: &[i32; 16]) -> I = [
            _mm256_loadu_si256(from.as_ptr().cast()),
            _mm256_loadu_si256(from.as_ptr().add(8).cast()),
        ];
        fn store_i32(x: I, to: &mut [i32; 16]) = {
            _mm256_storeu_si256(to.as_mut_ptr().cast(), x[0]);
            _mm256_storeu_si256(to.as_mut_ptr().add(8).cast(), x[1]);
        };
        fn add_i32(a: I, b: I) -> I = both!(_mm256_add_epi32, a, b);
        fn sub_i32(a: I, b: I) -> I = both!(_mm256_sub_epi32, a, b);
        fn mul_i32(a: I, b: I) -> I = both!(_mm256_mullo_epi32, a, b);
        fn and_i32(a: I, b: I) -> I = both!(_mm256_and_si256, a, b);
        fn or_i32(a: I, b: I) -> I = both!(_mm256_or_si256, a, b);
        fn shl_i32<const N: u32>(x: I) -> I = {
            let n = _mm_cvtsi32_si128(N as i32);
            [_mm256_sll_epi32(x[0], n), _mm256_sll_epi32(x[1], n)]
        };
        fn shr_i32<const N: u32>(x: I) -> I = {
            let n = _mm_cvtsi32_si128(N as i32);
            [_mm256_srl_epi32(x[0], n), _mm256_srl_epi32(x[1], n)]
        };
        fn select_gt_i32(ab: (I, I), x: I, y: I) -> I = [
            _mm256_blendv_epi8(y[0], x[0], _mm256_cmpgt_epi32(ab.0[0], ab.1[0])),
            _mm256_blendv_epi8(y[1], x[1], _mm256_cmpgt_epi32(ab.0[1], ab.1[1])),
        ];
        fn reduce_add_i32(x: I) -> i32 = {
            let x = _mm256_add_epi32(x[0], x[1]);
            let x = _mm_add_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256::<1>(x));
            let x = _mm_add_epi32(x, _mm_shuffle_epi32::<0b01_00_11_10>(x));
            _mm_cvtsi128_si32(_mm_add_epi32(x, _mm_shuffle_epi32::<0b10_11_00_01>(x)))
        };
        fn load_u8_i32(from: &[u8; 16]) -> I = [
            _mm256_cvtepu8_epi32(_mm_loadl_epi64(from.as_ptr().cast())),
            _mm256_cvtepu8_epi32(_mm_loadl_epi64(from.as_ptr().add(8).cast())),
        ];
        fn load_i8_i32(from: &[i8; 16]) -> I = [
            _mm256_cvtepi8_epi32(_mm_loadl_epi64(from.as_ptr().cast())),
            _mm256_cvtepi8_epi32(_mm_loadl_epi64(from.as_ptr().add(8).cast())),
        ];
        fn load_u16_i32(from: &[u16; 16]) -> I = [
            _mm256_cvtepu16_epi32(_mm_loadu_si128(from.as_ptr().cast())),
            _mm256_cvtepu16_epi32(_mm_loadu_si128(from.as_ptr().add(8).cast())),
        ];
        fn store_i8(x: I, to: &mut [i8; 16]) = {
            let low = _mm_packs_epi32(
                _mm256_castsi256_si128(x[0]),
                _mm256_extracti128_si256::<1>(x[0]),
            );
            let high = _mm_packs_epi32(
                _mm256_castsi256_si128(x[1]),
                _mm256_extracti128_si256::<1>(x[1]),
            );
            _mm_storeu_si128(to.as_mut_ptr().cast(), _mm_packs_epi16(low, high));
        };
        fn store_u16(x: I, to: &mut [u16; 16]) = {
            let packed = _mm256_packus_epi32(x[0], x[1]);
            _mm256_storeu_si256(
                to.as_mut_ptr().cast(),
                _mm256_permute4x64_epi64::<0b11_01_10_00>(packed),
            );
        };

        fn load_u8(from: &[u8; 64]) -> I = [
            _mm256_loadu_si256(from.as_ptr().cast()),
            _mm256_loadu_si256(from.as_ptr().add(32).cast()),
        ];
        fn store_u8(x: I, to: &mut [u8; 64]) = {
            _mm256_storeu_si256(to.as_mut_ptr().cast(), x[0]);
            _mm256_storeu_si256(to.as_mut_ptr().add(32).cast(), x[1]);
        };
        fn u8_as_i32(x: I) -> I = x;
        fn i32_as_u8(x: I) -> I = x;
        fn table(entries: &[u8; 16]) -> I =
            [_mm256_broadcastsi128_si256(_mm_loadu_si128(entries.as_ptr().cast())); 2];
        fn nibble_lut(table: I, x: I) -> (I, I) = {
            let low = _mm256_set1_epi8(15);
            let bottom = [_mm256_and_si256(x[0], low), _mm256_and_si256(x[1], low)];
            let top = [
                _mm256_and_si256(_mm256_srli_epi16::<4>(x[0]), low),
                _mm256_and_si256(_mm256_srli_epi16::<4>(x[1]), low),
            ];
            (both!(_mm256_shuffle_epi8, table, bottom), both!(_mm256_shuffle_epi8, table, top))
        };

        fn dot_start(zero: u8, sums: i32) -> I = {
            let minus = _mm256_set1_epi16(-i16::from(zero));
            let sums = _mm256_set1_epi32(sums);
            // What 16 bits cannot hold here comes back with the products: the sum fits.
            [if DOT { _mm256_madd_epi16(sums, minus) } else { _mm256_mullo_epi16(sums, minus) }; 2]
        };
        fn dot_zero_point_128(zero_point_sum: i32) -> I = [_mm256_set1_epi32(zero_point_sum); 2];
        fn dot(sum: I, codes: I, quad: i32) -> I = {
            let quad = [_mm256_set1_epi32(quad); 2];
            if DOT {
                both!(_mm256_dpbusd_avx_epi32, sum, codes, quad)
            } else {
                both!(add_products, sum, codes, quad)
            }
        };
        fn dot_sum(sum: I) -> I = if DOT {
            sum
        } else {
            let one = [_mm256_set1_epi16(1); 2];
            both!(_mm256_madd_epi16, sum, one)
        };
        fn signed(codes: I, zero: u8) -> (I, I) = {
            let zero = [_mm256_set1_epi8(zero as i8); 2];
            let bytes = both!(_mm256_sub_epi8, codes, zero);
            (both!(_mm256_abs_epi8, bytes), bytes)
        };
        fn dot_signed(sum: I, bytes: (I, I), quad: i32) -> I = {
            // |w| · (a with w's sign): sums of two are at most 2 · 128 · 127, within 16 bits.
            let quad = [_mm256_set1_epi32(quad); 2];
            let one = [_mm256_set1_epi16(1); 2];
            let quad = both!(_mm256_sign_epi8, quad, bytes.1);
            let pairs = both!(_mm256_maddubs_epi16, bytes.0, quad);
            let products = both!(_mm256_madd_epi16, pairs, one);
            both!(_mm256_add_epi32, sum, products)
        };
        fn dot_wide(sum: I, codes: I, pair: i32) -> I = {
            let products = both!(_mm256_madd_epi16, codes, [_mm256_set1_epi32(pair); 2]);
            both!(_mm256_add_epi32, sum, products)
        };

        fn prefetch(base: &[u8], offset: usize) =
            _mm_prefetch::<_MM_HINT_T0>(base.as_ptr().wrapping_add(offset).cast());
        fn prefetch_once(base: &[u8], offset: usize) =
            _mm_prefetch::<_MM_HINT_NTA>(base.as_ptr().wrapping_add(offset).cast());
        fn prefetch_second(base: &[u8], offset: usize) =
            _mm_prefetch::<_MM_HINT_T1>(base.as_ptr().wrapping_add(offset).cast());
    }
}
