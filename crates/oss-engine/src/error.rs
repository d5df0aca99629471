//! What can go wrong between a file and an answer.

use std::path::PathBuf;

/// The errors of the engine; those of the crates below say themselves what they are about.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A model's files cannot be read.
    #[error(transparent)]
    Weights(#[from] oss_weights::Error),
    /// A model cannot be run, or a step of it failed.
    #[error(transparent)]
    Model(#[from] oss_model::Error),
    /// A chat cannot be rendered or parsed.
    #[error(transparent)]
    Text(oss_text::Error),
    /// The cache of keys and values cannot be made, or has no page left.
    #[error(transparent)]
    Cache(#[from] oss_cache::Error),
    /// A sampling option is out of its range, or a step's logits are no numbers.
    #[error(transparent)]
    Sampling(#[from] oss_sampler::Error),
    /// Memory is refused, or a file that is no model's cannot be read or written.
    #[error(transparent)]
    Memory(#[from] oss_memory::Error),
    /// Threads cannot be started.
    #[error(transparent)]
    Threads(#[from] oss_threads::Error),
    /// The instruction set that was asked for is not here.
    #[error(transparent)]
    Isa(#[from] oss_simd::Error),
    /// The system refused the step thread.
    #[error("the step thread could not be started: {0}")]
    Spawn(std::io::Error),
    /// A file beside the model, or what the model's own metadata says of its text, cannot be
    /// understood.
    #[error("{path}: {file}: {reason}")]
    SideFile {
        /// The model.
        path: PathBuf,
        /// The file beside it.
        file: &'static str,
        /// What is wrong.
        reason: String,
    },
    /// What the model's files say of its tokenizer cannot be understood.
    #[error("{path}: {cause}")]
    Tokenizer {
        /// The model.
        path: PathBuf,
        /// What is wrong.
        cause: oss_text::Error,
    },
    /// The model has no tokenizer, so that it takes and gives token ids alone.
    #[error("{path}: got no tokenizer, expected {expected}")]
    NoTokenizer {
        /// The model.
        path: PathBuf,
        /// Where one could have been.
        expected: &'static str,
    },
    /// The model has no chat template.
    #[error("{path}: got no chat template, expected {expected}")]
    NoChatTemplate {
        /// The model.
        path: PathBuf,
        /// Where one could have been.
        expected: &'static str,
    },
    /// The chat template cannot be used.
    #[error("{path}: the chat template is not usable: {reason}")]
    ChatTemplate {
        /// The model.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// An option of the engine or a request is out of its range.
    #[error("option {field}: got {got}, expected {expected}")]
    Option {
        /// The option's name.
        field: &'static str,
        /// Its value.
        got: String,
        /// What is allowed.
        expected: String,
    },
    /// The request asks for something that this model or engine does not do.
    #[error("{what} is not supported: got {got}, expected {expected}")]
    Unsupported {
        /// What it asks for.
        what: &'static str,
        /// Its value.
        got: String,
        /// What would work.
        expected: String,
    },
    /// A grammar, or the schema of a tool's arguments, cannot be held.
    #[error("{field}: got {got} that cannot be held, expected one that can: {reason}")]
    Grammar {
        /// The part of the request that it came in: `grammar` or `tools`.
        field: &'static str,
        /// What it is.
        got: &'static str,
        /// What is wrong with it.
        reason: String,
    },
    /// A prompt of no tokens.
    #[error("prompt: got no tokens, expected at least 1")]
    EmptyPrompt,
    /// A prompt that leaves no room for an answer, or, where none is asked for, is longer than the
    /// context.
    #[error("prompt: got {got} tokens, expected at most {expected}")]
    PromptTooLong {
        /// Tokens of the prompt.
        got: usize,
        /// The most that fit.
        expected: usize,
    },
    /// A token that the model does not know.
    #[error("token {index} of the prompt: got {got}, expected an id below {expected}")]
    Token {
        /// Its place in the prompt.
        index: usize,
        /// The id.
        got: u32,
        /// The size of the vocabulary.
        expected: usize,
    },
    /// The budget does not hold what the engine needs.
    #[error("memory budget (`max_memory`): got {got} bytes, expected at least {expected} ({what})")]
    Budget {
        /// What does not fit.
        what: &'static str,
        /// The budget.
        got: usize,
        /// What is needed.
        expected: usize,
    },
    /// The model is larger than the budget, its experts can stay in a packed file alone, and there
    /// is no folder to pack it to.
    #[error(
        "{}: got a memory budget (`max_memory`) of {got} bytes, expected at least {expected}, or a \
         folder to pack it to: `pack_directory`, or XDG_CACHE_HOME or HOME in the environment",
        path.display()
    )]
    LargerThanMemory {
        /// The model.
        path: PathBuf,
        /// The budget.
        got: usize,
        /// What the packed weights and the caches that were asked for take.
        expected: usize,
    },
    /// The model could not be packed to a file.
    #[error(
        "{}: could not be packed to {} (`pack_directory` names another folder): {cause}",
        path.display(),
        directory.display()
    )]
    NotPacked {
        /// The model.
        path: PathBuf,
        /// The folder of packed files.
        directory: PathBuf,
        /// Why not.
        cause: Box<Error>,
    },
    /// The queue is full: try again later, with a copy of the request
    /// ([`Request::try_clone`](crate::Request::try_clone)), as the refused one is gone.
    #[error("overloaded: got {got} queued requests, expected at most {expected}")]
    Overloaded {
        /// Requests that wait.
        got: usize,
        /// The limit.
        expected: usize,
    },
    /// A constraint failed.
    #[error("the constraint failed: {reason}")]
    Constraint {
        /// Its own words.
        reason: String,
    },
    /// A step panicked: a bug. Its requests failed, the engine goes on.
    #[error("a step panicked: {message}")]
    Panicked {
        /// The panic's message.
        message: String,
    },
    /// The request ran out of its time before it ended.
    #[error("the request's deadline passed")]
    Expired,
    /// An error that several requests of one step share; [`Error::root`] is the error itself.
    #[error(transparent)]
    Shared(std::sync::Arc<Error>),
    /// The engine was closed before the request ended, or its step thread is over.
    #[error("the engine is closed")]
    Closed,
}

impl Error {
    /// The error itself, where it is one that several requests share.
    #[must_use]
    pub fn root(&self) -> &Error {
        match self {
            Self::Shared(error) => error.root(),
            error => error,
        }
    }

    /// Whether the request itself is at fault: sent again unchanged, it is refused again. Meant for
    /// what [`crate::Engine::submit`] returns.
    #[must_use]
    pub fn is_about_request(&self) -> bool {
        matches!(
            self.root(),
            Self::Option { .. }
                | Self::Unsupported { .. }
                | Self::Grammar { .. }
                | Self::Constraint { .. }
                | Self::EmptyPrompt
                | Self::PromptTooLong { .. }
                | Self::Token { .. }
                | Self::NoTokenizer { .. }
                | Self::NoChatTemplate { .. }
                | Self::ChatTemplate { .. }
                | Self::Text(_)
                | Self::Sampling(oss_sampler::Error::Option { .. })
        )
    }

    /// The part of the request that is at fault, where it is one.
    #[must_use]
    pub fn field(&self) -> Option<&'static str> {
        match self.root() {
            Self::Option { field, .. }
            | Self::Grammar { field, .. }
            | Self::Sampling(oss_sampler::Error::Option { field, .. }) => Some(field),
            _ => None,
        }
    }

    /// The error itself where nobody else holds it.
    pub(crate) fn from_shared(error: std::sync::Arc<Error>) -> Error {
        std::sync::Arc::try_unwrap(error).unwrap_or_else(Error::Shared)
    }
}

impl From<oss_text::Error> for Error {
    fn from(error: oss_text::Error) -> Self {
        match error {
            oss_text::Error::Levels { field, got, expected } => {
                let got = format!("values of {got} levels in all");
                Self::Option { field, got, expected: format!("at most {expected}") }
            }
            error => Self::Text(error),
        }
    }
}

/// A result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

#[cfg(test)]
mod tests {
    use super::*;
    use std::io;

    #[test]
    fn what_is_too_deep_is_told_with_the_part_of_the_request() {
        let (field, got, expected) = ("tools", 5, 4);
        let error = Error::from(oss_text::Error::Levels { field, got, expected });
        let said = "option tools: got values of 5 levels in all, expected at most 4";
        assert_eq!((error.field(), error.to_string().as_str()), (Some("tools"), said));
    }

    #[test]
    fn a_cause_is_said_once_by_the_error_alone_and_with_its_sources() {
        let path = || PathBuf::from("file");
        let cause = || io::Error::other("because");
        let file = || oss_memory::Error::File { action: "read", path: path(), cause: cause() };
        let rename = oss_memory::Error::Rename { from: path(), to: path(), cause: cause() };
        let memory = oss_memory::Error::Memory { action: "map", bytes: 1, cause: cause() };
        let place = oss_memory::Error::Place { bytes: 1, nodes: vec![0], cause: cause() };
        let (layer, expert, offset, expected) = (0, 1, 2, 3);
        let wrong = oss_quant::Error::UnknownName { got: "because".to_owned() };
        let errors: [Error; 12] = [
            Error::Spawn(cause()),
            Error::NotPacked { path: path(), directory: path(), cause: Box::new(file().into()) },
            file().into(),
            rename.into(),
            memory.into(),
            place.into(),
            oss_threads::Error::Spawn { worker: 1, cause: cause() }.into(),
            oss_threads::Error::Pin { worker: 1, cpu: 2, cause: cause() }.into(),
            oss_cache::Error::Thread { cause: cause() }.into(),
            oss_model::Error::Thread { cause: cause() }.into(),
            oss_model::Error::Packing { path: path(), tensor: "it".to_owned(), cause: wrong }
                .into(),
            oss_model::Error::Expert {
                path: path(),
                layer,
                expert,
                offset,
                expected,
                cause: file(),
            }
            .into(),
        ];
        for error in errors {
            let sources =
                std::iter::successors(std::error::Error::source(&error), |source| source.source());
            let chain = sources.fold(error.to_string(), |text, source| format!("{text}: {source}"));
            for said in [error.to_string(), chain] {
                assert_eq!(said.matches("because").count(), 1, "{said}");
            }
        }
    }
}
