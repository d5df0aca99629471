//! An answer to a chat that a template wrote: text, or a tool call as JSON.

use oss_text::chat::Tool;
use oss_text::{Decoder, Tokenizer};
use serde::de::IgnoredAny;
use serde_json::{Deserializer, Value};

use crate::event::Event;
use crate::output::{Output, show};
use crate::stop::{Stopper, overlap};

/// Text before which models announce a call.
const OPENINGS: [&str; 2] = ["<tool_call>", "<|python_tag|>"];

/// Text that stands around calls.
const MARKS: [&str; 3] = ["<tool_call>", "</tool_call>", "<|python_tag|>"];

/// Shows text at once; holds back what begins like a call until it is complete, or cannot be one.
///
/// Models with templates call a tool by `{"name": …, "parameters" or "arguments": {…}}`, several
/// one after the other, bare or between `<tool_call>` marks; after a text they need a mark. What is
/// not a call of an offered tool is shown as text. A stop text ends the answer wherever it comes,
/// in a call too.
pub(crate) struct TemplateOutput {
    decoder: Decoder,
    stopper: Stopper,
    stopped: bool,
    functions: Vec<String>,
    /// Whether anything but space came.
    begun: bool,
    state: State,
    calls: usize,
    call_prefix: String,
}

#[derive(PartialEq)]
enum State {
    /// Nothing, or the beginning of a mark, so far.
    Undecided(String),
    /// Text goes straight on, but for the end of it, which may begin a mark.
    Text(String),
    /// What may be a call, and how long it is when it is looked at next: at each token while it is
    /// short, then whenever it has grown by an eighth, so that all looks together take no longer
    /// than a few over the whole.
    Call { held: String, look_at: usize },
}

/// What a text is, as far as it goes.
#[derive(Debug, PartialEq)]
enum Reading {
    /// Nothing but calls (name, arguments), each of them whole.
    Calls(Vec<(String, String)>),
    /// What more text may make a call.
    Begun,
    /// No call, whatever follows.
    Text,
}

impl TemplateOutput {
    pub(crate) fn new(
        tokenizer: &Tokenizer,
        tools: &[Tool],
        stopper: Stopper,
        call_prefix: String,
    ) -> Self {
        let functions: Vec<String> = tools.iter().map(|tool| tool.function.name.clone()).collect();
        let decoder = match functions.is_empty() {
            true => Decoder::without_special(tokenizer),
            false => Decoder::new(tokenizer),
        };
        Self {
            decoder,
            stopper,
            stopped: false,
            functions,
            begun: false,
            state: State::Undecided(String::new()),
            calls: 0,
            call_prefix,
        }
    }

    /// Keeps space before everything too.
    pub(crate) fn keeping_space(mut self) -> Self {
        self.begun = true;
        self
    }

    /// Lets through what comes before a stop text; space before everything is dropped.
    fn take(&mut self, text: &str, events: &mut Vec<Event>) {
        let text = if self.begun { text } else { text.trim_start() };
        self.begun |= !text.is_empty();
        let (text, stopped) = self.stopper.push(text);
        self.stopped = stopped;
        self.decide(text, events);
    }

    /// Decides what text is.
    fn decide(&mut self, text: String, events: &mut Vec<Event>) {
        let State::Undecided(begun) = &mut self.state else {
            return self.hold_or_show(text, events);
        };
        begun.push_str(&text);
        if begun.is_empty() {
            return;
        }
        let offered = !self.functions.is_empty();
        let marked = OPENINGS.iter().any(|opening| begun.starts_with(opening));
        let text = std::mem::take(begun);
        if offered && (text.starts_with(['{', '[']) || marked) {
            self.state = State::Call { held: String::new(), look_at: 0 };
        } else if offered && OPENINGS.iter().any(|opening| opening.starts_with(&text)) {
            self.state = State::Undecided(text);
            return;
        } else {
            self.state = State::Text(String::new());
        }
        self.hold_or_show(text, events);
    }

    fn hold_or_show(&mut self, mut text: String, events: &mut Vec<Event>) {
        // Round again only with what follows a mark.
        loop {
            match &mut self.state {
                State::Call { held, look_at } => {
                    held.push_str(&text);
                    if held.len() < *look_at {
                        return;
                    }
                    *look_at = held.len() + held.len() / 8;
                    if read(held, &self.functions) != Reading::Text {
                        return;
                    }
                    text = show_opening(std::mem::take(held), events);
                    self.state = State::Text(String::new());
                }
                State::Text(held) if !self.functions.is_empty() => {
                    held.push_str(&text);
                    let mark = OPENINGS.iter().filter_map(|opening| held.find(opening)).min();
                    let begun = OPENINGS.iter().map(|opening| overlap(held, opening)).max();
                    let at = mark.unwrap_or(held.len() - begun.unwrap_or(0));
                    let rest = held.split_off(at);
                    show(std::mem::replace(held, rest), events);
                    if mark.is_none() {
                        return;
                    }
                    text = std::mem::take(held);
                    self.state = State::Call { held: String::new(), look_at: 0 };
                }
                State::Text(_) | State::Undecided(_) => return show(text, events),
            }
        }
    }

    fn call(&mut self, calls: Vec<(String, String)>, events: &mut Vec<Event>) {
        for (name, delta) in calls {
            let (index, id) = (self.calls, format!("{}{}", self.call_prefix, self.calls));
            events.push(Event::ToolCallStart { index, id, name });
            events.push(Event::ToolCallArguments { index, delta });
            events.push(Event::ToolCallEnd { index });
            self.calls += 1;
        }
    }
}

/// Shows the mark that text begins with which is no call; what follows may have another.
fn show_opening(mut held: String, events: &mut Vec<Event>) -> String {
    let opening = OPENINGS.iter().find(|opening| held.starts_with(**opening));
    let rest = held.split_off(opening.map_or(0, |opening| opening.len()));
    show(held, events);
    rest
}

impl Output for TemplateOutput {
    fn token(&mut self, id: u32, events: &mut Vec<Event>) -> bool {
        self.stopper.token();
        let text = self.decoder.push(id);
        self.take(&text, events);
        self.stopped
    }

    fn stop_token(&mut self, _id: u32, _events: &mut Vec<Event>) {}

    fn finish(&mut self, events: &mut Vec<Event>) {
        if !self.stopped {
            let text = self.decoder.finish();
            self.take(&text, events);
        }
        if !self.stopped {
            let held = self.stopper.finish();
            self.decide(held, events);
        }
        loop {
            match std::mem::replace(&mut self.state, State::Text(String::new())) {
                State::Text(held) | State::Undecided(held) => return show(held, events),
                State::Call { held, .. } => match read(&held, &self.functions) {
                    Reading::Calls(calls) => return self.call(calls, events),
                    Reading::Begun | Reading::Text => {
                        let rest = show_opening(held, events);
                        self.hold_or_show(rest, events);
                    }
                },
            }
        }
    }

    fn calls_tools(&self) -> bool {
        self.calls > 0
    }
}

/// What a text is, where `functions` are offered.
fn read(text: &str, functions: &[String]) -> Reading {
    let mut calls = Vec::new();
    let mut rest = after_marks(text);
    while !rest.is_empty() {
        // As values: where they are ignored, a number that is cut off is wrong, and not begun.
        let mut values = Deserializer::from_str(rest).into_iter::<Value>();
        match values.next() {
            Some(Ok(_)) => {}
            Some(Err(error)) if error.is_eof() => return Reading::Begun,
            _ if MARKS.iter().any(|mark| mark.starts_with(rest)) => return Reading::Begun,
            _ => return Reading::Text,
        }
        let (value, after) = rest.split_at(values.byte_offset());
        let elements = if value.starts_with('[') { parts(value) } else { vec![value] };
        for element in elements {
            match call(element).filter(|(name, _)| functions.contains(name)) {
                Some(call) => calls.push(call),
                None => return Reading::Text,
            }
        }
        rest = after_marks(after);
    }
    if calls.is_empty() { Reading::Begun } else { Reading::Calls(calls) }
}

/// What an array or an object holds, as it is written: values, or names and values in turn.
/// (`serde_json` would tell by its feature `raw_value`, with which any JSON text gets around the
/// limit of its depth.)
fn parts(value: &str) -> Vec<&str> {
    let mut parts = Vec::new();
    let mut rest = value.get(1..).unwrap_or_default();
    while let Some((part, after)) = first(rest) {
        parts.push(part);
        rest = after.trim_start().trim_start_matches([',', ':']);
    }
    parts
}

/// The JSON value that a text begins with, as it is written, and what follows it.
fn first(text: &str) -> Option<(&str, &str)> {
    let text = text.trim_start();
    let mut values = Deserializer::from_str(text).into_iter::<IgnoredAny>();
    values.next()?.ok()?;
    Some(text.split_at(values.byte_offset()))
}

/// The name and the arguments of a call, the latter as they are written.
fn call(value: &str) -> Option<(String, String)> {
    if !value.starts_with('{') {
        return None;
    }
    let fields = parts(value);
    let is = |written: &str, name: &str| {
        serde_json::from_str::<String>(written).is_ok_and(|own| own == name)
    };
    // Of several with one name the last one counts.
    let field = |name: &str| {
        let found = fields.chunks_exact(2).rev().find(|pair| is(pair[0], name));
        found.map(|pair| pair[1])
    };
    let name = serde_json::from_str(field("name")?).ok()?;
    let arguments = field("arguments").or_else(|| field("parameters"))?;
    // Some models write them as a text that holds JSON.
    let text = serde_json::from_str::<String>(arguments);
    Some((name, text.unwrap_or_else(|_| arguments.to_owned())))
}

/// The text after spaces, semicolons and marks.
fn after_marks(mut text: &str) -> &str {
    loop {
        let before = text;
        text = text.trim_start_matches(|c: char| c.is_whitespace() || c == ';');
        for mark in MARKS {
            text = text.strip_prefix(mark).unwrap_or(text);
        }
        if text.len() == before.len() {
            return text;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::LazyLock;

    use super::*;
    use crate::Text;
    use oss_text::Special;
    use oss_weights::Container;
    use serde_json::json;

    fn of(text: &str) -> Reading {
        read(text, &["f".to_owned(), "g".to_owned()])
    }

    #[test]
    fn calls_are_read_in_every_spelling() {
        let f = ("f".to_owned(), "{\"a\": 1}".to_owned());
        let one = Reading::Calls(vec![f]);
        assert_eq!(of(r#"{"name": "f", "parameters": {"a": 1}}"#), one);
        assert_eq!(of(r#"{"id": 1 ,"n\u0061me" : "f" , "parameters":{"a": 1} , "b":[]}"#), one);
        let marked = "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call>";
        assert_eq!(of(marked), one);
        let two = r#"{"name":"f","parameters":{"a":1}}; {"name":"g","parameters":{}}"#;
        let call = |name: &str, arguments: &str| (name.to_owned(), arguments.to_owned());
        assert_eq!(of(two), Reading::Calls(vec![call("f", "{\"a\":1}"), call("g", "{}")]));
        assert_eq!(of(&format!("[{}]", two.replace(';', ","))), of(two));
        assert_eq!(of("[]"), Reading::Begun);
        // However far it has come, it may become one.
        for end in 0..marked.len() {
            assert_ne!(of(&marked[..end]), Reading::Text, "{}", &marked[..end]);
        }
    }

    #[test]
    fn arguments_are_what_the_model_wrote() {
        let arguments = "{\"a\" : 123456789012345678901234567890, \"b\":[-1E5,\n 1.50]}";
        let text = format!("{{\"name\": \"f\", \"arguments\": {arguments} }}");
        let call = Reading::Calls(vec![("f".to_owned(), arguments.to_owned())]);
        assert_eq!(of(&text), call);
        for end in 0..text.len() {
            assert_eq!(of(&text[..end]), Reading::Begun, "{}", &text[..end]);
        }
        let as_text = serde_json::to_string(arguments).unwrap();
        assert_eq!(of(&format!("{{\"name\": \"f\", \"arguments\": {as_text}}}")), call);
    }

    #[test]
    fn json_that_is_no_call_stays_text() {
        assert_eq!(of(r#"{"name": "other", "parameters": {}}"#), Reading::Text);
        assert_eq!(of(r#"{"answer": 42}"#), Reading::Text);
        assert_eq!(of(r#"{"name": "f", "parameters": {"#), Reading::Begun);
        assert_eq!(of("{ not json"), Reading::Text);
        assert_eq!(of("[1] It says"), Reading::Text);
        assert_eq!(of(r#"{"name":"f","parameters":{}} is how"#), Reading::Text);
    }

    static TOKENIZER: LazyLock<Tokenizer> = LazyLock::new(|| {
        let container = Container::from_bytes("demo", oss_demo::GGUF, Vec::new()).unwrap();
        Text::from_container(&container).unwrap().tokenizer().unwrap().clone()
    });

    fn output(stop: &[&str]) -> TemplateOutput {
        let tool = json!({"type": "function", "function": {"name": "f"}});
        let tools: Vec<Tool> = vec![serde_json::from_value(tool).unwrap()];
        let stop = stop.iter().map(|&stop| stop.to_owned()).collect();
        TemplateOutput::new(&TOKENIZER, &tools, Stopper::new(stop, 0), String::new())
    }

    /// What an answer shows before its end and with it, what it calls, and whether it was stopped.
    fn answer(text: &str, stop: &[&str]) -> (String, String, usize, bool) {
        let mut output = output(stop);
        let (mut events, mut last) = (Vec::new(), Vec::new());
        let ids = TOKENIZER.encode(text, Special::AsText);
        let stopped = ids.iter().any(|id| output.token(*id, &mut events));
        output.finish(&mut last);
        let text = |events: &[Event]| {
            let texts = events.iter().filter_map(|event| match event {
                Event::Text(text) => Some(text.as_str()),
                _ => None,
            });
            texts.collect::<String>()
        };
        (text(&events), text(&last), output.calls, stopped)
    }

    #[test]
    fn white_space_before_an_answer_is_not_kept() {
        let spaces = " \n".repeat(1000);
        let mut output = output(&[]);
        let mut events = Vec::new();
        for id in TOKENIZER.encode(&spaces, Special::AsText) {
            output.token(id, &mut events);
        }
        assert!(output.state == State::Undecided(String::new()) && events.is_empty());
        assert_eq!(answer(&format!("{spaces}Well. "), &[]).0, "Well. ");
    }

    #[test]
    fn text_that_only_began_like_a_call_is_shown_as_soon_as_it_can_be_none() {
        let cited = "[1] It says so.";
        assert_eq!(answer(cited, &[]), (cited.into(), String::new(), 0, false));
        let cut = r#"{"name": "f", "arg"#;
        assert_eq!(answer(cut, &[]), (String::new(), cut.into(), 0, false));
        let call = r#" {"name": "f", "arguments": {"a": "1, 2"}} "#;
        assert_eq!(answer(call, &[]), (String::new(), String::new(), 1, false));
    }

    #[test]
    fn a_marked_call_may_follow_a_text() {
        let call = "<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>";
        let text = "<think>Hm.</think> I'll look it up.\n";
        assert_eq!(answer(&format!("{text}{call}"), &[]), (text.into(), String::new(), 1, false));
        let other = call.replace("\"f\"", "\"g\"");
        let (shown, last, calls, _) = answer(&format!("{text}{other} Well."), &[]);
        assert_eq!((shown + &last, calls), (format!("{text}{other} Well."), 0));
        for plain in ["It is <tool, or <tool_cal", "a < b", "{} <|python"] {
            let (shown, last, calls, _) = answer(plain, &[]);
            assert_eq!((shown + &last, calls), (plain.into(), 0));
        }
        let unmarked = "Here: {\"name\": \"f\", \"arguments\": {}}";
        assert_eq!(answer(unmarked, &[]), (unmarked.into(), String::new(), 0, false));
    }

    #[test]
    fn a_marked_call_may_follow_what_looked_like_one_however_long_that_is() {
        let call = "<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>";
        let late = " Well, that is what I wanted to know, and more.";
        for len in [0, 10, 40, 300, 320, 340] {
            let other = format!("{{\"name\": \"g\", \"arguments\": \"{}\"}}", "a".repeat(len));
            for before in [format!("<tool_call>{other}</tool_call>\n"), format!("{other}\n")] {
                let (shown, last, calls, _) = answer(&format!("{before}{call}"), &[]);
                assert_eq!((shown + &last, calls), (before.clone(), 1));
                let text = format!("{before}{call}{late}");
                let (shown, last, calls, _) = answer(&text, &[]);
                assert_eq!((shown + &last, calls), (text, 0));
            }
        }
    }

    #[test]
    fn space_before_everything_is_kept_where_it_has_to_be() {
        let mut output = output(&[]).keeping_space();
        let mut events = Vec::new();
        for id in TOKENIZER.encode(" yes", Special::AsText) {
            output.token(id, &mut events);
        }
        output.finish(&mut events);
        let texts = events.iter().map(|event| match event {
            Event::Text(text) => text.as_str(),
            other => panic!("{other:?}"),
        });
        assert_eq!(texts.collect::<String>(), " yes");
    }

    #[test]
    fn a_stop_text_counts_by_the_token_that_completes_it() {
        let ids = TOKENIZER.encode("<b", Special::AsText);
        let run = |after: usize| {
            let stopper = Stopper::new(vec!["<".to_owned()], after);
            let mut output = TemplateOutput { stopper, ..output(&[]) };
            let mut events = Vec::new();
            let stopped = ids.iter().position(|id| output.token(*id, &mut events));
            output.finish(&mut events);
            let shown = events.into_iter().map(|event| match event {
                Event::Text(text) => text,
                other => panic!("{other:?}"),
            });
            (stopped, shown.collect::<String>())
        };
        assert_eq!(run(0), (Some(0), String::new()), "though it may begin a call");
        assert_eq!(run(1), (None, "<b".to_owned()), "it was complete with the first token");
    }

    #[test]
    fn a_stop_text_ends_what_may_be_a_call_and_what_is_one() {
        let cited = "[1] It says so. And more.";
        assert_eq!(answer(cited, &[" And"]), ("[1] It says so.".into(), String::new(), 0, true));
        let json = "{\"a\": 1,\nUser: Hi";
        let (shown, last, calls, stopped) = answer(json, &["User:"]);
        assert_eq!((shown + &last, calls, stopped), ("{\"a\": 1,\n".into(), 0, true));
        let call = "{\"name\": \"f\", \"arguments\": {}}\nUser: Hi";
        assert_eq!(answer(call, &["\nUser:"]), (String::new(), String::new(), 1, true));
    }
}
