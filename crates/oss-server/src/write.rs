//! Answers as they go over the wire.

mod chat;
mod completion;
mod logprobs;
mod responses;
mod usage;

pub(crate) use chat::{ChatFrames, ChatHead, ChatSoFar};
pub(crate) use completion::{CompletionFrames, CompletionHead, CompletionSoFar};
pub(crate) use responses::ResponseWriter;
