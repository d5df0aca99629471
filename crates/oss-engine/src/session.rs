//! Conversations that keep their keys and values.

use crate::engine::Engine;
use crate::error::Result;
use crate::event::{Completion, Event};
use crate::request::Request;
use crate::stream::Stream;

/// Requests that go on with each other: what a request's prompt has in common with the one before
/// it, its answer included, is not computed again.
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
    pub fn submit(&mut self, request: Request) -> Result<Stream> {
        self.engine.submit_in(request, Some(self.id))
    }

    /// As [`Engine::generate`].
    ///
    /// # Errors
    /// As [`Engine::generate`].
    pub fn generate(&mut self, request: Request) -> Result<Completion> {
        self.submit(request)?.collect_all()
    }

    /// As [`Engine::generate_with`].
    ///
    /// # Errors
    /// As [`Engine::generate`].
    pub fn generate_with(
        &mut self,
        request: Request,
        show: impl FnMut(&Event),
    ) -> Result<Completion> {
        self.submit(request)?.collect_with(show)
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.engine.forget_session(self.id);
    }
}
