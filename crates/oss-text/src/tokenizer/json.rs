//! Tokenizers out of `tokenizer.json`.

use std::collections::{HashMap, HashSet};

use serde::Deserialize;
use serde_json::Value;
use tokenizers::AddedToken;
use tokenizers::models::bpe::{BPE, Vocab};

use super::bytes::Scheme;
use super::pipeline::{Added, Parts};
use super::vocabulary::{check_merges, split_merges};
use super::{Ready, Settings};
use crate::error::{Error, Result};

const FILE: &str = "tokenizer.json";

#[derive(Deserialize)]
struct File {
    #[serde(default)]
    added_tokens: Vec<Entry>,
    normalizer: Option<Value>,
    pre_tokenizer: Option<Value>,
    post_processor: Option<Value>,
    decoder: Option<Value>,
    model: Bpe,
}

/// The model's part, read here and not by the `tokenizers` crate: its reader trusts the merges,
/// and panics where they do not fit the vocabulary.
#[derive(Deserialize)]
struct Bpe {
    vocab: Vocab,
    merges: Merges,
    unk_token: Option<String>,
    continuing_subword_prefix: Option<String>,
    end_of_word_suffix: Option<String>,
    fuse_unk: Option<bool>,
    byte_fallback: Option<bool>,
    ignore_merges: Option<bool>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Merges {
    Pairs(Vec<(String, String)>),
    Lines(Vec<String>),
}

impl Bpe {
    /// `dropout`, if the file has it, is for training and left out.
    fn build(self) -> Result<BPE> {
        let prefix = self.continuing_subword_prefix.filter(|prefix| !prefix.is_empty());
        if let Some(prefix) = prefix {
            let reason = format!("continuing_subword_prefix `{prefix}` is not supported");
            return Err(Error::Json { file: FILE, reason });
        }
        if let Some(unknown) = self.unk_token.as_ref().filter(|&t| !self.vocab.contains_key(t)) {
            let reason = format!("unk_token `{unknown}` is not in the vocabulary");
            return Err(Error::Json { file: FILE, reason });
        }
        let merges = match self.merges {
            Merges::Pairs(pairs) => check_merges(pairs, &self.vocab)?,
            Merges::Lines(lines) => split_merges(&lines, &self.vocab)?,
        };
        let mut model = BPE::builder()
            .vocab_and_merges(self.vocab, merges)
            .fuse_unk(self.fuse_unk.unwrap_or(false))
            .byte_fallback(self.byte_fallback.unwrap_or(false))
            .ignore_merges(self.ignore_merges.unwrap_or(false));
        if let Some(unknown) = self.unk_token {
            model = model.unk_token(unknown);
        }
        if let Some(suffix) = self.end_of_word_suffix {
            model = model.end_of_word_suffix(suffix);
        }
        model.build().map_err(|reason| Error::Build { reason: reason.to_string() })
    }
}

/// The file's part that says which model follows.
#[derive(Deserialize)]
struct Head {
    model: Kind,
}

#[derive(Deserialize)]
struct Kind {
    #[serde(rename = "type")]
    name: Option<String>,
}

#[derive(Deserialize)]
struct Entry {
    id: u32,
    #[serde(flatten)]
    token: AddedToken,
}

pub(super) fn prepare(bytes: &[u8]) -> Result<Ready> {
    let wrong = |reason: serde_json::Error| Error::Json { file: FILE, reason: reason.to_string() };
    let head: Head = serde_json::from_slice(bytes).map_err(wrong)?;
    if let Some(got) = head.model.name.filter(|name| name != "BPE") {
        return Err(Error::UnknownModel { got, expected: "BPE".to_owned() });
    }
    let file: File = serde_json::from_slice(bytes).map_err(wrong)?;
    let scheme = scheme(&file)?;
    let strips_space = scheme == Scheme::SentencePiece
        && file.decoder.as_ref().is_some_and(|d| mentions(d, "Strip") || mentions(d, "Metaspace"));
    let model = file.model.build()?;
    let vocab = model.get_vocab();
    let (added, aliases) = split_aliases(file.added_tokens, &vocab);
    let raw: HashSet<u32> = added.iter().map(|added| added.id).collect();
    let mut bytes: Vec<(u32, Vec<u8>)> = vocab
        .iter()
        .filter(|&(_, id)| !raw.contains(id))
        .map(|(token, &id)| (id, scheme.bytes(token)))
        .collect();
    bytes.extend(added.iter().map(|added| (added.id, added.token.content.clone().into_bytes())));
    let parts = Parts {
        model: model.into(),
        normalizer: part(file.normalizer)?,
        pre_tokenizer: part(file.pre_tokenizer)?,
        post_processor: part(file.post_processor)?,
        added,
    };
    let settings = Settings { scheme, strips_space, bos: None, eos: None, adds_bos: false };
    Ok(Ready { parts, bytes, aliases, settings })
}

fn part<T: for<'a> Deserialize<'a>>(value: Option<Value>) -> Result<Option<T>> {
    value
        .map(serde_json::from_value)
        .transpose()
        .map_err(|reason| Error::Json { file: FILE, reason: reason.to_string() })
}

/// Where two added tokens share an id, the first is a second name (an alias) of the last: the
/// matcher below knows one name for an id.
fn split_aliases(
    entries: Vec<Entry>,
    vocab: &HashMap<String, u32>,
) -> (Vec<Added>, Vec<(String, String)>) {
    let mut aliases = Vec::new();
    let mut added: Vec<Added> = Vec::new();
    let mut place: HashMap<u32, usize> = HashMap::new();
    for entry in entries {
        // Where the model's vocabulary disagrees about the id, it wins, as in Hugging Face's.
        let id = vocab.get(&entry.token.content).copied().unwrap_or(entry.id);
        let new = Added { id, token: entry.token };
        match place.get(&id) {
            Some(&at) => {
                aliases.push((added[at].token.content.clone(), new.token.content.clone()));
                added[at] = new;
            }
            None => {
                place.insert(id, added.len());
                added.push(new);
            }
        }
    }
    aliases.retain(|(alias, name)| alias != name);
    (added, aliases)
}

/// How the vocabulary writes bytes, from the parts that write and read them.
fn scheme(file: &File) -> Result<Scheme> {
    let parts = [&file.decoder, &file.pre_tokenizer, &file.normalizer];
    let any = |name: &str| parts.iter().any(|p| p.as_ref().is_some_and(|p| mentions(p, name)));
    if any("ByteLevel") {
        Ok(Scheme::ByteLevel)
    } else if any("ByteFallback") || any("Metaspace") || any("Prepend") {
        Ok(Scheme::SentencePiece)
    } else {
        let reason = "neither a byte-level nor a SentencePiece-style tokenizer".to_owned();
        Err(Error::Json { file: FILE, reason })
    }
}

/// Whether a part, or a part inside it, has this type.
fn mentions(part: &Value, kind: &str) -> bool {
    match part {
        Value::Object(fields) => fields
            .iter()
            .any(|(key, value)| (key == "type" && value == kind) || mentions(value, kind)),
        Value::Array(parts) => parts.iter().any(|part| mentions(part, kind)),
        _ => false,
    }
}
