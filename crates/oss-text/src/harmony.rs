//! The harmony format of gpt-oss, by hand and at the level of tokens.
//!
//! A message is `<|start|>` header `<|message|>` content and an end token. The markers are
//! tokens, looked up by name in the tokenizer; everything between them is encoded as text, so
//! that content can never forge a marker. [`render`] writes a conversation as a prompt,
//! [`Parser`] reads a completion token by token.
//!
//! Source of the format: OpenAI's published description of harmony, and the recorded output of
//! its reference library `openai-harmony` 0.0.8 in this crate's tests.

mod conversation;
mod from_chat;
mod header;
mod parser;
mod render;
mod tokens;
mod typescript;

pub use self::conversation::{
    ChannelConfig, Content, Conversation, DeveloperContent, Message, Namespace, ReasoningEffort,
    RecipientPlace, ResponseFormat, SystemContent,
};
pub use self::from_chat::ChatOptions;
pub use self::header::{Header, Kind};
pub use self::parser::{End, Event, Parser, parse};
pub use self::render::render;
pub use self::tokens::Tokens;
