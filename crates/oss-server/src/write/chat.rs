//! Answers of `/v1/chat/completions`.

use oss_engine::text::chat::{FunctionCall, ToolCall};
use oss_engine::{Engine, Event, Finish};
use serde::Serialize;

use crate::read::ChatCall;
use crate::refusal::Refusal;
use crate::sse::{self, Frames, Out};
use crate::whole::Whole;
use crate::write::logprobs::{Attribution, ChatLogprobs, Control};
use crate::write::usage::WireUsage;
use crate::{clock, ids};

/// What every chunk and the whole answer begin with, and what decides their form.
#[derive(Clone, Serialize)]
pub(crate) struct ChatHead {
    id: String,
    object: &'static str,
    created: u64,
    model: String,
    system_fingerprint: &'static str,
    #[serde(skip)]
    include_reasoning: bool,
    #[serde(skip)]
    include_usage: bool,
    #[serde(skip)]
    logprobs: bool,
    #[serde(skip)]
    n: usize,
    #[serde(skip)]
    control: Control,
}

/// Which engine answers: the same one gives the same tokens for the same seed.
pub(crate) const FINGERPRINT: &str = concat!("oss-engine-", env!("CARGO_PKG_VERSION"));

impl ChatHead {
    /// The head of the answer to a call.
    pub(crate) fn new(call: &ChatCall, engine: &Engine, model: &str) -> Self {
        Self {
            id: format!("chatcmpl-{}", ids::unique()),
            object: "chat.completion",
            created: clock::unix_seconds(),
            model: model.to_owned(),
            system_fingerprint: FINGERPRINT,
            include_reasoning: call.include_reasoning,
            include_usage: call.common.include_usage,
            logprobs: call.common.logprobs.is_some(),
            n: call.common.n as usize,
            control: Control::of_chat(call, engine),
        }
    }

    fn attributions(&self, engine: &Engine) -> Vec<Attribution> {
        (0..self.n).map(|_| Attribution::new(engine, self.logprobs, self.control)).collect()
    }
}

/// A whole answer while it comes.
pub(crate) struct ChatSoFar {
    head: ChatHead,
    attributions: Vec<Attribution>,
    choices: Vec<Choice>,
    usage: WireUsage,
}

#[derive(Default, Serialize)]
struct Choice {
    index: usize,
    message: AnswerMessage,
    logprobs: Option<ChatLogprobs>,
    finish_reason: Option<&'static str>,
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

/// Reasoning under both names that clients look for.
#[derive(Default, Serialize)]
struct Reasoning {
    reasoning_content: String,
    reasoning: String,
}

impl Default for AnswerMessage {
    fn default() -> Self {
        let (content, refusal, reasoning, tool_calls) = Default::default();
        Self { role: "assistant", content, refusal, reasoning, tool_calls }
    }
}

#[derive(Serialize)]
struct Answer<'a> {
    #[serde(flatten)]
    head: &'a ChatHead,
    choices: &'a [Choice],
    usage: WireUsage,
}

impl ChatSoFar {
    pub(crate) fn new(head: ChatHead, engine: &Engine) -> Self {
        let attributions = head.attributions(engine);
        let logprobs = || head.logprobs.then(ChatLogprobs::default);
        let choice = |index| Choice { index, logprobs: logprobs(), ..Choice::default() };
        let choices = (0..head.n).map(choice).collect();
        Self { head, attributions, choices, usage: WireUsage::default() }
    }
}

impl Whole for ChatSoFar {
    fn event(&mut self, choice: usize, event: Event) {
        let attribution = &mut self.attributions[choice];
        let so_far = &mut self.choices[choice];
        let message = &mut so_far.message;
        match event {
            Event::Token(token) => attribution.token(token),
            Event::Text(text) => {
                message.content.get_or_insert_default().push_str(&text);
                let tokens = attribution.text(&text);
                if let Some((all, new)) = so_far.logprobs.as_mut().zip(attribution.chat(tokens)) {
                    all.content.extend(new.content);
                }
            }
            Event::Reasoning(text) => {
                attribution.reasoning();
                if self.head.include_reasoning {
                    message.reasoning.get_or_insert_default().reasoning.push_str(&text);
                }
            }
            Event::ToolCallStart { id, name, .. } => {
                attribution.skip();
                let function = FunctionCall { name, arguments: String::new() };
                message.tool_calls.push(ToolCall { id, kind: "function".to_owned(), function });
            }
            Event::ToolCallArguments { index, delta } => {
                message.tool_calls[index].function.arguments.push_str(&delta);
            }
            Event::ToolCallEnd { index } => so_far.whole_calls.push(index),
            Event::End(end) => {
                so_far.finish_reason = Some(end.finish.name());
                self.usage.add(&end.usage, attribution.reasoning_tokens(), choice == 0);
            }
            _ => {}
        }
    }

    fn weight(&self) -> usize {
        let logprobs = self.choices.iter().filter_map(|choice| choice.logprobs.as_ref());
        logprobs.map(ChatLogprobs::reported).sum()
    }

    fn finish(mut self) -> String {
        for choice in &mut self.choices {
            let message = &mut choice.message;
            // What the model left for another message is not to be run.
            if choice.finish_reason == Some(Finish::ToolCalls.name()) {
                let mut index = 0..;
                message.tool_calls.retain(|_| {
                    index.next().is_some_and(|index| choice.whole_calls.contains(&index))
                });
            }
            if message.tool_calls.is_empty() {
                message.content.get_or_insert_default();
            }
            if let Some(reasoning) = &mut message.reasoning {
                reasoning.reasoning_content.clone_from(&reasoning.reasoning);
            }
        }
        let whole = Answer { head: &self.head, choices: &self.choices, usage: self.usage };
        serde_json::to_string(&whole).expect("wire types are JSON")
    }
}

/// An answer in chunks.
pub(crate) struct ChatFrames {
    head: ChatHead,
    attributions: Vec<Attribution>,
    usage: WireUsage,
}

#[derive(Serialize)]
struct Chunk<'a> {
    #[serde(flatten)]
    head: &'a ChatHead,
    choices: &'a [ChunkChoice],
    /// Null in all chunks but the last, where usage was asked for at all.
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<Option<WireUsage>>,
}

#[derive(Serialize)]
struct ChunkChoice {
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
    tool_calls: Option<[CallDelta; 1]>,
}

#[derive(Serialize)]
struct CallDelta {
    index: usize,
    #[serde(flatten)]
    start: Option<CallStart>,
    function: FunctionDelta,
}

#[derive(Serialize)]
struct CallStart {
    id: String,
    #[serde(rename = "type")]
    kind: &'static str,
}

#[derive(Serialize)]
struct FunctionDelta {
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    arguments: String,
}

impl ChatFrames {
    pub(crate) fn new(head: ChatHead, engine: &Engine) -> Self {
        let attributions = head.attributions(engine);
        let head = ChatHead { object: "chat.completion.chunk", ..head };
        Self { head, attributions, usage: WireUsage::default() }
    }

    fn chunk(&self, choice: ChunkChoice, out: &mut Out) {
        let usage = self.head.include_usage.then_some(None);
        out.data(&Chunk { head: &self.head, choices: &[choice], usage });
    }

    /// What an event adds to the message; `None` where it adds nothing.
    fn delta(&self, event: Event) -> Option<Delta> {
        let call = |index, start, name, arguments| {
            let function = FunctionDelta { name, arguments };
            Delta { tool_calls: Some([CallDelta { index, start, function }]), ..Delta::default() }
        };
        Some(match event {
            Event::Admitted { .. } => {
                Delta { role: Some("assistant"), content: Some(String::new()), ..Delta::default() }
            }
            Event::Text(text) => Delta { content: Some(text), ..Delta::default() },
            Event::Reasoning(reasoning) if self.head.include_reasoning => {
                let reasoning_content = reasoning.clone();
                let reasoning = Some(Reasoning { reasoning_content, reasoning });
                Delta { reasoning, ..Delta::default() }
            }
            Event::ToolCallStart { index, id, name } => {
                let start = Some(CallStart { id, kind: "function" });
                call(index, start, Some(name), String::new())
            }
            Event::ToolCallArguments { index, delta } => call(index, None, None, delta),
            Event::End(_) => Delta::default(),
            _ => return None,
        })
    }
}

impl Frames for ChatFrames {
    fn event(&mut self, choice: usize, event: Event, out: &mut Out) {
        let attribution = &mut self.attributions[choice];
        let (mut tokens, mut finish_reason) = (None, None);
        match &event {
            Event::Token(token) => attribution.token(token.clone()),
            Event::Text(text) => tokens = Some(attribution.text(text)),
            Event::Reasoning(_) => attribution.reasoning(),
            Event::ToolCallStart { .. } => attribution.skip(),
            Event::End(end) => {
                finish_reason = Some(end.finish.name());
                self.usage.add(&end.usage, attribution.reasoning_tokens(), choice == 0);
            }
            _ => {}
        }
        let logprobs = tokens.and_then(|tokens| self.attributions[choice].chat(tokens));
        if let Some(delta) = self.delta(event) {
            self.chunk(ChunkChoice { index: choice, delta, logprobs, finish_reason }, out);
        }
    }

    fn finish(&mut self, out: &mut Out) {
        if self.head.include_usage {
            out.data(&Chunk { head: &self.head, choices: &[], usage: Some(Some(self.usage)) });
        }
        out.raw("[DONE]");
    }

    fn failed(&mut self, refusal: &Refusal, out: &mut Out) {
        sse::failed(refusal, out);
    }
}
