//! What model files and answers hold: for tools that show it.
//!
//! [`describe`] reads a model's configuration without its weights; a
//! [`Container`](crate::Container) has its metadata and tensors.
//!
//! ```
//! use oss_engine::Container;
//! use oss_engine::inspect::describe;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let container = Container::from_bytes("the demo model", oss_demo::GGUF, Vec::new())?;
//! let (config, _) = describe(&container)?;
//! assert_eq!(config.context_len, 131_072);
//! # Ok(())
//! # }
//! ```

pub use oss_model::{
    FeedForward, LayerConfig, ModelPlan, RopeConfig, RopeScaling, Site, describe, packed_bytes,
    packed_bytes_by_type,
};
pub use oss_text::harmony::{Content, Message as HarmonyMessage};
pub use oss_weights::packed::{Reader as PackedReader, Section as PackedSection};
pub use oss_weights::{Kind, Metadata, TensorInfo, Value as MetadataValue, shown};
