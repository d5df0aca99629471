//! A vocabulary of any size: a real tokenizer's tokens, padded with unique ones.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, ensure};
use oss_weights::{Array, Value};
use serde_json::{Value as Json, json};

// Token types of GGUF metadata.
const NORMAL: i32 = 1;
const UNKNOWN: i32 = 2;
const CONTROL: i32 = 3;
const UNUSED: i32 = 5;
const BYTE: i32 = 6;

/// The text of a padding token. No pre-tokeniser yields such a word whole, so text never becomes
/// one.
fn padding(id: usize) -> String {
    format!("<unused_{id}>")
}

/// A `tokenizer.json` and what was read out of it.
pub(crate) struct Tokens {
    json: Json,
    texts: Vec<String>,
    special: BTreeMap<String, usize>,
}

impl Tokens {
    /// Reads a `tokenizer.json` of a BPE model.
    pub(crate) fn read(bytes: &[u8]) -> Result<Tokens> {
        let json: Json = serde_json::from_slice(bytes).context("tokenizer.json")?;
        let vocabulary = json["model"]["vocab"].as_object();
        let vocabulary = vocabulary.context("tokenizer.json has no model.vocab object")?;
        let mut by_id = BTreeMap::new();
        for (text, id) in vocabulary {
            by_id.insert(id.as_u64().context("a token id is no number")? as usize, text.clone());
        }
        let mut special = BTreeMap::new();
        for token in json["added_tokens"].as_array().into_iter().flatten() {
            let text = token["content"].as_str().context("an added token has no content")?;
            let id = token["id"].as_u64().context("an added token has no id")? as usize;
            by_id.insert(id, text.to_owned());
            special.insert(text.to_owned(), id);
        }
        let len = by_id.last_key_value().map_or(0, |(id, _)| id + 1);
        let texts = (0..len).map(|id| by_id.remove(&id).unwrap_or_else(|| padding(id))).collect();
        Ok(Tokens { json, texts, special })
    }

    fn fits(&self, size: usize) -> Result<()> {
        let needed = self.texts.len();
        ensure!(needed <= size, "the tokenizer has {needed} tokens, the shape only {size}");
        Ok(())
    }

    fn special(&self, names: &[&str]) -> Option<usize> {
        names.iter().find_map(|name| self.special.get(*name).copied())
    }

    /// Begin and end of a text, and padding, under any of their usual names.
    pub(crate) fn marks(&self) -> Result<[usize; 3]> {
        let begin = ["<|startoftext|>", "<|begin_of_text|>", "<s>", "<|im_start|>"];
        let end = ["<|return|>", "<|eot_id|>", "</s>", "<|im_end|>", "<|endoftext|>"];
        let end = self.special(&end).context("the tokenizer has no known end token")?;
        let pad = self.special(&["<|endoftext|>"]).unwrap_or(end);
        Ok([self.special(&begin).unwrap_or(pad), end, pad])
    }

    /// The `tokenizer.json`, its vocabulary padded to `size`.
    pub(crate) fn padded_json(&self, size: usize) -> Result<Vec<u8>> {
        self.fits(size)?;
        let mut json = self.json.clone();
        let vocabulary = json["model"]["vocab"].as_object_mut().context("no model.vocab")?;
        for id in self.texts.len()..size {
            vocabulary.insert(padding(id), json!(id));
        }
        Ok(serde_json::to_vec(&json)?)
    }

    /// Byte-level BPE as GGUF metadata.
    pub(crate) fn byte_level(&self, size: usize, pre: &str) -> Result<Vec<(String, Value)>> {
        self.fits(size)?;
        let mut texts = self.texts.clone();
        let mut types = vec![NORMAL; texts.len()];
        for id in self.special.values() {
            types[*id] = CONTROL;
        }
        texts.extend((texts.len()..size).map(padding));
        types.resize(size, UNUSED);
        let merges = self.json["model"]["merges"].as_array().context("no model.merges")?;
        let merges: Option<Vec<String>> = merges
            .iter()
            .map(|merge| match merge {
                Json::String(both) => Some(both.clone()),
                Json::Array(pair) => Some(format!("{} {}", pair[0].as_str()?, pair[1].as_str()?)),
                _ => None,
            })
            .collect();
        let [begin, end, pad] = self.marks()?;
        Ok(named([
            ("model", "gpt2".into()),
            ("pre", pre.into()),
            ("tokens", Value::Array(Array::of_strings(&texts))),
            ("token_type", Value::Array(Array::of_numbers(&types))),
            ("merges", Value::Array(Array::of_strings(merges.context("merges are no pairs")?))),
            ("bos_token_id", Value::U32(begin as u32)),
            ("eos_token_id", Value::U32(end as u32)),
            ("padding_token_id", Value::U32(pad as u32)),
            ("add_bos_token", Value::Bool(false)),
        ]))
    }

    /// Pieces with scores and byte fallback, as SentencePiece makes them: the same pieces as the
    /// byte-level tokens that are ASCII text, each scored by its rank, so that the best pair to
    /// merge is the one that the byte-level merges take.
    pub(crate) fn sentence_pieces(&self, size: usize) -> Result<Vec<(String, Value)>> {
        let mut texts = vec!["<unk>".to_owned(), "<s>".to_owned(), "</s>".to_owned()];
        let mut types = vec![UNKNOWN, CONTROL, CONTROL];
        texts.extend((0..=255u8).map(|byte| format!("<0x{byte:02X}>")));
        types.resize(texts.len(), BYTE);
        let mut scores = vec![0.0f32; texts.len()];
        let pieces = self.texts.iter().filter(|text| !self.special.contains_key(*text));
        for (rank, text) in pieces.enumerate() {
            // A byte-level token spells a space as U+0120.
            let piece = text.replace('\u{120}', "\u{2581}");
            if piece.chars().all(|c| c.is_ascii_graphic() || c == '\u{2581}') {
                texts.push(piece);
                types.push(NORMAL);
                scores.push(-(rank as f32));
            }
        }
        let needed = texts.len();
        ensure!(needed <= size, "the vocabulary has {needed} pieces, the shape only {size}");
        texts.extend((needed..size).map(padding));
        types.resize(size, UNUSED);
        scores.resize(size, -1e6);
        Ok(named([
            ("model", "llama".into()),
            ("pre", "default".into()),
            ("tokens", Value::Array(Array::of_strings(&texts))),
            ("scores", Value::Array(Array::of_numbers(&scores))),
            ("token_type", Value::Array(Array::of_numbers(&types))),
            ("bos_token_id", Value::U32(1)),
            ("eos_token_id", Value::U32(2)),
            ("unknown_token_id", Value::U32(0)),
            ("add_bos_token", Value::Bool(true)),
        ]))
    }
}

fn named<const N: usize>(pairs: [(&str, Value); N]) -> Vec<(String, Value)> {
    pairs.into_iter().map(|(key, value)| (format!("tokenizer.ggml.{key}"), value)).collect()
}
