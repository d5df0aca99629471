//! Rendering and parsing against recordings of the reference library.

use oss_text::Tokenizer;
use oss_text::chat::Role;
use oss_text::harmony::{
    Content, Conversation, DeveloperContent, Event, Message, Namespace, Parser, RecipientPlace,
    SystemContent, parse, render,
};
use serde_json::{Value, json};

use crate::o200k;

fn tokenizer() -> &'static Tokenizer {
    &o200k::TOKENIZER
}

fn cases(json: &[u8]) -> Vec<(String, Value)> {
    let cases: Value = serde_json::from_slice(json).unwrap();
    cases.as_object().unwrap().clone().into_iter().collect()
}

/// The tools of a content, which the reference library keeps by their namespace's name.
fn namespaces(part: &Value) -> Vec<Namespace> {
    let namespaces = part["tools"].as_object().into_iter().flatten();
    namespaces.map(|(_, value)| serde_json::from_value(value.clone()).unwrap()).collect()
}

/// A message in the reference library's own JSON.
fn message(value: &Value) -> Message {
    let text = |key: &str| value[key].as_str().map(str::to_owned);
    let parts = value["content"].as_array().unwrap();
    assert_eq!(parts.len(), 1);
    let part = &parts[0];
    let content = match part["type"].as_str().unwrap() {
        "system_content" => {
            let mut part = part.clone();
            part["tools"] = json!([]);
            let mut content: SystemContent = serde_json::from_value(part).unwrap();
            content.tools = namespaces(&parts[0]);
            Content::System(content)
        }
        "developer_content" => {
            let instructions = part["instructions"].as_str().map(str::to_owned);
            Content::Developer(DeveloperContent {
                instructions,
                tools: namespaces(part),
                ..DeveloperContent::default()
            })
        }
        _ => Content::Text(part["text"].as_str().unwrap().to_owned()),
    };
    Message {
        role: serde_json::from_value::<Role>(value["role"].clone()).unwrap(),
        name: text("name"),
        channel: text("channel"),
        recipient: text("recipient"),
        recipient_place: RecipientPlace::Role,
        content_type: text("content_type"),
        content,
    }
}

fn ids(value: &Value) -> Vec<u32> {
    serde_json::from_value(value.clone()).unwrap()
}

#[test]
fn every_golden_conversation_renders_to_the_references_ids() {
    // The second file: schemas, built-in tools and names, recorded from the same library.
    let mut cases = cases(include_bytes!("../data/harmony_render.json"));
    assert_eq!(cases.len(), 11);
    cases.extend(self::cases(include_bytes!("../data/harmony_render_more.json")));
    assert_eq!(cases.len(), 14);
    for (name, case) in cases {
        let messages = case["conversation"]["messages"].as_array().unwrap();
        let conversation = Conversation { messages: messages.iter().map(message).collect() };
        let got = render(&conversation, tokenizer()).unwrap();
        assert_eq!(tokenizer().decode(&got), case["rendered"].as_str().unwrap(), "{name}");
        assert_eq!(got, ids(&case["ids"]), "{name}");
    }
}

#[test]
fn every_golden_completion_parses_to_the_references_messages() {
    let mut erred = 0;
    for (name, case) in cases(include_bytes!("../data/harmony_parse.json")) {
        let got = parse(tokenizer(), &ids(&case["ids"])).unwrap();
        match case["messages"].as_array() {
            Some(messages) => {
                assert_eq!(got, messages.iter().map(message).collect::<Vec<_>>(), "{name}");
            }
            None => {
                assert_eq!(name, "truncated_in_header");
                assert_eq!(got, [], "a channel's half name says nothing");
                erred += 1;
            }
        }
    }
    assert_eq!(erred, 1);
}

#[test]
fn the_state_after_every_token_is_the_references() {
    for (name, case) in cases(include_bytes!("../data/harmony_parse.json")) {
        let mut parser = Parser::new(tokenizer()).unwrap();
        let states = case["stream"].as_array().unwrap();
        for (id, state) in ids(&case["ids"]).into_iter().zip(states) {
            let delta = parser.push(id).into_iter().find_map(|event| match event {
                Event::Delta(delta) => Some(delta),
                Event::Start(_) | Event::End(_) => None,
            });
            let header = parser.header();
            let channel = header.and_then(|header| header.channel.clone());
            let recipient = header.and_then(|header| header.recipient.clone());
            assert_eq!(json!([channel, recipient, delta]), *state, "{name}, token {id}");
        }
    }
}
