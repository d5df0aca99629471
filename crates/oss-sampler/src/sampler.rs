//! The sampler of one sequence.

use crate::candidates::{Buffers, Candidates};
use crate::filter::{self, Adjust, DryScratch};
use crate::history::History;
use crate::logprobs::Logprobs;
use crate::noise::Key;
use crate::report::{Diversity, Report};
use crate::scan::{self, BLOCK, Field};
use crate::{Error, Mask, Options};
use oss_simd::Isa;

/// Chooses the tokens of one sequence: options, what was said so far, and buffers.
#[derive(Clone, Debug)]
pub struct Sampler {
    options: Options,
    vocabulary: usize,
    choice: u32,
    history: History,
    diversity: Diversity,
    scratch: Scratch,
}

/// Buffers that are kept from draw to draw.
#[derive(Clone, Debug, Default)]
struct Scratch {
    peaks: Vec<f32>,
    buffers: Buffers,
    dry: DryScratch,
    logprobs: Logprobs,
    /// The model's logits, where penalties or bias change them and log-probabilities are wanted.
    raw: Vec<f32>,
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
    pub fn new(options: Options, vocabulary: usize, choice: u32) -> Result<Sampler, Error> {
        options.validate(vocabulary)?;
        let history = History::new(filter::counts(&options).then_some(options.penalty_window));
        let scratch =
            Scratch { peaks: vec![0.0; vocabulary.div_ceil(BLOCK)], ..Scratch::default() };
        let diversity = Diversity::default();
        Ok(Sampler { options, vocabulary, choice, history, diversity, scratch })
    }

    /// The options that it was made with.
    #[must_use]
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// How many logits it expects.
    #[must_use]
    pub fn vocabulary(&self) -> usize {
        self.vocabulary
    }

    /// Makes room for that many more tokens, so that they are drawn and accepted without allocating
    /// (once the buffers have seen a distribution as flat as theirs).
    pub fn reserve(&mut self, tokens: usize) {
        self.history.reserve(tokens, self.vocabulary);
        self.diversity.reserve(tokens);
        if self.options.dry.multiplier > 0.0 {
            self.scratch.dry.reserve(self.history.tokens().len() + tokens);
        }
    }

    /// Tells the tokens before the first draw; may be called in parts.
    ///
    /// # Panics
    /// If a token was accepted before, or is not in the vocabulary.
    pub fn prompt(&mut self, ids: &[u32]) {
        let got = self.history.generated().len();
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
    pub fn draw(
        &mut self,
        isa: Isa,
        logits: &mut [f32],
        position: u64,
        allowed: Option<&Mask>,
    ) -> Result<Draw<'_>, Error> {
        self.check_shapes(logits, allowed);
        let max = self.scan(isa, logits, position)?;
        if max == f32::NEG_INFINITY {
            return Err(self.no_token(position, None));
        }
        let adjusts = filter::adjusts(&self.options);
        if self.options.wants_logprobs() {
            let Scratch { peaks, logprobs, .. } = &mut self.scratch;
            let field = Field { logits, peaks, max, temperature: 1.0 };
            logprobs.take(isa, field, self.options.top_logprobs);
            if adjusts {
                self.scratch.raw.clear();
                self.scratch.raw.extend_from_slice(logits);
            }
        } else {
            self.scratch.logprobs.top.clear();
        }
        let token = self.choose(isa, logits, position, allowed, max)?;
        let logprob = self.options.wants_logprobs().then(|| {
            let logits = if adjusts { &self.scratch.raw } else { &*logits };
            self.scratch.logprobs.of(logits[token as usize])
        });
        Ok(Draw { token, logprob, top: &self.scratch.logprobs.top })
    }

    /// The log-probability of the token that is known to come at `position`, and the `n` most
    /// probable ones there: what [`Sampler::draw`] would report of it, whatever the options.
    ///
    /// # Errors
    /// As [`Sampler::draw`].
    ///
    /// # Panics
    /// If there are more or fewer logits than the vocabulary has, or the token is not in it.
    pub fn score(
        &mut self,
        isa: Isa,
        logits: &[f32],
        (position, token): (u64, u32),
        n: usize,
    ) -> Result<Draw<'_>, Error> {
        self.check_shapes(logits, None);
        self.check_token(token);
        let max = self.scan(isa, logits, position)?;
        if max == f32::NEG_INFINITY {
            return Err(self.no_token(position, None));
        }
        let Scratch { peaks, logprobs, .. } = &mut self.scratch;
        logprobs.take(isa, Field { logits, peaks, max, temperature: 1.0 }, n);
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
        &mut self,
        isa: Isa,
        logits: &mut [f32],
        position: u64,
        allowed: Option<&Mask>,
    ) -> Result<Vec<(u32, f32)>, Error> {
        self.check_shapes(logits, allowed);
        let max = self.scan(isa, logits, position)?;
        if max == f32::NEG_INFINITY {
            return Err(self.no_token(position, None));
        }
        let max = self.adjust(isa, logits, position, allowed, max)?;
        let Scratch { peaks, buffers, .. } = &mut self.scratch;
        if self.options.temperature == 0.0 {
            return Ok(vec![(scan::first_of(logits, peaks, max), 1.0)]);
        }
        let field = Field { logits, peaks, max, temperature: 1.0 };
        let mut candidates = Candidates::new(isa, field, buffers);
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
        self.diversity.push(self.history.generated());
    }

    /// The tokens accepted so far.
    #[must_use]
    pub fn generated(&self) -> &[u32] {
        self.history.generated()
    }

    /// How varied the accepted tokens are.
    #[must_use]
    pub fn report(&self) -> Report {
        self.diversity.report(self.history.generated().len())
    }

    /// The token of a step whose raw logits were scanned and have the largest `max`.
    fn choose(
        &mut self,
        isa: Isa,
        logits: &mut [f32],
        position: u64,
        allowed: Option<&Mask>,
        max: f32,
    ) -> Result<u32, Error> {
        let max = self.adjust(isa, logits, position, allowed, max)?;
        let Scratch { peaks, buffers, .. } = &mut self.scratch;
        if self.options.temperature == 0.0 {
            return Ok(scan::first_of(logits, peaks, max));
        }
        let field = Field { logits, peaks, max, temperature: 1.0 };
        let mut candidates = Candidates::new(isa, field, buffers);
        filter::narrow(&self.options, &mut candidates);
        Ok(candidates.draw(Key::new(self.options.seed, self.choice, position)))
    }

    /// Runs the filters of logits; the largest logit that they leave.
    fn adjust(
        &mut self,
        isa: Isa,
        logits: &mut [f32],
        position: u64,
        allowed: Option<&Mask>,
        max: f32,
    ) -> Result<f32, Error> {
        if allowed.is_none() && !filter::adjusts(&self.options) {
            return Ok(max);
        }
        filter::adjust(Adjust {
            isa,
            options: &self.options,
            history: &self.history,
            allowed,
            scratch: &mut self.scratch.dry,
            logits,
        });
        let max = self.scan(isa, logits, position)?;
        if max == f32::NEG_INFINITY {
            return Err(self.no_token(position, allowed));
        }
        Ok(max)
    }

    /// Takes the peaks; the largest logit.
    fn scan(&mut self, isa: Isa, logits: &[f32], position: u64) -> Result<f32, Error> {
        let found = scan::peaks(isa, logits, &mut self.scratch.peaks);
        if !found.nan && found.max < f32::INFINITY {
            return Ok(found.max);
        }
        let wrong = |logit: &f32| logit.is_nan() || *logit == f32::INFINITY;
        let id = logits.iter().position(wrong).expect("the scan found a logit that is no number");
        Err(Error::Logit { position, id: id as u32, got: logits[id] })
    }

    fn no_token(&self, position: u64, allowed: Option<&Mask>) -> Error {
        let vocabulary = self.vocabulary;
        Error::NoToken { position, allowed: allowed.map_or(vocabulary, Mask::count), vocabulary }
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
