//! An OpenAI-compatible HTTP server over [`oss_engine`].
//!
//! A [`Server`] listens from its first moment and says 503 until it has an engine; from then on it
//! turns requests into the engine's, and the engine's events into answers, whole or as server-sent
//! events. The engine has a thread of its own and its streams are asynchronous, so that a request
//! takes no thread here. The binary `oss-server` is this library with flags and signals.
//!
//! ```
//! use oss_engine::Engine;
//! use oss_server::{Phase, Server, ServerOptions};
//! use std::time::Duration;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
//! runtime.block_on(async {
//!     let address = "127.0.0.1:0".parse()?;
//!     let drain_settle = Duration::ZERO;
//!     let options = ServerOptions { address, drain_settle, ..ServerOptions::default() };
//!     let server = Server::bind(options).await?;
//!     println!("http://{}/v1/chat/completions", server.address());
//!
//!     let handle = server.handle();
//!     let running = tokio::spawn(server.run());
//!     assert_eq!(handle.phase(), Phase::Loading);
//!     handle.ready(Engine::from_bytes(oss_demo::GGUF)?);
//!     assert_eq!(handle.phase(), Phase::Ready);
//!
//!     handle.drain();
//!     running.await??;
//!     Ok(())
//! })
//! # }
//! ```
//!
//! # Overview
//! - `read` turns the JSON of requests into the engine's, field by field: a `Call` for each API.
//!   `write` turns its events into JSON: a `Wire` for each, whose parts are a stream's, and whose
//!   whole is their sum.
//! - `backlog` holds bodies that wait to be read; `answers` are the running choices of one request,
//!   which `sse` sends as they come and `whole` at their end.
//! - `routes` says which path does what; `routes/answer.rs` is the way from a request to an answer.
//! - `server` accepts connections, watches the engine and goes through the [`Phase`]s.
//! - `metrics` is the page that Prometheus reads.
//!
//! # Invariants
//! - The answer to a request is what the library gives for the same request and seed.
//! - What the engine does not do is refused with the name of the field, never left out silently;
//!   unknown fields are ignored, as in vLLM.
//! - Whether a request is taken is decided before the first byte: a full queue is 429, and 503 is
//!   for servers that load, drain or have failed alone.
//! - A client that goes takes its request with it, in the queue or running.
//! - Names of control tokens in what a client sends are text, unless it says `parse_special`.
//!
//! # What it does not do
//! No TLS, no HTTP/2, no other model than the one it was started with, no responses kept for later,
//! no images or sounds, no embeddings.
#![forbid(unsafe_code)]

mod answers;
mod app;
mod backlog;
mod clock;
mod error;
mod ids;
mod metrics;
mod options;
mod phase;
mod read;
mod refusal;
mod routes;
mod server;
mod sse;
mod whole;
mod write;

pub use error::{Error, Result};
pub use options::ServerOptions;
pub use phase::Phase;
pub use server::{Handle, Server};
