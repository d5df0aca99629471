//! Answers of `/v1/responses`: items that open, grow and close, each step an event.

use oss_engine::{BETWEEN_MESSAGES, Engine, Event, Finish};
use serde_json::{Map, Value, json};

use crate::read::ResponseCall;
use crate::refusal::Refusal;
use crate::sse::{Frames, Out};
use crate::whole::Whole;
use crate::write::logprobs::{Attribution, Control};
use crate::write::usage::{ResponseUsage, WireUsage};
use crate::{clock, ids};

/// Follows one answer and writes its events; the last one holds the whole response.
pub(crate) struct ResponseWriter {
    /// What the response repeats of its request, and its name.
    head: Map<String, Value>,
    /// About how long that is.
    head_len: usize,
    attribution: Attribution,
    /// Items that are complete.
    output: Vec<Value>,
    open: Option<Item>,
    sequence: u64,
    status: &'static str,
    usage: Option<ResponseUsage>,
}

/// An item that grows.
struct Item {
    id: String,
    kind: Kind,
    text: String,
}

/// What an item is.
enum Kind {
    Reasoning,
    Message,
    Call {
        call_id: String,
        name: String,
        /// Its arguments are complete.
        ended: bool,
    },
}

impl Item {
    fn new(kind: Kind) -> Self {
        let prefix = match kind {
            Kind::Reasoning => "rs",
            Kind::Message => "msg",
            Kind::Call { .. } => "fc",
        };
        Self { id: format!("{prefix}_{}", ids::unique()), kind, text: String::new() }
    }

    /// The names of the events that add to it and close its text.
    fn events(&self) -> [&'static str; 2] {
        match self.kind {
            Kind::Reasoning => ["response.reasoning_text.delta", "response.reasoning_text.done"],
            Kind::Message => ["response.output_text.delta", "response.output_text.done"],
            Kind::Call { .. } => {
                ["response.function_call_arguments.delta", "response.function_call_arguments.done"]
            }
        }
    }

    /// Its one part, with this text; a call has none.
    fn part(&self, text: &str) -> Option<Value> {
        match self.kind {
            Kind::Reasoning => Some(json!({"type": "reasoning_text", "text": text})),
            Kind::Message => Some(
                json!({"type": "output_text", "text": text, "annotations": [], "logprobs": []}),
            ),
            Kind::Call { .. } => None,
        }
    }

    /// The item as JSON, with so much of its text.
    fn json(&self, status: &str, text: Option<&str>) -> Value {
        let content: Vec<_> = text.and_then(|text| self.part(text)).into_iter().collect();
        let id = &self.id;
        match &self.kind {
            Kind::Reasoning => json!({
                "id": id, "type": "reasoning", "status": status, "summary": [], "content": content,
            }),
            Kind::Message => json!({
                "id": id, "type": "message", "status": status, "role": "assistant",
                "content": content,
            }),
            Kind::Call { call_id, name, .. } => json!({
                "id": id, "type": "function_call", "status": status, "call_id": call_id,
                "name": name, "arguments": text.unwrap_or_default(),
            }),
        }
    }
}

/// The fields of an object.
fn object(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(fields) => fields,
        _ => Map::new(),
    }
}

impl ResponseWriter {
    /// Follows the answer to a call whose body had so many bytes.
    pub(crate) fn new(call: &ResponseCall, engine: &Engine, model: &str, len: usize) -> Self {
        let mut head = object(json!({
            "id": format!("resp_{}", ids::unique()),
            "object": "response",
            "created_at": clock::unix_seconds(),
            "model": model,
            "background": false,
            "previous_response_id": null,
            "store": false,
            "truncation": "disabled",
        }));
        head.extend(call.echoed.clone());
        let control = Control::of_chat(&call.chat, engine);
        Self {
            head,
            head_len: len,
            attribution: Attribution::new(engine, false, control),
            output: Vec::new(),
            open: None,
            sequence: 0,
            status: "in_progress",
            usage: None,
        }
    }

    /// The response as it stands.
    fn json(&self, error: Option<&Refusal>) -> Value {
        let mut response = self.head.clone();
        let incomplete = (self.status == "incomplete").then_some("max_output_tokens");
        let error = error.map(|refusal| {
            json!({"code": refusal.code.unwrap_or(refusal.kind), "message": refusal.message})
        });
        response.extend(object(json!({
            "status": self.status,
            "error": error,
            "incomplete_details": incomplete.map(|reason| json!({"reason": reason})),
            "output": self.output,
            "usage": self.usage,
        })));
        Value::Object(response)
    }

    fn send(&mut self, name: &str, mut data: Value, out: &mut Out) {
        data["type"] = name.into();
        data["sequence_number"] = self.sequence.into();
        self.sequence += 1;
        out.named(name, &data);
    }

    /// Opens an item, unless one of the same kind is open that this text goes on with.
    fn open(&mut self, kind: Kind, out: &mut Out) {
        let same = |open: &Item| {
            matches!(
                (&open.kind, &kind),
                (Kind::Reasoning, Kind::Reasoning) | (Kind::Message, Kind::Message)
            )
        };
        if self.open.as_ref().is_some_and(same) {
            return;
        }
        self.close("completed", out);
        let item = Item::new(kind);
        let index = self.output.len();
        let added = json!({"output_index": index, "item": item.json("in_progress", None)});
        self.send("response.output_item.added", added, out);
        if let Some(part) = item.part("") {
            let place = json!({
                "item_id": item.id, "output_index": index, "content_index": 0, "part": part,
            });
            self.send("response.content_part.added", place, out);
        }
        self.open = Some(item);
    }

    /// What of a text is the open item's, which begins with it: items of their own need nothing
    /// between them.
    fn own<'t>(&self, kind: &str, text: &'t str) -> &'t str {
        let begins = self.open.as_ref().is_some_and(|item| item.text.is_empty());
        let follows = begins && self.output.iter().any(|item| item["type"] == kind);
        text.strip_prefix(BETWEEN_MESSAGES).filter(|_| follows).unwrap_or(text)
    }

    fn grow(&mut self, delta: &str, out: &mut Out) {
        let index = self.output.len();
        let Some(item) = &mut self.open else { return };
        item.text.push_str(delta);
        let [name, _] = item.events();
        let mut data = json!({"item_id": item.id, "output_index": index, "delta": delta});
        if item.part("").is_some() {
            data["content_index"] = 0.into();
        }
        if matches!(item.kind, Kind::Message) {
            data["logprobs"] = json!([]);
        }
        self.send(name, data, out);
    }

    /// Closes the open item; whether a call is complete, it knows itself.
    fn close(&mut self, status: &str, out: &mut Out) {
        let Some(item) = self.open.take() else { return };
        let status = match item.kind {
            Kind::Call { ended: true, .. } => "completed",
            Kind::Call { ended: false, .. } => "incomplete",
            Kind::Reasoning | Kind::Message => status,
        };
        let index = self.output.len();
        let [_, name] = item.events();
        let mut data = json!({"item_id": item.id, "output_index": index});
        match &item.kind {
            Kind::Reasoning => data["text"] = item.text.as_str().into(),
            Kind::Message => {
                data["text"] = item.text.as_str().into();
                data["logprobs"] = json!([]);
            }
            Kind::Call { name, .. } => {
                data["arguments"] = item.text.as_str().into();
                data["name"] = name.as_str().into();
            }
        }
        let part = item.part(&item.text);
        if part.is_some() {
            data["content_index"] = 0.into();
        }
        self.send(name, data, out);
        if let Some(part) = part {
            let place = json!({
                "item_id": item.id, "output_index": index, "content_index": 0, "part": part,
            });
            self.send("response.content_part.done", place, out);
        }
        let whole = item.json(status, Some(&item.text));
        let done = json!({"output_index": index, "item": whole});
        self.send("response.output_item.done", done, out);
        self.output.push(whole);
    }

    fn whole(&mut self, name: &str, error: Option<&Refusal>, out: &mut Out) {
        let response = json!({"response": self.json(error)});
        self.send(name, response, out);
    }
}

impl Whole for ResponseWriter {
    /// Follows the event without sending anything.
    fn event(&mut self, choice: usize, event: Event) {
        Frames::event(self, choice, event, &mut Out::default());
    }

    fn weight(&self) -> usize {
        self.head_len
    }

    fn finish(self) -> String {
        self.json(None).to_string()
    }
}

impl Frames for ResponseWriter {
    fn event(&mut self, _choice: usize, event: Event, out: &mut Out) {
        match event {
            Event::Admitted { .. } => {
                self.whole("response.created", None, out);
                self.whole("response.in_progress", None, out);
            }
            Event::Token(token) => self.attribution.token(token),
            Event::Reasoning(text) => {
                self.attribution.reasoning();
                self.open(Kind::Reasoning, out);
                self.grow(self.own("reasoning", &text), out);
            }
            Event::Text(text) => {
                self.attribution.skip();
                self.open(Kind::Message, out);
                self.grow(self.own("message", &text), out);
            }
            Event::ToolCallStart { id, name, .. } => {
                self.attribution.skip();
                self.open(Kind::Call { call_id: id, name, ended: false }, out);
            }
            Event::ToolCallArguments { delta, .. } => self.grow(&delta, out),
            Event::ToolCallEnd { .. } => {
                if let Some(Item { kind: Kind::Call { ended, .. }, .. }) = &mut self.open {
                    *ended = true;
                }
            }
            Event::End(end) => {
                self.status = match end.finish {
                    Finish::Length => "incomplete",
                    _ => "completed",
                };
                self.close(self.status, out);
                let mut usage = WireUsage::default();
                usage.add(&end.usage, self.attribution.reasoning_tokens(), true);
                self.usage = Some(usage.into());
            }
            _ => {}
        }
    }

    fn finish(&mut self, out: &mut Out) {
        let name = format!("response.{}", self.status);
        self.whole(&name, None, out);
    }

    fn failed(&mut self, refusal: &Refusal, out: &mut Out) {
        self.close("incomplete", out);
        let error = json!({
            "code": refusal.code.unwrap_or(refusal.kind),
            "message": refusal.message,
            "param": refusal.param,
        });
        self.send("error", error, out);
        self.status = "failed";
        self.whole("response.failed", Some(refusal), out);
        out.raw("[DONE]");
    }
}
