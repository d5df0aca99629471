//! Floating-point weights times numbers: four running sums, one per column modulo 4.

use super::{Walk, prefetch};
use oss_quant::FloatFormat;
use oss_simd::{Kernel, Simd};
use std::marker::PhantomData;

pub(super) struct Floats<'a, 'b, F> {
    walk: Walk<'a, 'b>,
    format: PhantomData<F>,
}

impl<'a, 'b, F: FloatFormat> Floats<'a, 'b, F> {
    pub(super) fn new(walk: Walk<'a, 'b>) -> Self {
        Self { walk, format: PhantomData }
    }
}

impl<F: FloatFormat> Kernel for Floats<'_, '_, F> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let mut walk = self.walk;
        for index in walk.groups.clone() {
            let mut first = 0;
            while first < walk.rows.len() {
                let n = (walk.rows.len() - first).min(S::REGISTERS.min(4));
                let place = (index, first, n);
                match n {
                    1 => tile::<S, F, 1>(s, &mut walk, place),
                    2 => tile::<S, F, 2>(s, &mut walk, place),
                    _ => tile::<S, F, 4>(s, &mut walk, place),
                }
                first += n;
            }
        }
    }
}

#[inline(always)]
fn tile<S: Simd, F: FloatFormat, const T: usize>(
    s: S,
    walk: &mut Walk<'_, '_>,
    (index, first, n): (usize, usize, usize),
) {
    let product = walk.product;
    let group = walk.group(index);
    let input = product.input;
    let stride = input.stride;
    let values: [&[f32]; T] = std::array::from_fn(|t| {
        &input.values[walk.rows[first + t.min(n - 1)] as usize * stride..][..stride]
    });
    let mut acc = [[s.zero(); 4]; T];
    let step_bytes = group.len() / (product.matrix.packing.padded_cols() / 4);
    for k in (0..product.matrix.packing.cols).step_by(4) {
        prefetch(s, group, k / 4, step_bytes);
        let w = F::columns(s, group, k);
        for t in 0..T {
            let x: &[f32; 4] = values[t][k..k + 4].try_into().expect("four values");
            for i in 0..4 {
                acc[t][i] = s.fma(w[i], s.splat(x[i]), acc[t][i]);
            }
        }
    }
    for (t, [a, b, c, d]) in acc.into_iter().enumerate().take(n) {
        s.store(s.add(s.add(a, b), s.add(c, d)), walk.out(index, first + t));
    }
}
