//! The ids of the format's markers.

use crate::error::{Error, Result};
use crate::tokenizer::Tokenizer;

/// The ids of the format's control tokens in one vocabulary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tokens {
    /// `<|start|>`: a header follows.
    pub start: u32,
    /// `<|message|>`: the content follows.
    pub message: u32,
    /// `<|channel|>`: in a header, the channel's name follows.
    pub channel: u32,
    /// `<|constrain|>`: in a header, the content's type follows.
    pub constrain: u32,
    /// `<|end|>`: the message is over.
    pub end: u32,
    /// `<|return|>`: the message is over and so is the turn.
    pub return_: u32,
    /// `<|call|>`: the message is over and a tool has to answer.
    pub call: u32,
    /// `<|endoftext|>`, where the vocabulary has it.
    pub end_of_text: Option<u32>,
}

impl Tokens {
    /// Looks the markers up.
    ///
    /// # Errors
    /// [`Error::NoHarmonyToken`] names the first marker that the vocabulary lacks: the model
    /// was not made for harmony.
    pub fn of(tokenizer: &Tokenizer) -> Result<Self> {
        let id = |expected: &'static str| {
            let id = tokenizer.token_id(expected).filter(|&id| tokenizer.is_special(id));
            id.ok_or(Error::NoHarmonyToken { expected })
        };
        Ok(Self {
            start: id("<|start|>")?,
            message: id("<|message|>")?,
            channel: id("<|channel|>")?,
            constrain: id("<|constrain|>")?,
            end: id("<|end|>")?,
            return_: id("<|return|>")?,
            call: id("<|call|>")?,
            end_of_text: id("<|endoftext|>").ok(),
        })
    }

    /// The tokens at which generation of a turn stops: `<|return|>`, `<|call|>` and
    /// `<|endoftext|>`. `<|end|>` is not one: another message of the turn may follow.
    pub fn stops(&self) -> Vec<u32> {
        [self.return_, self.call].into_iter().chain(self.end_of_text).collect()
    }
}
