//! A harmony completion as typed events.

use oss_text::chat::Tool;
use oss_text::harmony::{self, End, Header, Kind, Parser};

use crate::event::Event;
use crate::output::Output;
use crate::stop::Stopper;

/// What stands between two messages of one answer that are shown, or two thoughts, in the harmony
/// format: one may follow the other without a word between them, as an answer follows a preamble.
pub const BETWEEN_MESSAGES: &str = "\n\n";

/// Channels and recipients become reasoning, text and tool calls.
pub(crate) struct HarmonyOutput {
    parser: Parser,
    /// The names of the functions that may be called.
    offered: Vec<String>,
    stopper: Stopper,
    stopped: bool,
    /// The last call was not ended by the model: its arguments may lack their end.
    is_cut: bool,
    /// The answer's constraint has all that it wants: the open message is complete.
    is_complete: bool,
    /// What the open message is.
    kind: Kind,
    /// Some text was shown.
    has_shown: bool,
    /// Some of a thought was.
    has_thought: bool,
    /// The open message follows one of its kind that was shown, and nothing of it was shown yet.
    follows: bool,
    calls: usize,
    call_prefix: String,
}

impl HarmonyOutput {
    /// An output whose calls, of `tools`, are named `call_prefix` and their number.
    pub(crate) fn new(
        parser: Parser,
        tools: &[Tool],
        stopper: Stopper,
        call_prefix: String,
    ) -> Self {
        Self {
            parser,
            offered: tools.iter().map(|tool| tool.function.name.clone()).collect(),
            stopper,
            stopped: false,
            is_cut: false,
            is_complete: false,
            kind: Kind::Answer,
            has_shown: false,
            has_thought: false,
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
            (harmony::Event::Delta(text), Kind::Reasoning) if text.is_empty() => {}
            (harmony::Event::Delta(text), Kind::Reasoning) => {
                self.has_thought = true;
                events.push(Event::Reasoning(self.apart(text)));
            }
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
            (harmony::Event::End(end), Kind::ToolCall) => {
                self.is_cut = match end {
                    End::Call | End::End | End::Return => false,
                    End::Cut => true,
                    End::Eof => !self.is_complete,
                };
                if !self.is_cut {
                    events.push(Event::ToolCallEnd { index: self.calls - 1 });
                }
            }
            (harmony::Event::End(_), _) => {
                let held = self.stopper.finish();
                self.say(held, events);
            }
        }
    }

    /// Shows text of the open message, apart from the message before.
    fn say(&mut self, text: String, events: &mut Vec<Event>) {
        if !text.is_empty() {
            self.has_shown = true;
            events.push(Event::Text(self.apart(text)));
        }
    }

    /// Text of the open message, apart from the message of its kind before.
    fn apart(&mut self, mut text: String) -> String {
        if std::mem::take(&mut self.follows) {
            text.insert_str(0, BETWEEN_MESSAGES);
        }
        text
    }

    /// What a message is here: what calls nothing that was offered is what its channel says. A
    /// function that is not among those offered is the caller's to refuse.
    fn kind(&self, header: &Header) -> Kind {
        let kind = header.kind();
        let offered = match header.function() {
            Some(_) => !self.offered.is_empty(),
            None => self.offered.iter().any(|name| Some(name) == header.recipient.as_ref()),
        };
        match header.channel.as_deref() {
            _ if kind != Kind::ToolCall || offered => kind,
            Some("final") | None => Kind::Answer,
            Some(_) => Kind::Reasoning,
        }
    }

    fn start(&mut self, header: &Header, events: &mut Vec<Event>) {
        self.kind = self.kind(header);
        self.follows = if self.kind == Kind::Reasoning { self.has_thought } else { self.has_shown };
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
        // Another one is no part of the answer, and leaves an open call without its end.
        if self.parser.is_control(id) {
            self.read(id, events);
        }
    }

    fn complete(&mut self) {
        self.is_complete = true;
    }

    fn finish(&mut self, events: &mut Vec<Event>) {
        for event in self.parser.finish() {
            self.show(event, events);
        }
    }

    fn calls_tools(&self) -> bool {
        self.calls > 0 && !self.is_cut
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Text;
    use oss_text::Special;
    use oss_weights::Container;

    /// What a completion is, whose last token is a stop token, where these functions are offered;
    /// and whether it calls any.
    fn events(completion: &str, functions: &[&str], stop: &[&str]) -> (Vec<Event>, bool) {
        let container = Container::from_bytes("demo", oss_demo::GGUF, Vec::new()).unwrap();
        let text = Text::from_container(&container).unwrap();
        let tokenizer = text.tokenizer().unwrap();
        let stop = stop.iter().map(|&stop| stop.to_owned()).collect();
        let parser = Parser::new(tokenizer).unwrap();
        let tool = |name: &&str| {
            let function = serde_json::json!({"type": "function", "function": {"name": name}});
            serde_json::from_value(function).unwrap()
        };
        let tools: Vec<Tool> = functions.iter().map(tool).collect();
        let mut output = HarmonyOutput::new(parser, &tools, Stopper::new(stop, 0), String::new());
        let mut events = Vec::new();
        let ids = tokenizer.encode(completion, Special::Parse);
        let (last, ids) = ids.split_last().unwrap();
        for &id in ids {
            output.token(id, &mut events);
        }
        output.stop_token(*last, &mut events);
        output.finish(&mut events);
        (events, output.calls_tools())
    }

    fn text_of(events: &[Event]) -> String {
        let texts = events.iter().filter_map(|event| match event {
            Event::Text(text) => Some(text.as_str()),
            _ => None,
        });
        texts.collect()
    }

    /// The text of a completion.
    fn shown(completion: &str, stop: &[&str]) -> String {
        text_of(&events(completion, &[], stop).0)
    }

    /// The names of the functions that a completion calls.
    fn called(completion: &str, functions: &[&str]) -> Vec<String> {
        let name = |event| match event {
            Event::ToolCallStart { name, .. } => Some(name),
            _ => None,
        };
        events(completion, functions, &[]).0.into_iter().filter_map(name).collect()
    }

    #[test]
    fn any_function_is_called_where_some_are_offered_and_nothing_else_ever_is() {
        let to = |whom: &str| {
            format!("<|channel|>commentary to={whom} <|constrain|>json<|message|>{{}}<|call|>")
        };
        assert_eq!(called(&to("functions.add"), &["add"]), ["add"]);
        assert_eq!(called(&to("add"), &["add"]), ["add"]);
        assert_eq!(called(&to("functions.other"), &["add"]), ["other"], "the caller says no");
        for (whom, offered) in [("functions.add", &[][..]), ("python", &[]), ("python", &["add"])] {
            let (events, calls) = events(&to(whom), offered, &[]);
            assert!(matches!(&events[..], [Event::Reasoning(text)] if text == "{}"), "{events:?}");
            assert!(!calls);
        }
        for (header, text) in [("final json", "{\"a\": 1}"), ("final to=someone", "Yes.")] {
            let completion = format!("<|channel|>{header}<|message|>{text}<|return|>");
            assert_eq!(shown(&completion, &[]), text, "{header}");
        }
    }

    #[test]
    fn a_text_that_stops_an_answer_is_no_part_of_it() {
        let answer = "<|channel|>final<|message|>It is 4.";
        let (events_of_answer, _) = events(answer, &[], &[]);
        let text = text_of(&events_of_answer);
        assert!(text.starts_with("It is") && "It is 4".starts_with(&text), "{events_of_answer:?}");
        let call = "<|channel|>commentary to=functions.add <|constrain|>json<|message|>{\"a\":";
        let (events, calls) = events(call, &["add"], &[]);
        assert!(matches!(events[0], Event::ToolCallStart { .. }), "{events:?}");
        assert!(!calls, "arguments that were cut off are no call");
    }

    #[test]
    fn a_call_ends_where_the_model_ends_it_and_where_its_constraint_is_complete() {
        let call = "<|channel|>commentary to=functions.add <|constrain|>json<|message|>{\"a\":1}";
        let is_end = |event: &Event| matches!(event, Event::ToolCallEnd { index: 0 });
        let ends = |rest: &str| {
            let (events, calls) = events(&[call, rest].concat(), &["add"], &[]);
            (events.iter().filter(|event| is_end(event)).count(), calls)
        };
        for end in ["<|call|>", "<|end|>", "<|return|>"] {
            assert_eq!(ends(end), (1, true), "{end}");
        }
        let answer = "<|start|>assistant<|channel|>final<|message|>Well.<|return|>";
        for cut in ["", "<|endoftext|>", "<|channel|>final<|message|>Well.<|return|>", answer] {
            assert_eq!(ends(cut), (0, false), "{cut}");
        }
        let two = [call, "<|start|>assistant", call, "<|call|>"].concat();
        let (two, calls) = events(&two, &["add"], &[]);
        let ended = two.iter().filter_map(|event| match event {
            Event::ToolCallEnd { index } => Some(*index),
            _ => None,
        });
        assert_eq!((ended.collect::<Vec<_>>(), calls), (vec![1], true), "the first one is cut");

        let container = Container::from_bytes("demo", oss_demo::GGUF, Vec::new()).unwrap();
        let text = Text::from_container(&container).unwrap();
        let tokenizer = text.tokenizer().unwrap();
        for is_complete in [false, true] {
            let (parser, stopper) = (Parser::new(tokenizer).unwrap(), Stopper::new(Vec::new(), 0));
            let function = serde_json::json!({"type": "function", "function": {"name": "add"}});
            let tools: Vec<Tool> = vec![serde_json::from_value(function).unwrap()];
            let mut output = HarmonyOutput::new(parser, &tools, stopper, String::new());
            let mut events = output.prime(&tokenizer.encode(call, Special::Parse));
            if is_complete {
                output.complete();
            }
            output.finish(&mut events);
            let ends = events.iter().filter(|event| is_end(event)).count();
            assert_eq!((ends == 1, output.calls_tools()), (is_complete, is_complete));
        }
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
        let thoughts = |parts: &[&str]| {
            let (events, _) = events(&parts.concat(), &[], &[]);
            let texts = events.iter().filter_map(|event| match event {
                Event::Reasoning(text) => Some(text.as_str()),
                _ => None,
            });
            texts.collect::<String>()
        };
        assert_eq!(thoughts(&[thought, preamble, thought, answer]), "Well.\n\nWell.");
        assert_eq!(thoughts(&[preamble, thought]), "Well.");
        let all = [preamble, answer].concat();
        assert_eq!(shown(&all, &["\n\n"]), "Let me see.\n\nIt is 4.");
        assert_eq!(shown(&all, &["It!"]), "Let me see.\n\nIt is 4.", "held back at first");
    }
}
