//! From the first moment to the last.

use std::time::Duration;

use tokio::time::{sleep, timeout};

use crate::app::App;
use crate::phase::Phase;

/// How long answers that are ended have to write their last frame.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// Waits for the order to drain and goes through its phases; returns when no request is left, or
/// when the server has failed.
pub(super) async fn live(app: &App) {
    tokio::select! {
        () = app.drain_asked() => {}
        () = app.reached(Phase::Failed) => return,
    }
    if app.phase() == Phase::Loading {
        tracing::info!("ended before the model was loaded");
        app.move_to(Phase::Closed);
        return;
    }
    let (settle, limit) = (app.options.drain_settle, app.options.drain_timeout);
    tracing::info!(?settle, "draining: routers are told, requests are still taken");
    app.move_to(Phase::Draining);
    sleep(settle).await;
    tracing::info!(?limit, "draining: no request is taken, those that run go on");
    app.move_to(Phase::Refusing);
    if timeout(limit, app.all_left()).await.is_err() {
        tracing::warn!("draining: requests that still run are ended");
        app.move_to(Phase::Ending);
        if timeout(LAST_WORDS, app.all_left()).await.is_err() {
            tracing::warn!("draining: some clients did not read to their end");
        }
    }
    app.move_to(Phase::Closed);
}
