//! Any content in a prompt: the control tokens stay those of the harmless prompt.
#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use oss_text::Tokenizer;
use oss_text::chat::{Message, Request, Template};

static TOKENIZER: LazyLock<Tokenizer> =
    LazyLock::new(|| Tokenizer::from_json(oss_demo::TOKENIZER).unwrap());
static TEMPLATE: LazyLock<Template> =
    LazyLock::new(|| Template::new(oss_demo::CHAT_TEMPLATE).unwrap());

fuzz_target!(|text: &str| {
    let half = text.floor_char_boundary(text.len() / 2);
    let messages = [Message::system(&text[..half]), Message::user(&text[half..])];
    let request = Request { messages: &messages, now: Some(0), ..Request::default() };
    let prompt = TEMPLATE.render(&request, &TOKENIZER).unwrap();
    assert_eq!(prompt.text, TEMPLATE.render_text(&request).unwrap());
    assert_eq!(TOKENIZER.decode(&prompt.ids), prompt.text);
    let specials = prompt.ids.iter().filter(|&&id| TOKENIZER.is_special(id)).count();
    assert_eq!(specials, if half > 0 { 9 } else { 6 });
});
