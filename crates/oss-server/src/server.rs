//! The server: a socket that listens from the start, and the life of what is behind it.

mod connections;
mod lifecycle;
pub(crate) mod pages;
mod patient;
mod watch;

use std::net::SocketAddr;
use std::sync::Arc;
use std::{fmt, thread};

use oss_engine::{Engine, Request};
use tokio::net::TcpListener;

use crate::app::App;
use crate::error::{Error, Result};
use crate::options::ServerOptions;
use crate::phase::Phase;

/// A server that listens. [`Server::run`] answers until it is drained.
pub struct Server {
    app: Arc<App>,
    listener: TcpListener,
    address: SocketAddr,
}

/// A hand on a running server; cloning gives another one.
#[derive(Clone)]
pub struct Handle {
    app: Arc<App>,
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server").field("address", &self.address).finish_non_exhaustive()
    }
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handle").field("phase", &self.app.phase()).finish_non_exhaustive()
    }
}

impl Server {
    /// Listens. Requests are answered with 503 until [`Handle::ready`] or [`Handle::load`] has
    /// given the server its engine.
    ///
    /// # Errors
    /// When an option is out of its range, or the system does not let it listen there.
    pub async fn bind(options: ServerOptions) -> Result<Self> {
        options.check()?;
        let address = options.address;
        let wrong = |cause| Error::Bind { address, cause };
        let listener = TcpListener::bind(address).await.map_err(wrong)?;
        let address = listener.local_addr().map_err(wrong)?;
        if options.api_key.is_none() && !address.ip().to_canonical().is_loopback() {
            tracing::warn!(%address, "no key: whoever reaches this address may use the model");
        }
        Ok(Self { app: App::new(options), listener, address })
    }

    /// Where it listens, with the port that was taken.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// A hand on it, to be used while it runs.
    #[must_use]
    pub fn handle(&self) -> Handle {
        Handle { app: self.app.clone() }
    }

    /// Answers until [`Handle::drain`] has been called and its steps are done. Long prompts are
    /// read in blocking sections, which need tokio's multi-threaded runtime.
    ///
    /// # Errors
    /// When the model could not be loaded, its files are damaged, or the engine's thread has gone.
    pub async fn run(self) -> Result<()> {
        let Self { app, listener, .. } = self;
        let watching = watch::watch(app.clone());
        let serving = connections::serve(app.clone(), listener);
        let living = lifecycle::live(&app);
        tokio::select! {
            biased;
            () = living => {}
            () = watching => {}
        };
        serving.finish().await;
        app.take_failure().map_or(Ok(()), Err)
    }
}

impl Handle {
    /// Gives the server its engine: it takes requests from now on.
    pub fn ready(&self, engine: Engine) {
        self.app.ready(engine);
    }

    /// Loads an engine on a thread of its own, computes one token with it and takes requests from
    /// then on. A model that cannot be loaded ends the server.
    ///
    /// # Errors
    /// When the system refuses the thread.
    pub fn load(
        &self,
        load: impl FnOnce() -> oss_engine::Result<Engine> + Send + 'static,
    ) -> Result<()> {
        /// Fails the server should loading panic.
        struct Unfinished(Arc<App>, bool);
        impl Drop for Unfinished {
            fn drop(&mut self) {
                if !self.1 {
                    self.0.fail(Error::LoadPanicked);
                }
            }
        }
        let app = self.app.clone();
        let work = move || {
            let mut unfinished = Unfinished(app.clone(), false);
            let warm = |engine: Engine| {
                engine.generate(Request::tokens([0]).max_tokens(1).greedy())?;
                Ok(engine)
            };
            match load().and_then(warm) {
                Ok(engine) => {
                    tracing::info!(?engine, "the model is loaded");
                    app.ready(engine);
                }
                Err(error) => app.fail(Error::Load(error)),
            }
            unfinished.1 = true;
        };
        let builder = thread::Builder::new().name("oss-load".to_owned());
        builder.spawn(work).map_err(Error::Spawn)?;
        Ok(())
    }

    /// Begins to drain: routers are told at once, requests are taken for
    /// [`ServerOptions::drain_settle`], then those that run have
    /// [`ServerOptions::drain_timeout`]. Nothing when the server drains already.
    pub fn drain(&self) {
        self.app.ask_for_drain();
    }

    /// Where the server is.
    #[must_use]
    pub fn phase(&self) -> Phase {
        self.app.phase()
    }
}
