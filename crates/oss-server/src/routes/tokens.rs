//! `/tokenize` and `/detokenize`, in vLLM's shape.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::Response;
use oss_engine::Engine;
use serde::Serialize;
use serde_json::json;

use crate::app::App;
use crate::read::{ChatCall, Encoding, Fields};
use crate::refusal::{Names, Refusal};
use crate::routes::{self, body};

/// The tokens of a text, or of a conversation.
pub(crate) async fn tokenize(
    State(app): State<Arc<App>>,
    request: Request,
) -> Result<Response, Refusal> {
    let engine = app.engine()?;
    let body = body::read(&app, request).await?;
    let work = || {
        let mut fields = Fields::parse(&body)?;
        let with_texts = fields.take("return_token_strs")?.unwrap_or(false);
        let (ids, name) = match fields.look("messages").filter(|messages| !messages.is_null()) {
            Some(_) => {
                let call = ChatCall::read(&app, engine, &body)?;
                (engine.text().render(&call.chat), "messages")
            }
            None => (text(&app, engine, &mut fields)?, "prompt"),
        };
        let ids = ids.map_err(|error| Refusal::engine(&error, Names::of(name)))?;
        let answer = Tokens {
            count: ids.len(),
            max_model_len: engine.context_len(),
            token_strs: with_texts.then(|| texts(engine, &ids)).transpose()?,
            tokens: ids,
        };
        Ok::<_, Refusal>(routes::written(&answer))
    };
    Ok(routes::json(app.heavy(body.len(), work).await?))
}

/// The tokens of a text.
#[derive(Serialize)]
struct Tokens {
    count: usize,
    max_model_len: usize,
    tokens: Vec<u32>,
    token_strs: Option<Vec<String>>,
}

fn text(
    app: &App,
    engine: &Engine,
    fields: &mut Fields,
) -> Result<oss_engine::Result<Vec<u32>>, Refusal> {
    app.check_model(fields.take::<String>("model")?.as_deref())?;
    let encoding = Encoding::read(fields)?;
    let prompt: String = fields.need("prompt")?;
    Ok(encoding.encode(engine, &prompt))
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
    let engine = app.engine()?;
    let body = body::read(&app, request).await?;
    let work = || {
        let mut fields = Fields::parse(&body)?;
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
    Ok(routes::json(app.heavy(body.len(), work).await?))
}
