//! AVX-512 (F, BW, DQ, VL), the same with byte dot products and byte permutes (VNNI, VBMI), and
//! that with products of bf16 (BF16).
#![expect(unsafe_code, reason = "intrinsics, and loads through array references")]

use super::trampolines;
use crate::{Bf16Pairs, Kernel, Simd};
use std::arch::x86_64::*;

/// One 512-bit register per vector; `DOT` when the processor has `vpdpbusd` and `vpermb`, `BF16`
/// when it has `vpdpbf16ps` as well.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Avx512<const DOT: bool, const BF16: bool>(());

impl<const DOT: bool, const BF16: bool> Avx512<DOT, BF16> {
    /// # Safety
    /// The processor must have the features of this type's row in `isa.rs`.
    pub(crate) const unsafe fn new() -> Self {
        Self(())
    }
}

add_products!(__m512i, zmm_reg, "avx512bw", pure);

/// Folds each of four rows to one lane: lane `i` of the result is that of row `i % 4`. Halves of
/// two rows become one row, twice over; then what four quarters hold is folded.
macro_rules! fold_each {
    ($rows:expr, $fold:ident, $low:ident, $high:ident, $pd:ident, $back:ident,
     $quarters:ident) => {{
        let [a, b, c, d] = $rows;
        let ab = $pd($fold($low(a, b), $high(a, b)));
        let cd = $pd($fold($low(c, d), $high(c, d)));
        let all = $fold($back(_mm512_unpacklo_pd(ab, cd)), $back(_mm512_unpackhi_pd(ab, cd)));
        let half = $fold(all, $quarters::<0x4e>(all, all));
        $fold(half, $quarters::<0xb1>(half, half))
    }};
}

/// Adds the products of unsigned bytes and the I-th of the quads to N sums. Not pure, so that calls
/// stay in their order: see [`Simd::dot_each`].
///
/// # Safety
/// The processor must have the features.
#[inline]
#[target_feature(enable = "avx512f,avx512vnni")]
unsafe fn dot_each<const N: usize, const I: usize>(
    mut sums: [__m512i; N],
    codes: [__m512i; N],
    quads: &[[u8; 4]; 8],
) -> [__m512i; N] {
    const { assert!(I < 8, "eight quads") };
    let (pairs, rest) = sums.as_chunks_mut::<2>();
    for ([first, second], codes) in pairs.iter_mut().zip(codes.as_chunks::<2>().0) {
        // The compiler itself would load two neighbouring quads as one number and move them to
        // vectors by way of the multipliers.
        let quad: __m512i;
        // SAFETY: reads a quad, and changes nothing but these registers.
        unsafe {
            std::arch::asm!(
                "vpbroadcastd {quad}, dword ptr [{quads} + {at}]",
                quad = out(zmm_reg) quad,
                quads = in(reg) quads,
                at = const 4 * I,
                options(pure, readonly, nostack, preserves_flags),
            );
            std::arch::asm!(
                "vpdpbusd {first}, {codes}, {quad}",
                "vpdpbusd {second}, {more}, {quad}",
                quad = in(zmm_reg) quad,
                first = inout(zmm_reg) *first,
                codes = in(zmm_reg) codes[0],
                second = inout(zmm_reg) *second,
                more = in(zmm_reg) codes[1],
                options(nomem, nostack, preserves_flags),
            );
        }
    }
    if let [sum] = rest {
        // SAFETY: as above.
        unsafe {
            std::arch::asm!(
                "vpdpbusd {sum}, {codes}, dword ptr [{quads} + {at}]{{1to16}}",
                sum = inout(zmm_reg) *sum,
                codes = in(zmm_reg) codes[N - 1],
                quads = in(reg) quads,
                at = const 4 * I,
                options(readonly, nostack, preserves_flags),
            );
        }
    }
    sums
}

/// Adds the products of pairs of bf16 numbers.
///
/// # Safety
/// The processor must have the features.
#[inline]
#[target_feature(enable = "avx512f,avx512bf16")]
unsafe fn dot_bf16(sum: __m512, a: __m512, b: __m512) -> __m512 {
    // SAFETY: vectors of the same size, of which any bits are a value.
    let (a, b) = unsafe {
        (std::mem::transmute::<__m512, __m512bh>(a), std::mem::transmute::<__m512, __m512bh>(b))
    };
    _mm512_dpbf16_ps(sum, a, b)
}

/// The nearest bf16 of sixteen numbers, ties to even, as pairs in the lower halves of 64 bits.
///
/// # Safety
/// The processor must have the features.
#[inline]
#[target_feature(enable = "avx512f,avx512bf16")]
unsafe fn bf16_pairs_of(x: __m512) -> __m512i {
    // SAFETY: vectors of the same size, of which any bits are a value.
    let rounded = unsafe { std::mem::transmute::<__m256bh, __m256i>(_mm512_cvtneps_pbh(x)) };
    _mm512_cvtepu32_epi64(rounded)
}

/// Magnitudes, and which bytes are negative.
type Signed = (__m512i, __mmask64);

impl<const DOT: bool, const BF16: bool> Simd for Avx512<DOT, BF16> {
    type F32 = __m512;
    type I32 = __m512i;
    type U8 = __m512i;
    type Dot = __m512i;
    type Signed = Signed;

    const NAME: &'static str = match (DOT, BF16) {
        (_, true) => "avx512bf16",
        (true, _) => "avx512vnni",
        _ => "avx512",
    };
    const REGISTERS: usize = 32;
    const DOT_IS_EXACT: bool = DOT;
    const LUT_IS_AS_FAST_AS_MASKS: bool = DOT;
    const BF16_STEPS: usize = if BF16 { 1 } else { 2 };

    #[inline(always)]
    fn outline<K: Kernel>(self, part: K) -> K::Output {
        // SAFETY: `self` proves the features.
        unsafe {
            match (DOT, BF16) {
                (_, true) => trampolines::avx512_bf16::run(part),
                (true, _) => trampolines::avx512_vnni::run(part),
                _ => trampolines::avx512::run(part),
            }
        }
    }

    #[inline(always)]
    fn dot_each<const N: usize, const I: usize>(
        self,
        mut sums: [__m512i; N],
        codes: [__m512i; N],
        quads: &[[u8; 4]; 8],
    ) -> [__m512i; N] {
        if DOT {
            // SAFETY: `self` proves the features.
            return unsafe { dot_each::<N, I>(sums, codes, quads) };
        }
        for (sum, codes) in sums.iter_mut().zip(codes) {
            *sum = self.dot(*sum, codes, i32::from_le_bytes(quads[I]));
        }
        sums
    }

    // With `BF16` pairs of numbers are in the lanes of the first vector, and in the first of two
    // places in memory; the rest is not looked at.

    #[inline(always)]
    fn bf16_pairs(self, x: __m512i) -> Bf16Pairs<__m512> {
        Bf16Pairs(if BF16 { [self.i32_as_f32(x); 2] } else { self.bf16_halves(x) })
    }

    #[inline(always)]
    fn bf16_numbers(self, Bf16Pairs(pairs): Bf16Pairs<__m512>) -> [__m512; 2] {
        if BF16 { self.bf16_halves(self.f32_as_i32(pairs[0])) } else { pairs }
    }

    #[inline(always)]
    fn store_bf16_factors(self, x: __m512, to: &mut [f32; 16]) {
        let factors = if BF16 {
            // SAFETY: `self` proves the features.
            unsafe { bf16_pairs_of(self.flush_tiny(x)) }
        } else {
            self.round_bf16_flushed(x)
        };
        self.store(self.i32_as_f32(factors), to);
    }

    #[inline(always)]
    fn splat_bf16(self, pair: &[f32; 2], step: usize) -> __m512 {
        self.splat(pair[if BF16 { 0 } else { 1 - step }])
    }

    #[inline(always)]
    fn add_bf16(
        self,
        step: usize,
        pair: __m512,
        Bf16Pairs(pairs): Bf16Pairs<__m512>,
        sum: __m512,
    ) -> __m512 {
        if BF16 {
            // SAFETY: `self` proves the features.
            return unsafe { dot_bf16(sum, pair, pairs[0]) };
        }
        self.fma(pair, pairs[1 - step], sum)
    }

    #[inline(always)]
    fn add_half_bf16(
        self,
        half: usize,
        pair: &[f32; 2],
        Bf16Pairs(pairs): Bf16Pairs<__m512>,
        sum: __m512,
    ) -> __m512 {
        if BF16 {
            let kept = self.splat_i32(0xffff << (16 * half));
            let kept = self.i32_as_f32(self.and_i32(self.f32_as_i32(pairs[0]), kept));
            // SAFETY: `self` proves the features.
            return unsafe { dot_bf16(sum, self.splat(pair[0]), kept) };
        }
        self.fma(self.splat(pair[half]), pairs[half], sum)
    }

    ops! {
        fn splat(x: f32) -> __m512 = _mm512_set1_ps(x);
        fn load(from: &[f32; 16]) -> __m512 = _mm512_loadu_ps(from.as_ptr());
        fn store(x: __m512, to: &mut [f32; 16]) = _mm512_storeu_ps(to.as_mut_ptr(), x);
        fn add(a: __m512, b: __m512) -> __m512 = _mm512_add_ps(a, b);
        fn sub(a: __m512, b: __m512) -> __m512 = _mm512_sub_ps(a, b);
        fn mul(a: __m512, b: __m512) -> __m512 = _mm512_mul_ps(a, b);
        fn div(a: __m512, b: __m512) -> __m512 = _mm512_div_ps(a, b);
        fn fma(a: __m512, b: __m512, c: __m512) -> __m512 = _mm512_fmadd_ps(a, b, c);
        fn max(a: __m512, b: __m512) -> __m512 = _mm512_max_ps(a, b);
        fn min(a: __m512, b: __m512) -> __m512 = _mm512_min_ps(a, b);
        // By what is not less, so that no mask is inverted where `x` is zero.
        fn select_lt(a: __m512, b: __m512, x: __m512, y: __m512) -> __m512 =
            _mm512_mask_blend_ps(_mm512_cmp_ps_mask::<_CMP_NLT_UQ>(a, b), x, y);
        fn round_i32(x: __m512) -> __m512i = _mm512_cvtps_epi32(x);
        fn i32_to_f32(x: __m512i) -> __m512 = _mm512_cvtepi32_ps(x);
        fn f32_as_i32(x: __m512) -> __m512i = _mm512_castps_si512(x);
        fn i32_as_f32(x: __m512i) -> __m512 = _mm512_castsi512_ps(x);
        fn reduce_add(x: __m512) -> f32 = {
            let x = _mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps::<1>(x));
            let x = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps::<1>(x));
            let x = _mm_add_ps(x, _mm_movehl_ps(x, x));
            _mm_cvtss_f32(_mm_add_ss(x, _mm_shuffle_ps::<1>(x, x)))
        };
        fn reduce_max(x: __m512) -> f32 = _mm512_reduce_max_ps(x);
        fn load_f16(from: &[u16; 16]) -> __m512 =
            _mm512_cvtph_ps(_mm256_loadu_si256(from.as_ptr().cast()));
        fn store_f16(x: __m512, to: &mut [u16; 16]) = _mm256_storeu_si256(
            to.as_mut_ptr().cast(),
            _mm512_cvtps_ph::<{ _MM_FROUND_TO_NEAREST_INT }>(x)
        );
        fn load_quads(from: [&[f32; 4]; 4]) -> __m512 = {
            let [a, b, c, d] = from;
            let low = _mm512_castps256_ps512(_mm256_loadu2_m128(b.as_ptr(), a.as_ptr()));
            _mm512_insertf32x8::<1>(low, _mm256_loadu2_m128(d.as_ptr(), c.as_ptr()))
        };
        fn transpose_quads(rows: [__m512; 4]) -> [__m512; 4] = {
            let [a, b, c, d] = rows;
            quads!(_mm512_unpacklo_ps, _mm512_unpackhi_ps, _mm512_shuffle_ps, a, b, c, d)
        };

        fn splat_i32(x: i32) -> __m512i = _mm512_set1_epi32(x);
        fn load_i32(from: &[i32; 16]) -> __m512i = _mm512_loadu_si512(from.as_ptr().cast());
        fn store_i32(x: __m512i, to: &mut [i32; 16]) =
            _mm512_storeu_si512(to.as_mut_ptr().cast(), x);
        fn add_i32(a: __m512i, b: __m512i) -> __m512i = _mm512_add_epi32(a, b);
        fn sub_i32(a: __m512i, b: __m512i) -> __m512i = _mm512_sub_epi32(a, b);
        fn mul_i32(a: __m512i, b: __m512i) -> __m512i = _mm512_mullo_epi32(a, b);
        fn and_i32(a: __m512i, b: __m512i) -> __m512i = _mm512_and_si512(a, b);
        fn or_i32(a: __m512i, b: __m512i) -> __m512i = _mm512_or_si512(a, b);
        fn shl_i32<const N: u32>(x: __m512i) -> __m512i = _mm512_slli_epi32::<N>(x);
        fn shr_i32<const N: u32>(x: __m512i) -> __m512i = _mm512_srli_epi32::<N>(x);
        fn select_gt_i32(ab: (__m512i, __m512i), x: __m512i, y: __m512i) -> __m512i =
            _mm512_mask_blend_epi32(_mm512_cmpgt_epi32_mask(ab.0, ab.1), y, x);
        fn reduce_add_i32(x: __m512i) -> i32 = _mm512_reduce_add_epi32(x);
        fn load_u8_i32(from: &[u8; 16]) -> __m512i =
            _mm512_cvtepu8_epi32(_mm_loadu_si128(from.as_ptr().cast()));
        fn load_i8_i32(from: &[i8; 16]) -> __m512i =
            _mm512_cvtepi8_epi32(_mm_loadu_si128(from.as_ptr().cast()));
        fn load_u16_i32(from: &[u16; 16]) -> __m512i =
            _mm512_cvtepu16_epi32(_mm256_loadu_si256(from.as_ptr().cast()));
        fn store_i8(x: __m512i, to: &mut [i8; 16]) =
            _mm_storeu_si128(to.as_mut_ptr().cast(), _mm512_cvtepi32_epi8(x));
        fn store_u16(x: __m512i, to: &mut [u16; 16]) =
            _mm256_storeu_si256(to.as_mut_ptr().cast(), _mm512_cvtepi32_epi16(x));

        fn load_u8(from: &[u8; 64]) -> __m512i = _mm512_loadu_si512(from.as_ptr().cast());
        fn store_u8(x: __m512i, to: &mut [u8; 64]) =
            _mm512_storeu_si512(to.as_mut_ptr().cast(), x);
        fn u8_as_i32(x: __m512i) -> __m512i = x;
        fn i32_as_u8(x: __m512i) -> __m512i = x;
        fn table(entries: &[u8; 16]) -> __m512i =
            _mm512_broadcast_i32x4(_mm_loadu_si128(entries.as_ptr().cast()));
        fn nibble_lut(table: __m512i, x: __m512i) -> (__m512i, __m512i) = if DOT {
            // vpermb looks at six bits and the table repeats four times: no masking.
            (
                _mm512_permutexvar_epi8(x, table),
                _mm512_permutexvar_epi8(_mm512_srli_epi16::<4>(x), table),
            )
        } else {
            let low = _mm512_set1_epi8(15);
            (
                _mm512_shuffle_epi8(table, _mm512_and_si512(x, low)),
                _mm512_shuffle_epi8(table, _mm512_and_si512(_mm512_srli_epi16::<4>(x), low)),
            )
        };

        fn dot_start(zero: u8, sums: i32) -> __m512i = {
            let minus = _mm512_set1_epi16(-i16::from(zero));
            let sums = _mm512_set1_epi32(sums);
            // What 16 bits cannot hold here comes back with the products: the sum fits.
            if DOT { _mm512_madd_epi16(sums, minus) } else { _mm512_mullo_epi16(sums, minus) }
        };
        fn dot_zero_point_128(zero_point_sum: i32) -> __m512i = _mm512_set1_epi32(zero_point_sum);
        fn dot(sum: __m512i, codes: __m512i, quad: i32) -> __m512i = if DOT {
            _mm512_dpbusd_epi32(sum, codes, _mm512_set1_epi32(quad))
        } else {
            add_products(sum, codes, _mm512_set1_epi32(quad))
        };
        fn dot_sum(sum: __m512i) -> __m512i = if DOT {
            sum
        } else {
            _mm512_madd_epi16(sum, _mm512_set1_epi16(1))
        };
        fn signed(codes: __m512i, zero: u8) -> Signed = {
            let bytes = _mm512_sub_epi8(codes, _mm512_set1_epi8(zero as i8));
            (_mm512_abs_epi8(bytes), _mm512_movepi8_mask(bytes))
        };
        fn dot_signed(sum: __m512i, bytes: Signed, quad: i32) -> __m512i = {
            // |w| · (a with w's sign): sums of two are at most 2 · 128 · 127, within 16 bits.
            let quad = _mm512_set1_epi32(quad);
            let quad = _mm512_mask_sub_epi8(quad, bytes.1, _mm512_setzero_si512(), quad);
            let pairs = _mm512_maddubs_epi16(bytes.0, quad);
            _mm512_add_epi32(sum, _mm512_madd_epi16(pairs, _mm512_set1_epi16(1)))
        };

        fn max_each(rows: [__m512; 4]) -> __m512 = fold_each!(
            rows, _mm512_max_ps, _mm512_unpacklo_ps, _mm512_unpackhi_ps,
            _mm512_castps_pd, _mm512_castpd_ps, _mm512_shuffle_f32x4
        );
        fn sum_each(rows: [__m512i; 4]) -> __m512i = fold_each!(
            rows, _mm512_add_epi32, _mm512_unpacklo_epi32, _mm512_unpackhi_epi32,
            _mm512_castsi512_pd, _mm512_castpd_si512, _mm512_shuffle_i32x4
        );

        fn prefetch(base: &[u8], offset: usize) =
            _mm_prefetch::<_MM_HINT_T0>(base.as_ptr().wrapping_add(offset).cast());
        fn prefetch_once(base: &[u8], offset: usize) =
            _mm_prefetch::<_MM_HINT_NTA>(base.as_ptr().wrapping_add(offset).cast());
        fn prefetch_second(base: &[u8], offset: usize) =
            _mm_prefetch::<_MM_HINT_T1>(base.as_ptr().wrapping_add(offset).cast());
    }
}
