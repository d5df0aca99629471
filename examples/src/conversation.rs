//! Conversations that files hold, as OpenAI's chat API has them.

use crate::field;
use anyhow::{Result, bail};
use oss_engine::{ChatRequest, Message, Tool};
use serde_json::{Map, Value, from_value};

/// What a conversation may have beside its messages.
pub const OF_CONVERSATIONS: [&str; 4] = ["tools", "reasoning_effort", "date", "identity"];

/// The conversation among some fields; `None` where they have none.
///
/// # Errors
/// When a field is not what it has to be, or belongs to messages that are missing.
pub fn conversation(fields: &Map<String, Value>) -> Result<Option<ChatRequest>> {
    let Some(messages) = field(fields, "messages", from_value::<Vec<Message>>)? else {
        let is_given = |name: &&str| fields.get(*name).is_some_and(|value| !value.is_null());
        if let Some(name) = OF_CONVERSATIONS.into_iter().find(is_given) {
            bail!("got the field {name} without messages, expected both or neither");
        }
        return Ok(None);
    };
    let tools: Option<Vec<Tool>> = field(fields, "tools", from_value)?;
    Ok(Some(ChatRequest {
        tools: tools.unwrap_or_default(),
        reasoning_effort: field(fields, "reasoning_effort", from_value)?,
        date: field(fields, "date", from_value)?,
        identity: field(fields, "identity", from_value)?,
        ..ChatRequest::new(messages)
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_belongs_to_messages_is_refused_without_them() {
        let read = |fields: Value| conversation(fields.as_object().expect("an object"));
        let messages = json!([{"role": "user", "content": "Hello"}]);
        let chat = read(json!({"messages": messages, "date": "2025-06-28", "tools": null}));
        let chat = chat.expect("a conversation").expect("messages");
        assert_eq!((chat.messages.len(), chat.date.as_deref()), (1, Some("2025-06-28")));
        assert!(read(json!({"prompt": "a", "tools": null})).expect("none").is_none());
        for name in OF_CONVERSATIONS {
            let error = read(json!({ name: [] })).unwrap_err().to_string();
            assert!(error.starts_with(&format!("got the field {name} without")), "{error}");
        }
        let error = read(json!({"messages": messages, "date": 7})).unwrap_err().to_string();
        assert_eq!(error, "date: invalid type: integer `7`, expected a string");
    }
}
