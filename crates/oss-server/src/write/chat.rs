//! Answers of `/v1/chat/completions`.

use oss_engine::{Engine, Event, FinishReason};
use serde::ser::SerializeStruct as _;
use serde::{Serialize, Serializer};

use crate::read::ChatCall;
use crate::sse::Out;
use crate::write::Wire;
use crate::write::chunks::Head;
use crate::write::follower::Follower;
use crate::write::logprobs::{Attribution, ChatLogprobs, Control};

/// Writes the answer to a chat.
pub(crate) struct ChatWriter {
    head: Head,
    include_reasoning: bool,
    follower: Follower,
    choices: Vec<Choice>,
}

/// A choice, as far as it came.
#[derive(Default, Serialize)]
struct Choice {
    index: usize,
    message: AnswerMessage,
    logprobs: Option<ChatLogprobs>,
    finish_reason: Option<&'static str>,
    /// A part came, which said whose the answer is.
    #[serde(skip)]
    begun: bool,
    /// The calls that came to their end.
    #[serde(skip)]
    whole_calls: Vec<usize>,
}

#[derive(Serialize)]
struct AnswerMessage {
    role: &'static str,
    content: Option<String>,
    refusal: Option<String>,
    #[serde(flatten)]
    reasoning: Option<Reasoning>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tool_calls: Vec<ToolCall>,
}

/// Part of a choice.
#[derive(Serialize)]
struct Part {
    index: usize,
    delta: Delta,
    logprobs: Option<ChatLogprobs>,
    finish_reason: Option<&'static str>,
}

#[derive(Default, Serialize)]
struct Delta {
    #[serde(skip_serializing_if = "Option::is_none")]
    role: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    content: Option<String>,
    #[serde(flatten)]
    reasoning: Option<Reasoning>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tool_calls: Option<[ToolCall; 1]>,
}

/// Reasoning, written under both names that clients look for.
#[derive(Default)]
struct Reasoning(String);

/// A call, or more of one.
#[derive(Serialize)]
struct ToolCall {
    /// Which call of the answer it is part of.
    #[serde(skip_serializing_if = "Option::is_none")]
    index: Option<usize>,
    #[serde(flatten)]
    start: Option<CallStart>,
    function: Function,
}

#[derive(Serialize)]
struct CallStart {
    id: String,
    #[serde(rename = "type")]
    kind: &'static str,
}

#[derive(Serialize)]
struct Function {
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    arguments: String,
}

const ROLE: &str = "assistant";

impl Default for AnswerMessage {
    fn default() -> Self {
        let (content, refusal, reasoning, tool_calls) = Default::default();
        Self { role: ROLE, content, refusal, reasoning, tool_calls }
    }
}

impl Serialize for Reasoning {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut fields = serializer.serialize_struct("Reasoning", 2)?;
        fields.serialize_field("reasoning_content", &self.0)?;
        fields.serialize_field("reasoning", &self.0)?;
        fields.end()
    }
}

impl Delta {
    fn call(index: usize, start: Option<CallStart>, name: Option<String>, more: String) -> Self {
        let function = Function { name, arguments: more };
        let call = ToolCall { index: Some(index), start, function };
        Self { tool_calls: Some([call]), ..Self::default() }
    }
}

impl Choice {
    fn new(index: usize, logprobs: bool) -> Self {
        Self { index, logprobs: logprobs.then(ChatLogprobs::default), ..Self::default() }
    }

    /// Adds what comes next.
    fn add(&mut self, part: Part) {
        let (message, delta) = (&mut self.message, part.delta);
        if let Some(text) = delta.content {
            message.content.get_or_insert_default().push_str(&text);
        }
        if let Some(Reasoning(text)) = delta.reasoning {
            message.reasoning.get_or_insert_default().0.push_str(&text);
        }
        for mut call in delta.tool_calls.into_iter().flatten() {
            let begun = call.index.take().and_then(|index| message.tool_calls.get_mut(index));
            match begun {
                Some(begun) => begun.function.arguments.push_str(&call.function.arguments),
                None => message.tool_calls.push(call),
            }
        }
        if let Some((all, new)) = self.logprobs.as_mut().zip(part.logprobs) {
            all.content.extend(new.content);
        }
        self.finish_reason = part.finish_reason;
    }

    /// Leaves out calls that are not to be run: those that the model left for another message, or
    /// that a stop token cut. What a limit cuts is told by the reason.
    fn drop_cut_calls(&mut self) {
        if self.finish_reason != Some(FinishReason::Length.as_str()) {
            let mut index = 0..;
            let is_whole =
                |_: &ToolCall| index.next().is_some_and(|i| self.whole_calls.contains(&i));
            self.message.tool_calls.retain(is_whole);
        }
        if self.message.tool_calls.is_empty() {
            self.message.content.get_or_insert_default();
        }
    }
}

impl ChatWriter {
    /// What an event adds to a choice; `None` where it adds nothing.
    fn part(&mut self, index: usize, event: Event) -> Option<Part> {
        let attribution = self.follower.book(index, &event);
        let choice = &mut self.choices[index];
        let (mut logprobs, mut finish_reason) = (None, None);
        let delta = match event {
            Event::Text(text) => {
                logprobs = attribution.chat();
                Delta { content: Some(text), ..Delta::default() }
            }
            Event::Reasoning(text) if self.include_reasoning => {
                Delta { reasoning: Some(Reasoning(text)), ..Delta::default() }
            }
            Event::ToolCallStart { index, id, name } => {
                let start = CallStart { id, kind: "function" };
                Delta::call(index, Some(start), Some(name), String::new())
            }
            Event::ToolCallArguments { index, delta } => Delta::call(index, None, None, delta),
            Event::ToolCallEnd { index } => {
                choice.whole_calls.push(index);
                return None;
            }
            Event::End(end) => {
                finish_reason = Some(end.finish_reason.as_str());
                Delta::default()
            }
            _ => return None,
        };
        let role = (!std::mem::replace(&mut choice.begun, true)).then_some(ROLE);
        Some(Part { index, delta: Delta { role, ..delta }, logprobs, finish_reason })
    }
}

impl Wire for ChatWriter {
    type Call = ChatCall;

    fn new(call: &ChatCall, engine: &Engine, model: &str) -> Self {
        let (common, n) = (&call.common, call.common.n as usize);
        let logprobs = common.logprobs.is_some();
        let object = if common.stream { "chat.completion.chunk" } else { "chat.completion" };
        let attribution = Attribution::new(engine, logprobs, Control::of_chat(call, engine));
        Self {
            head: Head::new("chatcmpl", object, common, model),
            include_reasoning: call.include_reasoning,
            follower: Follower::new(1, n, &attribution),
            choices: (0..n).map(|index| Choice::new(index, logprobs)).collect(),
        }
    }

    fn event(&mut self, choice: usize, event: Event, out: Option<&mut Out>) {
        if let Some(part) = self.part(choice, event) {
            self.head.put(part, out, |part| self.choices[choice].add(part));
        }
    }

    fn close(&mut self, out: &mut Out) {
        self.head.close(self.follower.usage(), out);
    }

    fn weight(&self) -> usize {
        let logprobs = self.choices.iter().filter_map(|choice| choice.logprobs.as_ref());
        logprobs.map(ChatLogprobs::reported).sum()
    }

    fn whole(mut self) -> String {
        self.choices.iter_mut().for_each(Choice::drop_cut_calls);
        self.head.whole(&self.choices, self.follower.usage())
    }
}
