//! The prompts of the input file.

use crate::Arguments;
use anyhow::{Context, Result, bail, ensure};
use oss_engine::{Prompt, Request, Sampling};
use oss_examples::{OF_CONVERSATIONS, conversation, field};
use serde_json::{Map, Value, from_value, json};
use std::collections::HashSet;
use xxhash_rust::xxh3::xxh3_64;

/// The fields that an object may have beside those of its conversation.
const FIELDS: [&str; 8] =
    ["id", "prompt", "prompt_ids", "messages", "max_tokens", "temperature", "seed", "stop"];

/// Those of them that say what is answered.
const PROMPTS: [&str; 3] = ["prompt", "prompt_ids", "messages"];

/// One prompt.
pub(crate) struct Job {
    pub(crate) origin: Origin,
    pub(crate) request: Request,
}

/// Where a prompt comes from: what its answer is found again by.
#[derive(Clone, Debug)]
pub(crate) struct Origin {
    /// Its name: given, or the number of its line, as JSON.
    pub(crate) id: String,
    /// The hash of its line.
    pub(crate) hash: String,
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
        let id = &job.origin.id;
        ensure!(ids.insert(id.clone()), "{}: got the id {id} again", place());
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
    let known = [&FIELDS[..], &OF_CONVERSATIONS].concat();
    if let Some(unknown) = fields.keys().find(|field| !known.contains(&field.as_str())) {
        bail!("got the field {unknown}, expected {}", known.join(", "));
    }
    let part = |name: &str| fields.get(name).filter(|value| !value.is_null());
    let id = part("id").cloned().unwrap_or(json!(number));
    ensure!(id.is_string() || id.is_u64(), "id: got {id}, expected a string or a whole number");
    let mut request = Request::new(prompt(&fields)?);
    let max_tokens = field(&fields, "max_tokens", from_value)?;
    request.max_tokens = Some(max_tokens.unwrap_or(arguments.max_tokens));
    let seed = field(&fields, "seed", from_value)?;
    request.sampling = Sampling {
        temperature: field(&fields, "temperature", from_value)?.or(arguments.temperature),
        seed: Some(seed.unwrap_or(arguments.seed)),
        ..Sampling::default()
    };
    request.stop = match part("stop") {
        None => Vec::new(),
        Some(Value::String(stop)) => vec![stop.clone()],
        Some(list) => from_value(list.clone())
            .with_context(|| format!("stop: got {list}, expected a text or a list of texts"))?,
    };
    let hash = format!("{:016x}", xxh3_64(line.as_bytes()));
    Ok(Job { origin: Origin { id: id.to_string(), hash }, request })
}

fn prompt(fields: &Map<String, Value>) -> Result<Prompt> {
    let chat = conversation(fields)?;
    let text = field(fields, "prompt", from_value)?;
    let ids = field(fields, "prompt_ids", from_value)?;
    match (text, ids, chat) {
        (Some(text), None, None) => Ok(Prompt::Text(text)),
        (None, Some(ids), None) => Ok(Prompt::Tokens(ids)),
        (None, None, Some(chat)) => Ok(Prompt::Chat(Box::new(chat))),
        _ => {
            let is_given = |name: &&str| fields.get(*name).is_some_and(|value| !value.is_null());
            let given: Vec<&str> = PROMPTS.into_iter().filter(is_given).collect();
            let got = if given.is_empty() { "none".to_owned() } else { given.join(" and ") };
            bail!("got {got}, expected one of {}", PROMPTS.join(", "))
        }
    }
}
