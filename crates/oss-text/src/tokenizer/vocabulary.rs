//! Tokenizers out of plain arrays, as GGUF metadata carries them.

use std::borrow::Cow;
use std::collections::HashSet;

use tokenizers::models::bpe::{BPE, Vocab};
use tokenizers::normalizers::{Prepend, Replace, Sequence as Normalizers};
use tokenizers::{AddedToken, NormalizerWrapper};

use super::bytes::{Scheme, Table};
use super::merges::{self, Merge};
use super::pipeline::{Added, Parts};
use super::pretokenise;
use super::{Ready, Settings};
use crate::error::{Error, Result};

/// A tokenizer as the arrays `tokenizer.ggml.*` of a GGUF file.
///
/// `tokens` gives the ids; the other arrays are empty where the file has none. Texts may be the
/// file's own, of which there are hundreds of thousands.
#[derive(Clone, Debug, Default)]
pub struct Vocabulary<'a> {
    /// `tokenizer.ggml.model`: `gpt2` (byte-level BPE) or `llama` (SentencePiece-style BPE).
    pub model: String,
    /// `tokenizer.ggml.pre`: how text is split into words; used by `gpt2` alone, where it has to be
    /// a name that says so: `default` does not.
    pub pre: String,
    /// `tokenizer.ggml.tokens`: the written form of every token.
    pub tokens: Vec<Cow<'a, str>>,
    /// `tokenizer.ggml.scores`: the larger, the earlier a token is merged; needed by `llama`
    /// when there are no merges.
    pub scores: Vec<f32>,
    /// `tokenizer.ggml.token_type`: 1 normal, 2 unknown, 3 control, 4 user-defined, 5 unused,
    /// 6 byte. Empty: all normal.
    pub types: Vec<i32>,
    /// `tokenizer.ggml.merges`: pairs of tokens with a space between, the first rule first.
    pub merges: Vec<Cow<'a, str>>,
    /// `tokenizer.ggml.bos_token_id`.
    pub bos: Option<u32>,
    /// `tokenizer.ggml.eos_token_id`.
    pub eos: Option<u32>,
    /// `tokenizer.ggml.unknown_token_id`.
    pub unknown: Option<u32>,
    /// `tokenizer.ggml.add_bos_token`; without it the family's habit decides.
    pub add_bos: Option<bool>,
    /// `tokenizer.ggml.add_space_prefix`; without it `llama` adds one.
    pub add_space_prefix: Option<bool>,
}

/// Far longer than any token of a real vocabulary; bounds the work of cutting a token in two.
const MAX_TOKEN_BYTES: usize = 4096;

const NORMAL: i32 = 1;
const UNKNOWN: i32 = 2;
const CONTROL: i32 = 3;
const USER_DEFINED: i32 = 4;
const UNUSED: i32 = 5;

impl Vocabulary<'_> {
    fn kind(&self, id: usize) -> i32 {
        self.types.get(id).copied().unwrap_or(NORMAL)
    }

    fn check(&self) -> Result<()> {
        let expected = self.tokens.len();
        let long = self.tokens.iter().enumerate().find(|(_, token)| token.len() > MAX_TOKEN_BYTES);
        if let Some((id, token)) = long {
            let (got, expected) = (token.len(), MAX_TOKEN_BYTES);
            return Err(Error::TokenLength { id, got, expected });
        }
        let arrays = [("token_type", self.types.len()), ("scores", self.scores.len())];
        for (array, got) in arrays {
            if got != 0 && got != expected {
                return Err(Error::ArrayLength { array, got, expected });
            }
        }
        for (role, id) in [("bos", self.bos), ("eos", self.eos), ("unknown", self.unknown)] {
            if let Some(got) = id.filter(|&id| id as usize >= expected) {
                return Err(Error::TokenId { role, got, expected });
            }
        }
        Ok(())
    }

    /// The tokens that the model may produce from text; the first of equal names counts.
    fn plain(&self) -> Vocab {
        let mut vocab = Vocab::with_capacity(self.tokens.len());
        for (id, token) in self.tokens.iter().enumerate() {
            if !matches!(self.kind(id), CONTROL | USER_DEFINED | UNUSED) {
                vocab.entry(token.as_ref().to_owned()).or_insert(id as u32);
            }
        }
        vocab
    }

    fn added(&self) -> Vec<Added> {
        let token = |(id, content): (usize, &Cow<'_, str>)| {
            let special = match self.kind(id) {
                CONTROL | UNKNOWN => true,
                USER_DEFINED => false,
                _ => return None,
            };
            let token = AddedToken::from(content.as_ref(), special).normalized(false);
            Some(Added::new(id as u32, token))
        };
        self.tokens.iter().enumerate().filter_map(token).collect()
    }

    pub(super) fn prepare(&self) -> Result<Ready> {
        self.check()?;
        match self.model.as_str() {
            "gpt2" => self.byte_level(),
            "llama" => self.sentence_piece(),
            got => {
                Err(Error::UnknownModel { got: got.to_owned(), expected: "gpt2, llama".to_owned() })
            }
        }
    }

    fn byte_level(&self) -> Result<Ready> {
        let rule = pretokenise::rule(&self.pre)?;
        let merges = self.merges()?;
        let builder = BPE::builder().ignore_merges(rule.whole_words);
        let parts = Parts {
            model: merges::model(builder, self.plain(), &merges)?,
            merges: merges.len(),
            normalizer: None,
            pre_tokenizer: Some(rule.build()?),
            post_processor: None,
            added: self.added(),
            aliases: Vec::new(),
        };
        let adds_bos = self.add_bos.unwrap_or(rule.adds_bos);
        self.ready(parts, Scheme::ByteLevel, adds_bos, false)
    }

    fn sentence_piece(&self) -> Result<Ready> {
        let vocab = self.plain();
        let merges = if self.merges.is_empty() {
            if self.scores.is_empty() {
                let expected = self.tokens.len();
                return Err(Error::ArrayLength { array: "scores", got: 0, expected });
            }
            self.merges_from_scores(&vocab)
        } else {
            self.merges()?
        };
        let mut builder = BPE::builder().byte_fallback(true).fuse_unk(true);
        let first_unknown = || (0..self.tokens.len()).find(|&id| self.kind(id) == UNKNOWN);
        let unknown = self.unknown.map(|id| id as usize).or_else(first_unknown);
        // The unknown token has to be one that the model may produce.
        if let Some(id) = unknown.filter(|&id| matches!(self.kind(id), NORMAL | UNKNOWN)) {
            builder = builder.unk_token(self.tokens[id].as_ref().to_owned());
        }
        let model = merges::model(builder, vocab, &merges)?;
        let space = "\u{2581}";
        let replace: NormalizerWrapper = Replace::new(" ", space)
            .map_err(|reason| Error::Build { reason: reason.to_string() })?
            .into();
        let prefix = self.add_space_prefix.unwrap_or(true);
        let mut normalizers: Vec<NormalizerWrapper> = vec![replace];
        if prefix {
            normalizers.insert(0, Prepend::new(space.to_owned()).into());
        }
        let parts = Parts {
            model,
            merges: merges.len(),
            normalizer: Some(Normalizers::new(normalizers).into()),
            pre_tokenizer: None,
            post_processor: None,
            added: self.added(),
            aliases: Vec::new(),
        };
        let adds_bos = self.add_bos.unwrap_or(true);
        self.ready(parts, Scheme::SentencePiece, adds_bos, prefix)
    }

    /// Every way to cut a token into two tokens is a merge; the token with the larger score
    /// comes first, of equal scores the smaller id, of one token the cut with the smaller ids.
    /// This is the order in the published `tokenizer.json` of Llama 2 and TinyLlama.
    fn merges_from_scores(&self, vocab: &Vocab) -> Vec<Merge<'_>> {
        let mut merges = Vec::new();
        for (id, token) in self.tokens.iter().enumerate() {
            if self.kind(id) != NORMAL || vocab.get(token.as_ref()) != Some(&(id as u32)) {
                continue;
            }
            let cuts = token.char_indices().skip(1).filter_map(|(at, _)| {
                let (left, right) = token.split_at(at);
                Some((*vocab.get(left)?, *vocab.get(right)?))
            });
            merges.extend(cuts.map(|cut| (self.scores[id], id, cut)));
        }
        merges.sort_unstable_by(|a, b| b.0.total_cmp(&a.0).then((a.1, a.2).cmp(&(b.1, b.2))));
        let text = |id: u32| self.tokens[id as usize].as_ref();
        merges.into_iter().map(|(_, _, (left, right))| (text(left), text(right))).collect()
    }

    /// The merges that the file states.
    fn merges(&self) -> Result<Vec<Merge<'_>>> {
        let lines = self.merges.iter().enumerate();
        lines.map(|(index, line)| merges::split(index, line)).collect()
    }

    fn ready(
        &self,
        parts: Parts,
        scheme: Scheme,
        adds_bos: bool,
        strips_space: bool,
    ) -> Result<Ready> {
        let raw: HashSet<u32> = parts.added.iter().map(|added| added.id).collect();
        let mut bytes = Table::default();
        for (id, token) in (0..).zip(&self.tokens) {
            match raw.contains(&id) {
                true => bytes.set(id, token.as_bytes())?,
                false => bytes.set(id, &scheme.bytes(token))?,
            }
        }
        let settings = Settings {
            scheme,
            strips_space,
            bos: self.bos,
            eos: self.eos,
            adds_bos: adds_bos && self.bos.is_some(),
        };
        Ok(Ready { parts, bytes, settings })
    }
}
