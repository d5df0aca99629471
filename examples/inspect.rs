//! What is in a model file: metadata, tensors, sizes, memory; also why a file does not load. With
//! `--tokenize`, `--chat` and `--parse-ids` it shows the model's text side.
//!
//! `cargo run --release --example inspect -- --model model.gguf`
//!
//! With `--json` it prints one object; docs/json.md tells what is in it.

use anyhow::{Context, Result, bail};
use clap::Parser;
use oss_engine::errors::ModelError;
use oss_engine::inspect::{
    Content, HarmonyMessage, MetadataValue, PackedReader, PackedSection, describe, packed_bytes,
    packed_bytes_by_type, shown,
};
use oss_engine::pack::Precision;
use oss_engine::{ChatRequest, Container, ModelConfig, Special, Text};
use oss_examples::{EngineArgs, bar, conversation, out, outln, run, tuning};
use serde_json::{Map, Value, json};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Shows what is in a model file.
#[derive(Parser)]
struct Arguments {
    #[command(flatten)]
    engine: EngineArgs,
    /// Shows the tokens of a prompt: those of a text, behind the beginning-of-text token where the
    /// model wants one
    #[arg(long, group = "what")]
    tokenize: Option<String>,
    /// Takes names of control tokens in the text as control tokens
    #[arg(long, alias = "special", requires = "tokenize")]
    parse_special: bool,
    /// Shows the prompt of a conversation: a JSON file with messages and tools as in the OpenAI
    /// chat API, or a list of messages
    #[arg(long, group = "what")]
    chat: Option<PathBuf>,
    /// Shows the harmony messages of a completion, given as tokens such as 1,2,3
    #[arg(long, group = "what", value_delimiter = ',')]
    parse_ids: Option<Vec<u32>>,
    /// Compares the checksums of a packed file
    #[arg(long, group = "what")]
    verify: bool,
    /// Loads the model, measures the machine at length, and tells what was chosen and why; here
    /// alone an engine's flags count, but for --model
    #[arg(long, group = "what")]
    tuning: bool,
    /// Prints one JSON object
    #[arg(long)]
    json: bool,
}

fn main() -> ExitCode {
    run(work)
}

fn work(arguments: &Arguments) -> Result<()> {
    let container = arguments.engine.model.file.container()?;
    if let Some(text) = &arguments.tokenize {
        let special = if arguments.parse_special { Special::Parse } else { Special::AsText };
        let text_side = Text::from_container(&container)?;
        let ids = text_side.encode(text, special)?;
        outln!("{}", json!({ "ids": ids }));
    } else if let Some(path) = &arguments.chat {
        let text_side = Text::from_container(&container)?;
        let ids = text_side.render(&chat(path)?)?;
        let text = text_side.tokenizer()?.decode(&ids);
        print(arguments.json, &json!({ "ids": ids, "text": text }), || outln!("{text}"));
    } else if let Some(ids) = &arguments.parse_ids {
        outln!("{}", parse(&Text::from_container(&container)?, ids)?);
    } else if arguments.verify {
        let sections = verify(&container)?;
        print(arguments.json, &json!({ "whole_sections": sections }), || {
            outln!("all {sections} sections are whole");
        });
    } else if arguments.tuning {
        let tuning = arguments.engine.load()?.tune()?;
        print(arguments.json, &tuning::contract(&tuning), || out!("{tuning}"));
    } else {
        let about = about(&container);
        print(arguments.json, &about, || list(&container, &about));
    }
    Ok(())
}

fn print(json: bool, value: &Value, plain: impl FnOnce()) {
    if json { outln!("{value}") } else { plain() }
}

/// A conversation out of a file: an object, or its messages alone.
fn chat(path: &Path) -> Result<ChatRequest> {
    let named = || path.display().to_string();
    let bytes = std::fs::read(path).with_context(named)?;
    let value: Value = serde_json::from_slice(&bytes).with_context(named)?;
    let fields = match value {
        Value::Object(fields) => fields,
        list @ Value::Array(_) => Map::from_iter([("messages".to_owned(), list)]),
        other => bail!("{}: got {other}, expected an object with messages, or a list", named()),
    };
    let chat = conversation(&fields).with_context(named)?;
    chat.with_context(|| format!("{}: got no messages, expected a list of them", named()))
}

fn parse(text: &Text, ids: &[u32]) -> Result<Value> {
    let message = |message: &HarmonyMessage| {
        let content = match &message.content {
            Content::Text(text) => text.clone(),
            other => format!("{other:?}"),
        };
        json!({
            "role": message.role,
            "channel": message.channel,
            "recipient": message.recipient,
            "content_type": message.content_type,
            "content": content,
        })
    };
    let messages: Vec<Value> = text.parse(ids)?.iter().map(message).collect();
    Ok(json!({ "messages": messages }))
}

/// How many sections a packed file has, all of them whole.
fn verify(container: &Container) -> Result<usize> {
    let packed = container.packed().with_context(|| {
        let (path, kind) = (container.path().display(), kind(container));
        format!("{path}: got a {kind} file, expected a packed one: others have no checksums")
    })?;
    let bar = bar(0, "reading");
    packed.verify(|done, total| {
        bar.set_length(total);
        bar.set_position(done);
    })?;
    bar.finish_and_clear();
    Ok(packed.sections().count())
}

/// What kind of file it is, in a word.
fn kind(container: &Container) -> String {
    format!("{:?}", container.kind()).to_lowercase()
}

/// An error with all that led to it, as JSON.
fn told(error: impl Into<anyhow::Error>) -> Value {
    json!({ "error": format!("{:#}", error.into()) })
}

/// Everything but the vocabulary, as JSON.
fn about(container: &Container) -> Value {
    let tensors: Vec<Value> = container
        .tensors()
        .map(|t| json!({"name": t.name, "type": t.dtype.name(), "shape": t.shape}))
        .collect();
    let sections: Option<Vec<Value>> = container.packed().map(|packed| {
        let section = |s: &PackedSection| {
            json!({"name": s.name, "kind": s.kind, "format": s.format, "bytes": s.length})
        };
        packed.sections().map(section).collect()
    });
    let model = describe(container).and_then(|(config, _)| memory(&config, container));
    let model = model.unwrap_or_else(told);
    let chat = match Text::from_container(container) {
        Ok(text) if text.is_harmony() => json!("harmony"),
        Ok(text) if text.has_chat() => json!("template"),
        Ok(_) => Value::Null,
        Err(error) => told(error),
    };
    let precision = match Precision::of(container) {
        Ok(precision) => precision.to_json(),
        Err(error) => told(error),
    };
    json!({
        "path": container.path(),
        "kind": kind(container),
        "file_bytes": container.file_bytes(),
        "metadata": metadata(container),
        "tensors": tensors,
        "sections": sections,
        "precision": precision,
        "model": model,
        "chat": chat,
    })
}

fn metadata(container: &Container) -> Map<String, Value> {
    let value = |value: &MetadataValue| match (value.as_str(), value.as_bool(), value.as_array()) {
        (Some(text), _, _) => json!(text),
        (_, Some(flag), _) => json!(flag),
        (_, _, Some(array)) if array.len() > 16 => json!(value.describe()),
        (_, _, Some(array)) => match (array.integers(), array.floats(), array.strings()) {
            (Ok(integers), _, _) => json!(integers),
            (_, Ok(floats), _) => json!(floats),
            (_, _, Ok(strings)) => json!(strings),
            _ => json!(value.describe()),
        },
        _ => match (value.as_u64(), value.as_i64(), value.as_f64()) {
            (Some(n), _, _) => json!(n),
            (_, Some(n), _) => json!(n),
            (_, _, n) => json!(n),
        },
    };
    container.metadata().iter().map(|(key, v)| (key.to_owned(), value(v))).collect()
}

/// The model's numbers and what it needs in memory.
fn memory(config: &ModelConfig, container: &Container) -> Result<Value, ModelError> {
    let kv_values = 2 * config.kv_dim();
    let full = config.layers.iter().filter(|layer| layer.window.is_none()).count();
    let windowed: usize = config.layers.iter().filter_map(|layer| layer.window).sum();
    let types = packed_bytes_by_type(container)?;
    let types = types.into_iter().map(|(name, [file, packed])| {
        let ratio = (packed as f64 / file as f64 * 100.0).round() / 100.0;
        json!({"type": name, "file_bytes": file, "packed_bytes": packed, "ratio": ratio})
    });
    Ok(json!({
        "architecture": config.architecture,
        "layers": config.layers.len(),
        "hidden_dim": config.hidden_dim,
        "heads": config.n_heads,
        "kv_heads": config.n_kv_heads,
        "head_dim": config.head_dim,
        "experts": config.max_experts(),
        "experts_per_token": config.max_top_k().min(config.max_experts()),
        "vocabulary": config.vocabulary,
        "context_len": config.context_len,
        "memory": {
            "weights_bytes": container.file_bytes(),
            "packed_bytes": packed_bytes(container)?,
            "packed_types": types.collect::<Vec<_>>(),
            "kv_bytes_per_token_bf16": full * kv_values * 2,
            "kv_bytes_of_windows_bf16": windowed * kv_values * 2,
        },
    }))
}

fn list(container: &Container, about: &Value) {
    outln!("{} ({}, {} bytes)", container.path().display(), about["kind"], about["file_bytes"]);
    for (key, value) in metadata(container) {
        // JSON leaves some control characters as they are.
        let plain = |c: char| if c.is_control() { char::REPLACEMENT_CHARACTER } else { c };
        let text: String = value.to_string().chars().take(100).map(plain).collect();
        outln!("  {} = {text}", shown(&key));
    }
    for tensor in container.tensors() {
        let (bytes, shape) = (tensor.bytes(), format!("{:?}", tensor.shape));
        let name = shown(&tensor.name);
        outln!("  {name:50} {:6} {shape:24} {bytes}", tensor.dtype.name());
    }
    for section in container.packed().into_iter().flat_map(PackedReader::sections) {
        let [name, kind, format] =
            [&section.name, &section.kind, &section.format].map(|x| shown(x));
        outln!("  {name:50} {kind:9} {format:6} {}", section.length);
    }
    match about["precision"].get("error") {
        Some(error) => outln!("the precision plan cannot be read: {error}"),
        None => {
            for (tensor, dtype) in about["precision"].as_object().into_iter().flatten() {
                let dtype = dtype.as_str().unwrap_or_default();
                outln!("  {:50} is packed as {}", shown(tensor), shown(dtype));
            }
        }
    }
    match about["model"].get("error") {
        Some(error) => outln!("does not load: {error}"),
        None => outln!("model: {:#}", about["model"]),
    }
    outln!("chat format: {}", about["chat"]);
}
