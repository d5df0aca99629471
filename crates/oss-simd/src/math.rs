//! Functions composed of the vocabulary, and so the same bits everywhere.

use crate::Simd;

/// `eˣ` with a relative error below 2e-7 for x in [-87, 88]; below, 0; above, the value at 88. What
/// is not a number stays so.
///
/// x = n ln 2 + r with |r| ≤ ln 2 / 2, a polynomial of degree 7 in r (the Taylor series to which
/// the interval is narrow enough), then the exponent is added in the bits.
#[inline(always)]
pub fn exp<S: Simd>(s: S, x: S::F32) -> S::F32 {
    let [y] = exp_each(s, [x]);
    y
}

/// [`exp`] of some vectors, step by step together: each step waits for the one before it, and a
/// processor looks only so far ahead.
#[inline(always)]
pub fn exp_each<S: Simd, const N: usize>(s: S, x: [S::F32; N]) -> [S::F32; N] {
    let low = s.splat(-87.0);
    let (mut r, mut p, mut n) = (x, x, [s.zero_i32(); N]);
    for i in 0..N {
        r[i] = s.max(low, s.min(s.splat(88.0), x[i]));
    }
    for i in 0..N {
        n[i] = s.round_i32(s.mul(r[i], s.splat(std::f32::consts::LOG2_E)));
    }
    // ln 2 in two parts, so that n ln 2 is exact enough.
    for i in 0..N {
        r[i] = s.fma(s.i32_to_f32(n[i]), s.splat(-0.693_359_4), r[i]);
    }
    for i in 0..N {
        r[i] = s.fma(s.i32_to_f32(n[i]), s.splat(2.121_944_4e-4), r[i]);
    }
    for i in 0..N {
        p[i] = s.fma(s.splat(1.0 / 5040.0), r[i], s.splat(1.0 / 720.0));
    }
    for coefficient in [1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0] {
        for i in 0..N {
            p[i] = s.fma(p[i], r[i], s.splat(coefficient));
        }
    }
    for i in 0..N {
        let scaled = s.add_i32(s.f32_as_i32(p[i]), s.shl_i32::<23>(n[i]));
        p[i] = s.select_lt(x[i], low, s.zero(), s.i32_as_f32(scaled));
    }
    p
}

/// `1 / (1 + e⁻ˣ)`.
#[inline(always)]
pub fn sigmoid<S: Simd>(s: S, x: S::F32) -> S::F32 {
    let one = s.splat(1.0);
    s.div(one, s.add(one, exp(s, s.sub(s.zero(), x))))
}
