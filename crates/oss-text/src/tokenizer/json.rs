//! Tokenizers out of `tokenizer.json`.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::marker::PhantomData;

use serde::de::value::SeqAccessDeserializer;
use serde::de::{SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::Value;
use tokenizers::AddedToken;
use tokenizers::models::bpe::{BPE, Vocab};

use super::bytes::{Scheme, Table};
use super::merges::{self, Merge};
use super::pipeline::{Added, Parts};
use super::{Ready, Settings};
use crate::error::{Error, Result};

const FILE: &str = "tokenizer.json";

#[derive(Deserialize)]
struct File<'a> {
    #[serde(default)]
    added_tokens: Vec<Entry>,
    normalizer: Option<Value>,
    pre_tokenizer: Option<Value>,
    post_processor: Option<Value>,
    decoder: Option<Value>,
    #[serde(borrow)]
    model: Bpe<'a>,
}

/// The model's part, read here and not by the `tokenizers` crate: its reader trusts the merges,
/// and panics where they do not fit the vocabulary.
#[derive(Deserialize)]
struct Bpe<'a> {
    #[serde(rename = "type")]
    name: Option<String>,
    vocab: Vocab,
    #[serde(borrow)]
    merges: Vec<Rule<'a>>,
    unk_token: Option<String>,
    continuing_subword_prefix: Option<String>,
    end_of_word_suffix: Option<String>,
    fuse_unk: Option<bool>,
    byte_fallback: Option<bool>,
    ignore_merges: Option<bool>,
}

/// A merge, in either spelling.
enum Rule<'a> {
    Pair(Text<'a>, Text<'a>),
    Line(Text<'a>),
}

/// Text that is the file's own unless it is escaped there.
#[derive(Deserialize)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

/// By hand: what is derived for such an enum keeps a copy of each value to try it out.
impl<'de: 'a, 'a> Deserialize<'de> for Rule<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        struct Either<'a>(PhantomData<&'a ()>);

        impl<'de: 'a, 'a> Visitor<'de> for Either<'a> {
            type Value = Rule<'a>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("two tokens, or both in one text with a space between")
            }

            fn visit_borrowed_str<E>(self, line: &'de str) -> std::result::Result<Rule<'a>, E> {
                Ok(Rule::Line(Text(Cow::Borrowed(line))))
            }

            fn visit_str<E>(self, line: &str) -> std::result::Result<Rule<'a>, E> {
                Ok(Rule::Line(Text(Cow::Owned(line.to_owned()))))
            }

            fn visit_seq<A: SeqAccess<'de>>(
                self,
                pair: A,
            ) -> std::result::Result<Rule<'a>, A::Error> {
                let (left, right) = Deserialize::deserialize(SeqAccessDeserializer::new(pair))?;
                Ok(Rule::Pair(left, right))
            }
        }

        deserializer.deserialize_any(Either(PhantomData))
    }
}

impl Bpe<'_> {
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
        let merges = read_merges(&self.merges)?;
        let mut builder = BPE::builder()
            .fuse_unk(self.fuse_unk.unwrap_or(false))
            .byte_fallback(self.byte_fallback.unwrap_or(false))
            .ignore_merges(self.ignore_merges.unwrap_or(false));
        if let Some(unknown) = self.unk_token {
            builder = builder.unk_token(unknown);
        }
        if let Some(suffix) = self.end_of_word_suffix {
            builder = builder.end_of_word_suffix(suffix);
        }
        merges::model(builder, self.vocab, &merges)
    }
}

/// The merges of a file, which all have one spelling.
fn read_merges<'a>(rules: &'a [Rule<'_>]) -> Result<Vec<Merge<'a>>> {
    let pairs = rules.iter().filter(|rule| matches!(rule, Rule::Pair(..))).count();
    if pairs != 0 && pairs != rules.len() {
        let reason = format!("of {} merges {pairs} are pairs and the others lines", rules.len());
        return Err(Error::Json { file: FILE, reason });
    }
    let merge = |(index, rule): (usize, &'a Rule<'_>)| match rule {
        Rule::Pair(left, right) => Ok((&*left.0, &*right.0)),
        Rule::Line(line) => merges::split(index, &line.0),
    };
    rules.iter().enumerate().map(merge).collect()
}

/// The file's part that says which model it has; for files that cannot be read as this one's.
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
    let file = serde_json::from_slice::<File<'_>>(bytes);
    let name = match &file {
        Ok(file) => file.model.name.clone(),
        Err(_) => serde_json::from_slice::<Head>(bytes).map_err(wrong)?.model.name,
    };
    if let Some(got) = name.filter(|name| name != "BPE") {
        return Err(Error::UnknownModel { got, expected: "BPE".to_owned() });
    }
    let file = file.map_err(wrong)?;
    let scheme = scheme(&file)?;
    let strips_space = scheme == Scheme::SentencePiece
        && file.decoder.as_ref().is_some_and(|d| mentions(d, "Strip") || mentions(d, "Metaspace"));
    let vocab = &file.model.vocab;
    let (added, aliases) = split_aliases(file.added_tokens, vocab);
    let bytes = table(vocab, &added, scheme);
    let parts = Parts {
        merges: file.model.merges.len(),
        model: file.model.build()?,
        normalizer: part(file.normalizer)?,
        pre_tokenizer: part(file.pre_tokenizer)?,
        post_processor: part(file.post_processor)?,
        added,
        aliases,
    };
    let settings = Settings { scheme, strips_space, bos: None, eos: None, adds_bos: false };
    Ok(Ready { parts, bytes: bytes?, settings })
}

/// The bytes of all tokens.
fn table(vocab: &Vocab, added: &[Added], scheme: Scheme) -> Result<Table> {
    let raw: HashSet<u32> = added.iter().map(|added| added.id).collect();
    let mut bytes = Table::default();
    for (token, &id) in vocab.iter().filter(|&(_, id)| !raw.contains(id)) {
        bytes.set(id, &scheme.bytes(token))?;
    }
    for added in added {
        bytes.set(added.id, added.token.content.as_bytes())?;
    }
    Ok(bytes)
}

fn part<T: for<'a> Deserialize<'a>>(value: Option<Value>) -> Result<Option<T>> {
    value
        .map(serde_json::from_value)
        .transpose()
        .map_err(|reason| Error::Json { file: FILE, reason: reason.to_string() })
}

/// Where two added tokens share an id, the first is a second name (an alias) of the last: a
/// pipeline knows one name for an id.
fn split_aliases(entries: Vec<Entry>, vocab: &Vocab) -> (Vec<Added>, Vec<Added>) {
    let mut aliases = Vec::new();
    let mut added: Vec<Added> = Vec::new();
    let mut place: HashMap<u32, usize> = HashMap::new();
    for entry in entries {
        // Where the model's vocabulary disagrees about the id, it wins, as in Hugging Face's.
        let id = vocab.get(&entry.token.content).copied().unwrap_or(entry.id);
        let new = Added::new(id, entry.token);
        match place.get(&id) {
            Some(&at) => {
                let old = std::mem::replace(&mut added[at], new);
                if old.token.content != added[at].token.content {
                    aliases.push(old);
                }
            }
            None => {
                place.insert(id, added.len());
                added.push(new);
            }
        }
    }
    (added, aliases)
}

/// How the vocabulary writes bytes, from the parts that write and read them.
fn scheme(file: &File<'_>) -> Result<Scheme> {
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
