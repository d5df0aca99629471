//! Answers as they go over the wire.

mod chat;
mod chunks;
mod completion;
mod follower;
mod logprobs;
mod responses;
mod usage;

use oss_engine::{Engine, Event};

use crate::read::Call;
use crate::refusal::Refusal;
use crate::sse::Out;

pub(crate) use chat::ChatWriter;
pub(crate) use completion::CompletionWriter;
pub(crate) use responses::ResponseWriter;

/// Writes an answer in one API's way. Each event is a part of it, or nothing: a stream is the
/// parts, and a whole answer is their sum.
pub(crate) trait Wire: Send + Unpin + 'static {
    /// What is answered.
    type Call: Call;

    /// The writer of the answer to a call.
    fn new(call: &Self::Call, engine: &Engine, model: &str) -> Self;

    /// An event of one choice: its part goes to `out`, or is added to the whole where there is
    /// none.
    fn event(&mut self, choice: usize, event: Event, out: Option<&mut Out>);

    /// Every choice is over: what ends a stream.
    fn close(&mut self, out: &mut Out);

    /// Nothing follows in a stream but this error.
    fn fail(&mut self, refusal: &Refusal, out: &mut Out) {
        out.raw(refusal.json());
        out.raw("[DONE]");
    }

    /// How much work writing the whole is, as the length of a body ([`App::heavy`]).
    ///
    /// [`App::heavy`]: crate::app::App::heavy
    fn weight(&self) -> usize;

    /// The whole answer as JSON: every choice is over.
    fn whole(self) -> String;
}
