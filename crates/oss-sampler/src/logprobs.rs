//! Log-probabilities of the model's own distribution.

use crate::candidates::{Buffers, Candidates};
use crate::scan::{self, Field};
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
    buffers: Buffers,
}

impl Logprobs {
    /// Takes the measures of untempered logits and their `n` best.
    pub(crate) fn take(&mut self, isa: Isa, field: Field<'_>, n: usize) {
        self.max = field.max;
        self.log_sum = scan::mass(isa, field).ln();
        self.top.clear();
        if n == 0 {
            return;
        }
        let mut buffers = std::mem::take(&mut self.buffers);
        let mut best = Candidates::new(isa, field, &mut buffers);
        best.keep_best(n);
        for candidate in best.sorted() {
            self.top.push((candidate.id(), self.of(candidate.logit)));
        }
        self.buffers = buffers;
    }

    /// The log-probability of a token with this logit.
    pub(crate) fn of(&self, logit: f32) -> f32 {
        (f64::from(logit) - f64::from(self.max) - self.log_sum) as f32
    }
}
