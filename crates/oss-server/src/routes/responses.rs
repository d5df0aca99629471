//! `/v1/responses`: conversations again, without memory of earlier ones.

use std::sync::Arc;

use axum::extract::{Extension, Request, State};
use axum::http::StatusCode;
use axum::response::Response;

use crate::answers::Answers;
use crate::app::App;
use crate::read::ResponseCall;
use crate::refusal::{Names, Refusal};
use crate::routes::{Caller, Name, body};
use crate::write::ResponseWriter;
use crate::{sse, whole};

/// The fields that a response is asked for in.
const NAMES: Names = Names { prompt: "input", format: "text.format", count: "input" };

/// Answers a conversation, whole or in events.
pub(crate) async fn answer(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    request: Request,
) -> Result<Response, Refusal> {
    let place = app.enter()?;
    let engine = app.engine()?;
    let body = body::read(&app, request).await?;
    let call = app.heavy(body.len(), || ResponseCall::read(&app, engine, &body)).await?;
    let writer = ResponseWriter::new(&call, engine, &app.options.model_name, body.len());
    let (stream, weight) = (call.chat.common.stream, call.chat.weight(body.len()));
    let requests = call.chat.requests();
    let answers = Answers::submit(place, body, requests, weight, NAMES, &caller.request_id).await?;
    match stream {
        true => sse::response(answers, writer).await,
        false => whole::response(answers, writer).await,
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
