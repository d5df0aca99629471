//! One request on the step thread.

use std::sync::Arc;
use std::time::{Duration, Instant};

use oss_cache::{KvCache, SequenceId};
use oss_sampler::{Sampler, Scratch};
use oss_simd::Isa;

use crate::constraint::Held;
use crate::error::{Error, Result};
use crate::event::{End, Event, FinishReason, Timing, Token, Usage};
use crate::fault::Fault;
use crate::metrics::{Back, Recorder};
use crate::output::Output;
use crate::step::Ending;
use crate::step::at_least::AtLeast;
use crate::step::draft::Drafter;
use crate::step::hold::Hold;
use crate::step::run::catch;
use crate::stream::Producer;

/// One request: its tokens so far, and everything that decides the next one.
///
/// What is left to compute is always `tokens` behind what the cache has of the sequence; so a task
/// that gave up its pages goes on by itself once it has some again.
pub(crate) struct Task {
    pub(crate) id: u64,
    pub(crate) priority: i32,
    pub(crate) session: Option<u64>,
    pub(crate) prompt_len: usize,
    /// Where messages of the prompt end: how many of its tokens come before.
    pub(crate) message_ends: Vec<usize>,
    /// Prompt and answer.
    pub(crate) tokens: Vec<u32>,
    pub(crate) sequence: Option<SequenceId>,
    pub(crate) ends: Ends,
    pub(crate) sampler: Sampler,
    pub(crate) constraint: Option<Held>,
    /// Holds the end back, where a fewest of tokens is asked for.
    pub(crate) at_least: Option<AtLeast>,
    /// Guesses what comes next, unless speculation is off.
    pub(crate) drafter: Option<Drafter>,
    pub(crate) output: Box<dyn Output>,
    /// Events to begin with.
    pub(crate) opening: Vec<Event>,
    pub(crate) producer: Producer,
    /// The log-probabilities of the prompt's tokens, where asked for.
    pub(crate) prompt_logprobs: Option<PromptLogprobs>,
    pub(crate) fault: Option<Fault>,
    pub(crate) deadline: Option<Instant>,
    pub(crate) clock: Clock,
    pub(crate) cached_tokens: usize,
    /// The logits after the whole prompt, where they were known when it was given its sequence.
    pub(crate) repeat: Option<Arc<Vec<f32>>>,
    /// What the cache's lower tiers brought back for it while it waits.
    pub(crate) back: Back,
    pub(crate) hold: Hold,
    pub(crate) span: tracing::Span,
}

/// The first tokens of a prompt with their log-probabilities.
pub(crate) struct PromptLogprobs {
    tokens: Vec<Token>,
    /// So many best ones are told at each place.
    top: usize,
}

impl PromptLogprobs {
    /// Those of a prompt that begins with `first`.
    pub(crate) fn new(first: u32, top: usize) -> Self {
        Self { tokens: vec![Token { id: first, logprob: None, top: Vec::new() }], top }
    }
}

/// What ends an answer, besides texts.
pub(crate) struct Ends {
    pub(crate) max_tokens: usize,
    pub(crate) stop_token_ids: Vec<u32>,
}

/// When things happened to a request.
pub(crate) struct Clock {
    submitted: Instant,
    admitted: Option<Instant>,
    prompt_done: Option<Instant>,
    first_token: Option<Instant>,
    last_token: Option<Instant>,
}

impl Clock {
    pub(crate) fn new(submitted: Instant) -> Self {
        Self { submitted, admitted: None, prompt_done: None, first_token: None, last_token: None }
    }

    fn timing(&self, drawn: usize) -> Timing {
        let now = Instant::now();
        let admitted = self.admitted.unwrap_or(now);
        let between = self.first_token.zip(self.last_token).filter(|_| drawn > 1);
        Timing {
            queue: admitted - self.submitted,
            prefill: self.prompt_done.map_or(Duration::ZERO, |done| done - admitted),
            first_token: self.first_token.map(|first| first - self.submitted),
            per_token: between.map(|(first, last)| (last - first) / (drawn as u32 - 1)),
            total: now - self.submitted,
        }
    }
}

impl Task {
    /// The task of that number.
    pub(crate) fn find(tasks: &[Self], id: u64) -> Option<&Self> {
        tasks.iter().find(|task| task.id == id)
    }

    /// The same, to be changed.
    pub(crate) fn find_mut(tasks: &mut [Self], id: u64) -> Option<&mut Self> {
        tasks.iter_mut().find(|task| task.id == id)
    }

    /// How it ends now, where it was cancelled or is late.
    pub(crate) fn ending(&self, now: Instant) -> Option<Ending> {
        if self.producer.is_cancelled() {
            return Some(Ok(FinishReason::Cancelled));
        }
        let late = self.deadline.is_some_and(|deadline| deadline <= now);
        late.then_some(Err(Error::Timeout))
    }

    /// Tokens drawn.
    pub(crate) fn drawn(&self) -> usize {
        self.tokens.len() - self.prompt_len
    }

    /// Tokens that the cache lacks.
    pub(crate) fn left(&self, cache: &KvCache) -> usize {
        self.tokens.len() - self.sequence.map_or(0, |sequence| cache.len(sequence))
    }

    /// Whether it continues an answer, one token a step.
    pub(crate) fn is_decoding(&self, cache: &KvCache) -> bool {
        self.drawn() > 0 && self.left(cache) == 1
    }

    /// Whether it left the queue at least once.
    pub(crate) fn was_admitted(&self) -> bool {
        self.clock.admitted.is_some()
    }

    /// It leaves the queue with so many tokens at hand.
    pub(crate) fn admitted(&mut self, cached_tokens: usize, recorder: &Recorder) {
        if self.was_admitted() {
            // What of its prompt it has lost since is computed after all.
            if self.drawn() == 0 {
                self.cached_tokens = self.cached_tokens.min(cached_tokens);
            }
            return;
        }
        let now = Instant::now();
        self.clock.admitted = Some(now);
        self.cached_tokens = cached_tokens;
        let mut metrics = recorder.lock();
        metrics.cached_tokens += cached_tokens as u64;
        metrics.queue_time.record((now - self.clock.submitted).as_secs_f64());
        drop(metrics);
        let mut events = vec![Event::Admitted { cached_tokens }];
        events.append(&mut self.opening);
        self.producer.push(&mut events);
    }

    /// Whether the row at `position` is for the prompt's log-probabilities.
    pub(crate) fn scores(&self, position: usize) -> bool {
        let scored = self.prompt_logprobs.as_ref().map_or(usize::MAX, |all| all.tokens.len());
        (scored..self.prompt_len).contains(&(position + 1))
    }

    /// Uses the logits of such a row.
    pub(crate) fn score(
        &mut self,
        isa: Isa,
        logits: &[f32],
        position: usize,
        scratch: &mut Scratch,
    ) -> Result<()> {
        let Some(PromptLogprobs { tokens, top }) = &mut self.prompt_logprobs else { return Ok(()) };
        let id = self.tokens[position + 1];
        let scored = self.sampler.score(isa, logits, (position as u64 + 1, id), *top, scratch)?;
        tokens.push(Token::of(scored));
        Ok(())
    }

    /// Whether the row at `position` is wanted for the head.
    pub(crate) fn wants(&self, position: usize) -> bool {
        self.scores(position) || position + 1 >= self.tokens.len()
    }

    /// The token at `position`: a guess, where it lies behind the last one.
    pub(crate) fn token(&self, position: usize) -> u32 {
        let known = self.tokens.get(position).copied();
        let guess = || {
            let drafter = self.drafter.as_ref()?;
            drafter.guess(&self.tokens, position - self.tokens.len())
        };
        known.or_else(guess).expect("rows behind the last token are guesses")
    }

    /// Whether prompt rows are still wanted that a known prefix would leave out.
    pub(crate) fn needs_whole_prompt(&self) -> bool {
        self.prompt_logprobs.is_some() && self.drawn() == 0
    }

    /// Its prompt has been computed.
    pub(crate) fn prompt_done(&mut self) {
        self.clock.prompt_done.get_or_insert_with(Instant::now);
    }

    /// A token was drawn; tells how the answer ended, if it did.
    pub(crate) fn take(&mut self, token: Token, recorder: &Recorder) -> Option<FinishReason> {
        let id = token.id;
        self.tokens.push(id);
        self.sampler.accept(id);
        let mut stops = self.ends.stop_token_ids.contains(&id);
        if let Some(constraint) = &mut self.constraint {
            stops = stops && !constraint.is_text(id);
            constraint.accept(id);
        }
        if let Some(drafter) = &mut self.drafter {
            drafter.push(&self.tokens);
        }
        self.count(recorder);
        let mut events = Vec::with_capacity(4);
        if self.drawn() == 1
            && let Some(PromptLogprobs { tokens, .. }) = self.prompt_logprobs.take()
        {
            events.push(Event::Prompt { tokens });
        }
        events.push(Event::Token(token));
        let stopped = if stops {
            self.output.stop_token(id, &mut events);
            true
        } else {
            self.output.token(id, &mut events)
        };
        let finished = self.constraint.as_ref().is_some_and(|constraint| constraint.is_finished());
        if finished && !stops {
            self.output.complete();
        }
        let full = self.drawn() >= self.ends.max_tokens;
        self.producer.push(&mut events);
        if stopped || finished {
            return Some(FinishReason::Stop);
        }
        full.then_some(FinishReason::Length)
    }

    /// Books the time of a token.
    fn count(&mut self, recorder: &Recorder) {
        let now = Instant::now();
        let mut metrics = recorder.lock();
        metrics.completion_tokens += 1;
        match self.clock.last_token {
            Some(last) => metrics.inter_token.record((now - last).as_secs_f64()),
            None => {
                self.clock.first_token = Some(now);
                metrics.first_token.record((now - self.clock.submitted).as_secs_f64());
            }
        }
        self.clock.last_token = Some(now);
    }

    /// What is left to be told of an answer that ends so, and how it ends with that.
    pub(crate) fn close(&mut self, ending: Ending) -> (Vec<Event>, Ending) {
        let mut events = Vec::new();
        let is_whole = matches!(ending, Ok(FinishReason::Stop | FinishReason::Length));
        // Whoever ends otherwise before the first token has not got them all.
        if self.drawn() == 0
            && is_whole
            && let Some(PromptLogprobs { tokens, .. }) = self.prompt_logprobs.take()
        {
            events.push(Event::Prompt { tokens });
        }
        let calls = catch(|| {
            self.output.finish(&mut events);
            Ok(self.output.calls_tools())
        });
        let ending = match (ending, calls) {
            (Ok(FinishReason::Stop), Ok(true)) => Ok(FinishReason::ToolCalls),
            (_, Err(error)) if is_whole => Err(error),
            (ending, _) => ending,
        };
        (events, ending)
    }

    /// Tells the stream what is left, and that it is over.
    pub(crate) fn end(mut self, events: Vec<Event>, ending: Ending) {
        let usage = Usage {
            prompt_tokens: self.prompt_len,
            cached_tokens: self.cached_tokens,
            completion_tokens: self.drawn(),
        };
        let timing = self.clock.timing(self.drawn());
        let (finish_reason, failure) = match ending {
            Ok(finish_reason) => (finish_reason, None),
            Err(error) => (FinishReason::Cancelled, Some(error)),
        };
        self.producer.end(events, End { finish_reason, usage, timing }, failure);
    }
}
