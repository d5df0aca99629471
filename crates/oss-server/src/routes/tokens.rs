//! Prompts as tokens, without an answer: the `render` paths, and `/tokenize` and `/detokenize` in
//! vLLM's shape.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::Response;
use oss_engine::Engine;
use serde::Serialize;
use serde_json::json;

use crate::app::App;
use crate::read::{Call as _, ChatCall, CompletionCall, Encoding, Fields, ResponseCall};
use crate::refusal::{Names, Refusal};
use crate::routes::{self, body};

/// The response that `work` makes of a request's body.
async fn respond(
    app: &App,
    request: Request,
    work: impl FnOnce(&Engine, &[u8]) -> Result<String, Refusal>,
) -> Result<Response, Refusal> {
    let engine = app.engine()?;
    let body = body::read(app, request).await?;
    Ok(routes::json(app.heavy(body.len(), || work(engine, &body)).await?))
}

/// A conversation's tokens.
fn chat_ids(app: &App, engine: &Engine, body: &[u8]) -> Result<Vec<u32>, Refusal> {
    let call = ChatCall::read(app, engine, body)?;
    rendered(engine, &call, call.names())
}

fn rendered(engine: &Engine, call: &ChatCall, names: Names) -> Result<Vec<u32>, Refusal> {
    engine.text().render(&call.chat).map_err(|error| Refusal::engine(&error, names))
}

/// The tokens of a prompt that was only rendered.
#[derive(Serialize)]
struct Rendered<'a> {
    model: &'a str,
    token_ids: &'a [u32],
}

/// The tokens of a conversation's prompt.
pub(crate) async fn render_chat(
    State(app): State<Arc<App>>,
    request: Request,
) -> Result<Response, Refusal> {
    let work = |engine: &Engine, body: &[u8]| {
        let token_ids = &chat_ids(&app, engine, body)?;
        Ok(routes::written(&Rendered { model: &app.options.model_name, token_ids }))
    };
    respond(&app, request, work).await
}

/// How many tokens a response's prompt has.
pub(crate) async fn count(
    State(app): State<Arc<App>>,
    request: Request,
) -> Result<Response, Refusal> {
    let work = |engine: &Engine, body: &[u8]| {
        let call = ResponseCall::read(&app, engine, body)?;
        let count = rendered(engine, &call.chat, call.names())?.len();
        Ok(json!({"object": "response.input_tokens", "input_tokens": count}).to_string())
    };
    respond(&app, request, work).await
}

/// The tokens of each prompt.
pub(crate) async fn render_completion(
    State(app): State<Arc<App>>,
    request: Request,
) -> Result<Response, Refusal> {
    let work = |engine: &Engine, body: &[u8]| {
        let call = CompletionCall::read(&app, engine, body)?;
        let model = &app.options.model_name;
        let prompts = call.prompts.iter();
        let all: Vec<_> = prompts.map(|token_ids| Rendered { model, token_ids }).collect();
        Ok(routes::written(&all))
    };
    respond(&app, request, work).await
}

/// The tokens of a text.
#[derive(Serialize)]
struct Tokens {
    count: usize,
    max_model_len: usize,
    tokens: Vec<u32>,
    token_strs: Option<Vec<String>>,
}

/// The tokens of a text, or of a conversation.
pub(crate) async fn tokenize(
    State(app): State<Arc<App>>,
    request: Request,
) -> Result<Response, Refusal> {
    let work = |engine: &Engine, body: &[u8]| {
        let mut fields = Fields::parse(body)?;
        let with_texts = fields.take("return_token_strs")?.unwrap_or(false);
        let tokens = match fields.look("messages").filter(|messages| !messages.is_null()) {
            Some(_) => chat_ids(&app, engine, body)?,
            None => text_ids(&app, engine, &mut fields)?,
        };
        Ok(routes::written(&Tokens {
            count: tokens.len(),
            max_model_len: engine.context_len(),
            token_strs: with_texts.then(|| texts(engine, &tokens)).transpose()?,
            tokens,
        }))
    };
    respond(&app, request, work).await
}

fn text_ids(app: &App, engine: &Engine, fields: &mut Fields) -> Result<Vec<u32>, Refusal> {
    app.check_model(fields.take::<String>("model")?.as_deref())?;
    let encoding = Encoding::read(fields)?;
    let prompt: String = fields.need("prompt")?;
    let ids = encoding.encode(engine, &prompt);
    ids.map_err(|error| Refusal::engine(&error, Names::of("prompt")))
}

fn texts(engine: &Engine, ids: &[u32]) -> Result<Vec<String>, Refusal> {
    let tokenizer = engine.text().tokenizer();
    let tokenizer = tokenizer.map_err(|error| Refusal::engine(&error, Names::of("prompt")))?;
    Ok(ids.iter().map(|id| tokenizer.decode(&[*id])).collect())
}

/// The text of tokens, control tokens by their names.
pub(crate) async fn detokenize(
    State(app): State<Arc<App>>,
    request: Request,
) -> Result<Response, Refusal> {
    let work = |engine: &Engine, body: &[u8]| {
        let mut fields = Fields::parse(body)?;
        app.check_model(fields.take::<String>("model")?.as_deref())?;
        let ids: Vec<u32> = fields.need("tokens")?;
        let vocabulary = engine.config().vocabulary;
        if let Some(got) = ids.iter().find(|id| **id as usize >= vocabulary) {
            let what = format!("got {got}, expected ids below {vocabulary}");
            return Err(Refusal::field("tokens", what));
        }
        let tokenizer = engine.text().tokenizer();
        let tokenizer = tokenizer.map_err(|error| Refusal::engine(&error, Names::of("tokens")))?;
        Ok(json!({"prompt": tokenizer.decode(&ids)}).to_string())
    };
    respond(&app, request, work).await
}
