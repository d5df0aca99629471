//! Where the answers go: whole lines, in order, and found again by the next run.

use crate::input::Origin;
use anyhow::{Context, Result, ensure};
use oss_engine::Completion;
use oss_examples::{outln, usage};
use serde_json::{Value, json};
use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::path::Path;

/// What every line begins with.
const BEGIN: &[u8] = b"{\"id\":";

/// The order of the lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// That of the input.
    Input,
    /// That in which answers end.
    AsFinished,
}

/// Writes lines.
pub(crate) struct Output {
    /// None: standard output.
    file: Option<File>,
    order: Order,
    /// The first prompt whose line is not written.
    next: usize,
    /// Lines that wait for one before them; none for a prompt without an answer.
    waiting: BTreeMap<usize, Option<String>>,
}

impl Output {
    /// Writes to standard output.
    pub(crate) fn print(order: Order) -> Self {
        Self { file: None, order, next: 0, waiting: BTreeMap::new() }
    }

    /// Goes on behind what a file has, and tells the ids of it and the hashes of what was asked. A
    /// last line that was broken off is cut away; a file with anything else in it is left alone.
    ///
    /// # Errors
    /// When the file cannot be read and written, another run writes there, or it has something else
    /// in it.
    pub(crate) fn resume(path: &Path, order: Order) -> Result<(Self, HashMap<String, String>)> {
        let named = || path.display().to_string();
        let open = File::options().read(true).write(true).create(true).truncate(false).open(path);
        let mut file = open.with_context(named)?;
        let locked = file.try_lock().map_err(std::io::Error::from);
        match locked {
            Err(error) if error.kind() == ErrorKind::Unsupported => {}
            locked => locked.with_context(|| format!("{}: another run writes here", named()))?,
        }
        let mut text = Vec::new();
        file.read_to_end(&mut text).with_context(named)?;
        let whole = text.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        let mut done = HashMap::new();
        for (index, line) in text[..whole].split_inclusive(|byte| *byte == b'\n').enumerate() {
            let answer: Value = serde_json::from_slice(line).unwrap_or_default();
            let (id, hash) = (&answer["id"], answer["input_hash"].as_str());
            let is_answer =
                !id.is_null() && answer["text"].is_string() && answer["finish_reason"].is_string();
            let place = || format!("{}, line {}", named(), index + 1);
            let hash = hash.filter(|_| is_answer).with_context(|| {
                format!("{}: got no answer, expected one with its id and input_hash", place())
            })?;
            done.insert(id.to_string(), hash.to_owned());
        }
        let rest = &text[whole..];
        let is_ours = rest.starts_with(BEGIN) || BEGIN.starts_with(rest);
        ensure!(is_ours, "{}: got a last line that is no part of an answer", named());
        file.set_len(whole as u64).with_context(named)?;
        file.seek(SeekFrom::End(0)).with_context(named)?;
        Ok((Self { file: Some(file), ..Self::print(order) }, done))
    }

    /// Takes the line of prompt `index`; none where it has no answer.
    pub(crate) fn put(&mut self, index: usize, line: Option<String>) -> Result<()> {
        if self.order == Order::AsFinished {
            return self.write(line);
        }
        self.waiting.insert(index, line);
        while let Some(line) = self.waiting.remove(&self.next) {
            self.write(line)?;
            self.next += 1;
        }
        Ok(())
    }

    /// Writes a line with one call, so that it is there whole or, after a crash, cut at the end of
    /// the file.
    fn write(&mut self, line: Option<String>) -> Result<()> {
        let Some(line) = line else { return Ok(()) };
        match &mut self.file {
            Some(file) => Ok(file.write_all(format!("{line}\n").as_bytes())?),
            None => {
                outln!("{line}");
                Ok(())
            }
        }
    }
}

/// The object of docs/json.md.
pub(crate) fn line(origin: &Origin, answer: &Completion) -> Value {
    let timing = answer.timing;
    let ms = |time: std::time::Duration| time.as_secs_f64() * 1e3;
    let id: Value = serde_json::from_str(&origin.id).expect("ids are kept as JSON");
    json!({
        "id": id,
        "input_hash": origin.hash,
        "text": answer.text,
        "reasoning": answer.reasoning,
        "tool_calls": answer.tool_calls,
        "finish_reason": answer.finish_reason.as_str(),
        "seed": answer.seed,
        "usage": usage(&answer.usage),
        "timing": {
            "queue_ms": ms(timing.queue),
            "first_token_ms": timing.first_token.map(ms),
            "total_ms": ms(timing.total),
        },
    })
}
