//! Floating-point weights times numbers: four running sums, one per column modulo 4.

use super::{Product, Walk, prefetch, store_tile};
use oss_quant::FloatFormat;
use oss_simd::{Kernel, Simd};
use std::{marker::PhantomData, ops::Range};

pub(super) struct Floats<'a, 'b, F> {
    walk: Walk<'a, 'b>,
    format: PhantomData<F>,
}

impl<'a, 'b, F: FloatFormat> Floats<'a, 'b, F> {
    pub(super) fn new(
        product: Product<'a>,
        rows: &'b [u32],
        groups: Range<usize>,
        out: &'b mut [f32],
    ) -> Self {
        Self { walk: Walk { product, rows, groups, out }, format: PhantomData }
    }
}

impl<F: FloatFormat> Kernel for Floats<'_, '_, F> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let mut walk = self.walk;
        let product = walk.product;
        let mut place = walk.start();
        while walk.advance(&mut place, S::REGISTERS.min(4)) {
            let (group, rows) = walk.tile(place);
            match place.n {
                4 if S::REGISTERS >= 4 => {
                    store_tile(s, tile::<S, F, 4>(s, product, group, rows), walk.out(place));
                }
                _ => store_tile(s, tile::<S, F, 1>(s, product, group, rows), walk.out(place)),
            }
        }
    }
}

#[inline(always)]
fn tile<S: Simd, F: FloatFormat, const T: usize>(
    s: S,
    product: Product<'_>,
    group: &[u8],
    rows: &[u32],
) -> [S::F32; T] {
    let input = product.input;
    let stride = input.stride;
    let values: [&[f32]; T] =
        std::array::from_fn(|t| &input.values[rows[t] as usize * stride..][..stride]);
    let mut acc = [[s.zero(); 4]; T];
    let step_bytes = group.len() / (product.matrix.packing.padded_cols() / 4);
    for k in (0..product.matrix.packing.cols).step_by(4) {
        if T == 1 {
            prefetch(s, group, k / 4, step_bytes);
        }
        let w = F::columns(s, group, k);
        for t in 0..T {
            let x: &[f32; 4] = values[t][k..k + 4].try_into().expect("four values");
            for i in 0..4 {
                acc[t][i] = s.fma(w[i], s.splat(x[i]), acc[t][i]);
            }
        }
    }
    let mut sums = [s.zero(); T];
    for (sum, [a, b, c, d]) in sums.iter_mut().zip(acc) {
        *sum = s.add(s.add(a, b), s.add(c, d));
    }
    sums
}
