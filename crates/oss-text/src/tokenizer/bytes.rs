//! From a token's written form to the bytes it stands for.

use std::sync::LazyLock;

use crate::error::{Error, Result};

/// How a vocabulary writes bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scheme {
    /// GPT-2's: every byte is one printable character.
    ByteLevel,
    /// SentencePiece's: text, with `▁` for a space and `<0xNN>` for a byte.
    SentencePiece,
}

impl Scheme {
    /// The bytes of an ordinary token.
    pub(super) fn bytes(self, token: &str) -> Vec<u8> {
        match self {
            Scheme::ByteLevel => {
                let bytes: Option<Vec<u8>> = token.chars().map(byte_of).collect();
                bytes.unwrap_or_else(|| token.as_bytes().to_vec())
            }
            Scheme::SentencePiece => match escaped_byte(token) {
                Some(byte) => vec![byte],
                None => token.replace('\u{2581}', " ").into_bytes(),
            },
        }
    }

    /// Text as the vocabulary writes it: the inverse of [`Scheme::bytes`].
    pub(super) fn written(self, text: &str) -> String {
        match self {
            Scheme::ByteLevel => text.bytes().map(char_of).collect(),
            Scheme::SentencePiece => text.replace(' ', "\u{2581}"),
        }
    }
}

/// GPT-2's alphabet: printable Latin-1 stands for itself, the other 68 bytes in order for the
/// characters from U+0100 on (`bytes_to_unicode` of OpenAI's GPT-2 encoder).
static ALPHABET: LazyLock<[char; 256]> = LazyLock::new(|| {
    let mut next = 0x100;
    std::array::from_fn(|byte| match byte {
        0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff => char::from(byte as u8),
        _ => {
            next += 1;
            char::from_u32(next - 1).expect("0x100..0x144 are characters")
        }
    })
});

fn char_of(byte: u8) -> char {
    ALPHABET[usize::from(byte)]
}

/// The alphabet's inverse, by the character's number.
static BYTES: LazyLock<[Option<u8>; 0x144]> = LazyLock::new(|| {
    let mut bytes = [None; 0x144];
    for byte in 0..=255 {
        bytes[char_of(byte) as usize] = Some(byte);
    }
    bytes
});

fn byte_of(character: char) -> Option<u8> {
    BYTES.get(character as usize).copied().flatten()
}

/// `<0x0A>` → 10.
fn escaped_byte(token: &str) -> Option<u8> {
    let digits = token.strip_prefix("<0x")?.strip_suffix('>')?;
    if digits.len() != 2 || !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        return None;
    }
    u8::from_str_radix(digits, 16).ok()
}

/// More than any vocabulary has: a table this long is still small.
const MAX_TOKENS: u32 = 1 << 22;

/// The bytes of every token, end to end.
#[derive(Default)]
pub(super) struct Table {
    blob: Vec<u8>,
    spans: Vec<Option<(usize, usize)>>,
}

impl Table {
    /// Sets the bytes of `id`, growing the table as needed.
    pub(super) fn set(&mut self, id: u32, bytes: &[u8]) -> Result<()> {
        if id >= MAX_TOKENS {
            let expected = MAX_TOKENS as usize;
            return Err(Error::TokenId { role: "largest", got: id, expected });
        }
        let id = id as usize;
        if self.spans.len() <= id {
            self.spans.resize(id + 1, None);
        }
        let start = self.blob.len();
        self.blob.extend_from_slice(bytes);
        self.spans[id] = Some((start, self.blob.len()));
        Ok(())
    }

    pub(super) fn get(&self, id: u32) -> Option<&[u8]> {
        let (start, end) = self.spans.get(id as usize).copied().flatten()?;
        Some(&self.blob[start..end])
    }

    /// One more than the largest id.
    pub(super) fn len(&self) -> usize {
        self.spans.len()
    }

    /// The number of bytes of each token.
    pub(super) fn lengths(&self) -> impl Iterator<Item = usize> {
        self.spans.iter().flatten().map(|(start, end)| end - start)
    }

    /// Bytes that it takes.
    pub(super) fn bytes(&self) -> usize {
        self.blob.capacity() + self.spans.capacity() * size_of::<Option<(usize, usize)>>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_has_one_character_and_comes_back() {
        for byte in 0..=255 {
            assert_eq!(byte_of(char_of(byte)), Some(byte));
        }
        assert_eq!(char_of(b' '), 'Ġ');
        assert_eq!(char_of(b'\n'), 'Ċ');
    }

    #[test]
    fn an_escaped_byte_needs_exactly_two_digits() {
        assert_eq!(escaped_byte("<0x0A>"), Some(10));
        assert_eq!(escaped_byte("<0xA>"), None);
        assert_eq!(escaped_byte("<0x+1>"), None);
        assert_eq!(Scheme::SentencePiece.bytes("▁a"), b" a");
    }
}
