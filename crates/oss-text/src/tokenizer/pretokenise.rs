//! The pre-tokenisers that GGUF files name, built as Hugging Face's files of the same models do.

use tokenizers::PreTokenizerWrapper;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::digits::Digits;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::tokenizer::SplitDelimiterBehavior;

use crate::error::{Error, Result};

/// o200k: gpt-4o, gpt-oss.
const O200K: &str = concat!(
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+",
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?|",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*",
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?|",
    r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
);

/// Llama 3.
const LLAMA_3: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|",
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
);

/// What a pre-tokeniser's name means.
pub(super) struct Rule {
    names: &'static [&'static str],
    /// Splits text into words; the words are then written in GPT-2's byte alphabet.
    kind: Kind,
    /// A word that is a token as a whole is that token, whatever the merges say.
    pub(super) whole_words: bool,
    /// Whether such models put the beginning-of-text token first when the file is silent.
    pub(super) adds_bos: bool,
}

#[derive(Clone, Copy)]
enum Kind {
    Pattern(&'static str),
    Gpt2,
    DigitsThenGpt2,
}

/// The table: one row for each pre-tokeniser.
const RULES: [Rule; 4] = [
    Rule {
        names: &["gpt-4o", "o200k"],
        kind: Kind::Pattern(O200K),
        whole_words: true,
        adds_bos: false,
    },
    Rule {
        names: &["llama-bpe", "llama3", "llama-v3"],
        kind: Kind::Pattern(LLAMA_3),
        whole_words: true,
        adds_bos: true,
    },
    Rule { names: &["gpt-2"], kind: Kind::Gpt2, whole_words: false, adds_bos: false },
    Rule { names: &["smollm"], kind: Kind::DigitsThenGpt2, whole_words: false, adds_bos: false },
];

/// Looks a name up.
pub(super) fn rule(name: &str) -> Result<&'static Rule> {
    RULES.iter().find(|rule| rule.names.contains(&name)).ok_or_else(|| {
        let names: Vec<&str> = RULES.iter().flat_map(|rule| rule.names).copied().collect();
        Error::UnknownPreTokeniser { got: name.to_owned(), expected: names.join(", ") }
    })
}

impl Rule {
    /// The pre-tokeniser of the `tokenizers` crate.
    pub(super) fn build(&self) -> Result<PreTokenizerWrapper> {
        let first: PreTokenizerWrapper = match self.kind {
            Kind::Gpt2 => return Ok(ByteLevel::new(false, true, true).into()),
            Kind::DigitsThenGpt2 => Digits::new(true).into(),
            Kind::Pattern(pattern) => Split::new(
                SplitPattern::Regex(pattern.to_owned()),
                SplitDelimiterBehavior::Isolated,
                false,
            )
            .map_err(|reason| Error::Build { reason: reason.to_string() })?
            .into(),
        };
        let use_regex = matches!(self.kind, Kind::DigitsThenGpt2);
        Ok(Sequence::new(vec![first, ByteLevel::new(false, true, use_regex).into()]).into())
    }
}
