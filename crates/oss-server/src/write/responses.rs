//! Answers of `/v1/responses`: items that open, grow and close, each step an event.

use oss_engine::{BETWEEN_MESSAGES, Engine, Event, FinishReason};
use serde::Serialize;
use serde_json::{Value, json};

use crate::read::ResponseCall;
use crate::refusal::Refusal;
use crate::sse::Out;
use crate::write::Wire;
use crate::write::follower::Follower;
use crate::write::logprobs::{Attribution, Control};
use crate::write::usage::ResponseUsage;
use crate::{clock, ids};

/// Follows one answer and writes its events; the last one holds the whole response.
pub(crate) struct ResponseWriter {
    /// The response's name and what it repeats of its request, which may be long: the beginning of
    /// a JSON object, written once.
    head: String,
    follower: Follower,
    /// Items that are complete.
    output: Vec<Value>,
    open: Option<Item>,
    /// Events that were sent.
    sent: u64,
    status: &'static str,
    usage: Option<ResponseUsage>,
}

/// The rest of the response as it stands.
#[derive(Serialize)]
struct Tail<'a> {
    status: &'static str,
    error: Option<Value>,
    incomplete_details: Option<Value>,
    output: &'a [Value],
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

    /// Whether its text is a part of it; a call has none.
    fn has_part(&self) -> bool {
        !matches!(self.kind, Kind::Call { .. })
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

impl ResponseWriter {
    /// The response as it stands.
    fn json(&self, error: Option<&Refusal>) -> String {
        let incomplete = self.status == "incomplete";
        let tail = Tail {
            status: self.status,
            error: error.map(|refusal| {
                json!({"code": refusal.code.unwrap_or(refusal.kind), "message": refusal.message})
            }),
            incomplete_details: incomplete.then(|| json!({"reason": "max_output_tokens"})),
            output: &self.output,
            usage: self.usage,
        };
        let tail = serde_json::to_string(&tail).expect("wire types are JSON");
        format!("{},{}", self.head, &tail[1..])
    }

    /// Sends an event; where nobody hears it, its data are not made.
    fn emit(&mut self, name: &str, out: &mut Option<&mut Out>, data: impl FnOnce() -> Value) {
        let Some(out) = out else { return };
        let mut data = data();
        data["type"] = name.into();
        data["sequence_number"] = self.sent.into();
        self.sent += 1;
        out.named(name, data);
    }

    /// Sends an event with the response as it stands.
    fn emit_whole(&mut self, name: &str, error: Option<&Refusal>, out: &mut Out) {
        let (response, number) = (self.json(error), self.sent);
        self.sent += 1;
        let data =
            format_args!(r#"{{"response":{response},"type":"{name}","sequence_number":{number}}}"#);
        out.named(name, data);
    }

    /// Opens an item, unless one of the same kind is open that this text goes on with.
    fn open(&mut self, kind: Kind, out: &mut Option<&mut Out>) {
        let same = |open: &Item| {
            matches!(
                (&open.kind, &kind),
                (Kind::Reasoning, Kind::Reasoning) | (Kind::Message, Kind::Message)
            )
        };
        if self.open.as_ref().is_some_and(same) {
            return;
        }
        self.close_item("completed", out);
        let (item, index) = (Item::new(kind), self.output.len());
        self.emit(
            "response.output_item.added",
            out,
            || json!({"output_index": index, "item": item.json("in_progress", None)}),
        );
        if item.has_part() {
            self.emit("response.content_part.added", out, || {
                json!({
                    "item_id": item.id, "output_index": index, "content_index": 0,
                    "part": item.part(""),
                })
            });
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

    fn grow(&mut self, delta: &str, out: &mut Option<&mut Out>) {
        let index = self.output.len();
        let Some(mut item) = self.open.take() else { return };
        item.text.push_str(delta);
        let [name, _] = item.events();
        self.emit(name, out, || {
            let mut data = json!({"item_id": item.id, "output_index": index, "delta": delta});
            if item.has_part() {
                data["content_index"] = 0.into();
            }
            if matches!(item.kind, Kind::Message) {
                data["logprobs"] = json!([]);
            }
            data
        });
        self.open = Some(item);
    }

    /// Closes the open item; whether a call is complete, it knows itself.
    fn close_item(&mut self, status: &str, out: &mut Option<&mut Out>) {
        let Some(item) = self.open.take() else { return };
        let status = match item.kind {
            Kind::Call { ended: true, .. } => "completed",
            Kind::Call { ended: false, .. } => "incomplete",
            Kind::Reasoning | Kind::Message => status,
        };
        let index = self.output.len();
        let [_, name] = item.events();
        self.emit(name, out, || {
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
            if item.has_part() {
                data["content_index"] = 0.into();
            }
            data
        });
        if item.has_part() {
            self.emit("response.content_part.done", out, || {
                json!({
                    "item_id": item.id, "output_index": index, "content_index": 0,
                    "part": item.part(&item.text),
                })
            });
        }
        let whole = item.json(status, Some(&item.text));
        self.emit(
            "response.output_item.done",
            out,
            || json!({"output_index": index, "item": whole}),
        );
        self.output.push(whole);
    }
}

impl Wire for ResponseWriter {
    type Call = ResponseCall;

    fn new(call: &ResponseCall, engine: &Engine, model: &str) -> Self {
        let mut head = json!({
            "id": format!("resp_{}", ids::unique()),
            "object": "response",
            "created_at": clock::unix_seconds(),
            "model": model,
            "background": false,
            "previous_response_id": null,
            "store": false,
            "truncation": "disabled",
        })
        .to_string();
        // The object goes on.
        head.pop();
        head.push_str(&call.echoed);
        let control = Control::of_chat(&call.chat, engine);
        Self {
            head,
            follower: Follower::new(1, 1, &Attribution::new(engine, false, control)),
            output: Vec::new(),
            open: None,
            sent: 0,
            status: "in_progress",
            usage: None,
        }
    }

    fn event(&mut self, choice: usize, event: Event, mut out: Option<&mut Out>) {
        self.follower.book(choice, &event);
        match event {
            Event::Admitted { .. } => {
                if let Some(out) = out {
                    self.emit_whole("response.created", None, out);
                    self.emit_whole("response.in_progress", None, out);
                }
            }
            Event::Reasoning(text) => {
                self.open(Kind::Reasoning, &mut out);
                self.grow(self.own("reasoning", &text), &mut out);
            }
            Event::Text(text) => {
                self.open(Kind::Message, &mut out);
                self.grow(self.own("message", &text), &mut out);
            }
            Event::ToolCallStart { id, name, .. } => {
                self.open(Kind::Call { call_id: id, name, ended: false }, &mut out);
            }
            Event::ToolCallArguments { delta, .. } => self.grow(&delta, &mut out),
            Event::ToolCallEnd { .. } => {
                if let Some(Item { kind: Kind::Call { ended, .. }, .. }) = &mut self.open {
                    *ended = true;
                }
            }
            Event::End(end) => {
                self.status = match end.finish_reason {
                    FinishReason::Length => "incomplete",
                    _ => "completed",
                };
                self.close_item(self.status, &mut out);
                self.usage = Some(self.follower.usage().into());
            }
            _ => {}
        }
    }

    fn close(&mut self, out: &mut Out) {
        let name = format!("response.{}", self.status);
        self.emit_whole(&name, None, out);
    }

    fn fail(&mut self, refusal: &Refusal, out: &mut Out) {
        let heard = &mut Some(&mut *out);
        self.close_item("incomplete", heard);
        self.emit("error", heard, || {
            json!({
                "code": refusal.code.unwrap_or(refusal.kind),
                "message": refusal.message,
                "param": refusal.param,
            })
        });
        self.status = "failed";
        self.emit_whole("response.failed", Some(refusal), out);
        out.raw("[DONE]");
    }

    fn weight(&self) -> usize {
        self.head.len()
    }

    fn whole(self) -> String {
        self.json(None)
    }
}
