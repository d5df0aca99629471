//! The sampler of one sequence.

use crate::candidates::Candidates;
use crate::filter::{self, Adjust, Logits};
use crate::history::History;
use crate::noise::Key;
use crate::scan::{self, ScaledLogits};
use crate::{Error, Mask, Options, Scratch};
use oss_simd::Isa;

/// Chooses the tokens of one sequence: options, and what was said so far.
#[derive(Clone, Debug)]
pub struct Sampler {
    options: Options,
    vocabulary: usize,
    choice: u32,
    history: History,
}

/// A drawn token.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Draw<'a> {
    /// The token.
    pub token: u32,
    /// Its log-probability, where [`Options::logprobs`] or [`Options::top_logprobs`] asks for it.
    ///
    /// It is that of the model's own distribution: before penalties, bias, mask, temperature and
    /// filters.
    pub logprob: Option<f32>,
    /// The [`Options::top_logprobs`] most probable tokens of the same distribution with their
    /// log-probabilities, best first, the lowest id first among equals; fewer where fewer logits
    /// are finite.
    pub top: &'a [(u32, f32)],
}

impl Sampler {
    /// A sampler for choice number `choice` (0 for a single answer) of a request.
    ///
    /// # Errors
    /// [`Error::Option`] naming the first option outside its range.
    pub fn new(mut options: Options, vocabulary: usize, choice: u32) -> Result<Sampler, Error> {
        options.validate(vocabulary)?;
        // As the filter looks them up.
        options.dry.sequence_breakers.sort_unstable();
        options.dry.sequence_breakers.dedup();
        let history = History::new(filter::counted(&options), options.repeat_last_n);
        Ok(Sampler { options, vocabulary, choice, history })
    }

    /// The options that it was made with, DRY's sequence breakers in ascending order.
    #[must_use]
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// How many logits it expects.
    #[must_use]
    pub fn vocabulary(&self) -> usize {
        self.vocabulary
    }

    /// Tells the tokens before the first draw; may be called in parts.
    ///
    /// # Panics
    /// If a token was accepted before, or is not in the vocabulary.
    pub fn prompt(&mut self, ids: &[u32]) {
        let got = self.history.generated();
        assert_eq!(got, 0, "tokens accepted before the prompt: got {got}, expected 0");
        ids.iter().for_each(|&id| self.check_token(id));
        self.history.prompt(ids);
    }

    /// Draws the token for `position` (its index in the sequence) from its logits, `[vocabulary]`.
    ///
    /// The logits are worked on in place and are no longer the model's afterwards. A logit of −∞ is
    /// a token that cannot be drawn. Drawing changes nothing that a later draw depends on; see
    /// [`Sampler::accept`].
    ///
    /// # Errors
    /// [`Error::Logit`] for a logit of NaN or +∞, [`Error::NoToken`] if nothing can be drawn.
    ///
    /// # Panics
    /// If there are more or fewer logits, or tokens in the mask, than the vocabulary has.
    pub fn draw<'s>(
        &self,
        isa: Isa,
        logits: &mut [f32],
        position: u64,
        allowed: Option<&Mask>,
        scratch: &'s mut Scratch,
    ) -> Result<Draw<'s>, Error> {
        self.check_shapes(logits, allowed);
        let max = self.scan(isa, logits, (position, None), scratch)?;
        let wants_logprobs = self.options.wants_logprobs();
        if wants_logprobs {
            let Scratch { block_max, logprobs, buffers, .. } = &mut *scratch;
            let scaled = ScaledLogits { logits, block_max, max, temperature: 1.0 };
            logprobs.take(isa, scaled, buffers, self.options.top_logprobs);
        } else {
            scratch.logprobs.top.clear();
        }
        let token = self.choose(isa, logits, (position, allowed, max), scratch)?;
        let Scratch { logprobs, changed, .. } = scratch;
        let logprob =
            wants_logprobs.then(|| logprobs.of(filter::raw_logit(logits, changed, token)));
        Ok(Draw { token, logprob, top: &logprobs.top })
    }

    /// The log-probability of the token that is known to come at `position`, and the `n` most
    /// probable ones there: what [`Sampler::draw`] would report of it, whatever the options.
    ///
    /// # Errors
    /// As [`Sampler::draw`].
    ///
    /// # Panics
    /// If there are more or fewer logits than the vocabulary has, or the token is not in it.
    pub fn score<'s>(
        &self,
        isa: Isa,
        logits: &[f32],
        (position, token): (u64, u32),
        n: usize,
        scratch: &'s mut Scratch,
    ) -> Result<Draw<'s>, Error> {
        self.check_shapes(logits, None);
        self.check_token(token);
        let max = self.scan(isa, logits, (position, None), scratch)?;
        let Scratch { block_max, logprobs, buffers, .. } = scratch;
        let scaled = ScaledLogits { logits, block_max, max, temperature: 1.0 };
        logprobs.take(isa, scaled, buffers, n);
        let logprob = Some(logprobs.of(logits[token as usize]));
        Ok(Draw { token, logprob, top: &logprobs.top })
    }

    /// What [`Sampler::draw`] draws from: the tokens that all filters leave with their
    /// probabilities (of sum 1), best first. For inspection; it allocates and sorts.
    ///
    /// # Errors
    /// As [`Sampler::draw`].
    ///
    /// # Panics
    /// As [`Sampler::draw`].
    pub fn distribution(
        &self,
        isa: Isa,
        logits: &mut [f32],
        position: u64,
        allowed: Option<&Mask>,
    ) -> Result<Vec<(u32, f32)>, Error> {
        self.check_shapes(logits, allowed);
        let scratch = &mut Scratch::new(self.vocabulary);
        let max = self.scan(isa, logits, (position, None), scratch)?;
        let max = self.adjust(isa, logits, (position, allowed, max), scratch)?;
        let Scratch { block_max, buffers, .. } = scratch;
        if self.options.temperature == 0.0 {
            return Ok(vec![(scan::first_of(logits, block_max, max), 1.0)]);
        }
        let scaled = ScaledLogits { logits, block_max, max, temperature: 1.0 };
        let mut candidates = Candidates::new(isa, scaled, buffers);
        filter::narrow(&self.options, &mut candidates);
        let total = candidates.total();
        let share = |weight: f32| (f64::from(weight) / total) as f32;
        Ok(candidates.sorted().iter().map(|c| (c.id(), share(c.weight))).collect())
    }

    /// Adds a token, drawn or not, to what was generated.
    ///
    /// # Panics
    /// If the token is not in the vocabulary.
    pub fn accept(&mut self, token: u32) {
        self.check_token(token);
        self.history.push(token);
    }

    /// The token of a step whose raw logits were scanned and have the largest `max`.
    fn choose(
        &self,
        isa: Isa,
        logits: &mut [f32],
        (position, allowed, max): (u64, Option<&Mask>, f32),
        scratch: &mut Scratch,
    ) -> Result<u32, Error> {
        let max = self.adjust(isa, logits, (position, allowed, max), scratch)?;
        let Scratch { block_max, buffers, .. } = scratch;
        if self.options.temperature == 0.0 {
            return Ok(scan::first_of(logits, block_max, max));
        }
        let scaled = ScaledLogits { logits, block_max, max, temperature: 1.0 };
        let mut candidates = Candidates::new(isa, scaled, buffers);
        filter::narrow(&self.options, &mut candidates);
        Ok(candidates.draw(Key::new(self.options.seed, self.choice, position)))
    }

    /// Runs the filters of logits; the largest logit that they leave.
    fn adjust(
        &self,
        isa: Isa,
        logits: &mut [f32],
        (position, allowed, max): (u64, Option<&Mask>, f32),
        scratch: &mut Scratch,
    ) -> Result<f32, Error> {
        scratch.changed.clear();
        if allowed.is_none() && !filter::adjusts(&self.options) {
            return Ok(max);
        }
        let Scratch { dry, changed, .. } = &mut *scratch;
        let changed = self.options.wants_logprobs().then_some(changed);
        let (options, history) = (&self.options, &self.history);
        let values = &mut *logits;
        filter::adjust(Adjust {
            isa,
            options,
            history,
            allowed,
            dry,
            logits: Logits { values, changed },
        });
        self.scan(isa, logits, (position, allowed), scratch)
    }

    /// Finds the largest logit, and that of each block.
    fn scan(
        &self,
        isa: Isa,
        logits: &[f32],
        (position, allowed): (u64, Option<&Mask>),
        scratch: &mut Scratch,
    ) -> Result<f32, Error> {
        let found = scan::block_max(isa, logits, &mut scratch.block_max);
        if found.nan || found.max == f32::INFINITY {
            let wrong = |logit: &f32| logit.is_nan() || *logit == f32::INFINITY;
            let id =
                logits.iter().position(wrong).expect("the scan found a logit that is no number");
            return Err(Error::Logit { position, id: id as u32, got: logits[id] });
        }
        if found.max == f32::NEG_INFINITY {
            let vocabulary = self.vocabulary;
            let allowed = allowed.map_or(vocabulary, Mask::count);
            return Err(Error::NoToken { position, allowed, vocabulary });
        }
        Ok(found.max)
    }

    fn check_shapes(&self, logits: &[f32], allowed: Option<&Mask>) {
        let (got, expected) = (logits.len(), self.vocabulary);
        assert_eq!(got, expected, "logits: got {got}, expected {expected}");
        let got = allowed.map_or(expected, Mask::vocabulary);
        assert_eq!(got, expected, "vocabulary of the mask: got {got}, expected {expected}");
    }

    fn check_token(&self, id: u32) {
        let expected = self.vocabulary;
        assert!((id as usize) < expected, "token: got {id}, expected one below {expected}");
    }
}
