//! Codes times codes: exact integer sums per block of 32 columns, one fused multiply-add a block.
//!
//! A tile is one group of 16 weight rows times T input rows. For a few input rows it reads the
//! packed weights themselves ([`Group`]), for many a group unpacked once ([`super::panel`]).

use super::{AHEAD, Walk, ask};
use crate::input::CodeBlock;
use oss_quant::CodeFormat;
use oss_simd::{Kernel, Simd};
use std::marker::PhantomData;

/// One group of 16 weight rows, as a tile reads it: `weight = scale · (code - zero) - min`.
pub(super) trait Source: Copy {
    /// The largest code.
    const MAX_CODE: i32;
    /// Whether columns 0..16 and 16..32 of a block have scales and minima of their own.
    const HALVES: bool;
    /// The code of zero.
    fn zero(self) -> i32;
    /// Whether a minimum is subtracted.
    fn has_min(self) -> bool;
    /// Asks for what comes a while after a block, where G groups are read at the same time.
    fn prefetch<S: Simd, const G: usize>(self, s: S, block: usize);
    /// The codes of columns `4 j..` and `16 + 4 j..` of a block, four columns a lane.
    fn pair<S: Simd>(self, s: S, block: usize, j: usize) -> (S::U8, S::U8);
    /// The scales of a block's halves.
    fn scales<S: Simd>(self, s: S, block: usize) -> (S::F32, S::F32);
    /// The minima of a block's halves.
    fn mins<S: Simd>(self, s: S, block: usize) -> (S::F32, S::F32);
}

/// A group as it is packed.
pub(super) struct Group<'a, F> {
    bytes: &'a [u8],
    n_blocks: usize,
    format: PhantomData<F>,
}

impl<'a, F> Group<'a, F> {
    pub(super) fn new(bytes: &'a [u8], n_blocks: usize) -> Self {
        Self { bytes, n_blocks, format: PhantomData }
    }
}

impl<F> Clone for Group<'_, F> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<F> Copy for Group<'_, F> {}

impl<F: CodeFormat> Source for Group<'_, F> {
    const MAX_CODE: i32 = F::MAX_CODE;
    const HALVES: bool = F::HALVES;

    #[inline(always)]
    fn zero(self) -> i32 {
        F::ZERO
    }
    #[inline(always)]
    fn has_min(self) -> bool {
        F::HAS_MIN
    }
    #[inline(always)]
    fn prefetch<S: Simd, const G: usize>(self, s: S, block: usize) {
        let at = block * F::BLOCK_BYTES + AHEAD / G;
        let skipped = if at < self.bytes.len() { 0 } else { (G - 1) * self.bytes.len() };
        ask(s, self.bytes, at + skipped, F::BLOCK_BYTES);
    }
    #[inline(always)]
    fn pair<S: Simd>(self, s: S, block: usize, j: usize) -> (S::U8, S::U8) {
        F::pair(s, self.bytes, self.n_blocks, block, j)
    }
    #[inline(always)]
    fn scales<S: Simd>(self, s: S, block: usize) -> (S::F32, S::F32) {
        F::scales(s, self.bytes, self.n_blocks, block)
    }
    #[inline(always)]
    fn mins<S: Simd>(self, s: S, block: usize) -> (S::F32, S::F32) {
        F::mins(s, self.bytes, self.n_blocks, block)
    }
}

/// Products with packed groups.
pub(super) struct Codes<'w, 'a, 'b, F> {
    walk: &'w mut Walk<'a, 'b>,
    format: PhantomData<F>,
}

impl<'w, 'a, 'b, F: CodeFormat> Codes<'w, 'a, 'b, F> {
    pub(super) fn new(walk: &'w mut Walk<'a, 'b>) -> Self {
        Self { walk, format: PhantomData }
    }
}

impl<F: CodeFormat> Kernel for Codes<'_, '_, '_, F> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let walk = self.walk;
        let n_blocks = walk.product.matrix.packing.n_blocks();
        let rows = walk.code_rows();
        let mut index = walk.groups.start;
        while index < walk.groups.end {
            let group = |g: usize| Group::<F>::new(walk.group(index + g), n_blocks);
            let place = Place { group: index, first: 0, n: rows, blocks: (0, n_blocks) };
            // Memory is read fastest as several streams: few rows leave registers for more groups.
            let most = if S::REGISTERS >= 8 { walk.groups.end - index } else { 1 };
            index += match (rows, most) {
                (1, 4..) => {
                    tile::<S, _, 4, 1>(s, [group(0), group(1), group(2), group(3)], walk, place);
                    4
                }
                (2, 2..) => {
                    tile::<S, _, 2, 2>(s, [group(0), group(1)], walk, place);
                    2
                }
                _ => {
                    tiles(s, group(0), walk, place);
                    1
                }
            };
        }
    }
}

/// All rows of a place times one group, in tiles of even width: thirteen rows are 7 + 6 rather than
/// 8 + 5.
#[inline(always)]
pub(super) fn tiles<S: Simd, W: Source>(s: S, group: W, walk: &mut Walk<'_, '_>, all: Place) {
    let widest = if S::REGISTERS >= 8 { 8 } else { 1 };
    let mut first = 0;
    while first < all.n {
        let left = all.n - first;
        let n = left.div_ceil(left.div_ceil(widest));
        let place = Place { first, n, ..all };
        // The constant keeps tiles that are too wide from even being compiled.
        match n {
            7.. if S::REGISTERS >= 8 => tile::<S, _, 1, 8>(s, [group], walk, place),
            6 if S::REGISTERS >= 8 => tile::<S, _, 1, 6>(s, [group], walk, place),
            5 if S::REGISTERS >= 8 => tile::<S, _, 1, 5>(s, [group], walk, place),
            4 if S::REGISTERS >= 8 => tile::<S, _, 1, 4>(s, [group], walk, place),
            3 if S::REGISTERS >= 8 => tile::<S, _, 1, 3>(s, [group], walk, place),
            2 if S::REGISTERS >= 8 => tile::<S, _, 1, 2>(s, [group], walk, place),
            _ => tile::<S, _, 1, 1>(s, [group], walk, place),
        }
        first += n;
    }
}

/// What a tile computes: the groups from `group` on times the `n` rows of codes from `first`, over
/// the blocks `blocks.0..blocks.1`. What lies in `out` is the sum over the blocks before.
#[derive(Clone, Copy)]
pub(super) struct Place {
    pub(super) group: usize,
    pub(super) first: usize,
    pub(super) n: usize,
    pub(super) blocks: (usize, usize),
}

/// G neighbouring groups times at most T rows; what of T is left over repeats the last row and is
/// not stored.
#[inline(always)]
pub(super) fn tile<S: Simd, W: Source, const G: usize, const T: usize>(
    s: S,
    groups: [W; G],
    walk: &mut Walk<'_, '_>,
    place: Place,
) {
    let Place { first, n, blocks: (begin, end), .. } = place;
    let rows: [&[CodeBlock]; T] =
        std::array::from_fn(|t| &walk.code_row(first + t.min(n - 1))[..end]);
    let mut acc = [[s.zero(); T]; G];
    if begin > 0 {
        for (g, acc) in acc.iter_mut().enumerate() {
            for (t, acc) in acc.iter_mut().enumerate().take(n) {
                *acc = s.load(walk.out(place.group + g, first + t));
            }
        }
    }
    for block in begin..end {
        let a = rows.map(|row| &row[block]);
        for g in 0..G {
            // Once is enough.
            if first == 0 {
                groups[g].prefetch::<S, G>(s, block);
            }
            add_block(s, groups[g], block, a, &mut acc[g]);
        }
    }
    for (g, acc) in acc.into_iter().enumerate() {
        for (t, sum) in acc.into_iter().enumerate().take(n) {
            s.store(sum, walk.out(place.group + g, first + t));
        }
    }
}

/// Adds the products of a block.
#[inline(always)]
fn add_block<S: Simd, W: Source, const T: usize>(
    s: S,
    weights: W,
    block: usize,
    a: [&CodeBlock; T],
    acc: &mut [S::F32; T],
) {
    let (scale_low, scale_high) = weights.scales(s, block);
    if W::HALVES {
        let low = half_sums::<S, W, T>(s, weights, block, 0, a);
        for t in 0..T {
            let scale = s.mul(scale_low, s.splat(a[t].scale));
            acc[t] = s.fma(s.i32_to_f32(low[t]), scale, acc[t]);
        }
        let high = half_sums::<S, W, T>(s, weights, block, 1, a);
        for t in 0..T {
            let scale = s.mul(scale_high, s.splat(a[t].scale));
            acc[t] = s.fma(s.i32_to_f32(high[t]), scale, acc[t]);
        }
    } else {
        let sums = block_sums::<S, W, T>(s, weights, block, a);
        for t in 0..T {
            let scale = s.mul(scale_low, s.splat(a[t].scale));
            acc[t] = s.fma(s.i32_to_f32(sums[t]), scale, acc[t]);
        }
    }
    if weights.has_min() {
        let (min_low, min_high) = weights.mins(s, block);
        for t in 0..T {
            let [low, high, both] = a[t].minus;
            if W::HALVES {
                acc[t] = s.fma(min_low, s.splat(low), acc[t]);
                acc[t] = s.fma(min_high, s.splat(high), acc[t]);
            } else {
                acc[t] = s.fma(min_low, s.splat(both), acc[t]);
            }
        }
    }
}

/// How many calls of [`Simd::dot`] may share one running sum: 0, 2, 4 or 8.
#[inline(always)]
const fn calls_per_sum<S: Simd, W: Source>() -> usize {
    let limit = if S::DOT_IS_EXACT { 8 } else { 32_767 / (254 * W::MAX_CODE) };
    match limit {
        8.. => 8,
        4.. => 4,
        2.. => 2,
        _ => 0,
    }
}

/// `Σ (code - zero) · a` over the columns of a block, exactly.
#[inline(always)]
fn block_sums<S: Simd, W: Source, const T: usize>(
    s: S,
    weights: W,
    block: usize,
    a: [&CodeBlock; T],
) -> [S::I32; T] {
    let mut sums = [s.zero_i32(); T];
    let calls = calls_per_sum::<S, W>();
    if calls == 0 {
        for j in 0..4 {
            let (bottom, top) = weights.pair(s, block, j);
            let bottom = s.signed(bottom, weights.zero() as u8);
            for t in 0..T {
                sums[t] = s.dot_signed(sums[t], bottom, a[t].quad(j));
            }
            let top = s.signed(top, weights.zero() as u8);
            for t in 0..T {
                sums[t] = s.dot_signed(sums[t], top, a[t].quad(4 + j));
            }
        }
        return sums;
    }
    for t in 0..T {
        sums[t] = s.splat_i32(-weights.zero() * (a[t].sums[0] + a[t].sums[1]));
    }
    for first in (0..4).step_by(calls / 2) {
        let mut dots = [s.dot_zero(); T];
        for j in first..first + calls / 2 {
            let (bottom, top) = weights.pair(s, block, j);
            for t in 0..T {
                dots[t] = s.dot(dots[t], bottom, a[t].quad(j));
                dots[t] = s.dot(dots[t], top, a[t].quad(4 + j));
            }
        }
        for t in 0..T {
            sums[t] = s.add_i32(sums[t], s.dot_sum(dots[t]));
        }
    }
    sums
}

/// The same over one half of a block's columns.
#[inline(always)]
fn half_sums<S: Simd, W: Source, const T: usize>(
    s: S,
    weights: W,
    block: usize,
    half: usize,
    a: [&CodeBlock; T],
) -> [S::I32; T] {
    let mut sums = [s.zero_i32(); T];
    for t in 0..T {
        sums[t] = s.splat_i32(-weights.zero() * a[t].sums[half]);
    }
    const { assert!(!W::HALVES || W::MAX_CODE <= 63, "halves of wide codes") };
    let calls = if calls_per_sum::<S, W>() == 2 { 2 } else { 4 };
    for first in (0..4).step_by(calls) {
        let mut dots = [s.dot_zero(); T];
        for j in first..first + calls {
            let (bottom, top) = weights.pair(s, block, j);
            let codes = if half == 0 { bottom } else { top };
            for t in 0..T {
                dots[t] = s.dot(dots[t], codes, a[t].quad(4 * half + j));
            }
        }
        for t in 0..T {
            sums[t] = s.add_i32(sums[t], s.dot_sum(dots[t]));
        }
    }
    sums
}
