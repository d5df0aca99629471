//! Model architectures and the forward pass.
//!
//! A model has four parts: [`Config`] (its hyperparameters), [`Weights`] (packed matrices),
//! [`State`] (scratch, allocated once) and the KV cache. [`forward`] takes a [`Batch`] of rows, in
//! any mix of prompts and decoding, to hidden rows; [`head`] takes those to logits. Both are in
//! `forward.rs`, the same for every architecture: what differs is data.
//!
//! ```
//! use oss_model::{Batch, LoadOptions, Model, Row, State, forward, head};
//! use std::sync::Arc;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let container = oss_weights::Container::from_bytes("demo", oss_demo::GGUF, Vec::new())?;
//! let options = LoadOptions::new(oss_simd::Isa::detect()?);
//! let model = Model::load(Arc::new(container), options)?;
//! let team = oss_threads::Team::new(2)?;
//! let mut state = State::new(&model, 64, team.threads())?;
//! let mut cache = oss_cache::KvCache::new(model.cache_shape(), 64 << 20)?;
//! let sequence = cache.create();
//! let row = Row { sequence, position: 0, token: 1, wanted: true, draft: false };
//! let layers = 0..model.config.layers.len();
//! forward(&model, &team, &mut state, &mut cache, Batch { rows: &[row] }, layers)?;
//! let logits = head(&model, &team, &mut state, 0..1);
//! assert_eq!(logits.len(), model.config.vocabulary);
//! # Ok(())
//! # }
//! ```
//!
//! # Invariants
//! - A row's result depends on the tokens before it in its sequence and on nothing else: not on the
//!   batch, the chunk it came in, or the number of threads.
//! - Every constant comes from the file; what is not understood is an error.
//!
//! # What it does not do
//! It knows no text, no sampling and no requests.
#![forbid(unsafe_code)]

mod arch;
mod batch;
mod block;
mod catalog;
mod config;
mod config_reader;
mod content_key;
mod error;
mod forward;
mod input;
mod model;
mod plan;
mod precision;
mod rope;
mod state;
mod tiling;
mod weights;

pub use arch::describe;
pub use batch::{Batch, Row};
pub use config::{Config, FeedForward, LayerConfig, RopeConfig, RopeScaling};
pub use content_key::NUMERICS_VERSION;
pub use error::{Error, Result};
pub use forward::{forward, head};
pub use model::{LoadOptions, Model};
pub use plan::{ModelPlan, Site};
pub use precision::Precision;
pub use rope::Rope;
pub use state::{Event, Probe, State};
pub use tiling::Tiling;
pub use weights::{
    ExpertRoom, ExpertUse, InUse, Popularity, Progress, Weights, has_experts, memory_policy,
    pack_to_file, packed_bytes, packed_bytes_by_type, packed_name, site_bytes, team_options,
};
