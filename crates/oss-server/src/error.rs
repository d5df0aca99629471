//! What can go wrong with a server as a whole; what goes wrong with one request is a [`Refusal`].
//!
//! [`Refusal`]: crate::refusal::Refusal

use std::net::SocketAddr;

/// The errors of a server.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An option of the server is out of its range.
    #[error("option {field}: got {got}, expected {expected}")]
    Option {
        /// The option's name.
        field: &'static str,
        /// Its value; of a key, what is wrong with it.
        got: String,
        /// What is allowed.
        expected: String,
    },
    /// The system does not let the server listen there.
    #[error("cannot listen on {address}: {cause}")]
    Bind {
        /// The address.
        address: SocketAddr,
        /// Why.
        cause: std::io::Error,
    },
    /// The system refused the thread that loads the model.
    #[error("the loading thread could not be started: {0}")]
    Spawn(std::io::Error),
    /// The model could not be loaded, or its first step failed.
    #[error("the model could not be loaded: {0}")]
    Load(oss_engine::Error),
    /// The thread that loaded the model panicked: a bug.
    #[error("loading the model panicked")]
    LoadPanicked,
    /// The model's files were found damaged: no request will be answered.
    #[error("the model's files are damaged: {0}")]
    Damaged(oss_engine::Error),
    /// The engine's step thread is gone: no request will be answered.
    #[error("the engine's step thread is over")]
    EngineOver,
}

/// A result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;
