//! The real o200k_harmony vocabulary, out of `tiktoken-rs`.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::LazyLock;

use oss_text::{Tokenizer, Vocabulary};
use tiktoken_rs::CoreBPE;

/// The tokenizer of gpt-oss, built as a GGUF file would give it.
pub(crate) static TOKENIZER: LazyLock<Tokenizer> = LazyLock::new(|| {
    let bpe = tiktoken_rs::o200k_harmony_singleton();
    let vocabulary = vocabulary(bpe, 199_998, "gpt-4o");
    Tokenizer::from_vocabulary(&vocabulary).expect("the vocabulary is whole")
});

/// The arrays of a GGUF file for a tiktoken vocabulary whose ordinary tokens are `0..ordinary`.
pub(crate) fn vocabulary(bpe: &CoreBPE, ordinary: u32, pre: &str) -> Vocabulary<'static> {
    let words: Vec<Vec<u8>> =
        (0..ordinary).map(|id| bpe.decode_bytes(&[id]).expect("ranks have no gaps")).collect();
    let mut tokens: Vec<Cow<'_, str>> = words.iter().map(|word| written(word).into()).collect();
    let mut types = vec![1; tokens.len()];
    let mut names: Vec<(u32, &str)> = bpe
        .special_tokens()
        .into_iter()
        .map(|name| (bpe.encode_with_special_tokens(name)[0], name))
        .collect();
    // Id 200018 has two names; a GGUF file has room for one.
    names.sort_unstable_by_key(|&(id, name)| (id, name.starts_with("<|reserved")));
    for (id, name) in names {
        if (id as usize) < tokens.len() {
            continue;
        }
        while tokens.len() < id as usize {
            tokens.push(format!("<|reserved_{}|>", tokens.len()).into());
            types.push(3);
        }
        tokens.push(name.to_owned().into());
        types.push(3);
    }
    let merges = merges(&words);
    let (model, pre) = ("gpt2".to_owned(), pre.to_owned());
    Vocabulary { model, pre, tokens, types, merges, ..Vocabulary::default() }
}

/// Every cut of a token into two tokens is a merge, in the order of the ranks.
fn merges(words: &[Vec<u8>]) -> Vec<Cow<'static, str>> {
    let ranks: HashMap<&[u8], usize> =
        words.iter().enumerate().map(|(rank, word)| (word.as_slice(), rank)).collect();
    let mut merges = Vec::new();
    for word in words {
        let mut cuts: Vec<(usize, usize)> = (1..word.len())
            .filter_map(|at| Some((*ranks.get(&word[..at])?, *ranks.get(&word[at..])?)))
            .collect();
        cuts.sort_unstable();
        for (left, right) in cuts {
            merges.push(format!("{} {}", written(&words[left]), written(&words[right])).into());
        }
    }
    merges
}

/// Bytes in GPT-2's alphabet.
fn written(bytes: &[u8]) -> String {
    let printable = |byte: u8| matches!(byte, 33..=126 | 161..=172 | 174..=255);
    let others: Vec<u8> = (0..=255).filter(|&byte| !printable(byte)).collect();
    let character = |&byte: &u8| {
        let place = others.iter().position(|&other| other == byte);
        place.map_or(char::from(byte), |place| char::from_u32(256 + place as u32).unwrap())
    };
    bytes.iter().map(character).collect()
}
