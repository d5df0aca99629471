//! Bytes to tokens and back, chat templates, and the harmony format.

#![forbid(unsafe_code)]

mod decoder;
mod error;
mod tokenizer;

pub use decoder::Decoder;
pub use error::{Error, Result};
pub use tokenizer::{Special, Tokenizer, Vocabulary};
