//! Conversations as OpenAI's chat API writes them.
//!
//! The types read and write that API's JSON. Text parts of a content array are joined; parts
//! other than text are an error of reading, since the models here know text alone.

mod clock;
mod guard;
mod json;
mod template;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

pub use self::clock::{now, seconds_until, strftime};
use self::json::to_json;
pub use self::template::{Prompt, Request, Template};

/// Who speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// The frame of the conversation.
    System,
    /// The program's author.
    Developer,
    /// The person.
    User,
    /// The model.
    Assistant,
    /// A tool's result.
    #[serde(alias = "function")]
    Tool,
}

impl Role {
    /// The name in prompts and in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Role::System => "system",
            Role::Developer => "developer",
            Role::User => "user",
            Role::Assistant => "assistant",
            Role::Tool => "tool",
        }
    }

    /// The role of a name.
    pub fn from_name(name: &str) -> Option<Self> {
        let roles = [Role::System, Role::Developer, Role::User, Role::Assistant, Role::Tool];
        roles.into_iter().find(|role| role.name() == name)
    }
}

/// One message of a conversation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(from = "WrittenMessage")]
pub struct Message {
    /// Who speaks.
    pub role: Role,
    /// What is said; `None` where an assistant only calls tools.
    pub content: Option<String>,
    /// The speaker's name; of a tool's result, the function's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// What the assistant thought before it spoke; read from `reasoning` or `thinking` too.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasoning_content: Option<String>,
    /// The calls that the assistant makes.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tool_calls: Vec<ToolCall>,
    /// The call that a tool's result answers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool_call_id: Option<String>,
}

/// A message as clients send it: with its reasoning under all the names that answers give it, of
/// which the first that is a text counts.
#[derive(Deserialize)]
struct WrittenMessage {
    role: Role,
    #[serde(default, deserialize_with = "content")]
    content: Option<String>,
    name: Option<String>,
    reasoning_content: Option<Value>,
    reasoning: Option<Value>,
    thinking: Option<Value>,
    #[serde(default, deserialize_with = "or_none")]
    tool_calls: Vec<ToolCall>,
    tool_call_id: Option<String>,
}

impl From<WrittenMessage> for Message {
    fn from(written: WrittenMessage) -> Self {
        let WrittenMessage { role, content, name, tool_calls, tool_call_id, .. } = written;
        let reasoning = [written.reasoning_content, written.reasoning, written.thinking];
        let text = |value| match value {
            Some(Value::String(text)) => Some(text),
            _ => None,
        };
        let reasoning_content = reasoning.into_iter().find_map(text);
        Self { role, content, name, reasoning_content, tool_calls, tool_call_id }
    }
}

impl Message {
    /// A plain message.
    pub fn new(role: Role, content: impl Into<String>) -> Self {
        Self {
            role,
            content: Some(content.into()),
            name: None,
            reasoning_content: None,
            tool_calls: Vec::new(),
            tool_call_id: None,
        }
    }

    /// What the program's author says.
    pub fn system(content: impl Into<String>) -> Self {
        Self::new(Role::System, content)
    }

    /// What the person says.
    pub fn user(content: impl Into<String>) -> Self {
        Self::new(Role::User, content)
    }

    /// What the model says.
    pub fn assistant(content: impl Into<String>) -> Self {
        Self::new(Role::Assistant, content)
    }

    /// A tool's result.
    pub fn tool(tool_call_id: impl Into<String>, content: impl Into<String>) -> Self {
        let id = Some(tool_call_id.into());
        Self { tool_call_id: id, ..Self::new(Role::Tool, content) }
    }
}

/// A call of a tool by the assistant.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ToolCall {
    /// The name of this call, which its result repeats.
    #[serde(default)]
    pub id: String,
    /// The kind of tool: `function`.
    #[serde(rename = "type", default = "function")]
    pub kind: String,
    /// What is called.
    pub function: FunctionCall,
}

/// A function's name and the arguments for it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FunctionCall {
    /// The function's name.
    pub name: String,
    /// The arguments as JSON text, exactly as the model wrote them. Read from a JSON object
    /// too, which is then written as Python's `json.dumps` does.
    #[serde(default, deserialize_with = "arguments")]
    pub arguments: String,
}

/// A tool that the model may call.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Tool {
    /// The kind of tool: `function`.
    #[serde(rename = "type")]
    pub kind: String,
    /// The function.
    pub function: Function,
}

impl Tool {
    /// A function with a JSON schema of its arguments.
    pub fn function(
        name: impl Into<String>,
        description: impl Into<String>,
        parameters: Value,
    ) -> Self {
        let (description, parameters) = (Some(description.into()), Some(parameters));
        let function = Function { name: name.into(), description, parameters, strict: None };
        Self { kind: self::function(), function }
    }
}

/// A function that the model may call.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Function {
    /// The function's name.
    pub name: String,
    /// What it does, for the model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// The JSON schema of its arguments.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parameters: Option<Value>,
    /// Whether the arguments have to follow the schema strictly.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub strict: Option<bool>,
}

/// Reads both spellings: `{"type": "function", "function": {…}}` and the flat `{"name": …}`.
impl<'de> Deserialize<'de> for Tool {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut value = Value::deserialize(deserializer)?;
        let kind = value.get("type").and_then(Value::as_str).unwrap_or("function").to_owned();
        if kind != "function" {
            let kind = cut(&kind);
            return Err(D::Error::custom(format!("tool type `{kind}`, expected `function`")));
        }
        let inner = value.get_mut("function").map(Value::take).unwrap_or(value);
        let function = serde_json::from_value(inner).map_err(D::Error::custom)?;
        Ok(Self { kind, function })
    }
}

fn function() -> String {
    "function".to_owned()
}

/// What kind of JSON a value is, for errors: the value itself may have megabytes.
fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    }
}

/// The beginning of a text, for errors.
fn cut(text: &str) -> &str {
    text.char_indices().nth(64).map_or(text, |(end, _)| &text[..end])
}

/// A string, an array of text parts, or null.
fn content<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    let parts = match Value::deserialize(deserializer)? {
        Value::Null => return Ok(None),
        Value::String(text) => return Ok(Some(text)),
        Value::Array(parts) => parts,
        other => {
            let got = kind(&other);
            let said = format!("content: got {got}, expected a string, null or an array of parts");
            return Err(D::Error::custom(said));
        }
    };
    let text = |part: &Value| match (part, part.get("text").and_then(Value::as_str)) {
        (Value::String(text), _) => Ok(text.clone()),
        (_, Some(text)) => Ok(text.to_owned()),
        _ => {
            let kind = cut(part.get("type").and_then(Value::as_str).unwrap_or("unknown"));
            Err(D::Error::custom(format!("content part of type `{kind}`, expected `text`")))
        }
    };
    parts.iter().map(text).collect::<Result<String, _>>().map(Some)
}

fn arguments<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    Ok(match Value::deserialize(deserializer)? {
        Value::Null => String::new(),
        Value::String(text) => text,
        other => to_json(&other),
    })
}

fn or_none<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<ToolCall>, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}
