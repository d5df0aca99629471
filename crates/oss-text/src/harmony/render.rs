//! Conversations to tokens.

use serde_json::Value;

use super::conversation::{
    ChannelConfig, Content, Conversation, DeveloperContent, Message, Namespace, RecipientPlace,
    ResponseFormat, SystemContent, parameters,
};
use super::tokens::Tokens;
use super::typescript::write_type;
use crate::chat::Role;
use crate::error::{Error, Result};
use crate::levels;
use crate::tokenizer::{Special, Tokenizer};

/// The prompt that makes the model go on with this conversation: its messages, and
/// `<|start|>assistant`.
///
/// Stale thinking is left out: `analysis` before the last message on `final` belongs to turns
/// that are over. (After it, `analysis` belongs to the turn in progress, between tool calls, and
/// stays.)
///
/// # Errors
/// The vocabulary lacks the format's markers; a tool's result has no name; a content that is
/// not for its role; [`Error::Levels`].
pub fn render(conversation: &Conversation, tokenizer: &Tokenizer) -> Result<Vec<u32>> {
    levels::check("tools", schemas(conversation))?;
    let mut writer = Writer::new(conversation, tokenizer)?;
    writer.conversation(conversation)?;
    writer.ids.push(writer.tokens.start);
    writer.text(Role::Assistant.name());
    Ok(writer.ids)
}

/// What describes the arguments of all tools.
fn schemas(conversation: &Conversation) -> impl Iterator<Item = &Value> {
    let namespaces = conversation.messages.iter().flat_map(|message| match &message.content {
        Content::Text(_) => &[][..],
        Content::System(content) => &content.tools,
        Content::Developer(content) => &content.tools,
    });
    namespaces.flat_map(|namespace| &namespace.tools).filter_map(parameters)
}

struct Writer<'a> {
    tokenizer: &'a Tokenizer,
    tokens: Tokens,
    has_functions: bool,
    ids: Vec<u32>,
}

impl<'a> Writer<'a> {
    fn new(conversation: &Conversation, tokenizer: &'a Tokenizer) -> Result<Self> {
        let functions = |message: &Message| match &message.content {
            Content::Developer(content) => {
                content.tools.iter().any(|n| n.name == "functions" && !n.tools.is_empty())
            }
            Content::Text(_) | Content::System(_) => false,
        };
        let has_functions = conversation.messages.iter().any(functions);
        Ok(Self { tokenizer, tokens: Tokens::of(tokenizer)?, has_functions, ids: Vec::new() })
    }

    fn text(&mut self, text: &str) {
        self.ids.extend(self.tokenizer.encode(text, Special::AsText));
    }

    fn conversation(&mut self, conversation: &Conversation) -> Result<()> {
        let on = |message: &Message, channel: &str| message.channel.as_deref() == Some(channel);
        let closing = |message: &Message| message.role == Role::Assistant && on(message, "final");
        let messages = &conversation.messages;
        let last_final = messages.iter().rposition(closing).unwrap_or(0);
        for (index, message) in messages.iter().enumerate() {
            if index >= last_final || !on(message, "analysis") {
                self.message(index, message)?;
            }
        }
        Ok(())
    }

    fn message(&mut self, index: usize, message: &Message) -> Result<()> {
        self.ids.push(self.tokens.start);
        self.author(index, message)?;
        let recipient = message.recipient.as_deref().filter(|&recipient| recipient != "all");
        let recipient = recipient.map(|recipient| format!(" to={recipient}"));
        let in_channel =
            message.recipient_place == RecipientPlace::Channel && message.channel.is_some();
        if let Some(recipient) = recipient.as_ref().filter(|_| !in_channel) {
            self.text(recipient);
        }
        if let Some(channel) = &message.channel {
            self.ids.push(self.tokens.channel);
            self.text(channel);
        }
        if let Some(recipient) = recipient.as_ref().filter(|_| in_channel) {
            self.text(recipient);
        }
        if let Some(content_type) = &message.content_type {
            self.content_type(content_type);
        }
        self.ids.push(self.tokens.message);
        self.content(index, message)?;
        let calls = message.role == Role::Assistant && message.recipient.is_some();
        self.ids.push(if calls { self.tokens.call } else { self.tokens.end });
        Ok(())
    }

    fn author(&mut self, index: usize, message: &Message) -> Result<()> {
        match (&message.name, message.role) {
            (Some(name), Role::Tool) => self.text(name),
            (None, role @ Role::Tool) => {
                return Err(Error::Message { index, role: role.name(), expected: "name" });
            }
            (name, role) => {
                self.text(role.name());
                if let Some(name) = name {
                    self.text(&format!(":{name}"));
                }
            }
        }
        Ok(())
    }

    /// `<|constrain|>` at the beginning of a content type is the marker, anything else text.
    fn content_type(&mut self, content_type: &str) {
        match content_type.strip_prefix("<|constrain|>") {
            Some(kind) => {
                self.text(" ");
                self.ids.push(self.tokens.constrain);
                self.text(kind);
            }
            None => self.text(&format!(" {content_type}")),
        }
    }

    fn content(&mut self, index: usize, message: &Message) -> Result<()> {
        let role = message.role.name();
        match (&message.content, message.role) {
            (Content::Text(text), _) => self.text(text),
            (Content::System(content), Role::System) => {
                self.text(&system(content, self.has_functions));
            }
            (Content::Developer(content), Role::Developer) => self.text(&developer(content)),
            (Content::System(_) | Content::Developer(_), _) => {
                return Err(Error::Message { index, role, expected: "content for its role" });
            }
        }
        Ok(())
    }
}

fn system(content: &SystemContent, has_functions: bool) -> String {
    let mut sections = Vec::new();
    let line =
        |name: &str, value: &Option<String>| value.as_ref().map(|value| format!("{name}{value}"));
    let top: Vec<String> = [
        line("", &content.model_identity),
        line("Knowledge cutoff: ", &content.knowledge_cutoff),
        line("Current date: ", &content.conversation_start_date),
    ]
    .into_iter()
    .flatten()
    .collect();
    if !top.is_empty() {
        sections.push(top.join("\n"));
    }
    if let Some(effort) = content.reasoning_effort {
        sections.push(format!("Reasoning: {}", effort.name()));
    }
    if !content.tools.is_empty() {
        sections.push(tools(&content.tools));
    }
    if let Some(config) = &content.channel_config {
        sections.extend(channels(config, has_functions));
    }
    sections.join("\n\n")
}

fn channels(config: &ChannelConfig, has_functions: bool) -> Option<String> {
    if config.valid_channels.is_empty() {
        return None;
    }
    let mut text = format!("# Valid channels: {}.", config.valid_channels.join(", "));
    if config.channel_required {
        text += " Channel must be included for every message.";
    }
    if has_functions {
        text += "\nCalls to these tools must go to the commentary channel: 'functions'.";
    }
    Some(text)
}

fn developer(content: &DeveloperContent) -> String {
    let mut sections = Vec::new();
    if let Some(instructions) = &content.instructions {
        sections.push("# Instructions".to_owned());
        sections.push(instructions.clone());
    }
    if !content.tools.is_empty() {
        sections.push(tools(&content.tools));
    }
    if !content.formats.is_empty() {
        sections.push("# Response Formats".to_owned());
        sections.extend(content.formats.iter().map(format_of));
    }
    sections.join("\n\n")
}

fn format_of(format: &ResponseFormat) -> String {
    let ResponseFormat { name, description, schema } = format;
    let mut text = format!("## {name}\n\n");
    for line in description.iter().flat_map(|description| description.lines()) {
        text += &format!("// {line}\n");
    }
    text + &schema.to_string()
}

fn tools(namespaces: &[Namespace]) -> String {
    let mut sections = vec!["# Tools".to_owned()];
    sections.extend(namespaces.iter().map(namespace));
    sections.join("\n\n")
}

fn namespace(namespace: &Namespace) -> String {
    let Namespace { name, description, tools } = namespace;
    let mut text = format!("## {name}\n\n");
    let mark = if tools.is_empty() { "" } else { "// " };
    for line in description.iter().flat_map(|description| description.lines()) {
        text += &format!("{mark}{line}\n");
    }
    if tools.is_empty() {
        text.pop();
        return text;
    }
    text += &format!("namespace {name} {{\n\n");
    for tool in tools {
        for line in tool.description.iter().flat_map(|description| description.lines()) {
            text += &format!("// {line}\n");
        }
        text += &format!("type {} = (", tool.name);
        if let Some(schema) = parameters(tool) {
            text += "_: ";
            write_type(&mut text, schema, "");
        }
        text += ") => any;\n\n";
    }
    text + &format!("}} // namespace {name}")
}
