//! Orders to the server itself.

use std::sync::Arc;

use axum::extract::{Extension, State};
use axum::http::header::ORIGIN;
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use serde_json::json;

use crate::app::App;
use crate::refusal::Refusal;
use crate::routes::{self, Caller};
use crate::server::pages;

/// Begins to drain, as SIGTERM does; the server ends when it is done. Where there is a key, whoever
/// comes here has shown it: a proxy on this machine that adds no header looks like any program on
/// it. Without a key, only for programs on this machine that ask directly: neither through a proxy
/// that says so nor from a page in a browser.
pub(crate) async fn drain(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
) -> Result<Response, Refusal> {
    let direct = !headers.contains_key(ORIGIN) && !pages::comes_through_a_proxy(&headers);
    if !(caller.has_key || caller.is_local && direct) {
        let message = "admin: got a caller from outside, expected one on this machine";
        return Err(Refusal::new(StatusCode::FORBIDDEN, "permission_error", message));
    }
    app.ask_for_drain();
    let mut response = routes::json(json!({"status": "draining"}).to_string());
    *response.status_mut() = StatusCode::ACCEPTED;
    Ok(response)
}
