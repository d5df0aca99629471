//! What all requests of a server share.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Instant;

use oss_engine::{Engine, Metrics};
use tokio::sync::{Semaphore, watch};

use crate::backlog::Backlog;
use crate::clock;
use crate::error::Error;
use crate::metrics::Books;
use crate::options::ServerOptions;
use crate::phase::Phase;
use crate::refusal::{Names, Refusal};

/// How many requests may be read and tokenised at once: the engine needs the cores.
const READERS: usize = 2;

/// Bodies up to this size are read where they are: tokenising one takes a millisecond or less.
pub(crate) const SMALL_BODY: usize = 4 << 10;

/// One server's state.
pub(crate) struct App {
    pub(crate) options: ServerOptions,
    pub(crate) books: Books,
    pub(crate) backlog: Arc<Backlog>,
    /// When the server was started, in seconds since 1970.
    pub(crate) created: u64,
    phase: watch::Sender<Phase>,
    engine: OnceLock<Engine>,
    drain_asked: watch::Sender<bool>,
    /// Requests that are being answered.
    in_flight: watch::Sender<usize>,
    readers: Semaphore,
    failure: Mutex<Option<Error>>,
}

impl App {
    pub(crate) fn new(options: ServerOptions) -> Arc<Self> {
        Arc::new(Self {
            backlog: Backlog::new(&options),
            options,
            books: Books::default(),
            created: clock::unix_seconds(),
            phase: watch::Sender::new(Phase::Loading),
            engine: OnceLock::new(),
            drain_asked: watch::Sender::new(false),
            in_flight: watch::Sender::new(0),
            readers: Semaphore::new(READERS),
            failure: Mutex::new(None),
        })
    }

    pub(crate) fn phase(&self) -> Phase {
        *self.phase.borrow()
    }

    /// Whether routers may send requests, and the word for `/health`.
    pub(crate) fn health(&self) -> (bool, &'static str) {
        let phase = self.phase();
        match phase.is_healthy() && self.books.is_stalled() {
            true => (false, "stalled"),
            false => (phase.is_healthy(), phase.name()),
        }
    }

    /// What a request hears that is not taken, or not answered to its end.
    pub(crate) fn refusal(&self) -> Refusal {
        let refusal = Refusal::phase(self.phase());
        match &*self.failure.lock().unwrap_or_else(PoisonError::into_inner) {
            Some(error) => Refusal { message: error.to_string(), ..refusal },
            None => refusal,
        }
    }

    /// Goes on to `next`, unless it is past that.
    pub(crate) fn move_to(&self, next: Phase) {
        self.phase.send_if_modified(|phase| {
            let moved = phase.moved_to(next);
            let changes = moved != *phase;
            *phase = moved;
            changes
        });
    }

    /// Waits until the server is in a phase or past it.
    pub(crate) async fn reached(&self, phase: Phase) {
        let mut phases = self.phase.subscribe();
        // The sender lives as long as `self`.
        let _ = phases.wait_for(|now| *now >= phase).await;
    }

    /// Takes requests with this engine from now on.
    pub(crate) fn ready(&self, engine: Engine) {
        // A second engine is nobody's: the first stays.
        let _ = self.engine.set(engine);
        self.move_to(Phase::Ready);
    }

    /// Ends the server with an error.
    pub(crate) fn fail(&self, error: Error) {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
        self.move_to(Phase::Failed);
    }

    pub(crate) fn take_failure(&self) -> Option<Error> {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    pub(crate) fn ask_for_drain(&self) {
        self.drain_asked.send_replace(true);
    }

    pub(crate) async fn drain_asked(&self) {
        let mut asked = self.drain_asked.subscribe();
        let _ = asked.wait_for(|asked| *asked).await;
    }

    /// The engine, once it is loaded, whatever the phase.
    pub(crate) fn loaded(&self) -> Option<&Engine> {
        self.engine.get()
    }

    /// The engine, for requests that ask about the model.
    pub(crate) fn engine(&self) -> Result<&Engine, Refusal> {
        self.loaded().ok_or_else(|| self.refusal())
    }

    /// The engine's numbers; those who wait to be read wait too, and whoever found no room there
    /// was rejected.
    pub(crate) fn metrics(&self, engine: &Engine) -> Metrics {
        let (mut metrics, waiting) = (engine.metrics(), self.backlog.waiting());
        metrics.queued += waiting.requests;
        metrics.rejected += waiting.refused;
        metrics
    }

    /// A place among the requests that are being answered, if any are taken.
    pub(crate) fn enter(self: &Arc<Self>) -> Result<Place, Refusal> {
        // Counted before the phase is looked at: a drain that has refused sees everybody who got
        // in before.
        let place = Place::new(self.clone());
        if self.phase().takes_requests() { Ok(place) } else { Err(self.refusal()) }
    }

    /// Waits until no request is being answered.
    pub(crate) async fn all_left(&self) {
        let mut in_flight = self.in_flight.subscribe();
        let _ = in_flight.wait_for(|count| *count == 0).await;
    }

    /// Runs work that may take milliseconds a hundred kilobytes of `bytes`, such as tokenising.
    ///
    /// Small requests are read at once. Others block this thread of the runtime, which hands its
    /// other connections to another one first, and never more than [`READERS`] at a time.
    pub(crate) async fn heavy<T>(&self, bytes: usize, work: impl FnOnce() -> T) -> T {
        if bytes <= SMALL_BODY {
            return work();
        }
        let _permit = self.readers.acquire().await.expect("the semaphore is never closed");
        tokio::task::block_in_place(work)
    }

    /// Seconds until one of the requests that run is likely to have ended.
    pub(crate) fn seconds_until_room(&self) -> u64 {
        let at_once = self.loaded().map_or(1, |engine| engine.tuning().max_sequences.value.max(1));
        let mean = self.books.mean_seconds() / at_once as f64;
        (mean.ceil() as u64).clamp(1, 60)
    }

    /// What the engine said when it was handed a request.
    pub(crate) fn refused(&self, error: &oss_engine::Error, names: Names) -> Refusal {
        match error {
            oss_engine::Error::Overloaded { .. } => {
                Refusal::overloaded(error.to_string(), self.seconds_until_room())
            }
            error => Refusal::engine(error, names),
        }
    }

    /// Refuses a name that is not the model's; no name is the only model's.
    pub(crate) fn check_model(&self, asked: Option<&str>) -> Result<(), Refusal> {
        let own = self.options.model_name.as_str();
        match asked.filter(|asked| !asked.is_empty() && *asked != own) {
            None => Ok(()),
            Some(asked) => Err(Refusal::no_model(asked, own)),
        }
    }
}

/// A request that is being answered, for as long as this lives.
pub(crate) struct Place {
    pub(crate) app: Arc<App>,
    /// Since when.
    pub(crate) since: Instant,
}

impl Place {
    fn new(app: Arc<App>) -> Self {
        app.in_flight.send_modify(|count| *count += 1);
        Self { app, since: Instant::now() }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.app.in_flight.send_modify(|count| *count -= 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics;

    #[test]
    fn what_is_ready_is_healthy_and_a_server_that_stalls_is_neither() {
        let app = App::new(ServerOptions::default());
        let says = |number: &str| {
            let line = format!("oss_ready{{model_name=\"model\",engine=\"0\"}} {number}\n");
            metrics::page(&app).contains(&line)
        };
        assert_eq!(app.health(), (false, "loading"));
        assert!(says("0"));
        app.move_to(Phase::Ready);
        assert_eq!(app.health(), (true, "ok"));
        assert!(says("1"));
        app.books.set_stalled(true);
        assert_eq!(app.health(), (false, "stalled"));
        assert!(says("0"));
        app.move_to(Phase::Draining);
        assert_eq!(app.health(), (false, "draining"));
    }

    #[test]
    fn a_server_that_has_failed_says_why() {
        let app = App::new(ServerOptions::default());
        let said = |app: &Arc<App>| app.enter().map(|_| ()).unwrap_err().to_string();
        assert_eq!(said(&app), "the model is being loaded");
        app.fail(Error::EngineOver);
        assert_eq!(said(&app), "the engine's step thread is over");
        assert_eq!(app.refusal().code, Some("failed"));
    }
}
