//! Answers that are sent at their end, in one piece.

use axum::response::Response;
use oss_engine::Event;

use crate::answers::{Answers, Item};
use crate::refusal::Refusal;
use crate::routes;

/// Gathers the events of an answer in one API's way.
pub(crate) trait Whole: Send {
    /// An event of one choice.
    fn event(&mut self, choice: usize, event: Event);

    /// How much work writing it is, as the length of a body ([`App::heavy`](crate::app::App)).
    fn weight(&self) -> usize;

    /// The whole answer as JSON: every choice is over.
    fn finish(self) -> String;
}

/// The response that `answers` make once the last is over.
///
/// # Errors
/// What ended the request before.
pub(crate) async fn response(
    mut answers: Answers,
    mut whole: impl Whole,
) -> Result<Response, Refusal> {
    while let Some(item) = answers.next().await {
        match item {
            Item::Event(choice, event) => whole.event(choice, event),
            Item::Failed(refusal) => return Err(refusal),
        }
    }
    // The request has its place, for which the end of the server waits, until this is written.
    let text = answers.app().heavy(whole.weight(), || whole.finish()).await;
    Ok(routes::json(text))
}
