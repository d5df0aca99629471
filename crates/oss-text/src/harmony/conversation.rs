//! Conversations as the format sees them.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::chat::{Function, Role};

/// A conversation, the system message first.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Conversation {
    /// The messages in order.
    pub messages: Vec<Message>,
}

/// A message.
#[derive(Clone, Debug, PartialEq)]
pub struct Message {
    /// Who speaks.
    pub role: Role,
    /// The speaker's name. A tool's result needs one: the tool's full name, as
    /// `functions.get_weather`.
    pub name: Option<String>,
    /// `analysis`, `commentary` or `final`.
    pub channel: Option<String>,
    /// Whom the message is for; a tool's full name makes it a call.
    pub recipient: Option<String>,
    /// Where the header names the recipient.
    pub recipient_place: RecipientPlace,
    /// The content's type, such as `<|constrain|>json`.
    pub content_type: Option<String>,
    /// What is said.
    pub content: Content,
}

/// Where a header names the recipient. The format knows both; models write the second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RecipientPlace {
    /// `assistant to=functions.f<|channel|>commentary`.
    #[default]
    Role,
    /// `assistant<|channel|>commentary to=functions.f`.
    Channel,
}

/// What a message says.
#[derive(Clone, Debug, PartialEq)]
pub enum Content {
    /// Text as it is.
    Text(String),
    /// The frame of the conversation, for the system's role.
    System(SystemContent),
    /// Instructions, tools and formats of answers, for the developer's role.
    Developer(DeveloperContent),
}

impl Message {
    /// A message of text alone.
    pub fn new(role: Role, text: impl Into<String>) -> Self {
        Self::with_content(role, Content::Text(text.into()))
    }

    /// A message without name, channel and recipient.
    pub fn with_content(role: Role, content: Content) -> Self {
        Self {
            role,
            name: None,
            channel: None,
            recipient: None,
            recipient_place: RecipientPlace::default(),
            content_type: None,
            content,
        }
    }

    /// The same message on a channel.
    #[must_use]
    pub fn on(self, channel: &str) -> Self {
        Self { channel: Some(channel.to_owned()), ..self }
    }

    /// The text, of a message that is text.
    pub fn text(&self) -> Option<&str> {
        match &self.content {
            Content::Text(text) => Some(text),
            Content::System(_) | Content::Developer(_) => None,
        }
    }
}

/// How long the model shall think.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ReasoningEffort {
    /// Little.
    #[serde(alias = "Low")]
    Low,
    /// As usual.
    #[default]
    #[serde(alias = "Medium")]
    Medium,
    /// Much.
    #[serde(alias = "High")]
    High,
}

impl ReasoningEffort {
    /// The name in prompts.
    pub fn name(self) -> &'static str {
        match self {
            ReasoningEffort::Low => "low",
            ReasoningEffort::Medium => "medium",
            ReasoningEffort::High => "high",
        }
    }
}

/// The frame of a conversation. What is `None` or empty is left out of the prompt.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub struct SystemContent {
    /// Who the model is.
    pub model_identity: Option<String>,
    /// How far the model's knowledge goes, such as `2024-06`.
    pub knowledge_cutoff: Option<String>,
    /// Today, such as `2025-06-28`.
    pub conversation_start_date: Option<String>,
    /// How long the model shall think.
    pub reasoning_effort: Option<ReasoningEffort>,
    /// Tools that the model was trained with, such as `browser` and `python`.
    #[serde(default)]
    pub tools: Vec<Namespace>,
    /// The channels that the model may use.
    pub channel_config: Option<ChannelConfig>,
}

/// The channels that the model may use.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct ChannelConfig {
    /// Their names.
    pub valid_channels: Vec<String>,
    /// Whether every message has to be on one.
    pub channel_required: bool,
}

impl Default for ChannelConfig {
    /// The three channels of gpt-oss, required.
    fn default() -> Self {
        let channels = ["analysis", "commentary", "final"];
        Self { valid_channels: channels.map(str::to_owned).to_vec(), channel_required: true }
    }
}

/// Instructions, tools and formats of answers.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DeveloperContent {
    /// What the model shall do.
    pub instructions: Option<String>,
    /// What the model may call.
    pub tools: Vec<Namespace>,
    /// What its answers shall look like.
    pub formats: Vec<ResponseFormat>,
}

/// What an answer shall look like. The model is told; nothing here holds it to it.
#[derive(Clone, Debug, PartialEq)]
pub struct ResponseFormat {
    /// What it is called, such as `shopping_list`.
    pub name: String,
    /// What it is for.
    pub description: Option<String>,
    /// A JSON schema.
    pub schema: Value,
}

/// Tools under one name.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub struct Namespace {
    /// The name, such as `functions`.
    pub name: String,
    /// What the model has to know about them; without `tools`, plain text.
    #[serde(default)]
    pub description: Option<String>,
    /// The tools.
    #[serde(default)]
    pub tools: Vec<Function>,
}

impl Namespace {
    /// The namespace of a program's own functions.
    pub fn functions(tools: Vec<Function>) -> Self {
        Self { name: "functions".to_owned(), description: None, tools }
    }
}

/// Whether a function takes arguments that a schema describes.
pub(super) fn parameters(function: &Function) -> Option<&Value> {
    function.parameters.as_ref().filter(|schema| !schema.is_null())
}
