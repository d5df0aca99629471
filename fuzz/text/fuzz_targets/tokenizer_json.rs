//! Any bytes as `tokenizer.json`: an error or a tokenizer that works, never a panic.
#![no_main]

use libfuzzer_sys::fuzz_target;
use oss_text::{Special, Tokenizer};

fuzz_target!(|bytes: &[u8]| {
    if let Ok(tokenizer) = Tokenizer::from_json(bytes) {
        for special in [Special::AsText, Special::Parse] {
            let ids = tokenizer.encode("Hello <|end|></s> 123\n 🚀", special);
            tokenizer.decode_text(&ids);
        }
    }
});
