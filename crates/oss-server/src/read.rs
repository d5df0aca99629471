//! Requests as they come over the wire, read into the engine's.

mod chat;
mod common;
mod completion;
mod fields;
mod format;
mod responses;

use oss_engine::{Engine, Request};

use crate::app::App;
use crate::refusal::{Names, Refusal};

pub(crate) use chat::ChatCall;
pub(crate) use common::Common;
pub(crate) use completion::{CompletionCall, Encoding};
pub(crate) use fields::Fields;
pub(crate) use responses::ResponseCall;

/// What one API asks for.
pub(crate) trait Call: Sized + Send {
    /// Reads a body.
    ///
    /// # Errors
    /// No JSON, another model, a field of another type, out of its range, or not supported.
    fn read(app: &App, engine: &Engine, body: &[u8]) -> Result<Self, Refusal>;

    /// The fields that its parts came in.
    fn names(&self) -> Names;

    /// What all APIs have.
    fn common(&self) -> &Common;

    /// How much work handing one of its requests to the engine is, as the length of a body
    /// ([`App::heavy`]): as much as the body that it came in, or a long prompt where a grammar is
    /// compiled.
    fn weight(&self, body: usize) -> usize;

    /// The engine's requests, one for each choice, each made when it is asked for.
    ///
    /// # Errors
    /// A prompt that leaves no room for an answer, before any is submitted.
    fn requests(
        self,
        engine: &Engine,
    ) -> Result<impl ExactSizeIterator<Item = Request> + Send, Refusal>;
}
