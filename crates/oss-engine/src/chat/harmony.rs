//! A harmony completion as typed events.

use oss_text::harmony::{self, Header, Kind, Parser};

use crate::event::Event;
use crate::output::{Output, show};
use crate::stop::Stopper;

/// Channels and recipients become reasoning, text and tool calls.
pub(crate) struct HarmonyOutput {
    parser: Parser,
    stopper: Stopper,
    stopped: bool,
    /// What the open message is.
    kind: Kind,
    calls: usize,
    call_prefix: String,
}

impl HarmonyOutput {
    /// An output whose calls are named `call_prefix` and their number.
    pub(crate) fn new(parser: Parser, stop: Vec<String>, call_prefix: String) -> Self {
        let stopper = Stopper::new(stop);
        let kind = Kind::Answer;
        Self { parser, stopper, stopped: false, kind, calls: 0, call_prefix }
    }

    /// Reads the end of the prompt that belongs to the answer: a call that was forced.
    pub(crate) fn prime(&mut self, ids: &[u32]) -> Vec<Event> {
        let mut events = Vec::new();
        for &id in ids {
            self.read(id, &mut events);
        }
        events
    }

    fn read(&mut self, id: u32, events: &mut Vec<Event>) {
        for event in self.parser.push(id) {
            self.show(event, events);
        }
    }

    fn show(&mut self, event: harmony::Event, events: &mut Vec<Event>) {
        if self.stopped {
            return;
        }
        match (event, self.kind) {
            (harmony::Event::Start(header), _) => self.start(&header, events),
            (harmony::Event::Delta(text), Kind::Reasoning) => events.push(Event::Reasoning(text)),
            (harmony::Event::Delta(text), Kind::Answer | Kind::Preamble) => {
                let (text, stopped) = self.stopper.push(&text);
                show(text, events);
                self.stopped = stopped;
            }
            (harmony::Event::Delta(delta), Kind::ToolCall) => {
                events.push(Event::ToolCallArguments { index: self.calls - 1, delta });
            }
            // Another role's words, which only a confused model writes, are nobody's answer.
            (harmony::Event::Delta(_), Kind::Foreign) => {}
            (harmony::Event::End(_), Kind::ToolCall) => {
                events.push(Event::ToolCallEnd { index: self.calls - 1 });
            }
            (harmony::Event::End(_), _) => show(self.stopper.finish(), events),
        }
    }

    fn start(&mut self, header: &Header, events: &mut Vec<Event>) {
        self.kind = header.kind();
        if self.kind == Kind::ToolCall {
            let recipient = header.recipient.as_deref().unwrap_or_default();
            let name = header.function().unwrap_or(recipient).to_owned();
            let index = self.calls;
            let id = format!("{}{index}", self.call_prefix);
            events.push(Event::ToolCallStart { index, id, name });
            self.calls += 1;
        }
    }
}

impl Output for HarmonyOutput {
    fn token(&mut self, id: u32, events: &mut Vec<Event>) -> bool {
        self.read(id, events);
        self.stopped
    }

    fn stop_token(&mut self, id: u32, events: &mut Vec<Event>) {
        self.read(id, events);
    }

    fn finish(&mut self, events: &mut Vec<Event>) {
        for event in self.parser.finish() {
            self.show(event, events);
        }
    }

    fn calls_tools(&self) -> bool {
        self.calls > 0
    }
}
