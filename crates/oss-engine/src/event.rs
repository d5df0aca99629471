//! What a request gives back.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use oss_sampler::{Draw, Report};
use oss_text::chat::{FunctionCall, Message, Role, ToolCall};

/// One step of an answer. Every answer that does not fail ends with exactly one [`Event::End`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Event {
    /// The request has left the queue; so many prompt tokens need not be computed.
    Admitted {
        /// Tokens whose keys and values were at hand.
        cached_tokens: usize,
    },
    /// The prompt's tokens with their log-probabilities, which the first has none of.
    Prompt {
        /// All of them.
        tokens: Vec<Token>,
    },
    /// A token was drawn, stop tokens included. The text that it completes follows as its own
    /// event.
    Token(Token),
    /// The answer goes on with this text, never empty and never half a character.
    Text(String),
    /// A chat's reasoning goes on with this text.
    Reasoning(String),
    /// A chat's answer calls a tool.
    ToolCallStart {
        /// Which call of this answer, from 0.
        index: usize,
        /// The call's own name, for the result to repeat.
        id: String,
        /// The function.
        name: String,
    },
    /// The arguments of a call go on with this text.
    ToolCallArguments {
        /// Which call.
        index: usize,
        /// The text.
        delta: String,
    },
    /// The arguments of a call are complete: the model has ended it, or the constraint that they
    /// were held to is finished. It does not come for a call that was cut off, as by the limit of
    /// tokens, and neither for one that the model left for another message.
    ToolCallEnd {
        /// Which call.
        index: usize,
    },
    /// The answer is over.
    End(End),
}

/// A token of an answer, or of a prompt.
#[derive(Clone, Debug, PartialEq)]
pub struct Token {
    /// Its id.
    pub id: u32,
    /// Its log-probability, where asked for: see [`Request::logprobs`](crate::Request::logprobs).
    pub logprob: Option<f32>,
    /// The most probable tokens at its place with theirs, where asked for, the best first.
    pub top: Vec<(u32, f32)>,
}

impl Token {
    /// What was drawn.
    pub(crate) fn of(draw: Draw<'_>) -> Self {
        Self { id: draw.token, logprob: draw.logprob, top: draw.top.to_vec() }
    }
}

/// Why an answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FinishReason {
    /// The model stopped, a stop text or token came, or the constraint was finished.
    Stop,
    /// The limit of tokens or the context's end was reached.
    Length,
    /// The model waits for the results of its tool calls.
    ToolCalls,
    /// The stream was dropped or cancelled, or the answer failed and this is what there is of it
    /// ([`Stream::collect_partial`](crate::Stream::collect_partial)).
    Cancelled,
}

impl FinishReason {
    /// The name in the JSON contract: `stop`, `length`, `tool_calls` or `cancelled`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::Length => "length",
            Self::ToolCalls => "tool_calls",
            Self::Cancelled => "cancelled",
        }
    }
}

impl fmt::Display for FinishReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Tokens of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Usage {
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Those of them that were not computed anew: fewer than [`Event::Admitted`] says where their
    /// keys and values had to go before the prompt was complete.
    pub cached_tokens: usize,
    /// Tokens drawn, the stop token included.
    pub completion_tokens: usize,
}

/// Where a request's time went. What counts from its submission counts from
/// [`Request::arrival_time`](crate::Request::arrival_time) where that is told.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Timing {
    /// From submission to the first step.
    pub queue: Duration,
    /// From the first step to the end of the prompt's last one.
    pub prefill: Duration,
    /// From submission to the first token; `None` where there was none.
    pub first_token: Option<Duration>,
    /// Between two tokens, on the mean; `None` before the second.
    pub per_token: Option<Duration>,
    /// From submission to the end.
    pub total: Duration,
}

/// The end of an answer.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct End {
    /// Why it ended.
    pub finish_reason: FinishReason,
    /// Tokens.
    pub usage: Usage,
    /// Time.
    pub timing: Timing,
}

/// A whole answer.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Completion {
    /// The prompt's tokens.
    pub prompt_token_ids: Arc<[u32]>,
    /// The seed of the draws.
    pub seed: u64,
    /// The drawn tokens.
    pub tokens: Vec<Token>,
    /// The answer's text.
    pub text: String,
    /// A chat's reasoning.
    pub reasoning: String,
    /// A chat's tool calls whose arguments are complete: those that [`Event::ToolCallEnd`] came
    /// for.
    pub tool_calls: Vec<ToolCall>,
    /// Tool calls that were cut off, or left for another message: their arguments may lack their
    /// end.
    pub incomplete_tool_calls: Vec<ToolCall>,
    /// The prompt's tokens with their log-probabilities, where asked for
    /// ([`Request::prompt_logprobs`](crate::Request::prompt_logprobs)); the first has none.
    pub prompt_logprobs: Vec<Token>,
    /// Why it ended.
    pub finish_reason: FinishReason,
    /// Tokens.
    pub usage: Usage,
    /// Time.
    pub timing: Timing,
}

impl Completion {
    pub(crate) fn new(prompt_token_ids: Arc<[u32]>, seed: u64) -> Self {
        Self {
            prompt_token_ids,
            seed,
            tokens: Vec::new(),
            text: String::new(),
            reasoning: String::new(),
            tool_calls: Vec::new(),
            incomplete_tool_calls: Vec::new(),
            prompt_logprobs: Vec::new(),
            finish_reason: FinishReason::Cancelled,
            usage: Usage::default(),
            timing: Timing::default(),
        }
    }

    /// The ids of the drawn tokens.
    #[must_use]
    pub fn token_ids(&self) -> Vec<u32> {
        self.tokens.iter().map(|token| token.id).collect()
    }

    /// How diverse the drawn tokens are.
    #[must_use]
    pub fn report(&self) -> Report {
        Report::of(&self.token_ids())
    }

    /// The answer as a message to go on a conversation with: without calls that were cut, which no
    /// result can follow.
    #[must_use]
    pub fn message(&self) -> Message {
        let some = |text: &String| (!text.is_empty()).then(|| text.clone());
        let content = match self.tool_calls.is_empty() {
            true => Some(self.text.clone()),
            false => some(&self.text),
        };
        Message {
            content,
            reasoning_content: some(&self.reasoning),
            tool_calls: self.tool_calls.clone(),
            ..Message::new(Role::Assistant, "")
        }
    }

    /// Adds an event.
    pub(crate) fn add(&mut self, event: Event) {
        match event {
            Event::Admitted { .. } => {}
            Event::Prompt { tokens } => self.prompt_logprobs = tokens,
            Event::Token(token) => self.tokens.push(token),
            Event::Text(text) => self.text.push_str(&text),
            Event::Reasoning(text) => self.reasoning.push_str(&text),
            Event::ToolCallStart { id, name, .. } => {
                let function = FunctionCall { name, arguments: String::new() };
                // Cut, as long as its end has not come.
                self.incomplete_tool_calls.push(ToolCall {
                    id,
                    kind: "function".to_owned(),
                    function,
                });
            }
            // They follow the start of their call. Where that was taken from the stream before, so
            // were all earlier calls, and what is left of this one has no name to go with.
            Event::ToolCallArguments { delta, .. } => {
                if let Some(call) = self.incomplete_tool_calls.last_mut() {
                    call.function.arguments.push_str(&delta);
                }
            }
            // So does the end, before another call starts.
            Event::ToolCallEnd { .. } => self.tool_calls.extend(self.incomplete_tool_calls.pop()),
            Event::End(end) => {
                let End { finish_reason, usage, timing } = end;
                (self.finish_reason, self.usage, self.timing) = (finish_reason, usage, timing);
            }
        }
    }
}
