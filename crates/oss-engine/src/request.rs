//! Requests to an engine.

use std::fmt;
use std::time::{Duration, Instant};

use crate::chat::ChatRequest;
use crate::constraint::Constraint;
use crate::fault::{Fault, Injected};
use crate::grammar::Grammar;
use crate::sampling::Sampling;

/// What an answer continues.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Prompt {
    /// A text from anywhere: names of control tokens in it are text.
    Text(String),
    /// A text that the program itself wrote, in which names of control tokens (special tokens) are
    /// control tokens.
    WithSpecialTokens(String),
    /// Tokens, as they are.
    Tokens(Vec<u32>),
    /// A conversation; its answer comes as typed events.
    Chat(Box<ChatRequest>),
}

/// One request. Make it by [`Request::text`], [`Request::tokens`] or [`Request::chat`] and change
/// what should differ, by its methods or its fields.
///
/// ```
/// use std::time::Duration;
///
/// use oss_engine::{Engine, Error, Request};
///
/// # fn main() -> oss_engine::Result<()> {
/// let engine = Engine::from_bytes(oss_demo::GGUF)?;
/// let request = Request::text("Once upon a time")
///     .temperature(0.8)
///     .top_p(0.95)
///     .seed(7)
///     .max_tokens(20)
///     .stop("\n")
///     // Before all requests of lower priority.
///     .priority(1)
///     .timeout(Duration::from_secs(60));
/// assert!(engine.generate(request)?.usage.completion_tokens <= 20);
///
/// // A request whose time is over fails; what there is of its answer can be had.
/// let late = Request::text("Once upon a time").timeout(Duration::ZERO);
/// let (answer, outcome) = engine.submit(late)?.collect_partial();
/// assert!(answer.text.is_empty() && matches!(outcome, Err(Error::Timeout)));
/// # Ok(())
/// # }
/// ```
pub struct Request {
    /// What the answer continues.
    pub prompt: Prompt,
    /// The most tokens of the answer; `None`: until the model stops or the context is full. 0
    /// computes the prompt alone, for its log-probabilities; no other prompt may fill the context.
    pub max_tokens: Option<usize>,
    /// The fewest tokens of the answer: among them is none of the model's stop tokens and of
    /// `stop_token_ids` (but where it is text), and a stop text that is complete with them does not
    /// count. A constraint or a grammar that allows nothing more still ends it. More than
    /// `max_tokens`, or than the context has left, is an error.
    pub min_tokens: usize,
    /// How tokens are drawn.
    pub sampling: Sampling,
    /// Which of several answers to the same prompt with the same seed this is: others differ.
    pub choice: u32,
    /// The answer ends before the first of these texts; in chats only the visible answer counts,
    /// and with a chat template tool calls too.
    pub stop: Vec<String>,
    /// Tokens that end the answer, besides the model's own. One that stands for text is text to a
    /// grammar, and to the messages around it and around calls that are held to a schema, until the
    /// answer may end.
    pub stop_token_ids: Vec<u32>,
    /// Whether the model's own stop tokens (its end of sequence, EOS) are tokens as all others;
    /// `stop_token_ids` still end it.
    pub ignore_eos: bool,
    /// Whether control tokens (special tokens) are left out of the text of an answer. Of a chat's
    /// they always are.
    pub skip_special_tokens: bool,
    /// Reports each token's log-probability and those of so many best ones, at most all tokens that
    /// the model has. They are natural logarithms, and of the model's own distribution: as it is
    /// before penalties, bias, grammar, temperature and filters change it.
    pub logprobs: Option<usize>,
    /// Reports the same log-probability of each prompt token after the first, and those of so many
    /// best ones at its place. The prompt is then computed whole, whatever a session or cache has
    /// of it.
    pub prompt_logprobs: Option<usize>,
    /// Which tokens may come. With a `grammar`, or a chat whose tools are strict or have to be
    /// called, it is an error: those are constraints themselves.
    pub constraint: Option<Box<dyn Constraint>>,
    /// What the answer has to be.
    pub grammar: Option<Grammar>,
    /// Requests of higher priority (larger numbers, unlike in vLLM) are taken from the queue first,
    /// and their prompts get the rows of a step first.
    pub priority: i32,
    /// When the request came to the program that submits it: its times and its `timeout` count from
    /// then. From its submission where this is `None`, or yet to come.
    pub arrival_time: Option<Instant>,
    /// How long the request may take; then it fails with [`Error::Timeout`](crate::Error::Timeout),
    /// also while it waits.
    pub timeout: Option<Duration>,
    /// What goes wrong, for tests: there, and nothing, without the feature as well, so that this
    /// struct has the same fields.
    #[doc(hidden)]
    pub fault: Injected,
}

impl Request {
    /// A request with every option at its default.
    #[must_use]
    pub fn new(prompt: Prompt) -> Self {
        Self {
            prompt,
            max_tokens: None,
            min_tokens: 0,
            sampling: Sampling::default(),
            choice: 0,
            stop: Vec::new(),
            stop_token_ids: Vec::new(),
            ignore_eos: false,
            skip_special_tokens: true,
            logprobs: None,
            prompt_logprobs: None,
            constraint: None,
            grammar: None,
            priority: 0,
            arrival_time: None,
            timeout: None,
            fault: Injected::default(),
        }
    }

    /// A copy, as to send a request again that was refused because the queue was full
    /// ([`Error::Overloaded`](crate::Error::Overloaded)). `None` where it has a constraint: of that
    /// there is no copy.
    #[must_use]
    pub fn try_clone(&self) -> Option<Self> {
        if self.constraint.is_some() {
            return None;
        }
        Some(Self {
            prompt: self.prompt.clone(),
            sampling: self.sampling.clone(),
            stop: self.stop.clone(),
            stop_token_ids: self.stop_token_ids.clone(),
            constraint: None,
            grammar: self.grammar.clone(),
            ..*self
        })
    }

    /// Continues a text.
    pub fn text(text: impl Into<String>) -> Self {
        Self::new(Prompt::Text(text.into()))
    }

    /// Continues a text that the program itself wrote: names of control tokens in it are control
    /// tokens ([`Prompt::WithSpecialTokens`]).
    pub fn with_special_tokens(text: impl Into<String>) -> Self {
        Self::new(Prompt::WithSpecialTokens(text.into()))
    }

    /// Continues tokens.
    pub fn tokens(ids: impl Into<Vec<u32>>) -> Self {
        Self::new(Prompt::Tokens(ids.into()))
    }

    /// Answers a conversation.
    #[must_use]
    pub fn chat(chat: ChatRequest) -> Self {
        Self::new(Prompt::Chat(Box::new(chat)))
    }

    /// The same request with at most so many tokens.
    #[must_use]
    pub fn max_tokens(self, tokens: usize) -> Self {
        Self { max_tokens: Some(tokens), ..self }
    }

    /// The same request with at least so many tokens.
    #[must_use]
    pub fn min_tokens(self, tokens: usize) -> Self {
        Self { min_tokens: tokens, ..self }
    }

    /// The same request whose tokens are drawn so, in place of what was said of it before.
    #[must_use]
    pub fn sampling(self, sampling: Sampling) -> Self {
        Self { sampling, ..self }
    }

    /// The same request, greedy: always the most probable token.
    #[must_use]
    pub fn greedy(self) -> Self {
        self.temperature(0.0)
    }

    /// The same request with a temperature: any number from 0 up, 0 is greedy.
    #[must_use]
    pub fn temperature(mut self, temperature: f32) -> Self {
        self.sampling.temperature = Some(temperature);
        self
    }

    /// The same request that draws from the most probable tokens that together have this
    /// probability: 0 to 1, 1 is off.
    #[must_use]
    pub fn top_p(mut self, top_p: f32) -> Self {
        self.sampling.top_p = Some(top_p);
        self
    }

    /// The same request that draws from this many of the most probable tokens; 0 is off.
    #[must_use]
    pub fn top_k(mut self, top_k: usize) -> Self {
        self.sampling.top_k = Some(top_k);
        self
    }

    /// The same request with a seed.
    #[must_use]
    pub fn seed(mut self, seed: u64) -> Self {
        self.sampling.seed = Some(seed);
        self
    }

    /// The same request that ends before `text`, too.
    #[must_use]
    pub fn stop(mut self, text: impl Into<String>) -> Self {
        self.stop.push(text.into());
        self
    }

    /// The same request that ends with any of these tokens, too.
    #[must_use]
    pub fn stop_token_ids(mut self, ids: impl IntoIterator<Item = u32>) -> Self {
        self.stop_token_ids.extend(ids);
        self
    }

    /// The same request that the model's own stop tokens do not end.
    #[must_use]
    pub fn ignore_eos(self) -> Self {
        Self { ignore_eos: true, ..self }
    }

    /// The same request that reports log-probabilities, with those of so many best tokens.
    #[must_use]
    pub fn logprobs(self, top: usize) -> Self {
        Self { logprobs: Some(top), ..self }
    }

    /// The same request that reports log-probabilities of its prompt, with those of so many best
    /// tokens at each place.
    #[must_use]
    pub fn prompt_logprobs(self, top: usize) -> Self {
        Self { prompt_logprobs: Some(top), ..self }
    }

    /// The same request with a priority: higher goes first.
    #[must_use]
    pub fn priority(self, priority: i32) -> Self {
        Self { priority, ..self }
    }

    /// The same request that may take so long.
    #[must_use]
    pub fn timeout(self, timeout: Duration) -> Self {
        Self { timeout: Some(timeout), ..self }
    }

    /// The same request whose tokens a constraint chooses among.
    #[must_use]
    pub fn constrained(self, constraint: impl Constraint + 'static) -> Self {
        Self { constraint: Some(Box::new(constraint)), ..self }
    }

    /// The same request whose answer fits a grammar.
    #[must_use]
    pub fn grammar(self, grammar: Grammar) -> Self {
        Self { grammar: Some(grammar), ..self }
    }

    /// The same request with a fault to be injected, for tests.
    #[cfg(feature = "fault-injection")]
    #[doc(hidden)]
    #[must_use]
    pub fn with_fault(self, fault: Fault) -> Self {
        Self { fault: Injected::new(fault), ..self }
    }

    /// What is to go wrong.
    pub(crate) fn fault(&self) -> Option<Fault> {
        self.fault.get()
    }
}

impl fmt::Debug for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Request")
            .field("prompt", &self.prompt)
            .field("max_tokens", &self.max_tokens)
            .field("sampling", &self.sampling)
            .field("stop", &self.stop)
            .field("constraint", &self.constraint.is_some())
            .field("grammar", &self.grammar)
            .field("priority", &self.priority)
            .field("timeout", &self.timeout)
            .finish_non_exhaustive()
    }
}
