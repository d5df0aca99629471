//! The rules by which tokens are merged, and the model made of them.

use tokenizers::models::bpe::{self, BPE, BpeBuilder, Vocab};

use crate::error::{Error, Result};

/// Two tokens that become one.
pub(super) type Merge<'a> = (&'a str, &'a str);

/// `"a b"` → `("a", "b")`; a token may itself begin with a space. `index` is the rule's place.
pub(super) fn split(index: usize, line: &str) -> Result<Merge<'_>> {
    let after_first = line.chars().next().map_or(0, char::len_utf8);
    let space = line[after_first..].find(' ').map(|space| space + after_first);
    let space = space.ok_or_else(|| Error::Merge { index, got: line.to_owned() })?;
    Ok((&line[..space], &line[space + 1..]))
}

/// The model of a vocabulary and its merges, the first rule first. Both parts of a merge, and what
/// it makes, have to be tokens.
///
/// The builder looks them all up, which takes most of the time that a tokenizer takes to load, so
/// nothing is looked up before: it tells a token that is missing, and the first rule with that one
/// is the first that is wrong. It would panic where a rule makes more than any token has.
pub(super) fn model(builder: BpeBuilder, vocab: Vocab, merges: &[Merge<'_>]) -> Result<BPE> {
    let longest = vocab.keys().map(String::len).max().unwrap_or(0);
    let too_long = merges.iter().position(|(left, right)| left.len() + right.len() > longest);
    let owned = |&(left, right): &Merge<'_>| (left.to_owned(), right.to_owned());
    let looked_up = merges[..too_long.unwrap_or(merges.len())].iter().map(owned).collect();
    let model = builder.vocab_and_merges(vocab, looked_up).build();
    let wrong = match &model {
        Ok(_) => too_long,
        Err(reason) => match reason.downcast_ref() {
            Some(bpe::Error::MergeTokenOutOfVocabulary(token)) => {
                merges.iter().position(|merge| names(merge, token))
            }
            _ => None,
        },
    };
    if let Some(index) = wrong {
        let (left, right) = merges[index];
        return Err(Error::Merge { index, got: format!("{left} {right}") });
    }
    model.map_err(|reason| Error::Build { reason: reason.to_string() })
}

/// Whether a token is a part of a merge, or what it makes.
fn names(&(left, right): &Merge<'_>, token: &str) -> bool {
    left == token || right == token || token.strip_prefix(left) == Some(right)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOKENS: [&str; 7] = ["a", "b", "c", "ab", "bc", "abc", " "];

    fn build(merges: &[Merge<'_>]) -> Result<BPE> {
        let ids = TOKENS.iter().enumerate();
        let vocab = ids.map(|(id, token)| ((*token).to_owned(), id as u32)).collect();
        model(BPE::builder(), vocab, merges)
    }

    #[test]
    fn the_first_rule_that_is_wrong_is_told() {
        let cases: [(&[Merge<'_>], usize); 8] = [
            (&[("a", "b"), ("x", "b")], 1),
            (&[("a", "b"), ("a", "x"), ("x", "b")], 1),
            // What they make is missing: shorter than a token, and longer than any.
            (&[("a", "b"), ("b", "a"), ("a", "x")], 1),
            (&[("a", "b"), ("ab", "ab"), ("b", "a")], 1),
            (&[("b", "a"), ("ab", "ab")], 0),
            (&[("abc", "abc")], 0),
            (&[("a", "b"), ("xyzxyz", "a")], 1),
            // A part that is missing is told by the rule that names it first.
            (&[("b", "c"), ("c", "a"), ("ca", "b")], 1),
        ];
        for (merges, expected) in cases {
            let error = build(merges).map(|_| ()).unwrap_err();
            let Error::Merge { index, got } = error else { panic!("{error}") };
            let (left, right) = merges[expected];
            assert_eq!((index, got), (expected, format!("{left} {right}")), "{merges:?}");
        }
        assert!(build(&[("a", "b"), ("b", "c"), ("ab", "c"), ("a", "bc")]).is_ok());
        assert!(build(&[]).is_ok());
    }

    #[test]
    fn a_line_is_split_at_the_space_behind_its_first_character() {
        assert_eq!(split(0, "a b").unwrap(), ("a", "b"));
        assert_eq!(split(0, "  b").unwrap(), (" ", "b"));
        assert_eq!(split(0, "\u{2581} \u{2581}").unwrap(), ("\u{2581}", "\u{2581}"));
        for line in ["", "ab", " "] {
            let error = split(3, line).unwrap_err();
            assert!(matches!(&error, Error::Merge { index: 3, got } if got == line), "{error}");
        }
    }
}
