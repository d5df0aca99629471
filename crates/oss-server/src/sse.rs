//! Answers as server-sent events.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::HeaderValue;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::response::Response;
use oss_engine::Event;
use serde::Serialize;
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at};

use crate::answers::{Answers, Item};
use crate::refusal::Refusal;

/// After so long a silence a comment tells everybody on the way that the connection lives: a long
/// prompt takes minutes.
const BEAT: Duration = Duration::from_secs(15);

/// A piece of the body is at most about this long.
const PIECE: usize = 16 << 10;

/// Writes the events of an answer in one API's way.
pub(crate) trait Frames: Send + Unpin + 'static {
    /// An event of one choice.
    fn event(&mut self, choice: usize, event: Event, out: &mut Out);

    /// Every choice is over.
    fn finish(&mut self, out: &mut Out);

    /// Nothing follows but this error.
    fn failed(&mut self, refusal: &Refusal, out: &mut Out);
}

/// Frames that were written and not yet sent.
#[derive(Default)]
pub(crate) struct Out(Vec<u8>);

impl Out {
    /// A frame of data alone.
    pub(crate) fn data(&mut self, data: &impl Serialize) {
        self.0.extend(b"data: ");
        serde_json::to_writer(&mut self.0, data).expect("wire types are JSON");
        self.0.extend(b"\n\n");
    }

    /// A frame with the name of its event.
    pub(crate) fn named(&mut self, name: &str, data: &impl Serialize) {
        self.0.extend(b"event: ");
        self.0.extend(name.as_bytes());
        self.0.push(b'\n');
        self.data(data);
    }

    /// A frame as it is.
    pub(crate) fn raw(&mut self, text: &str) {
        self.0.extend(b"data: ");
        self.0.extend(text.as_bytes());
        self.0.extend(b"\n\n");
    }
}

/// An error that ends a stream of chat or completion chunks.
pub(crate) fn failed(refusal: &Refusal, out: &mut Out) {
    out.raw(&refusal.json());
    out.raw("[DONE]");
}

/// The response whose body is `answers` in `frames`, once the first has left the queue: before, it
/// can still be refused.
///
/// # Errors
/// What ended the request before.
pub(crate) async fn response(
    mut answers: Answers,
    frames: impl Frames,
) -> Result<Response, Refusal> {
    answers.admitted().await?;
    let mut beat = interval_at(Instant::now() + BEAT, BEAT);
    beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let body = Sse { answers: Some(answers), frames, beat };
    let mut response = Response::new(Body::from_stream(body));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    // nginx holds streams back otherwise.
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    Ok(response)
}

struct Sse<F> {
    /// `None`: everything has been written.
    answers: Option<Answers>,
    frames: F,
    beat: Interval,
}

impl<F: Frames> futures_core::Stream for Sse<F> {
    type Item = Result<Bytes, Infallible>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let Self { answers, frames, beat } = &mut *self;
        let Some(running) = answers else { return Poll::Ready(None) };
        let mut out = Out::default();
        while out.0.len() < PIECE {
            match running.poll_next(context) {
                Poll::Pending => break,
                Poll::Ready(Some(Item::Event(choice, event))) => {
                    frames.event(choice, event, &mut out);
                    continue;
                }
                Poll::Ready(Some(Item::Failed(refusal))) => frames.failed(&refusal, &mut out),
                Poll::Ready(None) => frames.finish(&mut out),
            }
            *answers = None;
            break;
        }
        if !out.0.is_empty() {
            beat.reset();
            return Poll::Ready(Some(Ok(out.0.into())));
        }
        if answers.is_none() {
            return Poll::Ready(None);
        }
        if beat.poll_tick(context).is_ready() {
            return Poll::Ready(Some(Ok(Bytes::from_static(b": keep-alive\n\n"))));
        }
        Poll::Pending
    }
}
