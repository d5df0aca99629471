//! The body of `/v1/responses`.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use oss_engine::{Engine, FunctionCall, Message, ReasoningEffort, Request, Role, ToolCall};
use serde_json::{Map, Value, json};

use crate::app::App;
use crate::read::Call;
use crate::read::chat::{ChatCall, effort, max_tokens};
use crate::read::common::Common;
use crate::read::fields::{Fields, missing, read, short};
use crate::read::format::{self, Nesting};
use crate::refusal::{Names, Refusal};

/// What is said of everything that needs responses to be kept.
const STATELESS: &str =
    "null: this server keeps no responses, send the whole conversation as input";

/// The most pairs of `metadata`, and the most characters of their keys and values.
const MOST_PAIRS: usize = 16;
const LONGEST_KEY: usize = 64;
const LONGEST_VALUE: usize = 512;

/// A conversation to answer, and what the answer repeats of it.
pub(crate) struct ResponseCall {
    pub(crate) chat: ChatCall,
    /// Fields of the request that the response has too, as JSON that goes on with an object: as
    /// values, long tools would take many times as much.
    pub(crate) echoed: String,
}

impl Call for ResponseCall {
    fn read(app: &App, engine: &Engine, body: &[u8]) -> Result<Self, Refusal> {
        let mut fields = Fields::parse(body)?;
        app.check_model(fields.take::<String>("model")?.as_deref())?;
        refuse(&mut fields)?;
        let mut text = Fields::within("text", fields.take("text")?.unwrap_or_default());
        text.refuse("verbosity", &[json!("medium")])?;
        let format: Option<Map<String, Value>> = text.take("format")?;
        let echoed = echo(&fields, format.as_ref());
        check_labels(&mut fields)?;
        let mut common = Common::read(&mut fields)?;
        common.format = format::read("text.format", format, Nesting::Flat)?;
        common.max_tokens =
            max_tokens(&mut fields, &["max_output_tokens", "max_completion_tokens", "max_tokens"])?;
        let mut messages = Vec::new();
        if let Some(instructions) = fields.take::<String>("instructions")? {
            messages.push(Message::system(instructions));
        }
        input(fields.take("input")?.ok_or_else(|| missing("input"))?, &mut messages)?;
        let chat = ChatCall::of(app, engine, &mut fields, common, messages, reasoning_effort)?;
        Ok(Self { chat, echoed })
    }

    fn names(&self) -> Names {
        Names { prompt: "input", format: "text.format", count: "input" }
    }

    fn common(&self) -> &Common {
        &self.chat.common
    }

    fn weight(&self, body: usize) -> usize {
        self.chat.weight(body)
    }

    fn requests(
        self,
        engine: &Engine,
    ) -> Result<impl ExactSizeIterator<Item = Request> + Send, Refusal> {
        self.chat.requests(engine)
    }
}

/// How long the model shall think, which lies in `reasoning` here.
fn reasoning_effort(fields: &mut Fields) -> Result<Option<ReasoningEffort>, Refusal> {
    let reasoning = fields.take("reasoning")?.unwrap_or_default();
    let mut reasoning = Fields::within("reasoning", reasoning);
    // Reasoning comes whole: there is nothing that would write a summary.
    reasoning.refuse("summary", &[json!("auto")])?;
    reasoning.refuse("generate_summary", &[json!("auto")])?;
    effort("reasoning.effort", reasoning.take("effort")?)
}

/// What the engine does not do, and what needs responses to be kept.
fn refuse(fields: &mut Fields) -> Result<(), Refusal> {
    for name in ["previous_response_id", "conversation"] {
        if let Some(got) = fields.take::<Value>(name)? {
            return Err(Refusal::unsupported(name, short(&got), STATELESS));
        }
    }
    // Left out it is true, and gateways write that: the response says that it is not kept.
    let _kept: Option<bool> = fields.take("store")?;
    fields.refuse("background", &[json!(false)])?;
    // Reasoning comes as it is, and comes back so.
    fields.refuse("include", &[json!([]), json!(["reasoning.encrypted_content"])])?;
    fields.refuse("include_reasoning", &[json!(true)])?;
    fields.refuse("max_tool_calls", &[])?;
    fields.refuse("n", &[json!(1)])?;
    fields.refuse("prompt", &[])?;
    fields.refuse("skip_special_tokens", &[json!(true)])?;
    fields.refuse("top_logprobs", &[json!(0)])?;
    // Its name here is `text.format`.
    fields.refuse("response_format", &[json!({"type": "text"})])?;
    fields.refuse("truncation", &[json!("disabled")])
}

/// What the response repeats, with OpenAI's defaults.
fn echo(fields: &Fields, format: Option<&Map<String, Value>>) -> String {
    let defaults = [
        ("instructions", "null"),
        ("max_output_tokens", "null"),
        ("metadata", "{}"),
        ("parallel_tool_calls", "true"),
        ("reasoning", r#"{"effort":null,"summary":null}"#),
        ("temperature", "null"),
        ("tool_choice", r#""auto""#),
        ("tools", "[]"),
        ("top_p", "null"),
        ("user", "null"),
    ];
    let mut echoed = String::new();
    for (name, default) in defaults {
        let given = fields.look(name).filter(|value| !value.is_null());
        let shown = given.map_or_else(|| default.to_owned(), Value::to_string);
        let _infallible = write!(echoed, ",\"{name}\":{shown}");
    }
    let format = format.map(|format| serde_json::to_string(format).expect("a map of values"));
    let format = format.unwrap_or_else(|| r#"{"type":"text"}"#.to_owned());
    let _infallible = write!(echoed, r#","text":{{"format":{format}}}"#);
    echoed
}

/// Refuses what names a request where it is no name, or longer than OpenAI's API has it.
fn check_labels(fields: &mut Fields) -> Result<(), Refusal> {
    for name in ["user", "safety_identifier"] {
        fields.take::<String>(name)?;
    }
    let metadata: BTreeMap<String, String> = fields.take("metadata")?.unwrap_or_default();
    let length = |text: &String| text.chars().count();
    let longest_key = metadata.keys().map(length).max().unwrap_or(0);
    let longest_value = metadata.values().map(length).max().unwrap_or(0);
    for (what, got, most) in [
        ("pairs", metadata.len(), MOST_PAIRS),
        ("characters of a key", longest_key, LONGEST_KEY),
        ("characters of a value", longest_value, LONGEST_VALUE),
    ] {
        if got > most {
            let what = format!("got {got} {what}, expected at most {most}");
            return Err(Refusal::field("metadata", what));
        }
    }
    Ok(())
}

/// A text, or items of a conversation.
fn input(input: Value, messages: &mut Vec<Message>) -> Result<(), Refusal> {
    match input {
        Value::String(text) => messages.push(Message::user(text)),
        Value::Array(items) if !items.is_empty() => {
            let mut thought = None;
            for (index, value) in items.into_iter().enumerate() {
                item(&format!("input[{index}]"), value, &mut thought, messages)?;
            }
        }
        other => {
            let what = format!("got {}, expected a text or a list of items", short(&other));
            return Err(Refusal::field("input", what));
        }
    }
    Ok(())
}

/// One item; reasoning waits in `thought` for what it led to in the same turn. Where that is
/// nothing, as it was cut off, it is left out, as stale reasoning is.
fn item(
    name: &str,
    value: Value,
    thought: &mut Option<String>,
    messages: &mut Vec<Message>,
) -> Result<(), Refusal> {
    let kind = value.get("type").and_then(Value::as_str).unwrap_or("message").to_owned();
    if kind == "message" {
        let mut message: Message = read(name, value)?;
        let thought = thought.take();
        if message.role == Role::Assistant {
            message.reasoning_content = thought.or(message.reasoning_content);
        }
        messages.push(message);
        return Ok(());
    }
    let mut fields = Fields::of(read(name, value)?);
    match kind.as_str() {
        "reasoning" => *thought = reasoning(name, &mut fields)?.or(thought.take()),
        "function_call" => {
            let function =
                FunctionCall { name: fields.need("name")?, arguments: fields.need("arguments")? };
            let id = fields.need("call_id")?;
            let call = ToolCall { id, kind: "function".to_owned(), function };
            match messages.last_mut().filter(|last| last.role == Role::Assistant) {
                Some(last) if thought.is_none() => last.tool_calls.push(call),
                _ => messages.push(Message {
                    content: None,
                    reasoning_content: thought.take(),
                    tool_calls: vec![call],
                    ..Message::assistant("")
                }),
            }
        }
        "function_call_output" => {
            let id: String = fields.need("call_id")?;
            let output: Value = fields.need("output")?;
            let read_as = json!({"role": "tool", "tool_call_id": id, "content": output});
            messages.push(read(&format!("{name}.output"), read_as)?);
        }
        other => {
            let expected = "message, reasoning, function_call or function_call_output";
            return Err(Refusal::unsupported(format!("{name}.type"), other, expected));
        }
    }
    Ok(())
}

/// The text of a reasoning item; `None` where it has a summary alone, or nothing.
fn reasoning(name: &str, fields: &mut Fields) -> Result<Option<String>, Refusal> {
    let Some(parts) = fields.take::<Value>("content")? else { return Ok(None) };
    let read_as = json!({"role": "assistant", "content": parts});
    let message: Message = read(&format!("{name}.content"), read_as)?;
    Ok(message.content.filter(|text| !text.is_empty()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasoning_stays_in_its_turn() {
        let reasoning = |text: &str| {
            let content = json!([{"type": "reasoning_text", "text": text}]);
            json!({"type": "reasoning", "content": content, "encrypted_content": null})
        };
        let message = |role: &str, text: &str| json!({"role": role, "content": text});
        let call = json!({"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"});
        let items = json!([
            message("user", "a"),
            reasoning("cut off"),
            message("user", "b"),
            reasoning("of the call"),
            call,
            message("assistant", "c"),
            message("user", "d"),
            reasoning("of e"),
            message("assistant", "e"),
        ]);
        let mut messages = Vec::new();
        input(items, &mut messages).unwrap();
        let thoughts = messages.iter().map(|message| message.reasoning_content.as_deref());
        let thoughts: Vec<Option<&str>> = thoughts.collect();
        let expected = [None, None, Some("of the call"), None, None, Some("of e")];
        assert_eq!(thoughts, expected);
    }
}
