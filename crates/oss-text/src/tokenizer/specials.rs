//! Finding control tokens in text where parts of the text must not become any.

use std::ops::Range;

use super::pipeline::Added;

/// The control tokens, under all their names, by their first byte, each list sorted by its bytes.
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
        for added in added {
            if let Some(&first) = added.token.content.as_bytes().first() {
                by_first[usize::from(first)].push(added.clone());
            }
        }
        for list in &mut by_first {
            list.sort_by(|a, b| a.token.content.cmp(&b.token.content));
            list.dedup_by(|b, a| a.token.content == b.token.content);
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
        let mut protected = protected.iter().copied().peekable();
        while at < text.len() {
            while protected.next_if(|&offset| offset < at).is_some() {}
            let end = protected.peek().map_or(text.len(), |&offset| offset);
            let Some(added) = self.longest(&text.as_bytes()[at..end]) else {
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

    /// The longest control token with which the bytes begin.
    fn longest(&self, bytes: &[u8]) -> Option<&Added> {
        let mut found = None;
        let mut alike = self.by_first[usize::from(*bytes.first()?)].as_slice();
        // Those that begin as the bytes do, and of them the one that ends here, which is the first.
        for (place, &byte) in bytes.iter().enumerate() {
            let at = |added: &Added| added.token.content.as_bytes()[place];
            let begin = alike.partition_point(|added| at(added) < byte);
            let end = alike.partition_point(|added| at(added) <= byte);
            alike = &alike[begin..end];
            let Some((first, longer)) = alike.split_first() else { break };
            if first.token.content.len() == place + 1 {
                found = Some(first);
                alike = longer;
            }
        }
        found
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
    fn a_megabyte_of_what_could_begin_256_tokens_takes_no_time() {
        let name = |id| format!("<|reserved_special_token_{id}|>");
        let added = |id| Added::new(id, AddedToken::from(name(id), true));
        let all: Vec<Added> = (0..256).map(added).collect();
        let specials = Specials::new(all.iter());
        let begin = std::time::Instant::now();
        for piece in ["<", "<|", "<|reserved_special_token_"] {
            let text = piece.repeat((1 << 20) / piece.len()) + &name(255);
            let all: Vec<usize> = (0..text.len()).collect();
            assert_eq!(specials.find(&text, &all), []);
            let before: Vec<usize> = (0..1 << 19).step_by(2).collect();
            for protected in [&[][..], &before] {
                let found = specials.find(&text, protected);
                let range = text.len() - name(255).len()..text.len();
                assert_eq!(found, [Found { id: 255, range }]);
            }
        }
        // Some tenths; a look at what is protected for each token at each place takes twenty.
        assert!(begin.elapsed().as_secs() < 5, "{:?}", begin.elapsed());
    }

    #[test]
    fn stripping_tokens_swallow_spaces_once() {
        let found = specials().find("a <s>  <s> b", &[]);
        assert_eq!(found[0].range, 1..7);
        assert_eq!(found[1].range, 7..11);
    }
}
