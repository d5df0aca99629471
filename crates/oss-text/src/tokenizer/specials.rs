//! Finding control tokens in text where parts of the text must not become any.

use std::ops::Range;

use super::pipeline::Added;

/// The control tokens by their first byte, longest first.
pub(super) struct Specials {
    by_first: Vec<Vec<Added>>,
}

/// A control token found in a text; `range` includes the spaces that the token swallows.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Found {
    pub(super) id: u32,
    pub(super) range: Range<usize>,
}

impl Specials {
    pub(super) fn new<'a>(added: impl Iterator<Item = &'a Added>) -> Self {
        let mut by_first = vec![Vec::new(); 256];
        for added in added.filter(|added| added.token.special) {
            if let Some(&first) = added.token.content.as_bytes().first() {
                by_first[usize::from(first)].push(added.clone());
            }
        }
        for list in &mut by_first {
            list.sort_by_key(|added| std::cmp::Reverse(added.token.content.len()));
        }
        Self { by_first }
    }

    /// The texts of all control tokens.
    pub(super) fn texts(&self) -> impl Iterator<Item = &str> {
        self.by_first.iter().flatten().map(|added| added.token.content.as_str())
    }

    /// The leftmost longest control tokens of `text` that contain none of the byte offsets in
    /// `protected` (sorted).
    pub(super) fn find(&self, text: &str, protected: &[usize]) -> Vec<Found> {
        let mut found = Vec::new();
        let mut taken = 0;
        let mut at = 0;
        while at < text.len() {
            let Some(added) = self.match_at(text, at, protected) else {
                at += 1;
                continue;
            };
            let mut range = at..at + added.token.content.len();
            at = range.end;
            if added.token.single_word && !alone(text, &range) {
                continue;
            }
            if added.token.lstrip {
                range.start = text[..range.start].trim_end().len().max(taken);
            }
            if added.token.rstrip {
                range.end = text.len() - text[range.end..].trim_start().len();
                at = range.end;
            }
            taken = range.end;
            found.push(Found { id: added.id, range });
        }
        found
    }

    fn match_at(&self, text: &str, at: usize, protected: &[usize]) -> Option<&Added> {
        let rest = &text.as_bytes()[at..];
        self.by_first[usize::from(rest[0])].iter().find(|added| {
            let len = added.token.content.len();
            let next = protected.partition_point(|&offset| offset < at);
            let free = protected.get(next).is_none_or(|&offset| offset >= at + len);
            rest.starts_with(added.token.content.as_bytes()) && free
        })
    }
}

/// Whether no word character touches the range.
fn alone(text: &str, range: &Range<usize>) -> bool {
    let word = |character: char| character.is_alphanumeric() || character == '_';
    !text[..range.start].chars().next_back().is_some_and(word)
        && !text[range.end..].chars().next().is_some_and(word)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokenizers::AddedToken;

    fn specials() -> Specials {
        let token = |id, content: &str| Added { id, token: AddedToken::from(content, true) };
        let strip = Added { id: 9, token: AddedToken::from("<s>", true).rstrip(true).lstrip(true) };
        Specials::new([token(1, "<|end|>"), token(2, "<|end|>x"), strip].iter())
    }

    #[test]
    fn the_longest_token_wins_and_protected_text_is_none() {
        let text = "a<|end|>x<|end|>";
        let found = specials().find(text, &[]);
        assert_eq!(found[0], Found { id: 2, range: 1..9 });
        assert_eq!(found[1], Found { id: 1, range: 9..16 });
        assert_eq!(specials().find(text, &[3]), [Found { id: 1, range: 9..16 }]);
        assert_eq!(specials().find(text, &[8])[0], Found { id: 1, range: 1..8 });
    }

    #[test]
    fn stripping_tokens_swallow_spaces_once() {
        let found = specials().find("a <s>  <s> b", &[]);
        assert_eq!(found[0].range, 1..7);
        assert_eq!(found[1].range, 7..11);
    }
}
