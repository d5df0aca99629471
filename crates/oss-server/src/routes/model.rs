//! The one model, and the version.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use serde_json::{Value, json};

use crate::app::App;
use crate::refusal::Refusal;
use crate::routes::{self, Name};

/// Who made it. Gateways take names they know for servers they know; this is neither.
const OWNER: &str = "oss-engine";

fn entry(app: &App) -> Result<Value, Refusal> {
    let engine = app.engine()?;
    let name = &app.options.model_name;
    Ok(json!({
        "id": name,
        "object": "model",
        "created": app.created,
        "owned_by": OWNER,
        "root": name,
        "parent": null,
        "max_model_len": engine.context_len(),
    }))
}

/// The list of models; 503 until there is one.
pub(crate) async fn models(State(app): State<Arc<App>>) -> Result<Response, Refusal> {
    Ok(routes::json(json!({"object": "list", "data": [entry(&app)?]}).to_string()))
}

/// One model by its name, which may have slashes.
pub(crate) async fn model(
    State(app): State<Arc<App>>,
    Name(name): Name,
) -> Result<Response, Refusal> {
    let entry = entry(&app)?;
    app.check_model(Some(&name))?;
    Ok(routes::json(entry.to_string()))
}

/// The server's version.
pub(crate) async fn version() -> Response {
    routes::json(json!({"version": env!("CARGO_PKG_VERSION")}).to_string())
}
