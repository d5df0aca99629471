//! What a plain engine answers: alone, on one thread, every prompt computed, no guesses.

use std::collections::HashMap;
use std::path::PathBuf;

use oss_engine::{
    Engine, EngineOptions, FinishReason, KvFormat, SparseAttention, Speculation, Token, Tune,
};
use oss_testing::Seeded;

use crate::kinds::{self, Kind, MOST};

/// The longest requests leave blocks out.
const SPARSE: SparseAttention = SparseAttention { first: 64, window: 32, blocks: 1 };
/// Prompts and answers together are no longer.
const CONTEXT: usize = 360;

/// What decides bits, beside the model.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Setting {
    pub(crate) kv_format: KvFormat,
    pub(crate) sparse_attention: Option<SparseAttention>,
}

impl Setting {
    /// How many there are: every format, with everything seen and without.
    pub(crate) const ALL: usize = 2 * KvFormat::ALL.len();

    /// They come in turn; five after another have every format.
    pub(crate) fn new(index: usize) -> Self {
        let kv_format = KvFormat::ALL[index % KvFormat::ALL.len()];
        Self { kv_format, sparse_attention: (index % 2 == 1).then_some(SPARSE) }
    }
}

/// The longest answer to a request, of which others are the beginning.
pub(crate) struct Answer {
    pub(crate) tokens: Vec<Token>,
    ends: bool,
}

impl Answer {
    /// Whether it ends by itself within so many tokens.
    pub(crate) fn ends_within(&self, tokens: usize) -> bool {
        self.ends && self.tokens.len() <= tokens
    }
}

/// The plain engine of a setting, its requests, and what it has answered to them.
pub(crate) struct Expected {
    engine: Engine,
    pub(crate) kinds: Vec<Kind>,
    answers: HashMap<usize, Answer>,
}

impl Expected {
    pub(crate) fn new(model: &'static [u8], setting: Setting, seed: u64) -> Self {
        let options = EngineOptions {
            threads: Some(1),
            prefix_caching: false,
            speculation: Speculation::Off,
            cache_bytes: Some(32 << 20),
            kv_format: setting.kv_format,
            sparse_attention: setting.sparse_attention,
            tune: Tune::Off,
            system_root: calm(),
            ..EngineOptions::default()
        };
        let engine = Engine::from_bytes_with(model, options).unwrap();
        let (vocabulary, text) = (engine.config().vocabulary, engine.text().tokenizer().is_ok());
        let answer = |kind: &Kind| engine.generate(kind.request(MOST)).unwrap().token_ids();
        let limits = (vocabulary, CONTEXT, text);
        let kinds = kinds::kinds(&mut Seeded::new(seed), limits, answer);
        Self { engine, kinds, answers: HashMap::new() }
    }

    /// The request of this number, and what it answers to it.
    pub(crate) fn of(&mut self, number: usize) -> (&Kind, &Answer) {
        let Self { engine, kinds, answers } = self;
        let kind = &kinds[number];
        let answer = answers.entry(number).or_insert_with(|| {
            let answer = engine.generate(kind.request(MOST)).unwrap();
            Answer {
                ends: matches!(answer.finish_reason, FinishReason::Stop),
                tokens: answer.tokens,
            }
        });
        (kind, answer)
    }

    /// Bytes of the pages of the longest request.
    pub(crate) fn context_bytes(&self) -> usize {
        self.engine.check_books().unwrap(); // the engine has started, and its numbers are there
        let pages = self.engine.metrics().pages;
        pages.iter().map(|group| group.page_bytes * (CONTEXT.div_ceil(16) + 1)).sum()
    }
}

/// A system that says nothing about its memory.
pub(crate) fn calm() -> PathBuf {
    PathBuf::from("/no/such/folder")
}
