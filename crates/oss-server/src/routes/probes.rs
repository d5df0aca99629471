//! Whether the server is there, takes requests, and what it has counted.

use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use serde_json::json;

use crate::app::App;
use crate::metrics;
use crate::phase::Phase;
use crate::routes;

fn status(fine: bool, word: &str) -> Response {
    let mut response = routes::json(json!({"status": word}).to_string());
    if !fine {
        *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
    }
    response
}

/// 200 while routers may send requests.
pub(crate) async fn ready(State(app): State<Arc<App>>) -> Response {
    let (healthy, word) = app.health();
    status(healthy, word)
}

/// 200 while the process is worth keeping: also while it loads and drains.
pub(crate) async fn live(State(app): State<Arc<App>>) -> Response {
    match (app.phase(), app.books.is_stalled()) {
        (Phase::Failed, _) => status(false, "failed"),
        (_, true) => status(false, "stalled"),
        (_, false) => status(true, "ok"),
    }
}

/// Everything that was counted, for Prometheus.
pub(crate) async fn metrics(State(app): State<Arc<App>>) -> Response {
    routes::typed("text/plain; version=0.0.4; charset=utf-8", metrics::page(&app))
}
