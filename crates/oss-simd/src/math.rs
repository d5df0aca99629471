//! Functions composed of the vocabulary, and so the same bits everywhere.

use crate::Simd;

/// `eˣ` with a relative error below 2e-7 for x in [-87, 88]; below, 0; above, the value at 88. What
/// is not a number stays so.
///
/// x = n ln 2 + r with |r| ≤ ln 2 / 2, a polynomial of degree 7 in r (the Taylor series to which
/// the interval is narrow enough), then the exponent is added in the bits.
#[inline(always)]
pub fn exp<S: Simd>(s: S, x: S::F32) -> S::F32 {
    let low = s.splat(-87.0);
    let clamped = s.max(low, s.min(s.splat(88.0), x));
    let n = s.round_i32(s.mul(clamped, s.splat(std::f32::consts::LOG2_E)));
    let n_f32 = s.i32_to_f32(n);
    // ln 2 in two parts, so that n ln 2 is exact enough.
    let r = s.fma(n_f32, s.splat(-0.693_359_4), clamped);
    let r = s.fma(n_f32, s.splat(2.121_944_4e-4), r);
    let mut p = s.splat(1.0 / 5040.0);
    p = s.fma(p, r, s.splat(1.0 / 720.0));
    p = s.fma(p, r, s.splat(1.0 / 120.0));
    p = s.fma(p, r, s.splat(1.0 / 24.0));
    p = s.fma(p, r, s.splat(1.0 / 6.0));
    p = s.fma(p, r, s.splat(0.5));
    p = s.fma(p, r, s.splat(1.0));
    p = s.fma(p, r, s.splat(1.0));
    let scaled = s.i32_as_f32(s.add_i32(s.f32_as_i32(p), s.shl_i32::<23>(n)));
    s.select_lt(x, low, s.zero(), scaled)
}

/// `1 / (1 + e⁻ˣ)`.
#[inline(always)]
pub fn sigmoid<S: Simd>(s: S, x: S::F32) -> S::F32 {
    let one = s.splat(1.0);
    s.div(one, s.add(one, exp(s, s.sub(s.zero(), x))))
}
