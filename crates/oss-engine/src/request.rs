//! What is asked of an engine.

use std::fmt;
use std::time::{Duration, Instant};

use crate::chat::ChatRequest;
use crate::constraint::Constraint;
use crate::fault::Fault;
use crate::grammar::Grammar;
use crate::sampling::Sampling;

/// What an answer continues.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Prompt {
    /// A text from anywhere: names of control tokens in it are text.
    Text(String),
    /// A text that the program itself wrote, in which names of control tokens are control tokens.
    Markup(String),
    /// Tokens, as they are.
    Tokens(Vec<u32>),
    /// A conversation; its answer comes as typed events.
    Chat(Box<ChatRequest>),
}

/// One request. Make it by [`Request::text`], [`Request::tokens`] or [`Request::chat`] and change
/// what should differ.
pub struct Request {
    /// What the answer continues.
    pub prompt: Prompt,
    /// The most tokens of the answer; `None`: until the model stops or the context is full. 0
    /// computes the prompt alone, for its log-probabilities; no other prompt may fill the context.
    pub max_tokens: Option<usize>,
    /// The fewest tokens of the answer: among them is none of the model's stop tokens and of
    /// `stop_tokens` (but where it is text), and a stop text that is complete with them does not
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
    pub stop_tokens: Vec<u32>,
    /// Whether the model's own stop tokens are tokens as all others; `stop_tokens` still end it.
    pub ignore_stops: bool,
    /// Whether control tokens appear in the text of an answer that is not a chat's.
    pub show_control_tokens: bool,
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
    /// Requests of higher priority are taken from the queue first, and their prompts get the rows
    /// of a step first.
    pub priority: i32,
    /// When the request came to the program that submits it: its times and its deadline count from
    /// then. From its submission where this is `None`, or yet to come.
    pub arrived: Option<Instant>,
    /// How long the request may take; then it ends as expired.
    pub deadline: Option<Duration>,
    /// What goes wrong, for tests.
    #[cfg(feature = "fault-injection")]
    pub fault: Option<Fault>,
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
            stop_tokens: Vec::new(),
            ignore_stops: false,
            show_control_tokens: false,
            logprobs: None,
            prompt_logprobs: None,
            constraint: None,
            grammar: None,
            priority: 0,
            arrived: None,
            deadline: None,
            #[cfg(feature = "fault-injection")]
            fault: None,
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
            stop_tokens: self.stop_tokens.clone(),
            constraint: None,
            grammar: self.grammar.clone(),
            ..*self
        })
    }

    /// Continues a text.
    pub fn text(text: impl Into<String>) -> Self {
        Self::new(Prompt::Text(text.into()))
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

    /// The same request, greedy: always the most probable token.
    #[must_use]
    pub fn greedy(mut self) -> Self {
        self.sampling.temperature = Some(0.0);
        self
    }

    /// The same request with a seed.
    #[must_use]
    pub fn seed(mut self, seed: u64) -> Self {
        self.sampling.seed = Some(seed);
        self
    }

    /// The same request that ends before `text`.
    #[must_use]
    pub fn stop_at(mut self, text: impl Into<String>) -> Self {
        self.stop.push(text.into());
        self
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

    /// The same request with a fault to be injected.
    #[cfg(feature = "fault-injection")]
    #[must_use]
    pub fn with_fault(self, fault: Fault) -> Self {
        Self { fault: Some(fault), ..self }
    }

    /// What is to go wrong.
    pub(crate) fn fault(&self) -> Option<Fault> {
        #[cfg(feature = "fault-injection")]
        return self.fault;
        #[cfg(not(feature = "fault-injection"))]
        None
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
            .field("deadline", &self.deadline)
            .finish_non_exhaustive()
    }
}
