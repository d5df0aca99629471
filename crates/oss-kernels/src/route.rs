//! Which experts a token goes to.

use oss_simd::{Isa, Kernel, Simd, math};

/// Chooses the `experts.len()` largest logits (the lowest id first among equals) and gives each
/// chosen expert its share: the softmax over the chosen logits. Where any logit is not a number, no
/// share is.
///
/// # Panics
/// When more experts are asked for than there are logits, or the two outputs differ in length.
pub fn route(isa: Isa, logits: &[f32], experts: &mut [u32], shares: &mut [f32]) {
    assert!(experts.len() <= logits.len(), "{} of {} experts", experts.len(), logits.len());
    assert_eq!(experts.len(), shares.len(), "experts and shares");
    for n in 0..experts.len() {
        let mut best: Option<usize> = None;
        for (id, logit) in logits.iter().enumerate() {
            let taken = experts[..n].contains(&(id as u32));
            if !taken && best.is_none_or(|best| *logit > logits[best]) {
                best = Some(id);
            }
        }
        let best = best.expect("there are more logits than experts taken");
        experts[n] = best as u32;
        shares[n] = logits[best];
    }
    if logits.iter().any(|logit| logit.is_nan()) {
        shares.fill(f32::NAN);
    }
    softmax(isa, shares);
}

/// `x[i] = exp(x[i] - max) / Σ exp(x - max)`, in place.
pub fn softmax(isa: Isa, x: &mut [f32]) {
    isa.run(Softmax(x));
}

struct Softmax<'a>(&'a mut [f32]);

impl Kernel for Softmax<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let largest = self.0.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let mut sum = s.zero();
        for x in self.0.chunks_mut(16) {
            let mut all = [f32::NEG_INFINITY; 16];
            all[..x.len()].copy_from_slice(x);
            let p = math::exp(s, s.sub(s.load(&all), s.splat(largest)));
            sum = s.add(sum, p);
            s.store_partial(p, x);
        }
        let factor = 1.0 / s.reduce_add(sum);
        for x in self.0 {
            *x *= factor;
        }
    }
}
