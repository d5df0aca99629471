//! Token ids to text, one at a time.

use crate::tokenizer::Tokenizer;

/// Turns a stream of token ids into text without ever giving out half a character.
///
/// The increments, joined, are the lossy decoding of all the tokens' bytes joined: what is not
/// UTF-8 becomes U+FFFD, each maximal invalid part one, as `String::from_utf8_lossy` does.
///
/// No leading space is taken off: the text continues what was before.
#[derive(Clone, Debug)]
pub struct Decoder {
    tokenizer: Tokenizer,
    skip_special: bool,
    /// The beginning of a character whose end has not come yet: at most three bytes.
    pending: Vec<u8>,
}

impl Decoder {
    /// A decoder that writes control tokens as their names.
    pub fn new(tokenizer: &Tokenizer) -> Self {
        Self { tokenizer: tokenizer.clone(), skip_special: false, pending: Vec::new() }
    }

    /// A decoder that passes control tokens over.
    pub fn without_special(tokenizer: &Tokenizer) -> Self {
        Self { skip_special: true, ..Self::new(tokenizer) }
    }

    /// Takes a token and gives the text that is complete with it, often none. An id outside the
    /// vocabulary is no text.
    pub fn push(&mut self, id: u32) -> String {
        if self.skip_special && self.tokenizer.is_special(id) {
            return String::new();
        }
        self.pending.extend_from_slice(self.tokenizer.token_bytes(id).unwrap_or_default());
        let mut text = String::with_capacity(self.pending.len());
        let mut rest = self.pending.as_slice();
        loop {
            match std::str::from_utf8(rest) {
                Ok(valid) => {
                    text.push_str(valid);
                    rest = &[];
                    break;
                }
                Err(error) => {
                    let (valid, after) = rest.split_at(error.valid_up_to());
                    text.push_str(&String::from_utf8_lossy(valid));
                    rest = after;
                    let Some(bad) = error.error_len() else { break };
                    text.push(char::REPLACEMENT_CHARACTER);
                    rest = &rest[bad..];
                }
            }
        }
        let kept = self.pending.len() - rest.len();
        self.pending.drain(..kept);
        text
    }

    /// Ends the stream: what is left of an unfinished character becomes U+FFFD.
    pub fn finish(&mut self) -> String {
        let text = String::from_utf8_lossy(&self.pending).into_owned();
        self.pending.clear();
        text
    }
}
