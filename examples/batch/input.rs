//! The prompts of the input file.

use crate::Arguments;
use anyhow::{Context, Result, ensure};
use oss_engine::text::chat::{Message, Tool};
use oss_engine::{ChatRequest, Prompt, Request, Sampling};
use serde_json::{Map, Value, json};
use std::collections::HashSet;

/// The fields that an object may have.
const FIELDS: [&str; 10] = [
    "id",
    "prompt",
    "prompt_ids",
    "messages",
    "tools",
    "reasoning_effort",
    "max_tokens",
    "temperature",
    "seed",
    "stop",
];

/// Those of them that only chats can have.
const OF_CHATS: [&str; 2] = ["tools", "reasoning_effort"];

/// One prompt.
pub(crate) struct Job {
    /// Its name: given, or the number of its line, as JSON.
    pub(crate) id: String,
    pub(crate) request: Request,
}

/// All prompts of the file; empty lines are none.
pub(crate) fn read(arguments: &Arguments) -> Result<Vec<Job>> {
    let path = &arguments.input;
    let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
    // Some editors begin a file with the mark of its encoding.
    let text = text.strip_prefix('\u{feff}').unwrap_or(&text);
    let mut ids = HashSet::new();
    let mut jobs = Vec::new();
    for (index, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let place = || format!("{}, line {}", path.display(), index + 1);
        let job = job(line, index + 1, arguments).with_context(place)?;
        ensure!(ids.insert(job.id.clone()), "{}: got the id {} again", place(), job.id);
        jobs.push(job);
    }
    ensure!(!jobs.is_empty(), "{}: got no prompts, expected one a line", path.display());
    Ok(jobs)
}

fn job(line: &str, number: usize, arguments: &Arguments) -> Result<Job> {
    let fields: Map<String, Value> = match line.trim_start().starts_with('{') {
        true => serde_json::from_str(line)?,
        false => Map::from_iter([("prompt".to_owned(), json!(line))]),
    };
    if let Some(unknown) = fields.keys().find(|field| !FIELDS.contains(&field.as_str())) {
        anyhow::bail!("got the field {unknown}, expected {}", FIELDS.join(", "));
    }
    let part = |name: &str| fields.get(name).filter(|value| !value.is_null());
    let id = part("id").cloned().unwrap_or(json!(number));
    ensure!(id.is_string() || id.is_u64(), "id: got {id}, expected a string or a whole number");
    let mut request = Request::new(prompt(&fields)?);
    let tokens = |value: &Value| value.as_u64().map(|tokens| tokens as usize);
    request.max_tokens = Some(match part("max_tokens") {
        Some(value) => tokens(value).with_context(|| format!("max_tokens: got {value}"))?,
        None => arguments.max_tokens,
    });
    let temperature = part("temperature").map(|value| {
        value.as_f64().map(|number| number as f32).with_context(|| format!("temperature: {value}"))
    });
    let seed = part("seed").map(|value| value.as_u64().with_context(|| format!("seed: {value}")));
    request.sampling = Sampling {
        temperature: temperature.transpose()?.or(arguments.temperature),
        seed: Some(seed.transpose()?.unwrap_or(arguments.seed)),
        ..Sampling::default()
    };
    request.stop = match part("stop") {
        None => Vec::new(),
        Some(Value::String(stop)) => vec![stop.clone()],
        Some(list) => serde_json::from_value(list.clone()).context("stop")?,
    };
    Ok(Job { id: id.to_string(), request })
}

fn prompt(fields: &Map<String, Value>) -> Result<Prompt> {
    let part = |name: &str| fields.get(name).filter(|value| !value.is_null()).cloned();
    if part("messages").is_none()
        && let Some(name) = OF_CHATS.into_iter().find(|name| part(name).is_some())
    {
        anyhow::bail!("got the field {name} without messages, expected both or neither");
    }
    match (part("prompt"), part("prompt_ids"), part("messages")) {
        (Some(Value::String(text)), None, None) => Ok(Prompt::Text(text)),
        (None, Some(ids), None) => {
            Ok(Prompt::Tokens(serde_json::from_value(ids).context("prompt_ids")?))
        }
        (None, None, Some(messages)) => {
            let messages: Vec<Message> = serde_json::from_value(messages).context("messages")?;
            let tools = part("tools").unwrap_or_else(|| json!([]));
            let tools: Vec<Tool> = serde_json::from_value(tools).context("tools")?;
            let effort = part("reasoning_effort").map(serde_json::from_value).transpose();
            let reasoning_effort = effort.context("reasoning_effort")?;
            let chat = ChatRequest { tools, reasoning_effort, ..ChatRequest::new(messages) };
            Ok(Prompt::Chat(Box::new(chat)))
        }
        _ => anyhow::bail!("expected one of prompt (a string), prompt_ids and messages"),
    }
}
