//! `/v1/chat/completions`: conversations.

use std::sync::Arc;

use axum::extract::{Extension, Request, State};
use axum::response::Response;

use crate::answers::Answers;
use crate::app::App;
use crate::read::ChatCall;
use crate::refusal::{Names, Refusal};
use crate::routes::{self, Caller, Rendered, body};
use crate::write::{ChatFrames, ChatHead, ChatSoFar};
use crate::{sse, whole};

/// The fields that a chat is in.
const NAMES: Names = Names::of("messages");

/// Answers a conversation, whole or in chunks.
pub(crate) async fn answer(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    request: Request,
) -> Result<Response, Refusal> {
    let place = app.enter()?;
    let engine = app.engine()?;
    let body = body::read(&app, request).await?;
    let call = app.heavy(body.len(), || ChatCall::read(&app, engine, &body)).await?;
    let head = ChatHead::new(&call, engine, &app.options.model_name);
    let (stream, weight) = (call.common.stream, call.weight(body.len()));
    let requests = call.requests();
    let answers = Answers::submit(place, body, requests, weight, NAMES, &caller.request_id).await?;
    match stream {
        true => sse::response(answers, ChatFrames::new(head, engine)).await,
        false => whole::response(answers, ChatSoFar::new(head, engine)).await,
    }
}

/// The tokens of a conversation's prompt.
pub(crate) async fn render(
    State(app): State<Arc<App>>,
    request: Request,
) -> Result<Response, Refusal> {
    let engine = app.engine()?;
    let body = body::read(&app, request).await?;
    let render = || {
        let call = ChatCall::read(&app, engine, &body)?;
        let ids = engine.text().render(&call.chat);
        let token_ids = &ids.map_err(|error| Refusal::engine(&error, NAMES))?;
        Ok(routes::written(&Rendered { model: &app.options.model_name, token_ids }))
    };
    Ok(routes::json(app.heavy(body.len(), render).await?))
}
