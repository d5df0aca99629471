//! `/v1/completions`: texts and tokens to continue.

use std::sync::Arc;

use axum::extract::{Extension, Request, State};
use axum::response::Response;

use crate::answers::Answers;
use crate::app::App;
use crate::read::CompletionCall;
use crate::refusal::{Names, Refusal};
use crate::routes::{self, Caller, Rendered, body};
use crate::write::{CompletionFrames, CompletionHead, CompletionSoFar};
use crate::{sse, whole};

/// The fields that a completion is asked for in.
const NAMES: Names = Names::of("prompt");

/// Continues prompts, whole or in chunks.
pub(crate) async fn answer(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    request: Request,
) -> Result<Response, Refusal> {
    let place = app.enter()?;
    let engine = app.engine()?;
    let body = body::read(&app, request).await?;
    // Tokenising is work: chats are rendered once the engine has a place for them.
    engine.check_queue().map_err(|error| app.refused(&error, NAMES))?;
    let call = app.heavy(body.len(), || CompletionCall::read(&app, engine, &body)).await?;
    let head = CompletionHead::new(&call, &app.options.model_name);
    let (stream, weight) = (call.common.stream, call.weight(body.len()));
    let count = if call.prompts.len() > 1 { "prompt" } else { "n" };
    let names = Names { count, ..NAMES };
    let requests = call.requests(engine)?;
    let answers = Answers::submit(place, body, requests, weight, names, &caller.request_id).await?;
    match stream {
        true => sse::response(answers, CompletionFrames::new(head, engine)).await,
        false => whole::response(answers, CompletionSoFar::new(head, engine)).await,
    }
}

/// The tokens of each prompt.
pub(crate) async fn render(
    State(app): State<Arc<App>>,
    request: Request,
) -> Result<Response, Refusal> {
    let engine = app.engine()?;
    let body = body::read(&app, request).await?;
    let render = || {
        let call = CompletionCall::read(&app, engine, &body)?;
        let model = &app.options.model_name;
        let prompts = call.prompts.iter();
        let all: Vec<_> = prompts.map(|token_ids| Rendered { model, token_ids }).collect();
        Ok(routes::written(&all))
    };
    Ok(routes::json(app.heavy(body.len(), render).await?))
}
