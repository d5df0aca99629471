//! How attention multiplies what a format's pages hold.

use oss_simd::{Bf16Pairs, Extension, Simd};

/// How numbers of pages are multiplied with others, two dimensions of a key or two positions of a
/// value at a time: *factors* are stored once ([`Products::store_factors`]), one pair of them is
/// laid into all lanes ([`Products::splat`]), and its products with sixteen pairs are added to
/// sixteen sums in [`Products::steps`] steps ([`Products::add`]).
pub trait Products: 'static {
    /// What adds them, see [`oss_simd::Kernel::EXTENSION`].
    const EXTENSION: Extension;
    /// Sixteen pairs.
    type Pairs<S: Simd>: Copy;

    /// Pairs of zeros.
    fn zero<S: Simd>(s: S) -> Self::Pairs<S>;
    /// The first numbers of the pairs, and the second ones.
    fn numbers<S: Simd>(s: S, pairs: Self::Pairs<S>) -> [S::F32; 2];
    /// Stores sixteen factors, as they are rounded, as eight pairs.
    fn store_factors<S: Simd>(s: S, x: S::F32, to: &mut [f32; 16]);
    /// In how many steps the products of pairs are added.
    fn steps<S: Simd>() -> usize;
    /// A pair of factors in all lanes, for one step.
    fn splat<S: Simd>(s: S, factors: &[f32; 2], step: usize) -> S::F32;
    /// One step, in ascending order.
    fn add<S: Simd>(
        s: S,
        step: usize,
        factors: S::F32,
        pairs: Self::Pairs<S>,
        sum: S::F32,
    ) -> S::F32;
    /// Adds the products of the first (0) or the second numbers (1) of pairs alone; the other
    /// factor is zero.
    fn add_half<S: Simd>(
        s: S,
        half: usize,
        factors: &[f32; 2],
        pairs: Self::Pairs<S>,
        sum: S::F32,
    ) -> S::F32;
    /// A sum times a number, to be added to again.
    fn scale<S: Simd>(s: S, sum: S::F32, by: S::F32) -> S::F32;
}

/// Products of single precision, one fused multiply-add each, the first of a pair first.
#[derive(Debug)]
pub enum OfF32 {}

impl Products for OfF32 {
    const EXTENSION: Extension = Extension::None;
    type Pairs<S: Simd> = [S::F32; 2];

    #[inline(always)]
    fn zero<S: Simd>(s: S) -> [S::F32; 2] {
        [s.zero(); 2]
    }

    #[inline(always)]
    fn numbers<S: Simd>(_: S, pairs: [S::F32; 2]) -> [S::F32; 2] {
        pairs
    }

    #[inline(always)]
    fn store_factors<S: Simd>(s: S, x: S::F32, to: &mut [f32; 16]) {
        s.store(x, to);
    }

    #[inline(always)]
    fn steps<S: Simd>() -> usize {
        2
    }

    #[inline(always)]
    fn splat<S: Simd>(s: S, factors: &[f32; 2], step: usize) -> S::F32 {
        s.splat(factors[step])
    }

    #[inline(always)]
    fn add<S: Simd>(s: S, step: usize, factors: S::F32, pairs: [S::F32; 2], sum: S::F32) -> S::F32 {
        s.fma(factors, pairs[step], sum)
    }

    #[inline(always)]
    fn add_half<S: Simd>(
        s: S,
        half: usize,
        factors: &[f32; 2],
        pairs: [S::F32; 2],
        sum: S::F32,
    ) -> S::F32 {
        s.fma(s.splat(factors[half]), pairs[half], sum)
    }

    #[inline(always)]
    fn scale<S: Simd>(s: S, sum: S::F32, by: S::F32) -> S::F32 {
        s.mul(sum, by)
    }
}

/// Products of bf16 ([`Simd::add_bf16`]): factors are rounded too.
#[derive(Debug)]
pub enum OfBf16 {}

impl Products for OfBf16 {
    const EXTENSION: Extension = Extension::Bf16;
    type Pairs<S: Simd> = Bf16Pairs<S::F32>;

    #[inline(always)]
    fn zero<S: Simd>(s: S) -> Bf16Pairs<S::F32> {
        s.bf16_pairs(s.zero_i32())
    }

    #[inline(always)]
    fn numbers<S: Simd>(s: S, pairs: Bf16Pairs<S::F32>) -> [S::F32; 2] {
        s.bf16_numbers(pairs)
    }

    #[inline(always)]
    fn store_factors<S: Simd>(s: S, x: S::F32, to: &mut [f32; 16]) {
        s.store_bf16_factors(x, to);
    }

    #[inline(always)]
    fn steps<S: Simd>() -> usize {
        S::BF16_STEPS
    }

    #[inline(always)]
    fn splat<S: Simd>(s: S, factors: &[f32; 2], step: usize) -> S::F32 {
        s.splat_bf16(factors, step)
    }

    #[inline(always)]
    fn add<S: Simd>(
        s: S,
        step: usize,
        factors: S::F32,
        pairs: Bf16Pairs<S::F32>,
        sum: S::F32,
    ) -> S::F32 {
        s.add_bf16(step, factors, pairs, sum)
    }

    #[inline(always)]
    fn add_half<S: Simd>(
        s: S,
        half: usize,
        factors: &[f32; 2],
        pairs: Bf16Pairs<S::F32>,
        sum: S::F32,
    ) -> S::F32 {
        s.add_half_bf16(half, factors, pairs, sum)
    }

    #[inline(always)]
    fn scale<S: Simd>(s: S, sum: S::F32, by: S::F32) -> S::F32 {
        s.scale_bf16(sum, by)
    }
}
