//! `/v1/chat/completions`, `/v1/completions` and `/v1/responses`: what a model answers.

use std::sync::Arc;

use axum::extract::{Extension, Request, State};
use axum::http::StatusCode;
use axum::response::Response;

use crate::answers::Answers;
use crate::app::App;
use crate::read::Call as _;
use crate::refusal::{Names, Refusal};
use crate::routes::{Caller, Name, body};
use crate::write::Wire;
use crate::{sse, whole};

/// Answers a call in one API's way, whole or in parts.
pub(crate) async fn answer<W: Wire>(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    request: Request,
) -> Result<Response, Refusal> {
    let place = app.enter()?;
    let engine = app.engine()?;
    let body = body::read(&app, request).await?;
    // Reading is work, for nothing where the queue is full.
    engine.check_queue().map_err(|error| app.refused(&error, Names::of("prompt")))?;
    let call = app.heavy(body.len(), || W::Call::read(&app, engine, &body)).await?;
    let (stream, weight, names) = (call.common().stream, call.weight(body.len()), call.names());
    let wire = W::new(&call, engine, &app.options.model_name);
    let requests = call.requests(engine)?;
    let answers = Answers::submit(place, body, requests, weight, names, &caller.request_id).await?;
    match stream {
        true => sse::response(answers, wire).await,
        false => whole::response(answers, wire).await,
    }
}

/// A response that was to be kept: none is.
pub(crate) async fn kept(Name(id): Name) -> Refusal {
    let message = format!("response_id: got {id}, but this server keeps no responses");
    Refusal {
        param: Some("response_id".to_owned()),
        code: Some("not_stored"),
        ..Refusal::new(StatusCode::NOT_FOUND, "invalid_request_error", message)
    }
}
