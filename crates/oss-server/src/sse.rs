//! Answers as server-sent events.

use std::convert::Infallible;
use std::fmt::Display;
use std::io::Write as _;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::HeaderValue;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::response::Response;
use serde::Serialize;
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at};

use crate::answers::{Answers, Item};
use crate::refusal::Refusal;
use crate::write::Wire;

/// A piece of the body is at most about this long.
const PIECE: usize = 16 << 10;

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

    /// A frame of data that are text already, of one line.
    pub(crate) fn raw(&mut self, data: impl Display) {
        write!(self.0, "data: {data}\n\n").expect("memory takes what is written");
    }

    /// Such a frame with the name of its event.
    pub(crate) fn named(&mut self, name: &str, data: impl Display) {
        writeln!(self.0, "event: {name}").expect("memory takes what is written");
        self.raw(data);
    }
}

/// The response whose body is what `wire` makes of `answers`, once the first has left the queue:
/// before, it can still be refused.
///
/// # Errors
/// What ended the request before.
pub(crate) async fn response(mut answers: Answers, wire: impl Wire) -> Result<Response, Refusal> {
    answers.admitted().await?;
    let beat = beat(answers.app().options.heartbeat);
    let body = Sse { answers: Some(answers), wire, beat };
    let mut response = Response::new(Body::from_stream(body));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    // nginx holds streams back otherwise.
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    Ok(response)
}

/// After so long a silence a comment tells everybody on the way that the connection lives: a long
/// prompt takes minutes. 0: none.
fn beat(silence: Duration) -> Option<Interval> {
    let mut beat = (!silence.is_zero()).then(|| interval_at(Instant::now() + silence, silence))?;
    beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
    Some(beat)
}

struct Sse<W> {
    /// `None`: everything has been written.
    answers: Option<Answers>,
    wire: W,
    beat: Option<Interval>,
}

impl<W: Wire> futures_core::Stream for Sse<W> {
    type Item = Result<Bytes, Infallible>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let Self { answers, wire, beat } = &mut *self;
        let Some(running) = answers else { return Poll::Ready(None) };
        let mut out = Out::default();
        while out.0.len() < PIECE {
            match running.poll_next(context) {
                Poll::Pending => break,
                Poll::Ready(Some(Item::Event(choice, event))) => {
                    wire.event(choice, event, Some(&mut out));
                    continue;
                }
                Poll::Ready(Some(Item::Failed(refusal))) => wire.fail(&refusal, &mut out),
                Poll::Ready(None) => wire.close(&mut out),
            }
            *answers = None;
            break;
        }
        if !out.0.is_empty() {
            beat.iter_mut().for_each(Interval::reset);
            return Poll::Ready(Some(Ok(out.0.into())));
        }
        if answers.is_none() {
            return Poll::Ready(None);
        }
        if beat.as_mut().is_some_and(|beat| beat.poll_tick(context).is_ready()) {
            return Poll::Ready(Some(Ok(Bytes::from_static(b": keep-alive\n\n"))));
        }
        Poll::Pending
    }
}
