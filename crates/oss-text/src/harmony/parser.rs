//! Completions to messages, token by token.

use super::conversation::{Content, Message, RecipientPlace};
use super::header::{CONSTRAIN, Draft, Header};
use super::tokens::Tokens;
use crate::chat::Role;
use crate::decoder::Decoder;
use crate::error::Result;
use crate::tokenizer::Tokenizer;

/// What a token did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A message begins.
    Start(Header),
    /// The message goes on with this text, which is never empty.
    Delta(String),
    /// The message is over.
    End(End),
}

/// Why a message is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// `<|end|>`: another message of the turn may follow.
    End,
    /// `<|return|>`: the turn is over.
    Return,
    /// `<|call|>`: a tool has to answer.
    Call,
    /// The model began another header, or the text, without ending this message.
    Cut,
    /// The tokens ran out, or `<|endoftext|>`.
    Eof,
}

/// Reads a completion token by token.
///
/// Any stream of tokens gives events: [`Event::Start`], [`Event::Delta`]s, [`Event::End`], in
/// this order for each message, with nothing between messages. Where the model breaks the
/// format, the parser goes on with the likeliest meaning, and text is never lost:
///
/// - Text where a header should be becomes a message on `final` as soon as it cannot be a
///   header any more; a header that forgets `<|message|>` gives its further words as content.
/// - `<|start|>` or `<|channel|>` inside a content ends the message ([`End::Cut`]) and begins a
///   header; there, `<|message|>`, `<|constrain|>` and other control tokens are no text.
/// - A header that is cut off before it said anything gives no message. A second `<|channel|>`
///   begins it anew, for the recipient that it had.
/// - A word that is no channel's name, in its place and behind it neither a content nor the end of
///   the turn, is reasoning.
/// - A channel or a role that the format does not know is kept as it was written.
#[derive(Clone, Debug)]
pub struct Parser {
    tokenizer: Tokenizer,
    tokens: Tokens,
    decoder: Decoder,
    state: State,
}

#[derive(Clone, Debug)]
enum State {
    /// No message is open; text begins a header that forgot `<|start|>`.
    Header(Draft),
    /// A message is open.
    Content(Header),
}

impl Parser {
    /// A parser for what follows a prompt that ends with `<|start|>assistant`, as
    /// [`super::render`] makes.
    ///
    /// # Errors
    /// The vocabulary lacks the format's markers.
    pub fn new(tokenizer: &Tokenizer) -> Result<Self> {
        let tokens = Tokens::of(tokenizer)?;
        let decoder = Decoder::without_special(tokenizer);
        let state = State::Header(Draft::of_role(Role::Assistant));
        Ok(Self { tokenizer: tokenizer.clone(), tokens, decoder, state })
    }

    /// Whether a token is none of a text's.
    pub fn is_control(&self, id: u32) -> bool {
        self.tokenizer.is_special(id)
    }

    /// The header of the open message, if one is open.
    pub fn header(&self) -> Option<&Header> {
        match &self.state {
            State::Content(header) => Some(header),
            State::Header(_) => None,
        }
    }

    /// The format's control tokens in this vocabulary.
    pub fn tokens(&self) -> &Tokens {
        &self.tokens
    }

    /// Takes a token and tells what it did: none, one or a few events.
    pub fn push(&mut self, id: u32) -> Vec<Event> {
        let mut events = Vec::new();
        let tokens = self.tokens;
        if id == tokens.start {
            self.close(End::Cut, Draft::started(), &mut events);
        } else if id == tokens.channel {
            self.channel(&mut events);
        } else if id == tokens.message {
            self.message(&mut events);
        } else if id == tokens.end {
            self.close(End::End, Draft::default(), &mut events);
        } else if id == tokens.return_ {
            self.close(End::Return, Draft::default(), &mut events);
        } else if id == tokens.call {
            self.close(End::Call, Draft::default(), &mut events);
        } else if Some(id) == tokens.end_of_text {
            self.close(End::Eof, Draft::default(), &mut events);
        } else if id == tokens.constrain {
            self.constrain(&mut events);
        } else if !self.tokenizer.is_special(id) {
            let text = self.decoder.push(id);
            self.text(&text, &mut events);
        }
        events
    }

    /// Tells the parser that no token follows. It is ready for another completion then.
    pub fn finish(&mut self) -> Vec<Event> {
        let mut events = Vec::new();
        self.close(End::Eof, Draft::of_role(Role::Assistant), &mut events);
        events
    }

    /// Ends what is open and begins a new header.
    fn close(&mut self, end: End, next: Draft, events: &mut Vec<Event>) {
        let left = self.decoder.finish();
        self.text(&left, events);
        match std::mem::replace(&mut self.state, State::Header(next)) {
            State::Content(_) => events.push(Event::End(end)),
            State::Header(draft) => {
                let mut reading = draft.cut_off();
                // A channel's name that went wrong, where the model may begin anew, is no answer.
                if matches!(end, End::End | End::Cut) && draft.misnames_channel() {
                    reading.header.channel = Some("analysis".to_owned());
                }
                if !reading.rest.is_empty() {
                    let (start, text) = (Event::Start(reading.header), Event::Delta(reading.rest));
                    events.extend([start, text, Event::End(end)]);
                }
            }
        }
    }

    /// `<|channel|>`: in a header its part, elsewhere a new header of the same role.
    fn channel(&mut self, events: &mut Vec<Event>) {
        let left = self.decoder.finish();
        self.text(&left, events);
        if let State::Header(draft) = &mut self.state
            && !draft.has_channel()
        {
            draft.open_channel();
            return;
        }
        let next = match &self.state {
            State::Header(draft) => draft.begun_anew(),
            State::Content(header) => {
                let mut next = Draft::of_role(header.role);
                next.open_channel();
                next
            }
        };
        self.close(End::Cut, next, events);
    }

    /// `<|message|>`: the header is complete; inside a content it means nothing.
    fn message(&mut self, events: &mut Vec<Event>) {
        if let State::Header(_) = self.state {
            let left = self.decoder.finish();
            self.text(&left, events);
        }
        if let State::Header(draft) = &self.state {
            let header = draft.complete();
            events.push(Event::Start(header.clone()));
            self.state = State::Content(header);
        }
    }

    fn constrain(&mut self, events: &mut Vec<Event>) {
        if let State::Header(_) = self.state {
            let left = self.decoder.finish();
            self.text(&left, events);
        }
        if let State::Header(draft) = &mut self.state {
            draft.push(CONSTRAIN);
        }
    }

    fn text(&mut self, text: &str, events: &mut Vec<Event>) {
        if text.is_empty() {
            return;
        }
        match &mut self.state {
            State::Content(_) => events.push(Event::Delta(text.to_owned())),
            State::Header(draft) => {
                draft.push(text);
                if draft.is_hopeless() {
                    let reading = draft.cut_off();
                    events.push(Event::Start(reading.header.clone()));
                    if !reading.rest.is_empty() {
                        events.push(Event::Delta(reading.rest));
                    }
                    self.state = State::Content(reading.header);
                }
            }
        }
    }
}

/// The messages of a whole completion that follows `<|start|>assistant`.
///
/// # Errors
/// The vocabulary lacks the format's markers; never because of the tokens.
pub fn parse(tokenizer: &Tokenizer, ids: &[u32]) -> Result<Vec<Message>> {
    let mut parser = Parser::new(tokenizer)?;
    let mut messages: Vec<Message> = Vec::new();
    let mut events: Vec<Event> = ids.iter().flat_map(|&id| parser.push(id)).collect();
    events.extend(parser.finish());
    for event in events {
        match event {
            Event::Start(header) => messages.push(Message {
                role: header.role,
                name: header.name,
                channel: header.channel,
                recipient: header.recipient,
                recipient_place: RecipientPlace::default(),
                content_type: header.content_type,
                content: Content::Text(String::new()),
            }),
            Event::Delta(delta) => {
                if let Some(Content::Text(text)) = messages.last_mut().map(|m| &mut m.content) {
                    text.push_str(&delta);
                }
            }
            Event::End(_) => {}
        }
    }
    Ok(messages)
}
