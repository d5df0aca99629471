//! Chats: conversations in, typed events out, whatever the model's format is.

pub(crate) mod harmony;
pub(crate) mod template;

use oss_text::chat::{Message, Tool};
use oss_text::harmony::{ReasoningEffort, ResponseFormat, Tokens};
use oss_text::{Special, Tokenizer};
use serde_json::{Map, Value};

use crate::error::{Error, Result};

/// The most letters of a function's name.
const MAX_NAME: usize = 128;

/// Whether the model calls tools.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ToolChoice {
    /// The model decides.
    #[default]
    Auto,
    /// It does not know the tools.
    None,
    /// It has to call one of the tools, which it chooses after thinking (in the harmony format).
    Required,
    /// It has to call this function, without thinking before (in the harmony format).
    Function(String),
}

/// A conversation to answer.
///
/// With tools it takes two requests: the model calls, and answers when it knows the result.
///
/// ```
/// use oss_engine::{ChatRequest, Engine, FinishReason, Message, ReasoningEffort, Request, Tool};
/// use serde_json::json;
///
/// # fn main() -> oss_engine::Result<()> {
/// let engine = Engine::from_bytes(oss_demo::GGUF)?;
/// let parameters = json!({
///     "type": "object",
///     "properties": {"location": {"type": "string"}},
///     "required": ["location"]
/// });
/// let weather = Tool::function("get_weather", "Gets the weather of a place.", parameters);
/// let mut chat = ChatRequest::new(vec![Message::user("What is the weather in Paris?")])
///     .tools(vec![weather])
///     .reasoning_effort(ReasoningEffort::Low);
/// let answer = engine.generate(Request::chat(chat.clone()).greedy())?;
/// assert_eq!(answer.finish_reason, FinishReason::ToolCalls);
///
/// chat.messages.push(answer.message());
/// for call in &answer.tool_calls {
///     assert_eq!(call.function.name, "get_weather");
///     chat.messages.push(Message::tool(&call.id, r#"{"temperature": 18}"#));
/// }
/// let answer = engine.generate(Request::chat(chat).greedy())?;
/// assert_eq!(answer.finish_reason, FinishReason::Stop);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ChatRequest {
    /// The messages, the last one mostly the user's or a tool's.
    pub messages: Vec<Message>,
    /// The tools that the model may call. In the harmony format the arguments for strict ones fit
    /// their parameters' schema. Where a call is required, those for others fit what of the schema
    /// can be held, and are a JSON object where nothing can.
    pub tools: Vec<Tool>,
    /// Whether it calls them.
    pub tool_choice: ToolChoice,
    /// How long the model shall think, where it can.
    pub reasoning_effort: Option<ReasoningEffort>,
    /// Today, such as `2025-06-28`, for formats that tell the model; `None` leaves it out. The
    /// engine reads no clock for it: the same request is the same prompt, unless a chat template
    /// writes the date without asking whether there is one (`strftime_now`).
    pub date: Option<String>,
    /// Who the model is told to be, in the harmony format; `None`: what it was trained with.
    pub identity: Option<String>,
    /// What the model is told that its answer shall look like, in the harmony format; templates
    /// have no place for it. [`Request::grammar`](crate::Request::grammar) holds it to that.
    pub response_format: Option<ResponseFormat>,
    /// Further variables of the chat template, such as `enable_thinking`; the harmony format has
    /// none.
    pub chat_template_kwargs: Map<String, Value>,
}

impl ChatRequest {
    /// A conversation without tools.
    #[must_use]
    pub fn new(messages: Vec<Message>) -> Self {
        Self { messages, ..Self::default() }
    }

    /// The same conversation with tools.
    #[must_use]
    pub fn tools(self, tools: Vec<Tool>) -> Self {
        Self { tools, ..self }
    }

    /// The same conversation, and whether the model calls tools.
    #[must_use]
    pub fn tool_choice(self, tool_choice: ToolChoice) -> Self {
        Self { tool_choice, ..self }
    }

    /// The same conversation with so much thinking.
    #[must_use]
    pub fn reasoning_effort(self, effort: ReasoningEffort) -> Self {
        Self { reasoning_effort: Some(effort), ..self }
    }

    /// The tools that the model is told of.
    #[must_use]
    pub fn offered_tools(&self) -> &[Tool] {
        if self.tool_choice == ToolChoice::None { &[] } else { &self.tools }
    }

    /// Whether the tools alone say what an answer in the harmony format has to be.
    pub(crate) fn bounds_answer(&self) -> bool {
        let strict = self.offered_tools().iter().any(|tool| tool.function.strict == Some(true));
        strict || matches!(self.tool_choice, ToolChoice::Function(_) | ToolChoice::Required)
    }

    /// Whether calls have to be kept out of an answer in the harmony format: none are offered, but
    /// tools that were withheld, or earlier calls, suggest them.
    pub(crate) fn forbids_calls(&self) -> bool {
        let called = || self.messages.iter().any(|message| !message.tool_calls.is_empty());
        self.offered_tools().is_empty() && (!self.tools.is_empty() || called())
    }

    /// Whether an answer in the harmony format is held to what its tools say: a grammar is compiled
    /// for it then, also without [`Request::grammar`](crate::Request::grammar).
    #[must_use]
    pub fn compiles_grammar(&self) -> bool {
        self.bounds_answer() || self.forbids_calls()
    }

    /// Refuses names that no call could be told from its surroundings with.
    pub(crate) fn check_tools(&self) -> Result<()> {
        let is_name = |name: &str| {
            let known = |c: char| c.is_ascii_alphanumeric() || "_-./:".contains(c);
            (1..=MAX_NAME).contains(&name.len()) && name.chars().all(known)
        };
        match self.tools.iter().find(|tool| !is_name(&tool.function.name)) {
            None => Ok(()),
            Some(tool) => Err(Error::Option {
                field: "tools",
                got: format!("a function named {:?}", tool.function.name),
                expected: format!("up to {MAX_NAME} letters, digits, _, -, ., / and :"),
            }),
        }
    }

    /// Whether there is what has to be called.
    pub(crate) fn check_tool_choice(&self) -> Result<()> {
        let (there, got, expected) = match &self.tool_choice {
            ToolChoice::Auto | ToolChoice::None => return Ok(()),
            ToolChoice::Required => (!self.tools.is_empty(), "required", "tools to choose from"),
            ToolChoice::Function(name) => {
                let there = self.tools.iter().any(|tool| tool.function.name == *name);
                (there, name.as_str(), "the name of one of the tools")
            }
        };
        let (field, got, expected) = ("tool_choice", got.to_owned(), expected.to_owned());
        if there { Ok(()) } else { Err(Error::Option { field, got, expected }) }
    }

    /// The beginning of a call of the forced function, to put after `<|start|>assistant`; nothing
    /// where none is forced.
    pub(crate) fn forced_header(&self, tokenizer: &Tokenizer, tokens: Tokens) -> Vec<u32> {
        match &self.tool_choice {
            ToolChoice::Function(name) => Self::call_header(name, tokenizer, tokens),
            _ => Vec::new(),
        }
    }

    /// The beginning of a call, to put after `<|start|>assistant`.
    pub(crate) fn call_header(name: &str, tokenizer: &Tokenizer, tokens: Tokens) -> Vec<u32> {
        let text = |text: &str| tokenizer.encode(text, Special::AsText);
        let mut ids = vec![tokens.channel];
        ids.extend(text(&format!("commentary to=functions.{name} ")));
        ids.push(tokens.constrain);
        ids.extend(text("json"));
        ids.push(tokens.message);
        ids
    }
}
