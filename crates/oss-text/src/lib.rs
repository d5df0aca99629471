//! Bytes to tokens and back, chat templates, and the harmony format.

#![forbid(unsafe_code)]

pub mod chat;
mod decoder;
mod error;
pub mod harmony;
mod tokenizer;

pub use decoder::Decoder;
pub use error::{Error, Result};
pub use tokenizer::{Special, Tokenizer, Vocabulary};
