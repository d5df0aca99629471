//! Buffers for draws.

use crate::candidates::Buffers;
use crate::filter::DryScratch;
use crate::logprobs::Logprobs;
use crate::scan::BLOCK;

/// Buffers that are kept from draw to draw: one for all samplers that draw one after the other.
/// Draws do not depend on what was drawn with it before.
#[derive(Clone, Debug)]
pub struct Scratch {
    /// The largest logit of each block.
    pub(crate) block_max: Vec<f32>,
    pub(crate) buffers: Buffers,
    pub(crate) dry: DryScratch,
    pub(crate) logprobs: Logprobs,
    /// The model's own logits of tokens that penalties or biases have changed.
    pub(crate) changed: Vec<(u32, f32)>,
}

impl Scratch {
    /// For vocabularies of that size.
    #[must_use]
    pub fn new(vocabulary: usize) -> Scratch {
        Scratch {
            block_max: vec![0.0; vocabulary.div_ceil(BLOCK)],
            buffers: Buffers::new(vocabulary),
            dry: DryScratch::default(),
            logprobs: Logprobs::default(),
            changed: Vec::new(),
        }
    }

    /// Bytes of what the vocabulary needs, all there from the start. The rest grows with the best
    /// log-probabilities and the changed logits of a draw, and with the tokens that DRY looks at.
    #[must_use]
    pub fn bytes(vocabulary: usize) -> usize {
        size_of::<f32>() * vocabulary.div_ceil(BLOCK) + Buffers::bytes(vocabulary)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Options, Sampler};
    use oss_simd::Isa;
    use oss_testing::Seeded;

    #[test]
    fn draws_take_no_more_for_a_vocabulary_than_is_said() {
        let mut seeded = Seeded::new(91);
        for n in [1, 64, 777, 20_000] {
            let mut scratch = Scratch::new(n);
            let flat = vec![0.0; n];
            let ascending: Vec<f32> = (0..n).map(|i| i as f32 * 1e-4).collect();
            for logits in [flat, ascending, seeded.normals(n, 2.0)] {
                for options in [
                    Options { typical_p: 0.9, top_logprobs: n, ..Options::default() },
                    Options { min_p: 1e-9, ..Options::default() },
                    Options { top_p: 0.999, ..Options::default() },
                    Options { top_k: n.div_ceil(3), ..Options::default() },
                    Options { top_k: n, ..Options::default() },
                ] {
                    let sampler = Sampler::new(options, n, 0).unwrap();
                    let isa = Isa::scalar();
                    sampler.draw(isa, &mut logits.clone(), 0, None, &mut scratch).unwrap();
                }
            }
            let held = size_of::<f32>() * scratch.block_max.capacity() + scratch.buffers.held();
            assert_eq!(held, Scratch::bytes(n), "{n}");
        }
    }
}
