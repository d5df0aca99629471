//! How to sample: plain numbers with neutral defaults.

use crate::Error;
use crate::filter::FILTERS;

/// How a token is chosen. The default is plain sampling: temperature 1, every filter off.
///
/// The fields stand in the order in which they act; [`ORDER`](crate::ORDER) has the reasons.
///
/// ```
/// use oss_sampler::Options;
/// let options = Options { temperature: 0.7, top_k: 40, top_p: 0.95, ..Options::default() };
/// assert!(options.validate(32_000).is_ok());
/// let error = Options { top_p: 1.5, ..Options::default() }.validate(32_000).unwrap_err();
/// assert_eq!(
///     error.to_string(),
///     "sampling option top_p: got 1.5, expected a number between 0 and 1"
/// );
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// Divides positive and multiplies negative logits of tokens in the window, prompt included
    /// (CTRL, Keskar and others 2019). 1 is off.
    pub repetition_penalty: f32,
    /// Subtracted once from the logit of each token *generated* within the window. 0 is off.
    pub presence_penalty: f32,
    /// Subtracted from a token's logit for each time it was *generated* within the window. 0 is
    /// off.
    pub frequency_penalty: f32,
    /// How many of the last tokens, prompt included, the three penalties look at. 0 is all.
    pub repeat_last_n: usize,
    /// Penalises tokens that would continue a repeated sequence.
    pub dry: Dry,
    /// Added to the logits of these tokens; −∞ forbids one.
    pub logit_bias: Vec<(u32, f32)>,
    /// Divides the logits. 0 is greedy: the largest logit, the lowest id among equals, and the
    /// filters below do not act.
    pub temperature: f32,
    /// Keeps this many of the largest logits. 0 is off.
    pub top_k: usize,
    /// Keeps the smallest set of most probable tokens that holds at least this probability
    /// (nucleus sampling, Holtzman and others 2019); at least one token. 1 is off.
    pub top_p: f32,
    /// Keeps tokens at least this times as probable as the best one (Nguyen and others 2024). 0 is
    /// off.
    pub min_p: f32,
    /// Keeps the smallest set, of tokens whose surprise is nearest the distribution's entropy, that
    /// holds at least this probability (locally typical sampling, Meister and others 2022). 1 is
    /// off.
    pub typical_p: f32,
    /// Reports the drawn token's log-probability; implied by `top_logprobs`. Off by default because
    /// it costs a pass of exponentials over the vocabulary.
    pub logprobs: bool,
    /// How many best log-probabilities to report with each draw.
    pub top_logprobs: usize,
    /// The seed of the draws.
    pub seed: u64,
}

/// DRY ("don't repeat yourself"): a token that would make the text's end a copy of an earlier
/// stretch, `n` tokens long before it, loses `multiplier · base^(n − allowed_length)` from its
/// logit once `n` reaches `allowed_length` (p-e-w, text-generation-webui pull request 5677).
#[derive(Clone, Debug, PartialEq)]
pub struct Dry {
    /// The penalty at the allowed length. 0 is off.
    pub multiplier: f32,
    /// How much each further repeated token multiplies the penalty.
    pub base: f32,
    /// The shortest repetition that is penalised, in tokens.
    pub allowed_length: usize,
    /// How many of the last tokens, prompt included, are searched. 0 is all.
    pub window: usize,
    /// Tokens over which no repetition extends, and which are not penalised: line ends, quotes,
    /// colons, chat markers. In any order.
    pub sequence_breakers: Vec<u32>,
}

impl Default for Dry {
    fn default() -> Dry {
        Dry {
            multiplier: 0.0,
            base: 1.75,
            allowed_length: 2,
            window: 0,
            sequence_breakers: Vec::new(),
        }
    }
}

impl Default for Options {
    fn default() -> Options {
        Options {
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            repeat_last_n: 0,
            dry: Dry::default(),
            logit_bias: Vec::new(),
            temperature: 1.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            typical_p: 1.0,
            logprobs: false,
            top_logprobs: 0,
            seed: 0,
        }
    }
}

impl Options {
    /// The options that always take the most probable token.
    #[must_use]
    pub fn greedy() -> Options {
        Options { temperature: 0.0, ..Options::default() }
    }

    /// Whether log-probabilities are reported.
    #[must_use]
    pub fn wants_logprobs(&self) -> bool {
        self.logprobs || self.top_logprobs > 0
    }

    /// Checks every field against its range and the vocabulary.
    ///
    /// # Errors
    /// [`Error::Option`] naming the first wrong field.
    pub fn validate(&self, vocabulary: usize) -> Result<(), Error> {
        check("vocabulary", &vocabulary, (1..=1 << 31).contains(&vocabulary), "1 to 2^31 tokens")?;
        for filter in &FILTERS {
            (filter.check)(self, vocabulary)?;
        }
        let expected = format!("at most the vocabulary's {vocabulary}");
        check("top_logprobs", &self.top_logprobs, self.top_logprobs <= vocabulary, &expected)
    }
}

/// Fails with the field's name and value unless `fine`.
pub(crate) fn check(
    field: &'static str,
    got: &dyn std::fmt::Display,
    fine: bool,
    expected: &str,
) -> Result<(), Error> {
    if fine {
        return Ok(());
    }
    Err(Error::Option { field, got: got.to_string(), expected: expected.to_owned() })
}

/// Fails unless `got` is in [0, 1].
pub(crate) fn check_fraction(field: &'static str, got: f32) -> Result<(), Error> {
    check(field, &got, (0.0..=1.0).contains(&got), "a number between 0 and 1")
}

/// Fails unless the token is in the vocabulary.
pub(crate) fn check_token(field: &'static str, id: u32, vocabulary: usize) -> Result<(), Error> {
    let expected = format!("a token id below {vocabulary}");
    check(field, &id, (id as usize) < vocabulary, &expected)
}
