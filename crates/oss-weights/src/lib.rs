//! Model files: safetensors, GGUF and the packed file, read safely and without copies.
//!
//! A [`Container`] is a model's files as one list of named tensors. Headers are read and checked
//! when it is opened; contents stay mapped and untouched until a tensor's bytes are read.
//! [`gguf::Writer`] and [`safetensors::Writer`] write files of any size as streams; [`packed`] is
//! the project's own file, a table of named sections that is written in as many goes as it takes.
//!
//! ```
//! use oss_weights::{Container, Dtype, Encoded, Kind, TensorPlan, safetensors};
//! # let directory = tempfile::tempdir()?;
//! # let path = directory.path().join("model.safetensors");
//! let plan = TensorPlan { name: "norm.weight".to_string(), dtype: Dtype::U8, shape: vec![4] };
//! let mut writer = safetensors::Writer::create(&path, &[], &[plan])?;
//! writer.tensor_bytes(&[1, 2, 3, 4])?;
//! writer.finish()?;
//!
//! let container = Container::open(&path)?;
//! assert_eq!(container.kind(), Kind::Safetensors);
//! let tensor = container.tensor("norm.weight")?;
//! assert_eq!(tensor.data, Encoded::Plain(&[1, 2, 3, 4]));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Invariants
//! - A file is hostile until checked: every length, count and offset is compared with the bytes
//!   that are there before it is used, nothing is allocated by an unchecked number, and nothing
//!   a file contains causes a panic.
//! - Errors name the file, the tensor or key, what is there and what should be.
//! - Shapes are outermost first and row-major in every format (GGUF's order is reversed).
//! - What is written appears at its path whole or not at all.
//!
//! It does not know architectures: names of tensors and keys mean nothing here, except the
//! endings `_blocks` and `_scales`, which are how safetensors files spell MXFP4. It does not
//! decode elements (`oss-quant`) and never copies tensors.

#![forbid(unsafe_code)]

mod container;
mod cursor;
mod error;
mod fingerprint;
mod metadata;
mod sequence;
mod source;
mod tensor;

pub mod gguf;
pub mod packed;
pub mod safetensors;

pub use container::{Container, Kind};
pub use error::{Error, Result, shown};
pub use fingerprint::Fingerprint;
pub use metadata::{Array, Metadata, Number, Value, ValueType};
pub use oss_quant::{Dtype, Encoded};
pub use tensor::{Tensor, TensorInfo, TensorPlan};
