//! Codes times codes: exact integer sums per block of 32 columns, one fused multiply-add per block.

use super::{Product, Walk, prefetch, store_tile};
use bytemuck::cast_slice;
use oss_quant::CodeFormat;
use oss_simd::{Kernel, Simd};
use std::{marker::PhantomData, ops::Range};

pub(super) struct Codes<'a, 'b, F> {
    walk: Walk<'a, 'b>,
    format: PhantomData<F>,
}

impl<'a, 'b, F: CodeFormat> Codes<'a, 'b, F> {
    pub(super) fn new(
        product: Product<'a>,
        rows: &'b [u32],
        groups: Range<usize>,
        out: &'b mut [f32],
    ) -> Self {
        Self { walk: Walk { product, rows, groups, out }, format: PhantomData }
    }
}

impl<F: CodeFormat> Kernel for Codes<'_, '_, F> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let mut walk = self.walk;
        let product = walk.product;
        // Constants, so that tiles that are too wide for the registers are not even compiled.
        let widest = if S::REGISTERS >= 32 { 8 } else { S::REGISTERS.min(4) };
        let mut place = walk.start();
        while walk.advance(&mut place, widest) {
            let (group, rows) = walk.tile(place);
            match place.n {
                8 if S::REGISTERS >= 32 => {
                    store_tile(s, tile::<S, F, 8>(s, product, group, rows), walk.out(place));
                }
                4 if S::REGISTERS >= 4 => {
                    store_tile(s, tile::<S, F, 4>(s, product, group, rows), walk.out(place));
                }
                _ => store_tile(s, tile::<S, F, 1>(s, product, group, rows), walk.out(place)),
            }
        }
    }
}

/// One group of 16 weight rows times T input rows.
#[inline(always)]
fn tile<S: Simd, F: CodeFormat, const T: usize>(
    s: S,
    product: Product<'_>,
    group: &[u8],
    rows: &[u32],
) -> [S::F32; T] {
    let n_blocks = product.matrix.packing.cols.div_ceil(32);
    let input = product.input;
    let stride = input.stride;
    let row: [usize; T] = std::array::from_fn(|t| rows[t] as usize);
    let codes: [&[u8]; T] =
        std::array::from_fn(|t| cast_slice(&input.codes[row[t] * stride..][..stride]));
    let scales: [&[f32]; T] =
        std::array::from_fn(|t| &input.scales[row[t] * (stride / 32)..][..n_blocks]);
    let sums: [&[i32]; T] =
        std::array::from_fn(|t| &input.sums[row[t] * (stride / 16)..][..2 * n_blocks]);
    let block_bytes = group.len() / n_blocks;
    let mut acc = [s.zero(); T];
    for block in 0..n_blocks {
        if T == 1 {
            prefetch(s, group, block, block_bytes);
        }
        let a: [&[u8; 32]; T] = std::array::from_fn(|t| {
            codes[t][32 * block..32 * block + 32].try_into().expect("32 codes")
        });
        let (low, high) = block_sums::<S, F, T>(s, (group, n_blocks, block), a);
        let (scale_low, scale_high) = F::scales(s, group, n_blocks, block);
        for t in 0..T {
            let scale = s.splat(scales[t][block]);
            let (sum_low, sum_high) = (sums[t][2 * block], sums[t][2 * block + 1]);
            if F::HALVES {
                let low = s.sub_i32(low[t], s.splat_i32(F::ZERO * sum_low));
                let high = s.sub_i32(high[t], s.splat_i32(F::ZERO * sum_high));
                acc[t] = s.fma(s.i32_to_f32(low), s.mul(scale_low, scale), acc[t]);
                acc[t] = s.fma(s.i32_to_f32(high), s.mul(scale_high, scale), acc[t]);
            } else {
                let zero = s.splat_i32(F::ZERO * (sum_low + sum_high));
                let sum = s.sub_i32(s.add_i32(low[t], high[t]), zero);
                acc[t] = s.fma(s.i32_to_f32(sum), s.mul(scale_low, scale), acc[t]);
            }
        }
        if F::HAS_MIN {
            let (min_low, min_high) = F::mins(s, group, n_blocks, block);
            for t in 0..T {
                let scale = s.splat(-scales[t][block]);
                let (sum_low, sum_high) = (sums[t][2 * block], sums[t][2 * block + 1]);
                if F::HALVES {
                    let (low, high) = (s.splat(sum_low as f32), s.splat(sum_high as f32));
                    acc[t] = s.fma(s.mul(min_low, scale), low, acc[t]);
                    acc[t] = s.fma(s.mul(min_high, scale), high, acc[t]);
                } else {
                    let sum = s.splat((sum_low + sum_high) as f32);
                    acc[t] = s.fma(s.mul(min_low, scale), sum, acc[t]);
                }
            }
        }
    }
    acc
}

/// The four codes of columns `4 i..4 i + 4`.
#[inline(always)]
fn quad(a: &[u8; 32], i: usize) -> i32 {
    i32::from_le_bytes([a[4 * i], a[4 * i + 1], a[4 * i + 2], a[4 * i + 3]])
}

/// The integer sums over columns 0..16 and 16..32 of a block (all in the first where the halves
/// share a scale and the sums fit).
#[inline(always)]
fn block_sums<S: Simd, F: CodeFormat, const T: usize>(
    s: S,
    (group, n_blocks, block): (&[u8], usize, usize),
    a: [&[u8; 32]; T],
) -> ([S::I32; T], [S::I32; T]) {
    // How many calls of `dot` may share one running sum.
    let limit = if S::DOT_IS_EXACT { 8 } else { 32_767 / (254 * F::MAX_CODE) };
    let mut low = [s.zero_i32(); T];
    let mut high = [s.zero_i32(); T];
    if limit >= 8 && !F::HALVES {
        let mut sum = [s.dot_zero(); T];
        for j in 0..4 {
            let (bottom, top) = F::pair(s, group, n_blocks, block, j);
            for t in 0..T {
                sum[t] = s.dot(sum[t], bottom, quad(a[t], j));
                sum[t] = s.dot(sum[t], top, quad(a[t], 4 + j));
            }
        }
        for t in 0..T {
            low[t] = s.dot_sum(sum[t]);
        }
    } else if limit >= 2 {
        let calls = if limit >= 4 { 4 } else { 2 };
        for first in (0..4).step_by(calls) {
            let (mut sum_low, mut sum_high) = ([s.dot_zero(); T], [s.dot_zero(); T]);
            for j in first..first + calls {
                let (bottom, top) = F::pair(s, group, n_blocks, block, j);
                for t in 0..T {
                    sum_low[t] = s.dot(sum_low[t], bottom, quad(a[t], j));
                    sum_high[t] = s.dot(sum_high[t], top, quad(a[t], 4 + j));
                }
            }
            for t in 0..T {
                low[t] = s.add_i32(low[t], s.dot_sum(sum_low[t]));
                high[t] = s.add_i32(high[t], s.dot_sum(sum_high[t]));
            }
        }
    } else {
        for j in 0..4 {
            let (bottom, top) = F::pair(s, group, n_blocks, block, j);
            for t in 0..T {
                low[t] = s.dot_wide(low[t], bottom, quad(a[t], j));
                high[t] = s.dot_wide(high[t], top, quad(a[t], 4 + j));
            }
        }
    }
    (low, high)
}
