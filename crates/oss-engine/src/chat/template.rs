//! An answer to a chat that a template wrote: text, or a tool call as JSON.

use oss_text::chat::{Tool, to_json};
use oss_text::{Decoder, Tokenizer};
use serde_json::Value;

use crate::event::Event;
use crate::output::{Output, show};
use crate::stop::Stopper;

/// Text before which models announce a call.
const OPENINGS: [&str; 2] = ["<tool_call>", "<|python_tag|>"];

/// Shows text at once; holds back what begins like a call until it is complete.
///
/// Models with templates call a tool by `{"name": …, "parameters" or "arguments": {…}}`, several
/// one after the other, bare or between `<tool_call>` marks. What is not a call of an offered tool
/// is shown as text.
pub(crate) struct TemplateOutput {
    decoder: Decoder,
    stopper: Stopper,
    stopped: bool,
    functions: Vec<String>,
    state: State,
    calls: usize,
    call_prefix: String,
}

#[derive(PartialEq)]
enum State {
    /// Nothing but space, or the beginning of a mark, so far.
    Undecided(String),
    /// Text goes straight on.
    Text,
    /// What may be a call.
    Call(String),
}

impl TemplateOutput {
    pub(crate) fn new(
        tokenizer: &Tokenizer,
        tools: &[Tool],
        stop: Vec<String>,
        call_prefix: String,
    ) -> Self {
        let functions: Vec<String> = tools.iter().map(|tool| tool.function.name.clone()).collect();
        let decoder = match functions.is_empty() {
            true => Decoder::without_special(tokenizer),
            false => Decoder::new(tokenizer),
        };
        Self {
            decoder,
            stopper: Stopper::new(stop),
            stopped: false,
            functions,
            state: State::Undecided(String::new()),
            calls: 0,
            call_prefix,
        }
    }

    /// Decides what text is.
    fn take(&mut self, text: &str, events: &mut Vec<Event>) {
        match &mut self.state {
            State::Text => self.text(text, events),
            State::Call(call) => call.push_str(text),
            State::Undecided(begun) => {
                begun.push_str(text);
                let shown = begun.trim_start();
                if shown.is_empty() {
                    return;
                }
                let offered = !self.functions.is_empty();
                let marked = OPENINGS.iter().any(|opening| shown.starts_with(opening));
                if offered && (shown.starts_with(['{', '[']) || marked) {
                    self.state = State::Call(shown.to_owned());
                } else if !(offered && OPENINGS.iter().any(|opening| opening.starts_with(shown))) {
                    let shown = shown.to_owned();
                    self.state = State::Text;
                    self.text(&shown, events);
                }
            }
        }
    }

    fn text(&mut self, text: &str, events: &mut Vec<Event>) {
        let (text, stopped) = self.stopper.push(text);
        show(text, events);
        self.stopped = stopped;
    }

    fn call(&mut self, call: &str, events: &mut Vec<Event>) {
        let Some(calls) = calls(call, &self.functions) else {
            self.text(call, events);
            return;
        };
        for (name, delta) in calls {
            let (index, id) = (self.calls, format!("{}{}", self.call_prefix, self.calls));
            events.push(Event::ToolCallStart { index, id, name });
            events.push(Event::ToolCallArguments { index, delta });
            events.push(Event::ToolCallEnd { index });
            self.calls += 1;
        }
    }
}

impl Output for TemplateOutput {
    fn token(&mut self, id: u32, events: &mut Vec<Event>) -> bool {
        let text = self.decoder.push(id);
        self.take(&text, events);
        self.stopped
    }

    fn stop_token(&mut self, _id: u32, _events: &mut Vec<Event>) {}

    fn finish(&mut self, events: &mut Vec<Event>) {
        if self.stopped {
            return;
        }
        let text = self.decoder.finish();
        self.take(&text, events);
        match std::mem::replace(&mut self.state, State::Text) {
            State::Call(call) => self.call(&call, events),
            State::Undecided(begun) => self.text(begun.trim_start(), events),
            State::Text => {}
        }
        if !self.stopped {
            show(self.stopper.finish(), events);
        }
    }

    fn calls_tools(&self) -> bool {
        self.calls > 0
    }
}

/// The calls (name, arguments) that a text is, if it is nothing but calls of `functions`.
fn calls(text: &str, functions: &[String]) -> Option<Vec<(String, String)>> {
    let mut calls = Vec::new();
    let mut rest = after_marks(text);
    while !rest.is_empty() {
        let mut values = serde_json::Deserializer::from_str(rest).into_iter::<Value>();
        let values_here = match values.next()?.ok()? {
            Value::Array(values) => values,
            value => vec![value],
        };
        for value in values_here {
            let name = value.get("name")?.as_str()?.to_owned();
            let arguments = match value.get("arguments").or_else(|| value.get("parameters"))? {
                Value::String(text) => text.clone(),
                object => to_json(object),
            };
            calls.push(functions.contains(&name).then_some((name, arguments))?);
        }
        rest = after_marks(&rest[values.byte_offset()..]);
    }
    (!calls.is_empty()).then_some(calls)
}

/// The text after spaces, semicolons and marks.
fn after_marks(mut text: &str) -> &str {
    loop {
        let before = text;
        text = text.trim_start_matches(|c: char| c.is_whitespace() || c == ';');
        for mark in ["<tool_call>", "</tool_call>", "<|python_tag|>"] {
            text = text.strip_prefix(mark).unwrap_or(text);
        }
        if text.len() == before.len() {
            return text;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::calls;

    fn of(text: &str) -> Option<Vec<(String, String)>> {
        calls(text, &["f".to_owned(), "g".to_owned()])
    }

    #[test]
    fn calls_are_read_in_every_spelling() {
        let f = ("f".to_owned(), "{\"a\": 1}".to_owned());
        assert_eq!(of(r#"{"name": "f", "parameters": {"a": 1}}"#), Some(vec![f.clone()]));
        let marked = "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call>";
        assert_eq!(of(marked), Some(vec![f.clone()]));
        let two = r#"{"name":"f","parameters":{"a":1}}; {"name":"g","parameters":{}}"#;
        assert_eq!(of(two), Some(vec![f.clone(), ("g".to_owned(), "{}".to_owned())]));
        assert_eq!(of(r#"[{"name":"f","arguments":{"a":1}}]"#), Some(vec![f]));
    }

    #[test]
    fn json_that_is_no_call_stays_text() {
        assert_eq!(of(r#"{"name": "other", "parameters": {}}"#), None);
        assert_eq!(of(r#"{"answer": 42}"#), None);
        assert_eq!(of(r#"{"name": "f", "parameters": {"#), None);
        assert_eq!(of("{ not json"), None);
    }
}
