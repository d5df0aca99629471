//! A harmony completion as typed events.

use oss_text::harmony::{self, Header, Kind, Parser};

use crate::event::Event;
use crate::output::Output;
use crate::stop::Stopper;

/// What stands between two messages that are shown: one may follow the other without a word between
/// them, as an answer follows a preamble.
const BETWEEN: &str = "\n\n";

/// Channels and recipients become reasoning, text and tool calls.
pub(crate) struct HarmonyOutput {
    parser: Parser,
    stopper: Stopper,
    stopped: bool,
    /// What the open message is.
    kind: Kind,
    /// Some text was shown.
    has_shown: bool,
    /// The open message follows one that was shown, and nothing of it was shown yet.
    follows: bool,
    calls: usize,
    call_prefix: String,
}

impl HarmonyOutput {
    /// An output whose calls are named `call_prefix` and their number.
    pub(crate) fn new(parser: Parser, stopper: Stopper, call_prefix: String) -> Self {
        Self {
            parser,
            stopper,
            stopped: false,
            kind: Kind::Answer,
            has_shown: false,
            follows: false,
            calls: 0,
            call_prefix,
        }
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
                self.say(text, events);
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
            (harmony::Event::End(_), _) => {
                let held = self.stopper.finish();
                self.say(held, events);
            }
        }
    }

    /// Shows text of the open message, apart from the message before.
    fn say(&mut self, mut text: String, events: &mut Vec<Event>) {
        if text.is_empty() {
            return;
        }
        if std::mem::take(&mut self.follows) {
            text.insert_str(0, BETWEEN);
        }
        self.has_shown = true;
        events.push(Event::Text(text));
    }

    fn start(&mut self, header: &Header, events: &mut Vec<Event>) {
        self.kind = header.kind();
        self.follows = self.has_shown;
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
        self.stopper.token();
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Text;
    use oss_text::Special;
    use oss_weights::Container;

    /// The text of a completion.
    fn shown(completion: &str, stop: &[&str]) -> String {
        let container = Container::from_bytes("demo", oss_demo::GGUF, Vec::new()).unwrap();
        let text = Text::from_container(&container).unwrap();
        let tokenizer = text.tokenizer().unwrap();
        let stop = stop.iter().map(|&stop| stop.to_owned()).collect();
        let parser = Parser::new(tokenizer).unwrap();
        let mut output = HarmonyOutput::new(parser, Stopper::new(stop, 0), String::new());
        let mut events = Vec::new();
        for id in tokenizer.encode(completion, Special::Parse) {
            output.token(id, &mut events);
        }
        output.finish(&mut events);
        let texts = events.into_iter().filter_map(|event| match event {
            Event::Text(text) => Some(text),
            _ => None,
        });
        texts.collect()
    }

    #[test]
    fn two_messages_that_are_shown_stand_apart() {
        let preamble = "<|channel|>commentary<|message|>Let me see.<|end|><|start|>assistant";
        let thought = "<|channel|>analysis<|message|>Well.<|end|><|start|>assistant";
        let answer = "<|channel|>final<|message|>It is 4.<|return|>";
        let together = |parts: &[&str]| shown(&parts.concat(), &[]);
        assert_eq!(together(&[preamble, answer]), "Let me see.\n\nIt is 4.");
        assert_eq!(together(&[preamble, thought, answer]), "Let me see.\n\nIt is 4.");
        assert_eq!(together(&[thought, answer]), "It is 4.");
        assert_eq!(together(&[thought, preamble]), "Let me see.");
        let all = [preamble, answer].concat();
        assert_eq!(shown(&all, &["\n\n"]), "Let me see.\n\nIt is 4.");
        assert_eq!(shown(&all, &["It!"]), "Let me see.\n\nIt is 4.", "held back at first");
    }
}
