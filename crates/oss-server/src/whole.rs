//! Answers that are sent at their end, in one piece.

use axum::response::Response;

use crate::answers::{Answers, Item};
use crate::refusal::Refusal;
use crate::routes;
use crate::write::Wire;

/// The response that `wire` makes of `answers` once the last is over.
///
/// # Errors
/// What ended the request before.
pub(crate) async fn response(
    mut answers: Answers,
    mut wire: impl Wire,
) -> Result<Response, Refusal> {
    while let Some(item) = answers.next().await {
        match item {
            Item::Event(choice, event) => wire.event(choice, event, None),
            Item::Failed(refusal) => return Err(refusal),
        }
    }
    // The request has its place, for which the end of the server waits, until this is written.
    let text = answers.app().heavy(wire.weight(), || wire.whole()).await;
    Ok(routes::json(text))
}
