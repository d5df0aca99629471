//! Which path does what.

mod admin;
mod answer;
pub(crate) mod body;
mod loads;
mod model;
mod probes;
mod tokens;

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::{FromRequestParts, Path};
use axum::http::header::CONTENT_TYPE;
use axum::http::request::Parts;
use axum::http::{HeaderValue, Method, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use serde::Serialize;

use self::answer::{answer, kept};
use crate::app::App;
use crate::refusal::Refusal;
use crate::write::{ChatWriter, CompletionWriter, ResponseWriter};

/// Who asks, put beside every request.
#[derive(Clone)]
pub(crate) struct Caller {
    /// On this machine, as far as its address tells.
    pub(crate) is_local: bool,
    pub(crate) request_id: String,
    /// It showed the right key.
    pub(crate) has_key: bool,
}

/// Paths that need no key: probes and scrapers have none.
pub(crate) const OPEN: [&str; 7] =
    ["/health", "/health/ready", "/live", "/livez", "/metrics", "/ready", "/readyz"];

/// All paths.
pub(crate) fn router(app: Arc<App>) -> Router {
    Router::new()
        .route("/health", get(probes::ready))
        .route("/health/ready", get(probes::ready))
        .route("/ready", get(probes::ready))
        .route("/readyz", get(probes::ready))
        .route("/live", get(probes::live))
        .route("/livez", get(probes::live))
        .route("/metrics", get(probes::metrics))
        .route("/version", get(model::version))
        .route("/v1/models", get(model::models))
        .route("/v1/models/{*name}", get(model::model))
        .route("/v1/loads", get(loads::loads))
        .route("/v1/chat/completions", post(answer::<ChatWriter>))
        .route("/v1/chat/completions/render", post(tokens::render_chat))
        .route("/v1/completions", post(answer::<CompletionWriter>))
        .route("/v1/completions/render", post(tokens::render_completion))
        .route("/v1/responses", post(answer::<ResponseWriter>))
        .route("/v1/responses/input_tokens", post(tokens::count))
        .route("/v1/responses/{id}", get(kept).delete(kept))
        .route("/v1/responses/{id}/cancel", post(kept))
        .route("/v1/responses/{id}/input_items", get(kept))
        .route("/tokenize", post(tokens::tokenize))
        .route("/detokenize", post(tokens::detokenize))
        .route("/admin/drain", post(admin::drain))
        .fallback(no_path)
        .method_not_allowed_fallback(no_method)
        .with_state(app)
}

/// The part of a path that is a name.
pub(crate) struct Name(pub(crate) String);

impl<S: Send + Sync> FromRequestParts<S> for Name {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Refusal> {
        match Path::<String>::from_request_parts(parts, state).await {
            Ok(Path(name)) => Ok(Self(name)),
            Err(rejection) => Err(Refusal::invalid(format!("path: {}", rejection.body_text()))),
        }
    }
}

async fn no_path(uri: Uri) -> Refusal {
    let message = format!("path: got {}, expected one of this server's", uri.path());
    Refusal::new(StatusCode::NOT_FOUND, "invalid_request_error", message)
}

async fn no_method(method: Method, uri: Uri) -> Refusal {
    // The header is the router's own.
    let expected = "one of those that the header Allow names";
    let message = format!("method: got {method} for {}, expected {expected}", uri.path());
    Refusal::new(StatusCode::METHOD_NOT_ALLOWED, "invalid_request_error", message)
}

/// A value as JSON, for [`json`]: of long lists, work for [`App::heavy`].
pub(crate) fn written(value: &impl Serialize) -> String {
    serde_json::to_string(value).expect("wire types are JSON")
}

/// A response of JSON that is already written.
pub(crate) fn json(text: String) -> Response {
    typed("application/json", text)
}

pub(crate) fn typed(kind: &'static str, text: String) -> Response {
    let mut response = Body::from(text).into_response();
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}
