//! Runs gpt-oss and Llama models on CPUs: one handle, any number of requests.
//!
//! [`Engine::load`] opens a packed file, a GGUF file, or a safetensors file or folder.
//! [`Engine::generate`] answers one request; [`Engine::submit`] hands one over and returns its
//! [`Stream`] of [`Event`]s; both block the calling thread. All requests of an engine run together
//! on one step thread: each step of the model computes the next token of every answer, and a chunk
//! of the prompts that wait or, beside answers, some of its layers.
//!
//! ```
//! use oss_engine::{ChatRequest, Engine, Event, Message, Request};
//!
//! # fn main() -> oss_engine::Result<()> {
//! let engine = Engine::from_bytes(oss_demo::GGUF)?;
//!
//! let story = engine.generate(Request::text("Once upon a time").max_tokens(40).greedy())?;
//! assert!(story.text.starts_with(", there was a little"));
//!
//! let chat = ChatRequest::new(vec![Message::user("What is 17 + 25?")]);
//! let mut answer = String::new();
//! for event in engine.submit(Request::chat(chat).greedy())? {
//!     // What fails after it was submitted is an error here.
//!     if let Event::Text(text) = event? {
//!         answer.push_str(&text);
//!     }
//! }
//! assert_eq!(answer, "17 + 25 = 42");
//! # Ok(())
//! # }
//! ```
//!
//! # Overview
//! - [`Request`] says what to continue ([`Prompt`], [`ChatRequest`]), how to draw ([`Sampling`]),
//!   when to stop, and what may come ([`Grammar`], [`Constraint`]).
//! - [`Stream`] is an iterator, [`AsyncStream`] the same for async code; dropping one cancels its
//!   request, and so does a [`CancelHandle`], from any thread.
//! - [`Session`] keeps keys and values between the turns of a conversation.
//! - An [`Error`] says what to do about it by its [`ErrorKind`]; [`errors`] has the causes.
//! - Keys and values of earlier requests are found again: in memory, compressed
//!   ([`EngineOptions::warm_bytes`]) or in a file that outlives the process ([`ColdTier`]).
//! - A mixture of experts may be larger than [`EngineOptions::max_memory`]: most experts then stay
//!   in its packed file.
//! - [`EngineOptions`] are the choices made once (structs of options are written with
//!   `..Default::default()`, or by methods); [`Tuning`] reports what was measured of the machine
//!   for those left open, and the reasons for their values; [`Metrics`] report what happened.
//! - [`pack`] writes packed files, [`inspect`] shows what model files and answers hold.
//! - [`quantise`] finds how few bits a model's weights can have within a limit of loss, by
//!   measuring it.
//! - [`Text`] is a model's tokenizer and chat format, without its weights.
//!
//! # Invariants
//! - **The same request with the same seed gives the same tokens**: alone or among others, in a
//!   session or not, cold or from kept pages, on any number of threads, whatever the size of the
//!   chunks, with [`Speculation`] or without.
//! - Names of control tokens in a text from outside never become control tokens.
//! - A consumer that is slow, or gone, delays no other; a failed request fails alone. A step
//!   that is refused memory, or an expert's bytes, twice, or that panics, fails only the requests
//!   that were in it; of one that panicked nothing is found again. For that, panics have to unwind:
//!   with `panic = "abort"` in its profile a program ends with the first one.
//! - No async runtime is started and no global state is set.
//!
//! # What it does not do
//! It speaks no HTTP and prints nothing. It computes on CPUs alone, never on a GPU; it has no
//! embeddings, no LoRA adapters, no images or other input than text and tokens, no draft models
//! (guesses come from the text so far), and no architectures besides gpt-oss and Llama.
#![forbid(unsafe_code)]

mod background;
mod budget;
mod bytes;
mod chat;
mod constraint;
mod duration;
mod engine;
mod error;
mod event;
mod fault;
mod flags;
mod grammar;
pub mod inspect;
mod metrics;
mod options;
mod output;
pub mod pack;
mod packing;
mod popularity;
mod prepare;
pub mod quantise;
mod request;
mod sampling;
mod session;
mod step;
mod stop;
mod stream;
mod text_side;
mod tiers;
pub mod tuning;

pub use bytes::{ParseBytesError, parse_bytes};
pub use chat::harmony::BETWEEN_MESSAGES;
pub use chat::{ChatRequest, ToolChoice};
pub use constraint::Constraint;
pub use duration::{ParseDurationError, parse_duration};
pub use engine::Engine;
pub use error::{Error, ErrorKind, Result};
pub use event::{Completion, End, Event, FinishReason, Timing, Token, Usage};
#[cfg(feature = "fault-injection")]
pub use fault::Fault;
#[doc(hidden)]
pub use fault::Injected;
pub use flags::with_flags;
pub use grammar::Grammar;
pub use metrics::{Histogram, MemoryUse, Metrics, PageUse, TierUse};
pub use options::{EngineOptions, LoadProgress, Speculation, Tune};
pub use request::{Prompt, Request};
pub use sampling::Sampling;
pub use session::Session;
pub use stream::{AsyncStream, CancelHandle, Stream};
pub use text_side::Text;
pub use tiers::ColdTier;
pub use tuning::Tuning;

pub use oss_cache::{ColdStats, EvictionPolicy, Stats as CacheStats};
pub use oss_kernels::attention::{ParseSparseAttentionError, SparseAttention};
pub use oss_kernels::{Activation, ParseActivationError};
pub use oss_memory::Pages;
pub use oss_memory::placement::Placement;
pub use oss_model::{Config as ModelConfig, ExpertUse};
pub use oss_quant::Dtype;
pub use oss_quant::kv::{KvFormat, PAGE_TOKENS, ParseKvFormatError};
pub use oss_sampler::{Dry, Mask, Options as SamplerOptions, Report};
pub use oss_simd::Isa;
pub use oss_text::chat::{Function, FunctionCall, Message, Role, Tool, ToolCall};
pub use oss_text::harmony::{ReasoningEffort, ResponseFormat};
pub use oss_text::{Decoder, Special, Tokenizer};
pub use oss_threads::{Team, TeamOptions};
pub use oss_weights::Container;

/// The date, as [`ChatRequest::date`] has it.
///
/// ```
/// use oss_engine::date::strftime;
/// assert_eq!(strftime("%F", 1_751_113_800), "2025-06-28");
/// ```
pub mod date {
    pub use oss_text::chat::{now, strftime};
}

/// The errors of the layers below, which an [`Error`] may hold.
pub mod errors {
    pub use oss_cache::Error as CacheError;
    pub use oss_memory::Error as MemoryError;
    pub use oss_model::Error as ModelError;
    pub use oss_quant::Error as QuantError;
    pub use oss_sampler::Error as SamplingError;
    pub use oss_simd::Error as IsaError;
    pub use oss_text::Error as TextError;
    pub use oss_threads::Error as ThreadsError;
    pub use oss_weights::Error as WeightsError;
}
