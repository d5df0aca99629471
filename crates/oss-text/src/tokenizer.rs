//! Text to token ids and back.

mod bytes;
mod json;
mod merges;
mod pipeline;
mod pretokenise;
mod size;
mod specials;
mod vocabulary;

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use serde_json::Value;
use tokenizers::Model;

use self::bytes::{Scheme, Table};
use self::pipeline::{Added, Parts, Pipelines, assemble, run};
use self::specials::Specials;
pub use self::vocabulary::Vocabulary;
use crate::decoder::Decoder;
use crate::error::{Error, Result};

/// What to do with the text of control tokens, such as `<|end|>`, found in a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Special {
    /// It is ordinary text: for everything that a user, a tool or a document supplies. The
    /// result holds no control token.
    AsText,
    /// It becomes the control token: for text that the program itself wrote.
    Parse,
}

/// A tokenizer. Cloning is cheap: the vocabulary is shared.
#[derive(Clone)]
pub struct Tokenizer(Arc<Inner>);

struct Inner {
    pipelines: Arc<Pipelines>,
    shared: Arc<Shared>,
    settings: Settings,
}

struct Shared {
    bytes: Table,
    special: Vec<bool>,
    specials: Specials,
    /// The ids of added tokens by their names, aliases too; the others the model knows.
    names: HashMap<String, u32>,
    unknown: Option<u32>,
    /// Bytes of strings and tables, those of the pipelines' model too.
    bytes_in_memory: usize,
}

#[derive(Clone)]
struct Settings {
    scheme: Scheme,
    /// The space that encoding puts before a text is taken off again by `decode_text`.
    strips_space: bool,
    bos: Option<u32>,
    eos: Option<u32>,
    adds_bos: bool,
}

/// A tokenizer's parts before they are put together.
struct Ready {
    parts: Parts,
    bytes: Table,
    settings: Settings,
}

impl Tokenizer {
    /// A tokenizer out of the bytes of a `tokenizer.json`.
    ///
    /// The beginning-of-text token is known if the file's post-processor adds one; otherwise
    /// [`Tokenizer::with_config`] tells it.
    ///
    /// # Errors
    /// The file is not a tokenizer of the BPE family, byte-level or SentencePiece-style.
    pub fn from_json(tokenizer_json: &[u8]) -> Result<Self> {
        let mut tokenizer = Self::build(json::prepare(tokenizer_json)?)?;
        let bos = tokenizer.bos_of_post_processor();
        let inner = Arc::get_mut(&mut tokenizer.0).expect("nobody else holds it yet");
        inner.settings.bos = bos;
        inner.settings.adds_bos = bos.is_some();
        Ok(tokenizer)
    }

    /// A tokenizer out of plain arrays, as GGUF metadata carries them.
    ///
    /// # Errors
    /// The model or the pre-tokeniser is not known (the error lists those that are), arrays of
    /// different lengths, a merge of unknown tokens, an id outside the vocabulary.
    pub fn from_vocabulary(vocabulary: &Vocabulary<'_>) -> Result<Self> {
        Self::build(vocabulary.prepare()?)
    }

    /// The same tokenizer with what `tokenizer_config.json` says about the beginning and the
    /// end of text: `bos_token`, `eos_token`, `add_bos_token`.
    ///
    /// # Errors
    /// The bytes are not a JSON object.
    pub fn with_config(&self, tokenizer_config_json: &[u8]) -> Result<Self> {
        let wrong = |reason: String| Error::Json { file: "tokenizer_config.json", reason };
        let config: Value =
            serde_json::from_slice(tokenizer_config_json).map_err(|e| wrong(e.to_string()))?;
        let fields = config.as_object().ok_or_else(|| wrong("not an object".to_owned()))?;
        let id = |name: &str| {
            let token = fields.get(name)?;
            let text = token.as_str().or_else(|| token.get("content")?.as_str())?;
            self.token_id(text)
        };
        let mut settings = self.0.settings.clone();
        settings.bos = id("bos_token").or(settings.bos);
        settings.eos = id("eos_token").or(settings.eos);
        let asked = fields.get("add_bos_token").and_then(Value::as_bool);
        settings.adds_bos = asked.unwrap_or(settings.adds_bos) && settings.bos.is_some();
        let Inner { pipelines, shared, .. } = &*self.0;
        let (pipelines, shared) = (pipelines.clone(), shared.clone());
        Ok(Self(Arc::new(Inner { pipelines, shared, settings })))
    }

    fn build(ready: Ready) -> Result<Self> {
        let Ready { parts, bytes, settings } = ready;
        let mut special = vec![false; bytes.len()];
        for added in &parts.added {
            special[added.id as usize] = added.token.special;
        }
        let named = parts.added.iter().chain(&parts.aliases);
        let names: HashMap<String, u32> =
            named.map(|added| (added.token.content.clone(), added.id)).collect();
        let id = |name: &String| names.get(name).copied().or_else(|| parts.model.token_to_id(name));
        let unknown = parts.model.get_unk_token().as_ref().and_then(id);
        let controls = parts.added.iter().filter(|added| added.token.special);
        let specials = Specials::new(parts.aliases.iter().chain(controls));
        let bytes_in_memory = bytes_in_memory(&bytes, &names, &parts);
        let shared = Shared { bytes, special, specials, names, unknown, bytes_in_memory };
        let shared = Arc::new(shared);
        let pipelines = Arc::new(assemble(parts)?);
        Ok(Self(Arc::new(Inner { pipelines, shared, settings })))
    }

    fn bos_of_post_processor(&self) -> Option<u32> {
        let ids = |add| {
            let encoding = self.0.pipelines.begin.encode_fast("a", add).ok()?;
            Some(encoding.get_ids().to_vec())
        };
        let (plain, added) = (ids(false)?, ids(true)?);
        let first = *added.first()?;
        (added.len() > plain.len() && self.is_special(first)).then_some(first)
    }

    /// The ids of a text. No beginning-of-text token is added: see [`Tokenizer::adds_bos`].
    pub fn encode(&self, text: &str, special: Special) -> Vec<u32> {
        match special {
            Special::AsText => self.encode_stretch(text, 0),
            Special::Parse => self.encode_guarded(text, &[]),
        }
    }

    /// The ids of a text with control tokens, except that no control token contains one of the
    /// bytes at the offsets `protected` (sorted): those are untrusted.
    ///
    /// Control tokens are found first, leftmost and longest; the stretches between them are
    /// encoded as text, each by itself, which is what a tokenizer does with its control tokens.
    pub(crate) fn encode_guarded(&self, text: &str, protected: &[usize]) -> Vec<u32> {
        let mut ids = Vec::new();
        let mut at = 0;
        for found in self.0.shared.specials.find(text, protected) {
            ids.extend(self.encode_stretch(&text[at..found.range.start], at));
            ids.push(found.id);
            at = found.range.end;
        }
        ids.extend(self.encode_stretch(&text[at..], at));
        ids
    }

    /// The ids of text without control tokens that stands at `offset` of a longer one.
    fn encode_stretch(&self, text: &str, offset: usize) -> Vec<u32> {
        let Pipelines { begin, rest } = &*self.0.pipelines;
        let ids = run(if offset == 0 { begin } else { rest }, text);
        if ids.iter().any(|&id| self.is_control(id)) { self.spell_out(&ids) } else { ids }
    }

    /// A file's merges may build a control token's text; then its characters are encoded one by
    /// one.
    fn spell_out(&self, ids: &[u32]) -> Vec<u32> {
        let model = self.0.pipelines.begin.get_model();
        let spell = |&id: &u32| {
            if !self.is_control(id) {
                return vec![id];
            }
            let text = String::from_utf8_lossy(self.token_bytes(id).unwrap_or_default());
            let written = self.0.settings.scheme.written(&text);
            let parts = written.chars().flat_map(|character| {
                let tokens = model.tokenize(character.encode_utf8(&mut [0; 4]));
                tokens.unwrap_or_default().into_iter().map(|token| token.id)
            });
            parts.filter(|&id| !self.is_control(id)).collect()
        };
        ids.iter().flat_map(spell).collect()
    }

    fn is_control(&self, id: u32) -> bool {
        self.is_special(id) && Some(id) != self.0.shared.unknown
    }

    /// The text of ids, control tokens included as their names. Bytes that are not UTF-8 become
    /// U+FFFD, ids outside the vocabulary nothing.
    pub fn decode(&self, ids: &[u32]) -> String {
        self.decode_with(ids, Decoder::new(self))
    }

    /// The text of ids for people to read: without control tokens, and without the space that
    /// SentencePiece-style encoding puts before a text.
    pub fn decode_text(&self, ids: &[u32]) -> String {
        let mut text = self.decode_with(ids, Decoder::without_special(self));
        if self.0.settings.strips_space && text.starts_with(' ') {
            text.remove(0);
        }
        text
    }

    fn decode_with(&self, ids: &[u32], mut decoder: Decoder) -> String {
        let mut text: String = ids.iter().map(|&id| decoder.push(id)).collect();
        text.push_str(&decoder.finish());
        text
    }

    /// The bytes that a token stands for; a control token's are its name's. `None`: no token has
    /// this id.
    pub fn token_bytes(&self, id: u32) -> Option<&[u8]> {
        self.0.shared.bytes.get(id)
    }

    /// One more than the largest id.
    pub fn vocabulary_len(&self) -> usize {
        self.0.shared.bytes.len()
    }

    /// Bytes that its strings and tables take in memory, about, and without the words that each
    /// thread which encodes remembers.
    pub fn bytes_in_memory(&self) -> usize {
        self.0.shared.bytes_in_memory
    }

    /// The id of a token by its written form: a control token's name, or an ordinary token as
    /// the vocabulary writes it (`Ġthe`, `▁the`).
    pub fn token_id(&self, token: &str) -> Option<u32> {
        let named = self.0.shared.names.get(token).copied();
        named.or_else(|| self.0.pipelines.begin.get_model().token_to_id(token))
    }

    /// Whether the id is a control token.
    pub fn is_special(&self, id: u32) -> bool {
        self.0.shared.special.get(id as usize).copied().unwrap_or(false)
    }

    /// The names of all control tokens.
    pub fn special_tokens(&self) -> impl Iterator<Item = &str> {
        self.0.shared.specials.texts()
    }

    /// The beginning-of-text token.
    pub fn bos(&self) -> Option<u32> {
        self.0.settings.bos
    }

    /// The end-of-text token that the tokenizer's own files name.
    pub fn eos(&self) -> Option<u32> {
        self.0.settings.eos
    }

    /// Whether a plain prompt should begin with [`Tokenizer::bos`]; chat templates write it
    /// themselves.
    pub fn adds_bos(&self) -> bool {
        self.0.settings.adds_bos
    }
}

/// What a tokenizer of these parts takes in memory.
fn bytes_in_memory(table: &Table, names: &HashMap<String, u32>, parts: &Parts) -> usize {
    // The model has its tokens by name and by id. Few bytes are longer as they are written.
    let tokens = 2 * table.lengths().map(size::string).sum::<usize>()
        + size::map::<String, u32>(table.len())
        + size::map::<u32, String>(table.len());
    let merges = size::map::<(u32, u32), (u32, u32)>(parts.merges);
    // Both pipelines know the added ones by name and by id, and as special; two lists do, too.
    let added = parts.added.iter().map(|added| {
        let entry = size_of::<Added>() + size::string(added.token.content.len());
        8 * entry
    });
    let names = size::map::<String, u32>(names.len());
    tokens + merges + names + table.bytes() + added.sum::<usize>()
}

impl fmt::Debug for Tokenizer {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Tokenizer")
            .field("vocabulary_len", &self.vocabulary_len())
            .field("scheme", &self.0.settings.scheme)
            .finish_non_exhaustive()
    }
}
