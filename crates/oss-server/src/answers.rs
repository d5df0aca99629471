//! The answers to one HTTP request: the events of one engine stream or several, as they come.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use futures_core::Stream as _;
use oss_engine::{AsyncStream, Event, FinishReason, Request};
use tokio::task::yield_now;

use crate::app::{App, Place};
use crate::backlog::Unread;
use crate::phase::Phase;
use crate::refusal::{Names, Refusal};

/// What comes next.
pub(crate) enum Item {
    /// An event of one choice.
    Event(usize, Event),
    /// The request has failed, or the server ends: nothing follows.
    Failed(Refusal),
}

/// The running choices of one HTTP request. Dropped before its end, it cancels them.
pub(crate) struct Answers {
    choices: Vec<Choice>,
    /// The choice to look at first, so that none is left behind.
    turn: usize,
    first: Option<Item>,
    /// Resolves when what still runs is to be ended.
    ending: Pin<Box<dyn Future<Output = ()> + Send>>,
    request_id: String,
    outcome: &'static str,
    names: Names,
    place: Place,
}

struct Choice {
    stream: AsyncStream,
    /// It waits in the engine's queue.
    waits: Option<Waits>,
    over: bool,
}

/// A prompt's tokens, counted as waiting for as long as this lives.
struct Waits {
    app: Arc<App>,
    tokens: usize,
}

impl Waits {
    fn new(app: &Arc<App>, tokens: usize) -> Self {
        app.books.waiting_tokens(tokens, true);
        Self { app: app.clone(), tokens }
    }
}

impl Drop for Waits {
    fn drop(&mut self) {
        self.app.books.waiting_tokens(self.tokens, false);
    }
}

impl Answers {
    /// Hands requests over to the engine, one after the other and others' in between, as each is
    /// work of this `weight` ([`App::heavy`]). The first that is refused is the last that is made,
    /// and those before it are cancelled. The body that they came in counts as unread until the
    /// engine counts the first of them.
    ///
    /// # Errors
    /// What the engine refuses them with; `names` is where their parts came from. Or the server
    /// ends meanwhile.
    pub(crate) async fn submit(
        place: Place,
        body: Unread,
        mut requests: impl ExactSizeIterator<Item = Request> + Send,
        weight: usize,
        names: Names,
        request_id: &str,
    ) -> Result<Self, Refusal> {
        let app = place.app.clone();
        let engine = app.engine()?;
        let wanted = requests.len();
        let mut body = Some(body);
        let mut next = || {
            drop(body.take());
            requests.next().map(|mut request| {
                request.arrival_time = Some(place.since);
                request.timeout = Some(app.options.request_timeout);
                engine.submit(request)
            })
        };
        let mut choices = Vec::new();
        while let Some(submitted) = app.heavy(weight, &mut next).await {
            let stream = submitted.map_err(|error| match &error {
                oss_engine::Error::Overloaded { limit, .. } if wanted > *limit => {
                    let what = format!("got {wanted} answers, expected at most {limit}");
                    Refusal::field(names.count, what)
                }
                error => app.refused(error, names),
            })?;
            let waits = Some(Waits::new(&app, stream.prompt_token_ids().len()));
            choices.push(Choice { stream: stream.into_async(), waits, over: false });
            if choices.len() == wanted {
                break;
            }
            yield_now().await;
            if app.phase() >= Phase::Ending {
                return Err(app.refusal());
            }
        }
        let until = app.clone();
        Ok(Self {
            choices,
            turn: 0,
            first: None,
            ending: Box::pin(async move { until.reached(Phase::Ending).await }),
            request_id: request_id.to_owned(),
            outcome: "disconnected",
            names,
            place,
        })
    }

    /// Waits until a choice has left the queue.
    ///
    /// # Errors
    /// What ended the request before.
    pub(crate) async fn admitted(&mut self) -> Result<(), Refusal> {
        match self.next().await {
            Some(Item::Failed(refusal)) => Err(refusal),
            first => {
                self.first = first;
                Ok(())
            }
        }
    }

    /// What comes next; `None` after the end of the last choice.
    pub(crate) async fn next(&mut self) -> Option<Item> {
        poll_fn(|context| self.poll_next(context)).await
    }

    /// The server that they are a request of.
    pub(crate) fn app(&self) -> &App {
        &self.place.app
    }

    pub(crate) fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Item>> {
        if let Some(first) = self.first.take() {
            return Poll::Ready(Some(first));
        }
        if self.choices.iter().all(|choice| choice.over) {
            self.outcome = "answered";
            return Poll::Ready(None);
        }
        let count = self.choices.len();
        for index in (self.turn..self.turn + count).map(|index| index % count) {
            if self.choices[index].over {
                continue;
            }
            if let Poll::Ready(event) = Pin::new(&mut self.choices[index].stream).poll_next(context)
            {
                self.turn = index + 1;
                return Poll::Ready(Some(self.book(index, event)));
            }
        }
        ready!(self.ending.as_mut().poll(context));
        self.outcome = "ended";
        Poll::Ready(Some(Item::Failed(self.place.app.refusal())))
    }

    /// Books an event; a stream that is over without an end was closed.
    fn book(&mut self, index: usize, event: Option<oss_engine::Result<Event>>) -> Item {
        let choice = &mut self.choices[index];
        choice.waits = None;
        let event = match event {
            Some(Ok(event)) => event,
            Some(Err(error)) => {
                choice.over = true;
                return self.failed(Refusal::engine(&error, self.names));
            }
            None => return self.failed(Refusal::phase(Phase::Failed)),
        };
        if let Event::End(end) = &event {
            choice.over = true;
            // Nobody but the end of the server cancels a stream that is still read.
            if end.finish_reason == FinishReason::Cancelled {
                return self.failed(Refusal::phase(Phase::Ending));
            }
            self.place.app.books.finished(end);
            let (id, finish, usage) = (choice.stream.id(), end.finish_reason, end.usage);
            tracing::debug!(request_id = self.request_id, id, %finish, ?usage, "choice ended");
        }
        Item::Event(index, event)
    }

    fn failed(&mut self, refusal: Refusal) -> Item {
        self.outcome = "failed";
        Item::Failed(refusal)
    }
}

impl Drop for Answers {
    fn drop(&mut self) {
        let ids: Vec<_> = self.choices.iter().map(|choice| choice.stream.id()).collect();
        let (request_id, outcome) = (&self.request_id, self.outcome);
        tracing::info!(request_id, outcome, engine_ids = ?ids, "answer over");
    }
}
