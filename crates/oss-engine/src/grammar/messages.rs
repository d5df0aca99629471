//! Which messages an answer may consist of.

use std::sync::Arc;

use oss_text::harmony::Tokens;
use oss_text::{Special, Tokenizer};
use serde_json::{Value, json};

use super::matcher::Matcher;
use super::{Grammar, Vocabulary};
use crate::chat::{ChatRequest, ToolChoice};
use crate::error::{Error, Result};

/// A message that an answer may hold.
pub(crate) struct Message {
    /// The tokens before its content.
    pub(super) opening: Vec<u32>,
    /// What its content has to be; `None`: any text.
    pub(super) grammar: Option<Matcher>,
    /// The tokens one of which ends its content.
    pub(super) ends: Vec<u32>,
    /// Whether the answer is over with it.
    pub(super) is_last: bool,
}

/// The messages that an answer may hold, and where it begins.
pub(crate) struct Messages {
    pub(super) all: Vec<Message>,
    /// Tokens of the openings that the prompt ends with; `None`: the content of the first message
    /// begins at once.
    pub(super) begun: Option<usize>,
}

impl Messages {
    /// An answer that is one text, which `ends` may follow.
    pub(crate) fn text(grammar: Matcher, ends: Vec<u32>) -> Self {
        let message = Message { opening: Vec::new(), grammar: Some(grammar), ends, is_last: true };
        Self { all: vec![message], begun: None }
    }
}

/// What the messages of a harmony answer are made from.
pub(crate) struct Harmony<'a> {
    pub(crate) vocabulary: &'a Arc<Vocabulary>,
    pub(crate) tokenizer: &'a Tokenizer,
    pub(crate) tokens: Tokens,
    pub(crate) chat: &'a ChatRequest,
    /// The request's own tokens that end its answer.
    pub(crate) stop_token_ids: &'a [u32],
}

impl Harmony<'_> {
    /// The messages of an answer whose last one, unless it is a call, fits `grammar`.
    ///
    /// Headers are written in one way each, so that no message can be taken for another one: what
    /// is shown as the answer is the `final` channel alone, which comes once. Thinking is free and
    /// ends with `<|end|>`; a preamble is shown too, so it may only stand before an answer that is
    /// free itself.
    ///
    /// # Errors
    /// A grammar that cannot be compiled.
    pub(crate) fn messages(&self, grammar: Option<&Grammar>) -> Result<Messages> {
        let Self { tokens, chat, .. } = self;
        if let ToolChoice::Function(name) = &chat.tool_choice {
            return Ok(Messages { all: vec![self.call(name)?], begun: None });
        }
        let lead = [vec![tokens.start], self.encode("assistant")].concat();
        let mut all = vec![self.free("analysis")];
        if grammar.is_none() {
            all.push(self.free("commentary"));
        }
        if chat.tool_choice != ToolChoice::Required {
            let compile = |grammar| self.vocabulary.compile(grammar, "grammar");
            let opening = self.header("final");
            let ends = [&[tokens.return_], self.stop_token_ids].concat();
            let grammar = grammar.map(compile).transpose()?;
            all.push(Message { opening, grammar, ends, is_last: true });
        }
        for tool in chat.offered_tools() {
            all.push(self.call(&tool.function.name)?);
        }
        for message in &mut all {
            message.opening.splice(0..0, lead.iter().copied());
        }
        Ok(Messages { all, begun: Some(lead.len()) })
    }

    /// A message of any text that others follow.
    fn free(&self, channel: &str) -> Message {
        let (opening, ends) = (self.header(channel), vec![self.tokens.end]);
        Message { opening, grammar: None, ends, is_last: false }
    }

    /// A call of a tool. Its arguments fit the tool's schema if the tool is strict. If it is not,
    /// and a call is wanted, they fit what of the schema can be held, or are any object where the
    /// compiler takes nothing of it; else they are free.
    fn call(&self, name: &str) -> Result<Message> {
        let tool = self.chat.tools.iter().find(|tool| tool.function.name == name);
        let function = tool.map(|tool| &tool.function);
        let parameters = function.and_then(|function| function.parameters.clone());
        let parameters = arguments_schema(parameters);
        let strict = function.is_some_and(|function| function.strict == Some(true));
        let wanted = self.chat.tool_choice != ToolChoice::Auto;
        let compile = |grammar: &Grammar| self.vocabulary.compile(grammar, "tools");
        let in_part = |schema| match compile(&Grammar::json_schema_in_part(schema)) {
            Err(Error::Grammar { .. }) => compile(&Grammar::json_object()),
            compiled => compiled,
        };
        let compiled = match (strict, wanted) {
            (true, _) => Some(compile(&Grammar::json_schema(parameters))),
            (false, true) => Some(in_part(parameters)),
            (false, false) => None,
        };
        let grammar = compiled.transpose().map_err(|error| match error {
            Error::Grammar { field, what, reason } => {
                Error::Grammar { field, what, reason: format!("{name}: {reason}") }
            }
            other => other,
        })?;
        let opening = ChatRequest::call_header(name, self.tokenizer, self.tokens);
        Ok(Message { opening, grammar, ends: vec![self.tokens.call], is_last: true })
    }

    fn header(&self, channel: &str) -> Vec<u32> {
        let Tokens { channel: mark, message, .. } = self.tokens;
        [vec![mark], self.encode(channel), vec![message]].concat()
    }

    fn encode(&self, text: &str) -> Vec<u32> {
        self.tokenizer.encode(text, Special::AsText)
    }
}

/// The schema of a call's arguments, which are an object, whether it says so or not.
fn arguments_schema(parameters: Option<Value>) -> Value {
    let mut schema = parameters.unwrap_or_else(|| json!({}));
    const SAYS: [&str; 7] = ["type", "$ref", "anyOf", "oneOf", "allOf", "enum", "const"];
    if let Some(fields) = schema.as_object_mut()
        && !SAYS.iter().any(|key| fields.contains_key(*key))
    {
        fields.insert("type".to_owned(), "object".into());
    }
    schema
}
