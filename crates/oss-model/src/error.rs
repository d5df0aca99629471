//! What can go wrong between a file and a token.

use oss_cache::SequenceId;
use std::path::PathBuf;
use std::sync::Arc;

/// The errors of this crate.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A container could not be read.
    #[error(transparent)]
    Weights(#[from] oss_weights::Error),
    /// Who was told of the progress wanted no more.
    #[error("loading was cancelled")]
    Cancelled,
    /// A matrix could not be packed.
    #[error("{path}: tensor {tensor}: {cause}")]
    Packing {
        /// The model file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// What is wrong with it.
        cause: oss_quant::Error,
    },
    /// No page is left, or the cache refused otherwise.
    #[error(transparent)]
    Cache(#[from] oss_cache::Error),
    /// Memory was refused.
    #[error(transparent)]
    Memory(#[from] oss_memory::Error),
    /// The configuration lacks a number, or it is none.
    #[error("{path}: configuration field {field}: got {got}, expected {expected}")]
    Field {
        /// The model file.
        path: PathBuf,
        /// The field's name.
        field: String,
        /// What stands there.
        got: String,
        /// What could stand there.
        expected: String,
    },
    /// The model asks for something that this engine does not do.
    #[error("{path}: {what} is not supported: got {got}, expected {expected}")]
    Unsupported {
        /// The model file.
        path: PathBuf,
        /// What it asks for.
        what: &'static str,
        /// Its value.
        got: String,
        /// What would work.
        expected: String,
    },
    /// A tensor has another shape than the configuration says, or numbers that it cannot have.
    #[error("{path}: tensor {tensor}: got {got}, expected {expected}")]
    Shape {
        /// The model file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// Its shape.
        got: String,
        /// The shape that the configuration asks for.
        expected: String,
    },
    /// A tensor that no part of the model is made of: with it, answers would be others.
    #[error(
        "{path}: tensor {tensor}: got no part of a {architecture} model of {layers} layers that is \
         made of it (the first of {count} such tensors), expected one"
    )]
    LeftOver {
        /// The model file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// What the model is.
        architecture: &'static str,
        /// How many layers it has, by its configuration.
        layers: usize,
        /// How many tensors are left over.
        count: usize,
    },
    /// An expert that was needed could not be read from its file.
    #[error(
        "{}: expert {expert} of layer {layer}, {expected} bytes at {offset}: {cause}",
        path.display()
    )]
    Expert {
        /// The packed file.
        path: PathBuf,
        /// The layer.
        layer: usize,
        /// The expert's number in the layer.
        expert: usize,
        /// Where it begins in the file.
        offset: u64,
        /// Its bytes.
        expected: usize,
        /// Why not.
        cause: oss_memory::Error,
    },
    /// A file is not what was opened any more: it has another length, or a section of a packed file
    /// has other bytes than were written.
    #[error(transparent)]
    Damaged(Arc<oss_weights::Error>),
    /// The system refused a thread.
    #[error("a thread that packs or reads weights could not be started: {cause}")]
    Thread {
        /// The system's reason.
        cause: std::io::Error,
    },
    /// A row became something that is no number, so that what it left in its pages is not kept.
    #[error(
        "position {position} (token {token}): got numbers that are not finite, expected finite"
    )]
    NotFinite {
        /// The row's sequence.
        sequence: SequenceId,
        /// The row's place in it.
        position: usize,
        /// The row's token.
        token: u32,
    },
    /// A batch names a token outside the vocabulary, or positions that do not continue, or rows of
    /// one sequence stand apart.
    #[error("batch row {row}: {what}: got {got}, expected {expected}")]
    Batch {
        /// The row.
        row: usize,
        /// What is wrong.
        what: &'static str,
        /// Its value.
        got: usize,
        /// What would be right.
        expected: String,
    },
}

/// A result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;
