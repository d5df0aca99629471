//! Any tokens after a prompt: messages in order, never a panic.
#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use oss_text::Tokenizer;
use oss_text::harmony::{Event, Parser};

static TOKENIZER: LazyLock<Tokenizer> =
    LazyLock::new(|| Tokenizer::from_json(oss_demo::TOKENIZER).unwrap());

fuzz_target!(|bytes: &[u8]| {
    let mut parser = Parser::new(&TOKENIZER).unwrap();
    let mut open = false;
    // Small bytes are control tokens, so that they come often.
    let id = |pair: &[u8]| match pair[0] {
        byte @ 0..=63 => 2038 + u32::from(byte) % 10,
        byte => u32::from(byte - 64) * 11 + u32::from(*pair.get(1).unwrap_or(&0)) % 11,
    };
    let mut events: Vec<Event> = bytes.chunks(2).flat_map(|pair| parser.push(id(pair))).collect();
    events.extend(parser.finish());
    for event in events {
        match event {
            Event::Start(_) => assert!(!std::mem::replace(&mut open, true)),
            Event::Delta(text) => assert!(open && !text.is_empty()),
            Event::End(_) => assert!(std::mem::replace(&mut open, false)),
        }
    }
    assert!(!open);
});
