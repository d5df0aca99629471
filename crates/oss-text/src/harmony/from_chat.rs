//! From OpenAI's chat messages to a harmony conversation.

use std::collections::HashMap;

use super::conversation::{
    ChannelConfig, Content, Conversation, DeveloperContent, Message, Namespace, ReasoningEffort,
    RecipientPlace, ResponseFormat, SystemContent,
};
use crate::chat::{self, Role, Tool};
use crate::error::{Error, Result};

/// What the system message of a chat says.
#[derive(Clone, Debug, PartialEq)]
pub struct ChatOptions {
    /// Who the model is.
    pub identity: String,
    /// How far the model's knowledge goes; `None` leaves the line out.
    pub knowledge_cutoff: Option<String>,
    /// Today, as `2025-06-28`; `None` leaves the line out. (This crate reads no clock for it:
    /// the same call gives the same prompt.)
    pub date: Option<String>,
    /// How long the model shall think.
    pub effort: ReasoningEffort,
    /// Tools that the model was trained with, such as `browser` and `python`.
    pub builtin_tools: Vec<Namespace>,
    /// What the model is told that its answers shall look like.
    pub response_formats: Vec<ResponseFormat>,
}

impl Default for ChatOptions {
    /// What gpt-oss was trained with.
    fn default() -> Self {
        Self {
            identity: "You are ChatGPT, a large language model trained by OpenAI.".to_owned(),
            knowledge_cutoff: Some("2024-06".to_owned()),
            date: None,
            effort: ReasoningEffort::default(),
            builtin_tools: Vec::new(),
            response_formats: Vec::new(),
        }
    }
}

impl Conversation {
    /// The conversation of a chat request.
    ///
    /// - The options make the system message. A first message of the role `system` or
    ///   `developer` becomes the developer's instructions, with the tools and the formats of
    ///   answers; later ones become developer messages of their own.
    /// - An assistant's `reasoning_content` goes to `analysis`. Its content goes to `final`, or,
    ///   if the message calls tools, before the calls to `commentary`.
    /// - A call is written as the models write it, with the recipient after the channel: what
    ///   was generated and what is rendered are the same tokens, and a cached prefix stays good.
    /// - A tool's result has its function's name from the message, from the call with its
    ///   `tool_call_id`, or from the latest call.
    ///
    /// # Errors
    /// A message without content where its role needs one; a tool's result without a call.
    pub fn from_chat(
        messages: &[chat::Message],
        tools: &[Tool],
        options: &ChatOptions,
    ) -> Result<Self> {
        let mut out = vec![system(options)];
        let first = messages
            .first()
            .filter(|message| matches!(message.role, Role::System | Role::Developer));
        let rest = usize::from(first.is_some());
        let instructions = first.map(|message| need_content(0, message)).transpose()?;
        let instructions = instructions.filter(|text| !text.is_empty());
        let formats = options.response_formats.clone();
        if instructions.is_some() || !tools.is_empty() || !formats.is_empty() {
            let functions: Vec<_> = tools.iter().map(|tool| tool.function.clone()).collect();
            let tools = if functions.is_empty() {
                Vec::new()
            } else {
                vec![Namespace::functions(functions)]
            };
            out.push(developer(DeveloperContent { instructions, tools, formats }));
        }
        let mut calls = Calls::default();
        for (index, message) in messages.iter().enumerate() {
            match message.role {
                _ if index < rest => {}
                Role::System | Role::Developer => {
                    let instructions = Some(need_content(index, message)?);
                    out.push(developer(DeveloperContent { instructions, ..Default::default() }));
                }
                Role::User => {
                    let text = need_content(index, message)?;
                    let name = message.name.clone();
                    out.push(Message { name, ..Message::new(Role::User, text) });
                }
                Role::Assistant => {
                    // A text before a call of the same turn is a preamble, also where the model
                    // thought once more in between.
                    let calls = |next: &chat::Message| {
                        next.role == Role::Assistant && !next.tool_calls.is_empty()
                    };
                    let goes_on = messages.get(index + 1).is_some_and(calls);
                    assistant(&mut out, index, message, goes_on)?;
                }
                Role::Tool => out.push(result(&calls, index, message)?),
            }
            calls.add(message);
        }
        Ok(Self { messages: out })
    }
}

fn need_content(index: usize, message: &chat::Message) -> Result<String> {
    let role = message.role.name();
    message.content.clone().ok_or(Error::Message { index, role, expected: "content" })
}

fn system(options: &ChatOptions) -> Message {
    let content = SystemContent {
        model_identity: Some(options.identity.clone()),
        knowledge_cutoff: options.knowledge_cutoff.clone(),
        conversation_start_date: options.date.clone(),
        reasoning_effort: Some(options.effort),
        tools: options.builtin_tools.clone(),
        channel_config: Some(ChannelConfig::default()),
    };
    Message::with_content(Role::System, Content::System(content))
}

fn developer(content: DeveloperContent) -> Message {
    Message::with_content(Role::Developer, Content::Developer(content))
}

fn assistant(
    out: &mut Vec<Message>,
    index: usize,
    message: &chat::Message,
    goes_on: bool,
) -> Result<()> {
    let some = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
    let thought = some(&message.reasoning_content);
    let only_thought = thought.is_some() && message.content.is_none();
    if let Some(thought) = thought {
        out.push(Message::new(Role::Assistant, thought).on("analysis"));
    }
    if message.tool_calls.is_empty() {
        if !only_thought {
            let text = need_content(index, message)?;
            let channel = if goes_on { "commentary" } else { "final" };
            out.push(Message::new(Role::Assistant, text).on(channel));
        }
        return Ok(());
    }
    if let Some(preamble) = some(&message.content) {
        out.push(Message::new(Role::Assistant, preamble).on("commentary"));
    }
    for call in &message.tool_calls {
        let text = call.function.arguments.clone();
        out.push(Message {
            recipient: Some(format!("functions.{}", call.function.name)),
            recipient_place: RecipientPlace::Channel,
            content_type: Some("<|constrain|>json".to_owned()),
            ..Message::new(Role::Assistant, text).on("commentary")
        });
    }
    Ok(())
}

/// The calls so far, by what tells to which of them a result belongs.
#[derive(Default)]
struct Calls<'a> {
    /// The function's name by the call's id, of equal ids the latest.
    by_id: HashMap<&'a str, &'a str>,
    /// The name of the function that was called last.
    latest: Option<&'a str>,
}

impl<'a> Calls<'a> {
    fn add(&mut self, message: &'a chat::Message) {
        for call in &message.tool_calls {
            self.by_id.insert(&call.id, &call.function.name);
            self.latest = Some(&call.function.name);
        }
    }

    /// The function whose result has this id.
    fn answered(&self, id: Option<&str>) -> Option<&'a str> {
        id.and_then(|id| self.by_id.get(id).copied()).or(self.latest)
    }
}

fn result(calls: &Calls<'_>, index: usize, message: &chat::Message) -> Result<Message> {
    let id = message.tool_call_id.as_deref().filter(|id| !id.is_empty());
    let named = message.name.as_deref().filter(|name| !name.is_empty());
    let name = named.or_else(|| calls.answered(id)).ok_or(Error::Message {
        index,
        role: "tool",
        expected: "call that it answers",
    })?;
    Ok(Message {
        name: Some(format!("functions.{}", name.strip_prefix("functions.").unwrap_or(name))),
        recipient: Some("assistant".to_owned()),
        ..Message::new(Role::Tool, need_content(index, message)?).on("commentary")
    })
}
