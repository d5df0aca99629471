//! Codes times numbers: the codes become numbers in registers, sums run in single precision per
//! half block of 16 columns.

use super::{Gemm, WeightPrefetch};
use oss_quant::CodeFormat;
use oss_simd::{Extension, Kernel, Simd, array_of};
use std::marker::PhantomData;

pub(super) struct Values<'a, 'b, F> {
    gemm: Gemm<'a, 'b>,
    format: PhantomData<F>,
}

impl<'a, 'b, F: CodeFormat> Values<'a, 'b, F> {
    pub(super) fn new(gemm: Gemm<'a, 'b>) -> Self {
        Self { gemm, format: PhantomData }
    }
}

impl<F: CodeFormat> Kernel for Values<'_, '_, F> {
    type Output = ();
    const EXTENSION: Extension = Extension::Bytes;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let mut gemm = self.gemm;
        for index in gemm.groups.clone() {
            let mut first = 0;
            while first < gemm.rows.len() {
                let n = (gemm.rows.len() - first).min(S::REGISTERS.min(4));
                let range = TileRange::<F> { group: index, first, n, format: PhantomData };
                match n {
                    3.. if const { S::REGISTERS >= 4 } => {
                        s.outline(Tile::<F, 4> { gemm: &mut gemm, range });
                    }
                    2 if const { S::REGISTERS >= 2 } => {
                        s.outline(Tile::<F, 2> { gemm: &mut gemm, range });
                    }
                    _ => s.outline(Tile::<F, 1> { gemm: &mut gemm, range }),
                }
                first += n;
            }
        }
    }
}

/// One group times the `n` input rows from `first`.
struct TileRange<F> {
    group: usize,
    first: usize,
    n: usize,
    format: PhantomData<F>,
}

/// What of the T rows is left over repeats the last row and is not stored.
struct Tile<'w, 'a, 'b, F, const T: usize> {
    gemm: &'w mut Gemm<'a, 'b>,
    range: TileRange<F>,
}

impl<F: CodeFormat, const T: usize> Kernel for Tile<'_, '_, '_, F, T> {
    type Output = ();
    const EXTENSION: Extension = Extension::Bytes;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Self { gemm, range: TileRange { group: index, first, n, .. } } = self;
        let product = gemm.product;
        let group = gemm.group(index);
        let n_blocks = product.matrix.packing.cols.div_ceil(32);
        let input = product.input;
        let stride = input.stride;
        let row: [usize; T] = array_of(|t| gemm.rows[first + t.min(n - 1)] as usize);
        let values: [&[f32]; T] = array_of(|t| &input.values[row[t] * stride..][..stride]);
        let columns = gemm.columns.clone();
        let (first_block, end) = (columns.start / 32, columns.end.div_ceil(32));
        let ahead = WeightPrefetch::new(gemm.policy, usize::MAX);
        let mut acc = [s.zero(); T];
        for block in first_block..end {
            let at = block * F::BLOCK_BYTES + gemm.policy.distance;
            ahead.prefetch::<S, T, 1>(s, group, at, 0..F::BLOCK_BYTES, 0);
            let at = block - first_block;
            let block = F::block(group, n_blocks, block);
            let x: [&[f32; 32]; T] =
                array_of(|t| values[t][32 * at..32 * at + 32].try_into().expect("32 values"));
            let (mut low, mut high) = ([s.zero(); T], [s.zero(); T]);
            for j in 0..4 {
                let (bottom, top) = F::pair(s, block, j);
                let (bottom, top) = (numbers::<S, F>(s, bottom), numbers::<S, F>(s, top));
                for b in 0..4 {
                    for t in 0..T {
                        low[t] = s.fma(bottom[b], s.splat(x[t][4 * j + b]), low[t]);
                        high[t] = s.fma(top[b], s.splat(x[t][16 + 4 * j + b]), high[t]);
                    }
                }
            }
            let (scale_low, scale_high) = F::scales(s, block);
            for t in 0..T {
                acc[t] = s.fma(low[t], scale_low, acc[t]);
                acc[t] = s.fma(high[t], scale_high, acc[t]);
            }
            if F::HAS_MIN {
                let (min_low, min_high) = F::mins(s, block);
                for t in 0..T {
                    let sums = &input.value_sums[row[t] * (stride / 16) + 2 * at..][..2];
                    acc[t] = s.fma(min_low, s.splat(-sums[0]), acc[t]);
                    acc[t] = s.fma(min_high, s.splat(-sums[1]), acc[t]);
                }
            }
        }
        for (t, sum) in acc.into_iter().enumerate().take(n) {
            s.store(sum, &mut gemm.out::<1>(index, first + t)[0]);
        }
    }
}

/// The four codes of each lane as numbers, the format's zero taken off (exact).
#[inline(always)]
fn numbers<S: Simd, F: CodeFormat>(s: S, codes: S::U8) -> [S::F32; 4] {
    let lanes = s.u8_as_i32(codes);
    let byte = s.splat_i32(255);
    let zero = s.splat_i32(F::zero::<S>());
    let codes = [
        s.and_i32(lanes, byte),
        s.and_i32(s.shr_i32::<8>(lanes), byte),
        s.and_i32(s.shr_i32::<16>(lanes), byte),
        s.shr_i32::<24>(lanes),
    ];
    array_of(|b| s.i32_to_f32(s.sub_i32(codes[b], zero)))
}
