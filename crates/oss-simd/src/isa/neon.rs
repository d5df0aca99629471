//! NEON, and the same with byte dot products (`sdot`).
#![expect(unsafe_code, reason = "intrinsics, and loads through array references")]

use super::trampolines;
use crate::{Kernel, Simd};
use std::arch::aarch64::*;
use std::arch::asm;

/// Four 128-bit registers per vector, four lanes each; `DOT` when there is `sdot`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Neon<const DOT: bool>(());

impl<const DOT: bool> Neon<DOT> {
    /// # Safety
    /// The processor must have the features of this type's row in `isa.rs`.
    pub(crate) const unsafe fn new() -> Self {
        Self(())
    }
}

type F = [float32x4_t; 4];
type I = [int32x4_t; 4];
type U = [uint8x16_t; 4];
type S = [int8x16_t; 4];

/// The same instruction on all four registers.
macro_rules! each {
    ($f:path, $($a:expr),*) => {
        [$f($($a[0]),*), $f($($a[1]),*), $f($($a[2]),*), $f($($a[3]),*)]
    };
}

/// Four registers from memory, `$step` elements each.
macro_rules! loads {
    ($f:path, $from:expr, $step:literal) => {
        [$f($from), $f($from.add($step)), $f($from.add(2 * $step)), $f($from.add(3 * $step))]
    };
}

/// Four registers to memory, `$step` elements each.
macro_rules! stores {
    ($f:path, $to:expr, $step:literal, $x:expr) => {{
        $f($to, $x[0]);
        $f($to.add($step), $x[1]);
        $f($to.add(2 * $step), $x[2]);
        $f($to.add(3 * $step), $x[3]);
    }};
}

/// Adds `bytes[4 r + b] * quad[b]` over `b` to lane `r`.
///
/// # Safety
/// The processor must have NEON, and the dot-product extension if `DOT`. Without it, no two
/// products may add up to more than 16 bits hold: no byte is -128 where its quad's is -128.
#[inline(always)]
unsafe fn dot_register<const DOT: bool>(
    mut sum: int32x4_t,
    bytes: int8x16_t,
    quad: int8x16_t,
) -> int32x4_t {
    // SAFETY: by this function's contract.
    unsafe {
        if DOT {
            // The intrinsic is not stable yet. The extension is named for code that is not
            // optimised, where this may end up outside of the function that has the feature.
            asm!(
                ".arch_extension dotprod",
                "sdot {sum:v}.4s, {bytes:v}.16b, {quad:v}.16b",
                sum = inout(vreg) sum,
                bytes = in(vreg) bytes,
                quad = in(vreg) quad,
                options(pure, nomem, nostack, preserves_flags),
            );
            sum
        } else {
            let low = vmull_s8(vget_low_s8(bytes), vget_low_s8(quad));
            let high = vmull_high_s8(bytes, quad);
            vpadalq_s16(sum, vpaddq_s16(low, high))
        }
    }
}

/// Transposes the lanes of four registers.
///
/// # Safety
/// The processor must have NEON.
#[inline(always)]
unsafe fn quads(
    a: float32x4_t,
    b: float32x4_t,
    c: float32x4_t,
    d: float32x4_t,
) -> [float32x4_t; 4] {
    // SAFETY: by this function's contract.
    unsafe {
        let (even, odd) = (vtrn1q_f32(a, b), vtrn2q_f32(a, b));
        let (cd_even, cd_odd) = (vtrn1q_f32(c, d), vtrn2q_f32(c, d));
        [
            vcombine_f32(vget_low_f32(even), vget_low_f32(cd_even)),
            vcombine_f32(vget_low_f32(odd), vget_low_f32(cd_odd)),
            vcombine_f32(vget_high_f32(even), vget_high_f32(cd_even)),
            vcombine_f32(vget_high_f32(odd), vget_high_f32(cd_odd)),
        ]
    }
}

impl<const DOT: bool> Simd for Neon<DOT> {
    type F32 = F;
    type I32 = I;
    type U8 = U;
    type Dot = I;
    type Signed = S;

    const NAME: &'static str = if DOT { "neondot" } else { "neon" };
    const REGISTERS: usize = 8;
    /// Exact for any number of calls, but codes must be below 128: they count as signed.
    const DOT_IS_EXACT: bool = false;

    #[inline(always)]
    fn outline<K: Kernel>(self, part: K) -> K::Output {
        // SAFETY: `self` proves the features.
        unsafe { if DOT { trampolines::neon_dot::run(part) } else { trampolines::neon::run(part) } }
    }

    ops! {
        fn splat(x: f32) -> F = [vdupq_n_f32(x); 4];
        fn load(from: &[f32; 16]) -> F = loads!(vld1q_f32, from.as_ptr(), 4);
        fn store(x: F, to: &mut [f32; 16]) = stores!(vst1q_f32, to.as_mut_ptr(), 4, x);
        fn add(a: F, b: F) -> F = each!(vaddq_f32, a, b);
        fn sub(a: F, b: F) -> F = each!(vsubq_f32, a, b);
        fn mul(a: F, b: F) -> F = each!(vmulq_f32, a, b);
        fn div(a: F, b: F) -> F = each!(vdivq_f32, a, b);
        fn fma(a: F, b: F, c: F) -> F = each!(vfmaq_f32, c, a, b);
        // Not fmax and fmin: they give NaNs priority and order the zeros.
        fn max(a: F, b: F) -> F = each!(vbslq_f32, each!(vcgtq_f32, a, b), a, b);
        fn min(a: F, b: F) -> F = each!(vbslq_f32, each!(vcltq_f32, a, b), a, b);
        fn select_lt(a: F, b: F, x: F, y: F) -> F = each!(vbslq_f32, each!(vcltq_f32, a, b), x, y);
        fn round_i32(x: F) -> I = each!(vcvtnq_s32_f32, x);
        fn i32_to_f32(x: I) -> F = each!(vcvtq_f32_s32, x);
        fn f32_as_i32(x: F) -> I = each!(vreinterpretq_s32_f32, x);
        fn i32_as_f32(x: I) -> F = each!(vreinterpretq_f32_s32, x);
        fn reduce_add(x: F) -> f32 = {
            let x = vaddq_f32(vaddq_f32(x[0], x[2]), vaddq_f32(x[1], x[3]));
            let x = vadd_f32(vget_low_f32(x), vget_high_f32(x));
            vpadds_f32(x)
        };
        fn reduce_max(x: F) -> f32 = {
            let larger = |a, b| vbslq_f32(vcgtq_f32(a, b), a, b);
            let x = larger(larger(x[0], x[2]), larger(x[1], x[3]));
            let x = larger(x, vextq_f32::<2>(x, x));
            vgetq_lane_f32::<0>(larger(x, vextq_f32::<1>(x, x)))
        };
        fn load_f16(from: &[u16; 16]) -> F = {
            let bits = loads!(vld1_u16, from.as_ptr(), 4);
            each!(vcvt_f32_f16, each!(vreinterpret_f16_u16, bits))
        };
        fn store_f16(x: F, to: &mut [u16; 16]) = {
            let bits = each!(vreinterpret_u16_f16, each!(vcvt_f16_f32, x));
            stores!(vst1_u16, to.as_mut_ptr(), 4, bits);
        };
        fn load_quads(from: [&[f32; 4]; 4]) -> F = {
            let from = [from[0].as_ptr(), from[1].as_ptr(), from[2].as_ptr(), from[3].as_ptr()];
            each!(vld1q_f32, from)
        };
        fn transpose_quads(rows: [F; 4]) -> [F; 4] = {
            let [a, b, c, d] = rows;
            let [a, b, c, d] = each!(quads, a, b, c, d);
            [
                [a[0], b[0], c[0], d[0]],
                [a[1], b[1], c[1], d[1]],
                [a[2], b[2], c[2], d[2]],
                [a[3], b[3], c[3], d[3]],
            ]
        };

        fn splat_i32(x: i32) -> I = [vdupq_n_s32(x); 4];
        fn load_i32(from: &[i32; 16]) -> I = loads!(vld1q_s32, from.as_ptr(), 4);
        fn store_i32(x: I, to: &mut [i32; 16]) = stores!(vst1q_s32, to.as_mut_ptr(), 4, x);
        fn add_i32(a: I, b: I) -> I = each!(vaddq_s32, a, b);
        fn sub_i32(a: I, b: I) -> I = each!(vsubq_s32, a, b);
        fn mul_i32(a: I, b: I) -> I = each!(vmulq_s32, a, b);
        fn and_i32(a: I, b: I) -> I = each!(vandq_s32, a, b);
        fn or_i32(a: I, b: I) -> I = each!(vorrq_s32, a, b);
        // Shifts by a register, which the compiler knows to be constant.
        fn shl_i32<const N: u32>(x: I) -> I = each!(vshlq_s32, x, [vdupq_n_s32(N as i32); 4]);
        fn shr_i32<const N: u32>(x: I) -> I = {
            let x = each!(vreinterpretq_u32_s32, x);
            let shifted = each!(vshlq_u32, x, [vdupq_n_s32(-(N as i32)); 4]);
            each!(vreinterpretq_s32_u32, shifted)
        };
        fn select_gt_i32(ab: (I, I), x: I, y: I) -> I =
            each!(vbslq_s32, each!(vcgtq_s32, ab.0, ab.1), x, y);
        fn reduce_add_i32(x: I) -> i32 =
            vaddvq_s32(vaddq_s32(vaddq_s32(x[0], x[2]), vaddq_s32(x[1], x[3])));
        fn load_u8_i32(from: &[u8; 16]) -> I = {
            let x = vld1q_u8(from.as_ptr());
            let (low, high) = (vmovl_u8(vget_low_u8(x)), vmovl_high_u8(x));
            let wide = [
                vmovl_u16(vget_low_u16(low)),
                vmovl_high_u16(low),
                vmovl_u16(vget_low_u16(high)),
                vmovl_high_u16(high),
            ];
            each!(vreinterpretq_s32_u32, wide)
        };
        fn load_i8_i32(from: &[i8; 16]) -> I = {
            let x = vld1q_s8(from.as_ptr());
            let (low, high) = (vmovl_s8(vget_low_s8(x)), vmovl_high_s8(x));
            [
                vmovl_s16(vget_low_s16(low)),
                vmovl_high_s16(low),
                vmovl_s16(vget_low_s16(high)),
                vmovl_high_s16(high),
            ]
        };
        fn load_u16_i32(from: &[u16; 16]) -> I = {
            let wide = each!(vmovl_u16, loads!(vld1_u16, from.as_ptr(), 4));
            each!(vreinterpretq_s32_u32, wide)
        };
        fn store_i8(x: I, to: &mut [i8; 16]) = {
            let x = each!(vmovn_s32, x);
            let halves = [vmovn_s16(vcombine_s16(x[0], x[1])), vmovn_s16(vcombine_s16(x[2], x[3]))];
            vst1q_s8(to.as_mut_ptr(), vcombine_s8(halves[0], halves[1]));
        };
        fn store_u16(x: I, to: &mut [u16; 16]) = {
            let x = each!(vmovn_u32, each!(vreinterpretq_u32_s32, x));
            stores!(vst1_u16, to.as_mut_ptr(), 4, x);
        };

        fn load_u8(from: &[u8; 64]) -> U = loads!(vld1q_u8, from.as_ptr(), 16);
        fn store_u8(x: U, to: &mut [u8; 64]) = stores!(vst1q_u8, to.as_mut_ptr(), 16, x);
        fn u8_as_i32(x: U) -> I = each!(vreinterpretq_s32_u8, x);
        fn i32_as_u8(x: I) -> U = each!(vreinterpretq_u8_s32, x);
        fn table(entries: &[u8; 16]) -> U = [vld1q_u8(entries.as_ptr()); 4];
        fn nibble_lut(table: U, x: U) -> (U, U) = {
            let bottom = each!(vandq_u8, x, [vdupq_n_u8(15); 4]);
            let top = each!(vshlq_u8, x, [vdupq_n_s8(-4); 4]);
            (each!(vqtbl1q_u8, table, bottom), each!(vqtbl1q_u8, table, top))
        };

        fn dot_start(zero: u8, sums: i32) -> I = [vdupq_n_s32(super::start(zero, sums)); 4];
        fn dot_zero_point_128(zero_point_sum: i32) -> I = [vdupq_n_s32(zero_point_sum); 4];
        fn dot(sum: I, codes: U, quad: i32) -> I = {
            let quad = [vreinterpretq_s8_s32(vdupq_n_s32(quad)); 4];
            each!(dot_register::<DOT>, sum, each!(vreinterpretq_s8_u8, codes), quad)
        };
        fn dot_sum(sum: I) -> I = sum;
        fn signed(codes: U, zero: u8) -> S =
            each!(vreinterpretq_s8_u8, each!(vsubq_u8, codes, [vdupq_n_u8(zero); 4]));
        fn dot_signed(sum: I, bytes: S, quad: i32) -> I = {
            let quad = [vreinterpretq_s8_s32(vdupq_n_s32(quad)); 4];
            each!(dot_register::<DOT>, sum, bytes, quad)
        };

        fn prefetch(base: &[u8], offset: usize) = asm!(
            "prfm pldl1keep, [{address}]",
            address = in(reg) base.as_ptr().wrapping_add(offset),
            options(readonly, nostack, preserves_flags),
        );
        fn prefetch_once(base: &[u8], offset: usize) = asm!(
            "prfm pldl1strm, [{address}]",
            address = in(reg) base.as_ptr().wrapping_add(offset),
            options(readonly, nostack, preserves_flags),
        );
        fn prefetch_second(base: &[u8], offset: usize) = asm!(
            "prfm pldl2keep, [{address}]",
            address = in(reg) base.as_ptr().wrapping_add(offset),
            options(readonly, nostack, preserves_flags),
        );
    }
}
