//! Log-probabilities of the model's own distribution.

use crate::candidates::{Buffers, Candidates};
use crate::scan::{self, ScaledLogits};
use oss_simd::Isa;

/// What is kept of the distribution until the token is drawn.
#[derive(Clone, Debug, Default)]
pub(crate) struct Logprobs {
    /// The largest logit.
    max: f32,
    /// `ln Σ exp(x − max)`.
    log_sum: f64,
    /// The best tokens, best first.
    pub(crate) top: Vec<(u32, f32)>,
}

impl Logprobs {
    /// Takes the measures of untempered logits and their `n` best.
    pub(crate) fn take(
        &mut self,
        isa: Isa,
        scaled: ScaledLogits<'_>,
        buffers: &mut Buffers,
        n: usize,
    ) {
        self.max = scaled.max;
        self.log_sum = scan::sum_exp(isa, scaled).ln();
        self.top.clear();
        if n == 0 {
            return;
        }
        let mut best = Candidates::new(isa, scaled, buffers);
        best.top_k(n);
        for candidate in best.sorted() {
            self.top.push((candidate.id(), self.of(candidate.logit)));
        }
    }

    /// The log-probability of a token with this logit.
    pub(crate) fn of(&self, logit: f32) -> f32 {
        (f64::from(logit) - f64::from(self.max) - self.log_sum) as f32
    }
}
