//! Requests as they come over the wire, read into the engine's.

mod chat;
mod common;
mod completion;
mod fields;
mod format;
mod responses;

pub(crate) use chat::ChatCall;
pub(crate) use completion::{CompletionCall, Encoding};
pub(crate) use fields::Fields;
pub(crate) use responses::ResponseCall;
