//! Root-mean-square normalisation.

use oss_simd::{Isa, Kernel, Simd};

/// `out[i] = x[i] · gain[i] / sqrt(mean(x²) + epsilon)` (Zhang and Sennrich, 2019).
///
/// The sum of squares runs in sixteen lanes and one fixed tree.
///
/// # Panics
/// When the lengths differ.
pub fn rms_norm(isa: Isa, x: &[f32], gain: &[f32], epsilon: f32, out: &mut [f32]) {
    assert_eq!(x.len(), gain.len(), "numbers and gains");
    assert_eq!(x.len(), out.len(), "numbers and output");
    isa.run(RmsNorm { x, gain, epsilon, out });
}

struct RmsNorm<'a> {
    x: &'a [f32],
    gain: &'a [f32],
    epsilon: f32,
    out: &'a mut [f32],
}

impl Kernel for RmsNorm<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let (x, x_rest) = self.x.as_chunks::<16>();
        let (gain, gain_rest) = self.gain.as_chunks::<16>();
        let (out, out_rest) = self.out.as_chunks_mut::<16>();
        let mut sum = s.zero();
        for x in x {
            let x = s.load(x);
            sum = s.fma(x, x, sum);
        }
        let rest = s.load_partial(x_rest);
        let sum = s.reduce_add(s.fma(rest, rest, sum));
        let factor = 1.0 / (sum / self.x.len() as f32 + self.epsilon).sqrt();
        let factor = s.splat(factor);
        for ((x, gain), out) in x.iter().zip(gain).zip(out) {
            s.store(s.mul(s.mul(s.load(x), factor), s.load(gain)), out);
        }
        let rest = s.mul(s.mul(rest, factor), s.load_partial(gain_rest));
        s.store_partial(rest, out_rest);
    }
}
