//! How busy the server is, in the form that load-balancing gateways read.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use oss_engine::PAGE_TOKENS;
use serde_json::json;

use crate::app::App;
use crate::refusal::Refusal;
use crate::{clock, metrics, routes};

/// The load of the one engine.
pub(crate) async fn loads(State(app): State<Arc<App>>) -> Result<Response, Refusal> {
    let engine = app.engine()?;
    let metrics = app.metrics(engine);
    let (usage, pages) = metrics::cache_use(&metrics);
    let capacity = pages * PAGE_TOKENS;
    let prompt_tokens = metrics.computed_prompt_tokens + metrics.cached_tokens;
    let most = engine.tuning().max_sequences.value;
    let load = json!({
        "dp_rank": 0,
        "num_running_reqs": metrics.running,
        "num_waiting_reqs": metrics.queued,
        // Which of them are cached is known when a request is admitted.
        "num_waiting_uncached_tokens": app.books.tokens_that_wait(),
        "num_total_reqs": metrics.running + metrics.queued,
        "num_used_tokens": (usage * capacity as f64).round() as usize,
        "max_total_num_tokens": capacity,
        "token_usage": usage,
        "gen_throughput": app.books.throughput(),
        "cache_hit_rate": metrics.cached_tokens as f64 / prompt_tokens.max(1) as f64,
        "utilization": (metrics.running as f64 / most.max(1) as f64).min(1.0),
        "max_running_requests": most,
    });
    let loads = json!({"timestamp": clock::timestamp(), "dp_rank_count": 1, "loads": [load]});
    Ok(routes::json(loads.to_string()))
}
