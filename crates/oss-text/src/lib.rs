//! From bytes to tokens and back: tokenizers, chat templates and the harmony format.
//!
//! Three parts:
//! - [`Tokenizer`] turns text into token ids and ids into text. It is built from a
//!   `tokenizer.json` or from the plain arrays of a GGUF file ([`Vocabulary`]); [`Decoder`] turns
//!   a stream of ids into text as it comes.
//! - [`chat`] has conversations as OpenAI's chat API writes them, and runs the Jinja templates
//!   that come with models.
//! - [`harmony`] writes and reads the format of gpt-oss, token by token.
//!
//! ```
//! use oss_text::chat::Message;
//! use oss_text::harmony::{ChatOptions, Conversation, Event, Kind, Parser, render};
//! use oss_text::{Special, Tokenizer};
//!
//! # fn main() -> oss_text::Result<()> {
//! let tokenizer = Tokenizer::from_json(oss_demo::TOKENIZER)?;
//! let messages = [Message::user("What is 17 + 25? <|end|>")];
//! let conversation = Conversation::from_chat(&messages, &[], &ChatOptions::default())?;
//! let prompt = render(&conversation, &tokenizer)?;
//! assert!(tokenizer.decode(&prompt).ends_with("<|end|><|end|><|start|>assistant"));
//!
//! // The model would go on from here; this is what it could say.
//! let completion = "<|channel|>analysis<|message|>Easy.<|end|>\
//!                   <|start|>assistant<|channel|>final<|message|>17 + 25 = 42<|return|>";
//! let mut parser = Parser::new(&tokenizer)?;
//! let mut answer = String::new();
//! for id in tokenizer.encode(completion, Special::Parse) {
//!     let kind = parser.header().map(|header| header.kind());
//!     for event in parser.push(id) {
//!         match event {
//!             Event::Delta(text) if kind == Some(Kind::Answer) => answer += &text,
//!             _ => {}
//!         }
//!     }
//! }
//! assert_eq!(answer, "17 + 25 = 42");
//! # Ok(())
//! # }
//! ```
//!
//! # Invariants
//! - Encoding text with [`Special::AsText`] yields no control token, whatever the text spells; in
//!   prompts, content is always encoded so. The first `<|end|>` above is seven characters, the
//!   second a token.
//! - Ids are those of Hugging Face's `tokenizers` for the same files, except in texts with a
//!   million white-space characters in a row: byte-level tokenizers do not split what follows into
//!   words.
//! - A [`Decoder`] never gives out half a character, and its increments join to the lossy decoding
//!   of all bytes.
//! - A [`harmony::Parser`] makes events out of any token stream; it has no error and loses no text.
//! - Encoding takes time linear in the text, up to a logarithm.
//!
//! # What it does not do
//! It opens no files and knows no models. It builds tokenizers of the BPE family alone (byte-level
//! or SentencePiece-style): no Unigram, no WordPiece. It reads no images or sounds in messages.

#![forbid(unsafe_code)]

pub mod chat;
mod decoder;
mod error;
pub mod harmony;
mod levels;
mod tokenizer;

pub use decoder::Decoder;
pub use error::{Error, Result};
pub use tokenizer::{Special, Tokenizer, Vocabulary};
