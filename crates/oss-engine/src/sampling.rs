//! What a request says about sampling; the rest comes from the model's own files.

use oss_sampler::{Dry, Options};

/// How tokens are drawn, where it differs from the model's own generation configuration
/// ([`Text::defaults`](crate::Text::defaults)). Where that says nothing either, every token is
/// drawn from all of the model's distribution: temperature 1, without filters and penalties.
/// Answers differ from request to request then, unless they have a seed or are greedy
/// ([`Request::greedy`](crate::Request::greedy)). A request with a number out of its range is
/// refused. Penalties and biases that take a logit beyond all numbers give the largest one.
///
/// ```
/// use oss_engine::Sampling;
/// let sampling = Sampling { top_p: Some(0.9), seed: Some(7), ..Sampling::default() };
/// assert_eq!(Sampling::greedy().temperature, Some(0.0));
/// # let _ = sampling;
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sampling {
    /// Divides the logits: any number from 0 up, 0 is greedy.
    pub temperature: Option<f32>,
    /// Keeps this many of the most probable tokens; 0 is off, and so is any number beyond the
    /// vocabulary.
    pub top_k: Option<usize>,
    /// Keeps the most probable tokens that together have this probability: 0 to 1, 1 is off.
    pub top_p: Option<f32>,
    /// Keeps tokens at least this times as probable as the best: 0 to 1, 0 is off.
    pub min_p: Option<f32>,
    /// Locally typical sampling: 0 to 1, 1 is off.
    pub typical_p: Option<f32>,
    /// Divides the positive logits of tokens that were there, in prompt or answer, and multiplies
    /// the others: any number above 0, 1 is off.
    pub repetition_penalty: Option<f32>,
    /// Subtracted once from the logits of tokens that were generated: any finite number, 0 is off.
    pub presence_penalty: Option<f32>,
    /// Subtracted from a token's logit for each time that it was generated: any finite number, 0 is
    /// off.
    pub frequency_penalty: Option<f32>,
    /// How many of the last tokens the penalties look at; 0 is all.
    pub repeat_last_n: Option<usize>,
    /// Penalises the continuation of repetitions: a multiplier from 0 up, a base and an allowed
    /// length from 1 up. Control tokens of the tokenizer are sequence breakers without being named.
    pub dry: Option<Dry>,
    /// Added to the logits of these tokens, which the model has to have: any number but +∞; −∞
    /// forbids one.
    pub logit_bias: Vec<(u32, f32)>,
    /// The seed of the draws; `None`: a new one for every request, which the stream tells.
    pub seed: Option<u64>,
}

impl Sampling {
    /// The most probable token, always.
    #[must_use]
    pub fn greedy() -> Self {
        Self { temperature: Some(0.0), ..Self::default() }
    }

    /// The sampler's options: what is said here over the model's `defaults`.
    pub(crate) fn over(&self, defaults: &Options, seed: u64, logprobs: Option<usize>) -> Options {
        Options {
            temperature: self.temperature.unwrap_or(defaults.temperature),
            top_k: self.top_k.unwrap_or(defaults.top_k),
            top_p: self.top_p.unwrap_or(defaults.top_p),
            min_p: self.min_p.unwrap_or(defaults.min_p),
            typical_p: self.typical_p.unwrap_or(defaults.typical_p),
            repetition_penalty: self.repetition_penalty.unwrap_or(defaults.repetition_penalty),
            presence_penalty: self.presence_penalty.unwrap_or(defaults.presence_penalty),
            frequency_penalty: self.frequency_penalty.unwrap_or(defaults.frequency_penalty),
            repeat_last_n: self.repeat_last_n.unwrap_or(defaults.repeat_last_n),
            dry: self.dry.clone().unwrap_or_else(|| defaults.dry.clone()),
            logit_bias: self.logit_bias.clone(),
            logprobs: logprobs.is_some(),
            top_logprobs: logprobs.unwrap_or(0),
            seed,
        }
    }
}
