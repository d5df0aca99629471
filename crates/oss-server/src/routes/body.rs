//! Reads a request's body, up to a limit of size and time.

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::extract::Request;
use axum::http::header::{CONTENT_LENGTH, EXPECT};
use axum::http::request::Parts;
use axum::http::{HeaderValue, StatusCode, Version};
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use hyper::body::{Body, Bytes, Frame, Incoming, SizeHint};
use tokio::time::timeout;

use crate::app::App;
use crate::backlog::Unread;
use crate::refusal::Refusal;

/// How long what nobody wants of a body is read and thrown away.
const LINGER: Duration = Duration::from_secs(2);

/// The whole body of a request.
///
/// # Errors
/// When it is too long, takes too long, breaks off, or would wait behind too many others.
pub(crate) async fn read(app: &App, request: Request) -> Result<Unread, Refusal> {
    let limit = app.options.max_body;
    let announced = request.headers().get(CONTENT_LENGTH).and_then(|value| value.to_str().ok());
    let announced = announced.and_then(|value| value.parse::<usize>().ok());
    if announced.is_some_and(|announced| announced > limit) {
        return Err(too_long(limit));
    }
    let collecting = Limited::new(request.into_body(), limit).collect();
    let body = match timeout(app.options.idle_timeout, collecting).await {
        Ok(Ok(collected)) => collected.to_bytes(),
        Ok(Err(error)) if error.is::<LengthLimitError>() => return Err(too_long(limit)),
        Ok(Err(error)) => return Err(Refusal::invalid(format!("body: broke off: {error}"))),
        Err(_) => {
            let message = "body: did not come in time";
            return Err(Refusal::new(StatusCode::REQUEST_TIMEOUT, "timeout_error", message));
        }
    };
    app.backlog.enter(body).ok_or_else(|| {
        let message = "overloaded: too many requests wait to be read";
        Refusal::overloaded(message, app.seconds_until_room())
    })
}

fn too_long(limit: usize) -> Refusal {
    let message = format!("body: got more, expected at most {limit} bytes");
    Refusal {
        code: Some("body_too_long"),
        ..Refusal::new(StatusCode::PAYLOAD_TOO_LARGE, "invalid_request_error", message)
    }
}

/// A body that is lent to whoever answers its request: what that has not read is still here.
#[derive(Clone)]
pub(crate) struct Lent(Arc<Mutex<Left>>);

/// What is left of a body.
struct Left {
    body: Incoming,
    /// The client waits to be asked for it, as hyper does at the first read.
    held_back: bool,
}

impl Lent {
    /// The body that came behind `head`.
    pub(crate) fn new(head: &Parts, body: Incoming) -> Self {
        let expects = head.headers.get(EXPECT).map_or(&b""[..], HeaderValue::as_bytes);
        let expects = expects.eq_ignore_ascii_case(b"100-continue");
        let held_back = expects && head.version > Version::HTTP_10 && !body.is_end_stream();
        Self(Arc::new(Mutex::new(Left { body, held_back })))
    }

    /// Whether the client still waits to be asked for the body.
    pub(crate) fn is_held_back(&self) -> bool {
        self.lock().held_back
    }

    /// Reads what is left and throws it away: a client that still writes would not see the answer
    /// otherwise.
    pub(crate) async fn discard(mut self) {
        let rest = async { while let Some(Ok(_)) = self.frame().await {} };
        // Whoever still writes after that gets no answer.
        let _ = timeout(LINGER, rest).await;
    }

    fn lock(&self) -> MutexGuard<'_, Left> {
        // A body whose reader panicked is read on.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Body for Lent {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let mut left = self.lock();
        left.held_back = false;
        Pin::new(&mut left.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.lock().body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.lock().body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics;
    use crate::options::ServerOptions;
    use oss_engine::{Engine, EngineOptions, Tune};

    #[test]
    fn whoever_would_wait_to_be_read_behind_too_many_is_429_and_counted() {
        let app = App::new(ServerOptions { max_unread: 1, ..ServerOptions::default() });
        let options = EngineOptions { threads: Some(1), tune: Tune::Off, ..Default::default() };
        app.ready(Engine::from_bytes_with(oss_demo::GGUF, options).unwrap());
        let mut builder = tokio::runtime::Builder::new_current_thread();
        let runtime = builder.enable_all().build().unwrap();
        let read = || runtime.block_on(read(&app, Request::new(axum::body::Body::from("{}"))));
        let first = read().unwrap();
        let refused = read().map(|_| ()).unwrap_err();
        assert_eq!(refused.status, StatusCode::TOO_MANY_REQUESTS);
        assert_eq!(refused.code, Some("queue_full"));
        assert!(refused.retry_after.is_some_and(|seconds| (1..=60).contains(&seconds)));
        let page = metrics::page(&app);
        let shed = "oss_requests_shed_total{model_name=\"model\",engine=\"0\"} 1\n";
        assert!(page.contains(shed), "{page}");
        drop(first);
        assert_eq!(&*read().unwrap(), b"{}");
    }
}
