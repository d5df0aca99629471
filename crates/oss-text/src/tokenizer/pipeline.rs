//! The parts of a tokenizer put together with the `tokenizers` crate.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokenizers::models::bpe::BPE;
use tokenizers::pre_tokenizers::metaspace::PrependScheme;
use tokenizers::{
    AddedToken, DecoderWrapper, Model, NormalizerWrapper, PostProcessorWrapper,
    PreTokenizerWrapper, Token, TokenizerImpl,
};

use crate::error::{Error, Result};

/// The chain normaliser → pre-tokeniser → model of the `tokenizers` crate over a shared model.
pub(super) type Pipeline = TokenizerImpl<
    SharedModel,
    NormalizerWrapper,
    PreTokenizerWrapper,
    PostProcessorWrapper,
    DecoderWrapper,
>;

/// A model that several pipelines share, with names for ids that the model itself must not know.
///
/// Control tokens stay out of the model's own vocabulary: then no text can become one by merging
/// or by being a whole word of the vocabulary.
#[derive(Clone)]
pub(super) struct SharedModel(Arc<Named>);

struct Named {
    model: BPE,
    names: HashMap<String, u32>,
}

impl SharedModel {
    fn new(model: BPE, names: HashMap<String, u32>) -> Self {
        Self(Arc::new(Named { model, names }))
    }
}

impl Model for SharedModel {
    type Trainer = <BPE as Model>::Trainer;

    fn tokenize(&self, sequence: &str) -> tokenizers::Result<Vec<Token>> {
        self.0.model.tokenize(sequence)
    }

    fn token_to_id(&self, token: &str) -> Option<u32> {
        let named = || self.0.names.get(token).copied();
        self.0.model.token_to_id(token).or_else(named)
    }

    fn id_to_token(&self, id: u32) -> Option<String> {
        self.0.model.id_to_token(id)
    }

    fn get_vocab(&self) -> HashMap<String, u32> {
        self.0.model.get_vocab()
    }

    fn get_vocab_size(&self) -> usize {
        self.0.model.get_vocab_size()
    }

    fn save(&self, folder: &Path, prefix: Option<&str>) -> tokenizers::Result<Vec<PathBuf>> {
        self.0.model.save(folder, prefix)
    }

    fn get_trainer(&self) -> Self::Trainer {
        self.0.model.get_trainer()
    }
}

/// A token that is matched in the text before the model sees it, with its id.
#[derive(Clone, Debug)]
pub(super) struct Added {
    pub(super) id: u32,
    pub(super) token: AddedToken,
}

impl Added {
    /// A token that looks like the mark of a role or a turn, `<|user|>` or `<｜User｜>`, is a
    /// control token even where its file says that it is not: content must not forge it.
    pub(super) fn new(id: u32, mut token: AddedToken) -> Self {
        let between = |open, close| {
            let name = token.content.strip_prefix(open)?.strip_suffix(close)?;
            (!name.is_empty()).then_some(())
        };
        let mark = between("<|", "|>").or_else(|| between("<\u{ff5c}", "\u{ff5c}>"));
        token.special |= mark.is_some();
        Self { id, token }
    }
}

/// What the two sources of tokenizers (JSON, plain arrays) boil down to.
pub(super) struct Parts {
    pub(super) model: BPE,
    /// How many pairs of tokens the model merges.
    pub(super) merges: usize,
    pub(super) normalizer: Option<NormalizerWrapper>,
    pub(super) pre_tokenizer: Option<PreTokenizerWrapper>,
    pub(super) post_processor: Option<PostProcessorWrapper>,
    pub(super) added: Vec<Added>,
    /// Second names of control tokens.
    pub(super) aliases: Vec<Added>,
}

/// The two pipelines of a tokenizer; to both, control tokens are ordinary text.
pub(super) struct Pipelines {
    /// For what begins a text.
    pub(super) begin: Pipeline,
    /// For what follows a control token: some tokenizers put a space before the first word alone.
    pub(super) rest: Pipeline,
}

/// Builds both pipelines; the vocabulary is held once.
pub(super) fn assemble(parts: Parts) -> Result<Pipelines> {
    let build = |reason: Box<dyn std::error::Error + Send + Sync>| Error::Build {
        reason: reason.to_string(),
    };
    let names = parts.added.iter().map(|added| (added.token.content.clone(), added.id)).collect();
    let mut begin = Pipeline::new(SharedModel::new(parts.model, names));
    begin.with_normalizer(parts.normalizer).map_err(build)?;
    begin.with_pre_tokenizer(parts.pre_tokenizer);
    begin.with_post_processor(parts.post_processor);
    begin.add_tokens(parts.added.into_iter().map(|added| added.token)).map_err(build)?;
    begin.set_encode_special_tokens(true);
    let mut rest = begin.clone();
    let mut pre_tokenizer = begin.get_pre_tokenizer().cloned();
    pre_tokenizer.iter_mut().for_each(drop_first_space);
    rest.with_pre_tokenizer(pre_tokenizer);
    // Both ways are tried once here, so that a model that cannot encode is an error of loading.
    for pipeline in [&begin, &rest] {
        pipeline.encode_fast("try: \u{2581} \u{1F680}\n0", false).map_err(build)?;
    }
    Ok(Pipelines { begin, rest })
}

/// Leaves out the space before a document's first word: by itself, a stretch of one would count as
/// the first.
fn drop_first_space(pre_tokenizer: &mut PreTokenizerWrapper) {
    match pre_tokenizer {
        PreTokenizerWrapper::Metaspace(space)
            if space.get_prepend_scheme() == PrependScheme::First =>
        {
            space.set_prepend_scheme(PrependScheme::Never);
        }
        PreTokenizerWrapper::Sequence(parts) => {
            parts.as_mut().iter_mut().for_each(drop_first_space);
        }
        _ => {}
    }
}

/// Runs a pipeline without adding a beginning-of-text token.
pub(super) fn run(pipeline: &Pipeline, text: &str) -> Vec<u32> {
    // The only failure of an encoding is an unknown token outside the vocabulary, and
    // `assemble` has tried an unknown character.
    let encoding = pipeline.encode_fast(text, false).expect("the pipeline was tried when built");
    encoding.get_ids().to_vec()
}
