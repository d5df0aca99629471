//! What can go wrong when sampling.

/// An operating error of the sampler.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An option is outside its range.
    #[error("sampling option {field}: got {got}, expected {expected}")]
    Option {
        /// The field's name in [`Options`](crate::Options).
        field: &'static str,
        /// Its value.
        got: String,
        /// What is allowed.
        expected: String,
    },
    /// A logit is NaN or +∞: the model or its weights are broken, no distribution exists.
    #[error("logit of token {id} at position {position}: got {got}, expected a number or -inf")]
    Logit {
        /// The step: the position that the draw was for.
        position: u64,
        /// The first such token.
        id: u32,
        /// The logit.
        got: f32,
    },
    /// Every token is excluded, by logits of −∞, by the bias or by the mask.
    #[error(
        "no token can be drawn at position {position}: every logit is -inf; the mask allows \
         {allowed} of {vocabulary} tokens"
    )]
    NoToken {
        /// The step: the position that the draw was for.
        position: u64,
        /// How many tokens the mask allows; the vocabulary's size where there is no mask.
        allowed: usize,
        /// The vocabulary's size.
        vocabulary: usize,
    },
}
