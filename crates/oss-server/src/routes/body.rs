//! Reads a request's body, up to a limit of size and time.

use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::Request;
use axum::http::StatusCode;
use axum::http::header::CONTENT_LENGTH;
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use tokio::time::timeout;

use crate::app::App;
use crate::refusal::Refusal;

/// How long a body that is too long is read and thrown away: a client that still writes would not
/// see the answer otherwise.
const LINGER: Duration = Duration::from_secs(2);

/// The whole body of a request.
///
/// # Errors
/// When it is too long, takes too long, or breaks off.
pub(crate) async fn read(app: &App, request: Request) -> Result<Bytes, Refusal> {
    let (parts, mut body) = request.into_parts();
    let limit = app.options.max_body;
    let announced = parts.headers.get(CONTENT_LENGTH).and_then(|value| value.to_str().ok());
    let announced = announced.and_then(|value| value.parse::<usize>().ok());
    if announced.is_some_and(|announced| announced > limit) {
        discard(body).await;
        return Err(too_long(limit));
    }
    let collecting = Limited::new(&mut body, limit).collect();
    match timeout(app.options.idle_timeout, collecting).await {
        Ok(Ok(collected)) => Ok(collected.to_bytes()),
        Ok(Err(error)) if error.is::<LengthLimitError>() => {
            discard(body).await;
            Err(too_long(limit))
        }
        Ok(Err(error)) => Err(Refusal::invalid(format!("body: broke off: {error}"))),
        Err(_) => {
            let message = "body: did not come in time";
            Err(Refusal::new(StatusCode::REQUEST_TIMEOUT, "timeout_error", message))
        }
    }
}

fn too_long(limit: usize) -> Refusal {
    let message = format!("body: got more, expected at most {limit} bytes");
    Refusal {
        code: Some("body_too_long"),
        ..Refusal::new(StatusCode::PAYLOAD_TOO_LARGE, "invalid_request_error", message)
    }
}

async fn discard(mut body: Body) {
    let rest = async { while let Some(Ok(_)) = body.frame().await {} };
    // Whoever still writes after that gets no answer.
    let _ = timeout(LINGER, rest).await;
}
