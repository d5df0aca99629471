//! Packed files: weights as the kernels want them, mapped at load.
//!
//! ```
//! use oss_engine::pack::{Precision, pack_to_file};
//! use oss_engine::{Container, Engine, Request};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let folder = tempfile::tempdir()?;
//! let container = Container::from_bytes("the demo model", oss_demo::GGUF, Vec::new())?;
//! let path = folder.path().join("demo.oss");
//! // Each tensor as its file has it; a plan of fewer bits is what `quantise` finds.
//! pack_to_file(&container, &Precision::default(), &path, None)?;
//!
//! let answer = Engine::load(&path)?.generate(Request::text("Once").max_tokens(8).greedy())?;
//! assert!(!answer.text.is_empty());
//! # Ok(())
//! # }
//! ```

pub use oss_model::{Precision, Progress, pack_to_file};
