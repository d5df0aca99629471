//! The constraint that follows an answer through its messages.

use std::sync::Arc;

use oss_sampler::Mask;

use super::matcher::Matcher;
use super::messages::{Message, Messages};
use super::vocabulary::Vocabulary;
use crate::constraint::Constraint;
use crate::error::{Error, Result};

/// Allows what the messages of an answer allow, and nothing else.
pub(crate) struct Follower {
    vocabulary: Arc<Vocabulary>,
    messages: Vec<Message>,
    state: State,
    mask: Mask,
}

/// Where in its messages an answer is.
#[derive(Clone, Copy)]
enum State {
    /// In an opening: so many tokens of that of this message have come, and of all others that
    /// begin alike.
    Opening { message: usize, len: usize },
    /// In a message's content.
    Content { message: usize },
    /// The last message's content is complete, and may be closed.
    Complete { message: usize },
    /// The last message is closed.
    Over,
    /// A token came that was not allowed.
    Stray,
}

impl Follower {
    pub(crate) fn new(vocabulary: Arc<Vocabulary>, messages: Messages) -> Self {
        let Messages { all: messages, begun } = messages;
        let state = match begun {
            Some(len) => State::Opening { message: 0, len },
            None => State::Content { message: 0 },
        };
        let mask = Mask::new(vocabulary.text().vocabulary());
        Self { vocabulary, messages, state, mask }
    }

    /// The messages whose openings begin with the `len` tokens that have come of one of them.
    fn begun(&self, message: usize, len: usize) -> impl Iterator<Item = (usize, &[u32])> {
        let come = &self.messages[message].opening[..len];
        let openings = self.messages.iter().map(|message| message.opening.as_slice()).enumerate();
        openings.filter(move |(_, opening)| opening.len() > len && opening.starts_with(come))
    }

    /// The state after one more token.
    fn next(&mut self, token: u32) -> State {
        match self.state {
            State::Opening { message, len } => {
                match self.begun(message, len).find(|(_, opening)| opening[len] == token) {
                    None => State::Stray,
                    Some((message, opening)) if opening.len() == len + 1 => {
                        State::Content { message }
                    }
                    Some((message, _)) => State::Opening { message, len: len + 1 },
                }
            }
            State::Content { message } => self.within(message, token),
            State::Complete { message } => {
                let message = &self.messages[message];
                if message.ends.contains(&token) { message.after() } else { State::Stray }
            }
            State::Over | State::Stray => State::Stray,
        }
    }
}

impl Follower {
    /// The state after one more token in a message's content.
    fn within(&mut self, index: usize, token: u32) -> State {
        let message = &mut self.messages[index];
        if message.ends_with(token) {
            return message.after();
        }
        let fits = match &mut message.grammar {
            None => self.vocabulary.text().is_allowed(token),
            Some(grammar) => grammar.push(token),
        };
        if !fits {
            return State::Stray;
        }
        let has_all = message.is_last && message.grammar.as_mut().is_some_and(Matcher::is_complete);
        if has_all { State::Complete { message: index } } else { self.state }
    }
}

impl Message {
    /// Whether its content may end here, and ends with this token. An end may be a token that
    /// stands for text: until the content may end, it is text.
    fn ends_with(&mut self, token: u32) -> bool {
        self.ends.contains(&token) && self.grammar.as_mut().is_none_or(Matcher::accepts)
    }

    /// Where its end leads.
    fn after(&self) -> State {
        if self.is_last { State::Over } else { State::Opening { message: 0, len: 0 } }
    }
}

impl Constraint for Follower {
    fn mask(&mut self) -> Result<Option<&Mask>> {
        let mut mask = std::mem::replace(&mut self.mask, Mask::new(0));
        // A model may lack tokens that its tokenizer has.
        let allow = |mask: &mut Mask, id: u32| {
            if (id as usize) < mask.vocabulary() {
                mask.allow(id);
            }
        };
        let filled = match self.state {
            State::Opening { message, len } => {
                mask.fill(false);
                self.begun(message, len).for_each(|(_, opening)| allow(&mut mask, opening[len]));
                Ok(())
            }
            State::Content { message } => {
                let Message { grammar, ends, .. } = &mut self.messages[message];
                let (filled, may_end) = match grammar {
                    Some(grammar) => (grammar.fill(&mut mask), grammar.accepts()),
                    None => {
                        mask.clone_from(self.vocabulary.text());
                        (Ok(()), true)
                    }
                };
                if may_end {
                    ends.iter().for_each(|end| allow(&mut mask, *end));
                }
                filled
            }
            State::Complete { message } => {
                mask.fill(false);
                self.messages[message].ends.iter().for_each(|end| allow(&mut mask, *end));
                Ok(())
            }
            State::Over => Err(Error::Constraint { reason: "the answer is over".to_owned() }),
            State::Stray => {
                let reason = "a token came that the grammar does not allow";
                Err(Error::Constraint { reason: reason.to_owned() })
            }
        };
        self.mask = mask;
        filled?;
        Ok(Some(&self.mask))
    }

    fn accept(&mut self, token: u32) {
        self.state = self.next(token);
    }

    fn is_text(&mut self, token: u32) -> bool {
        let ends = match self.state {
            State::Content { message } => self.messages[message].ends_with(token),
            _ => false,
        };
        !ends && self.vocabulary.text().is_allowed(token)
    }

    fn is_finished(&self) -> bool {
        matches!(self.state, State::Over | State::Complete { .. })
    }
}
