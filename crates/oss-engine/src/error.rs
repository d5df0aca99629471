//! What can go wrong between a file and an answer.

use std::path::PathBuf;
use std::sync::Arc;

/// The errors of the engine; those of the crates below say themselves what they are about.
///
/// What to do about one, [`Error::kind`] and [`Error::is_retryable`] tell; [`Error::field`] names
/// the option that is wrong. A clone shares the cause: all requests of a step that failed get the
/// same error.
///
/// ```
/// use oss_engine::{Engine, ErrorKind, Request};
///
/// # fn main() -> oss_engine::Result<()> {
/// let engine = Engine::from_bytes(oss_demo::GGUF)?;
/// let error = engine.generate(Request::text("Once").top_p(2.0)).unwrap_err();
/// assert_eq!((error.kind(), error.field()), (ErrorKind::InvalidInput, Some("top_p")));
/// assert!(!error.is_retryable());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A model's files cannot be read.
    #[error(transparent)]
    Weights(Arc<oss_weights::Error>),
    /// [`EngineOptions::progress`](crate::EngineOptions::progress) broke off.
    #[error("loading was cancelled")]
    LoadCancelled,
    /// A model cannot be run, or a step of it failed.
    #[error(transparent)]
    Model(Arc<oss_model::Error>),
    /// A chat cannot be rendered or parsed.
    #[error(transparent)]
    Text(Arc<oss_text::Error>),
    /// The cache of keys and values cannot be made, or has no page left.
    #[error(transparent)]
    Cache(Arc<oss_cache::Error>),
    /// A sampling option is out of its range, or a step's logits are no numbers.
    #[error(transparent)]
    Sampling(Arc<oss_sampler::Error>),
    /// Memory is refused, or a file that is no model's cannot be read or written.
    #[error(transparent)]
    Memory(Arc<oss_memory::Error>),
    /// Threads cannot be started.
    #[error(transparent)]
    Threads(Arc<oss_threads::Error>),
    /// The instruction set that was asked for is not here.
    #[error(transparent)]
    Isa(Arc<oss_simd::Error>),
    /// The system refused the step thread.
    #[error("the step thread could not be started: {0}")]
    Spawn(Arc<std::io::Error>),
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
        cause: Arc<oss_text::Error>,
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
    /// Options that go together only otherwise.
    #[error("`{field}` {reason}")]
    Conflict {
        /// The option's name.
        field: &'static str,
        /// What it lacks, or what it cannot be combined with.
        reason: &'static str,
    },
    /// A grammar, or the schema of a tool's arguments, cannot be held.
    #[error("unsupported {what} in `{field}`: {reason}")]
    Grammar {
        /// The part of the request that it came in: `grammar` or `tools`.
        field: &'static str,
        /// What it is.
        what: &'static str,
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
    /// The context that was asked for
    /// ([`EngineOptions::context_len`](crate::EngineOptions::context_len)) has no room among the
    /// keys and values.
    #[error(
        "`context_len` of {context_len} tokens: got {got} bytes for keys and values, expected at \
         least {expected} (`cache_bytes`)"
    )]
    Context {
        /// The tokens that were asked for.
        context_len: usize,
        /// The bytes that keys and values may take.
        got: usize,
        /// What such a context needs.
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
    #[error("the queue is full: {waiting} requests are waiting (`queue_limit` is {limit})")]
    Overloaded {
        /// Requests that wait.
        waiting: usize,
        /// The most that may: [`EngineOptions::queue_limit`](crate::EngineOptions::queue_limit).
        limit: usize,
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
    /// The request ran out of its time ([`Request::timeout`](crate::Request::timeout)) before it
    /// ended.
    #[error("the request timed out")]
    Timeout,
    /// The engine was closed before the request ended, or its step thread is over.
    #[error("the engine is closed")]
    Closed,
}

/// What an [`Error`] is about: what a program that gets one does about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The request, or an option of the engine, is at fault: tried again unchanged, it is refused
    /// again.
    InvalidInput,
    /// The queue is full.
    Overloaded,
    /// The request ran out of its time.
    Timeout,
    /// Loading was cancelled by the program itself. A request that is cancelled is no error: it has
    /// [`FinishReason::Cancelled`](crate::FinishReason).
    Cancelled,
    /// The engine was closed, or its step thread is over: load another one.
    Closed,
    /// Memory is refused, by the budget or by the system.
    OutOfMemory,
    /// A model cannot be loaded: its files, or what the engine needs besides, as threads.
    Load,
    /// The model's files were found damaged: no request will be answered.
    Damaged,
    /// A step failed, by a bug or by what it had to read.
    Internal,
}

impl Error {
    /// What it is about.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Option { .. }
            | Self::Conflict { .. }
            | Self::Unsupported { .. }
            | Self::Grammar { .. }
            | Self::Constraint { .. }
            | Self::EmptyPrompt
            | Self::PromptTooLong { .. }
            | Self::Token { .. }
            | Self::NoTokenizer { .. }
            | Self::NoChatTemplate { .. }
            | Self::ChatTemplate { .. }
            | Self::Isa(_)
            | Self::Text(_) => ErrorKind::InvalidInput,
            Self::Overloaded { .. } => ErrorKind::Overloaded,
            Self::Timeout => ErrorKind::Timeout,
            Self::LoadCancelled => ErrorKind::Cancelled,
            Self::Closed => ErrorKind::Closed,
            Self::Budget { .. } | Self::LargerThanMemory { .. } | Self::Context { .. } => {
                ErrorKind::OutOfMemory
            }
            Self::Weights(_) | Self::SideFile { .. } | Self::Tokenizer { .. } | Self::Spawn(_) => {
                ErrorKind::Load
            }
            Self::Threads(error) => match **error {
                oss_threads::Error::Threads { .. } | oss_threads::Error::Cpus { .. } => {
                    ErrorKind::InvalidInput
                }
                _ => ErrorKind::Load,
            },
            Self::NotPacked { cause, .. } => cause.kind(),
            Self::Panicked { .. } => ErrorKind::Internal,
            Self::Sampling(error) => match **error {
                oss_sampler::Error::Option { .. } => ErrorKind::InvalidInput,
                _ => ErrorKind::Internal,
            },
            Self::Memory(error) => of_memory(error),
            Self::Cache(error) => of_cache(error),
            Self::Model(error) => match &**error {
                oss_model::Error::Damaged(_) => ErrorKind::Damaged,
                oss_model::Error::Memory(error) => of_memory(error),
                oss_model::Error::Cache(error) => of_cache(error),
                oss_model::Error::NotFinite { .. }
                | oss_model::Error::Expert { .. }
                | oss_model::Error::Batch { .. } => ErrorKind::Internal,
                _ => ErrorKind::Load,
            },
        }
    }

    /// Whether the same request may be answered when it is sent again later, with a copy of it
    /// ([`Request::try_clone`](crate::Request::try_clone)): the queue was full, its time was short,
    /// its step was refused memory or an expert's bytes, or it panicked, which another request may
    /// be to blame for.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Overloaded { .. } | Self::Timeout | Self::Panicked { .. } => true,
            error => error.is_refusal() || error.is_unread(),
        }
    }

    /// Whether memory was refused to a step, so that giving some back may help.
    pub(crate) fn is_refusal(&self) -> bool {
        use oss_cache::Error::{Memory, OutOfPages};
        use oss_memory::Error::Memory as Refused;
        use oss_model::Error::{Cache, Memory as ModelMemory};
        let of_cache =
            |error: &oss_cache::Error| matches!(error, OutOfPages { .. } | Memory(Refused { .. }));
        match self {
            Self::Memory(error) => matches!(**error, Refused { .. }),
            Self::Cache(error) => of_cache(error),
            Self::Model(error) => match &**error {
                Cache(error) => of_cache(error),
                error => matches!(error, ModelMemory(Refused { .. })),
            },
            _ => false,
        }
    }

    /// Whether an expert could not be read from its file: the disk may do better next time.
    pub(crate) fn is_unread(&self) -> bool {
        matches!(self.model(), Some(oss_model::Error::Expert { .. }))
    }

    /// The option that is at fault, of the request or of the engine, where it is one.
    #[must_use]
    pub fn field(&self) -> Option<&'static str> {
        match self {
            Self::Option { field, .. }
            | Self::Conflict { field, .. }
            | Self::Grammar { field, .. } => Some(field),
            Self::Sampling(error) => match **error {
                oss_sampler::Error::Option { field, .. } => Some(field),
                _ => None,
            },
            _ => None,
        }
    }

    /// The model's error, where it is one.
    pub(crate) fn model(&self) -> Option<&oss_model::Error> {
        match self {
            Self::Model(error) => Some(error),
            _ => None,
        }
    }
}

fn of_memory(error: &oss_memory::Error) -> ErrorKind {
    match error {
        oss_memory::Error::Memory { .. } => ErrorKind::OutOfMemory,
        _ => ErrorKind::Load,
    }
}

fn of_cache(error: &oss_cache::Error) -> ErrorKind {
    use oss_cache::Error::{
        BeyondSequence, Capacity, ColdCapacity, Memory, OutOfPages, UnknownSequence,
    };
    match error {
        OutOfPages { .. } | Capacity { .. } => ErrorKind::OutOfMemory,
        ColdCapacity { .. } => ErrorKind::InvalidInput,
        UnknownSequence { .. } | BeyondSequence { .. } => ErrorKind::Internal,
        Memory(error) => of_memory(error),
        _ => ErrorKind::Load,
    }
}

/// Makes errors of the crates below errors of this one.
macro_rules! from_causes {
    ($($variant:ident($cause:ty)),+ $(,)?) => {$(
        impl From<$cause> for Error {
            fn from(error: $cause) -> Self {
                Self::$variant(Arc::new(error))
            }
        }
    )+};
}

from_causes! {
    Weights(oss_weights::Error),
    Cache(oss_cache::Error),
    Sampling(oss_sampler::Error),
    Memory(oss_memory::Error),
    Threads(oss_threads::Error),
    Isa(oss_simd::Error),
}

impl From<oss_model::Error> for Error {
    fn from(error: oss_model::Error) -> Self {
        match error {
            oss_model::Error::Cancelled => Self::LoadCancelled,
            error => Self::Model(Arc::new(error)),
        }
    }
}

impl From<oss_text::Error> for Error {
    fn from(error: oss_text::Error) -> Self {
        match error {
            oss_text::Error::Levels { field, got, expected } => {
                let got = format!("values of {got} levels in all");
                Self::Option { field, got, expected: format!("at most {expected}") }
            }
            error => Self::Text(Arc::new(error)),
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
            Error::Spawn(Arc::new(cause())),
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
