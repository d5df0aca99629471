//! Conversations that keep their keys and values.

use std::ops::ControlFlow;

use crate::engine::Engine;
use crate::error::Result;
use crate::event::{Completion, Event};
use crate::request::Request;
use crate::stream::Stream;

/// Requests that go on with each other: what a request's prompt has in common with the one before
/// it, its answer included, is not computed again.
///
/// You still send the whole conversation; a session only pins its keys and values.
///
/// ```
/// use oss_engine::{ChatRequest, Engine, Message, Request};
///
/// # fn main() -> oss_engine::Result<()> {
/// let engine = Engine::from_bytes(oss_demo::GGUF)?;
/// let session = engine.session();
/// let mut messages = vec![Message::user("What is 17 + 25?")];
/// let first = session.generate(Request::chat(ChatRequest::new(messages.clone())).greedy())?;
/// assert_eq!(first.text, "17 + 25 = 42");
///
/// messages.push(first.message());
/// messages.push(Message::user("And 30 + 12?"));
/// let second = session.generate(Request::chat(ChatRequest::new(messages)).greedy())?;
/// assert!(second.usage.cached_tokens > 0);
/// # Ok(())
/// # }
/// ```
///
/// The result is the same as without the session, token by token. What is kept stays when a request
/// is cancelled, late or fails (but for a panic), and is given up, the longest unused first, when
/// other requests need the memory. Requests of one session may overlap;
/// then the later one goes on from what all requests share alone.
#[derive(Debug)]
pub struct Session {
    engine: Engine,
    id: u64,
}

impl Session {
    pub(crate) fn new(engine: Engine, id: u64) -> Self {
        Self { engine, id }
    }

    /// The engine that it belongs to.
    #[must_use]
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// As [`Engine::submit`].
    ///
    /// # Errors
    /// As [`Engine::submit`].
    pub fn submit(&self, request: Request) -> Result<Stream> {
        self.engine.submit_in(request, Some(self.id))
    }

    /// As [`Engine::generate`].
    ///
    /// # Errors
    /// As [`Engine::generate`].
    pub fn generate(&self, request: Request) -> Result<Completion> {
        self.submit(request)?.collect_all()
    }

    /// As [`Engine::generate_with`].
    ///
    /// # Errors
    /// As [`Engine::generate`].
    pub fn generate_with(
        &self,
        request: Request,
        show: impl FnMut(&Event) -> ControlFlow<()>,
    ) -> Result<Completion> {
        let (completion, outcome) = self.submit(request)?.collect_with(show);
        outcome.map(|()| completion)
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.engine.forget_session(self.id);
    }
}
