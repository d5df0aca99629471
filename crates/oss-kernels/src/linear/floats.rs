//! Floating-point weights times numbers: two running sums of each run of [`RUN`] columns, which
//! take pairs of columns in turn, of each pair the second column first, as products of bf16 are
//! added.

use super::{Gemm, WeightPrefetch};
use crate::Input;
use oss_quant::FloatFormat;
use oss_simd::{Kernel, Simd, array_of};
use std::marker::PhantomData;

/// Columns whose products are added up before they are added to those of the columns before: their
/// weights stay in a first-level cache while many input rows pass by.
pub(super) const RUN: usize = 256;

/// Columns of a step of the inner loop; rows are padded to whole steps.
pub(super) const STEP: usize = 4;

pub(super) struct Floats<'a, 'b, F> {
    gemm: Gemm<'a, 'b>,
    format: PhantomData<F>,
}

impl<'a, 'b, F: FloatFormat> Floats<'a, 'b, F> {
    pub(super) fn new(gemm: Gemm<'a, 'b>) -> Self {
        Self { gemm, format: PhantomData }
    }
}

impl<F: FloatFormat> Kernel for Floats<'_, '_, F> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let mut gemm = self.gemm;
        // Two groups for a few rows where memory is read fastest as two streams. Many rows meet
        // one: a number of theirs that is used once needs no register.
        let few = match S::REGISTERS {
            32.. => 4,
            8.. => 1,
            _ => 0,
        };
        let mut group = gemm.groups.start;
        while group < gemm.groups.end {
            let two = gemm.policy.streams == 2 && gemm.rows.len() <= few;
            if two && group + 1 < gemm.groups.end {
                runs::<S, F, 2>(s, &mut gemm, group);
                group += 2;
            } else {
                runs::<S, F, 1>(s, &mut gemm, group);
                group += 1;
            }
        }
    }
}

/// All rows times G groups from `group` on, run by run, in tiles of even height.
#[inline(always)]
fn runs<S: Simd, F: FloatFormat, const G: usize>(s: S, gemm: &mut Gemm<'_, '_>, group: usize) {
    let (all, rows) = (gemm.columns.clone(), gemm.rows.len());
    let most = if S::REGISTERS >= 32 { 12 } else { 2 };
    let height = rows.div_ceil(rows.div_ceil(most).max(1)).max(1);
    for begin in all.clone().step_by(RUN) {
        let columns = (begin, all.end.min(begin + RUN));
        for first in (0..rows).step_by(height) {
            let range = TileRange { group, columns, first, n: height.min(rows - first) };
            // The constants keep tiles that registers do not hold from even being compiled.
            match range.n {
                1 => tile::<S, F, G, 1>(s, gemm, range),
                2 => tile::<S, F, G, 2>(s, gemm, range),
                3..=4 if const { S::REGISTERS >= 32 } => tile::<S, F, G, 4>(s, gemm, range),
                5..=8 if const { S::REGISTERS >= 32 && G == 1 } => {
                    tile::<S, F, G, 8>(s, gemm, range);
                }
                9.. if const { S::REGISTERS >= 32 && G == 1 } => {
                    tile::<S, F, G, 12>(s, gemm, range);
                }
                n => unreachable!("a tile of {n} rows"),
            }
        }
    }
}

/// The groups from `group` on times the `n` rows from `first`, over some columns. What lies in
/// `out` is the sum over the columns before.
#[derive(Clone, Copy)]
struct TileRange {
    group: usize,
    columns: (usize, usize),
    first: usize,
    n: usize,
}

#[inline(always)]
fn tile<S: Simd, F: FloatFormat, const G: usize, const T: usize>(
    s: S,
    gemm: &mut Gemm<'_, '_>,
    range: TileRange,
) {
    s.outline(Tile::<F, G, T> { gemm, range, format: PhantomData });
}

/// What of the T rows is left over repeats the last row and is not stored.
struct Tile<'w, 'a, 'b, F, const G: usize, const T: usize> {
    gemm: &'w mut Gemm<'a, 'b>,
    range: TileRange,
    format: PhantomData<F>,
}

impl<F: FloatFormat, const G: usize, const T: usize> Kernel for Tile<'_, '_, '_, F, G, T> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Self { gemm, range, .. } = self;
        let TileRange { group, columns: (begin, end), first, n } = range;
        let (Input { stride, values, .. }, policy) = (gemm.product.input, gemm.policy);
        let ahead = WeightPrefetch::new(policy, usize::MAX);
        let groups: [&[u8]; G] = array_of(|g| gemm.group(group + g));
        let start = gemm.columns.start;
        let (first_step, steps) = (begin / STEP, (end - begin).div_ceil(STEP));
        let rows: [&[[f32; STEP]]; T] = array_of(|t| {
            let row = gemm.rows[first + t.min(n - 1)] as usize;
            &values[row * stride..][..stride].as_chunks().0[(begin - start) / STEP..][..steps]
        });
        let step_bytes = groups[0].len() / (gemm.product.matrix.packing.padded_cols() / STEP);
        let mut sums = [[[s.zero(); 2]; T]; G];
        #[expect(clippy::needless_range_loop, reason = "it is each row that is indexed")]
        for step in 0..steps {
            if first == 0 {
                for group in groups {
                    // As often as there are streams, as codes do.
                    let at = (first_step + step) * step_bytes + policy.distance / G;
                    ahead.prefetch::<S, T, G>(s, group, at, 0..step_bytes, usize::from(T <= 2));
                }
            }
            let x: [&[f32; STEP]; T] = array_of(|t| &rows[t][step]);
            for k in (0..STEP).step_by(2) {
                let column = (first_step + step) * STEP + k;
                let weights: [_; G] = array_of(|g| F::pair(s, groups[g], column));
                for i in [1, 0] {
                    for t in 0..T {
                        let x = s.splat(x[t][k + i]);
                        for g in 0..G {
                            let sum = &mut sums[g][t][k / 2];
                            *sum = s.fma(weights[g][i], x, *sum);
                        }
                    }
                }
            }
        }
        for (g, sums) in sums.into_iter().enumerate() {
            for (t, sums) in sums.into_iter().enumerate().take(n) {
                let [out] = gemm.out::<1>(group + g, first + t);
                add_run(s, sums, begin == start, out);
            }
        }
    }
}

/// Adds the sums of a run to those of the runs before.
#[inline(always)]
pub(super) fn add_run<S: Simd>(s: S, sums: [S::F32; 2], is_first: bool, out: &mut [f32; 16]) {
    let sum = s.add(sums[0], sums[1]);
    s.store(if is_first { sum } else { s.add(s.load(out), sum) }, out);
}
