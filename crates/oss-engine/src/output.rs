//! From drawn tokens to the events that a consumer sees.

use oss_text::{Decoder, Tokenizer};

use crate::event::Event;
use crate::stop::Stopper;

/// Turns tokens into events, as the answer's format asks.
pub(crate) trait Output: Send {
    /// A token came; `true`: a stop text was found and the answer is over.
    fn token(&mut self, id: u32, events: &mut Vec<Event>) -> bool;

    /// A token came that ends the answer.
    fn stop_token(&mut self, id: u32, events: &mut Vec<Event>);

    /// The answer's constraint is finished with the last token: nothing is missing.
    fn complete(&mut self) {}

    /// The answer is over: what was held back is shown, unless a stop text ended it.
    fn finish(&mut self, events: &mut Vec<Event>);

    /// Whether the answer, which is over, called tools.
    fn calls_tools(&self) -> bool {
        false
    }
}

/// Text as it comes.
pub(crate) struct Plain {
    decoder: Decoder,
    stopper: Stopper,
    stopped: bool,
}

impl Plain {
    pub(crate) fn new(tokenizer: &Tokenizer, stopper: Stopper, skip_special: bool) -> Self {
        let decoder = match skip_special {
            true => Decoder::without_special(tokenizer),
            false => Decoder::new(tokenizer),
        };
        Self { decoder, stopper, stopped: false }
    }
}

impl Output for Plain {
    fn token(&mut self, id: u32, events: &mut Vec<Event>) -> bool {
        self.stopper.token();
        let (text, stopped) = self.stopper.push(&self.decoder.push(id));
        self.stopped = stopped;
        show(text, events);
        stopped
    }

    fn stop_token(&mut self, _id: u32, _events: &mut Vec<Event>) {}

    fn finish(&mut self, events: &mut Vec<Event>) {
        if self.stopped {
            return;
        }
        let (text, stopped) = self.stopper.push(&self.decoder.finish());
        show(text, events);
        if !stopped {
            show(self.stopper.finish(), events);
        }
    }
}

/// Tokens alone, of a model without tokenizer.
pub(crate) struct Silent;

impl Output for Silent {
    fn token(&mut self, _id: u32, _events: &mut Vec<Event>) -> bool {
        false
    }

    fn stop_token(&mut self, _id: u32, _events: &mut Vec<Event>) {}

    fn finish(&mut self, _events: &mut Vec<Event>) {}
}

/// Adds a text, unless it is empty.
pub(crate) fn show(text: String, events: &mut Vec<Event>) {
    if !text.is_empty() {
        events.push(Event::Text(text));
    }
}
