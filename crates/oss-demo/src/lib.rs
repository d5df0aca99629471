//! A small trained language model, embedded as bytes, so that a program or a test has a real model
//! without downloading one.
//!
//! It has exactly the architecture of gpt-oss at 3.6 million parameters, was trained from scratch
//! on generated text, and writes sensible children's stories and short chats about a tiny world.
//! `docs/demo-model/MODEL_CARD.md` in the repository says what it can do, how it was trained and
//! what the reference files beside it hold.
//!
//! The same weights come in the two forms in which models are published:
//! - [`GGUF`], one self-contained file: weights, configuration, tokenizer and chat template;
//! - [`FILES`], the files of a safetensors folder, each by its name.
//!
//! ```
//! // A GGUF file starts with its magic number.
//! assert_eq!(&oss_demo::GGUF[..4], b"GGUF");
//!
//! // The files of the folder are found by the names under which a loader looks for them.
//! let config = oss_demo::file("config.json").expect("the folder has a configuration");
//! assert!(config.starts_with(b"{"));
//! assert_eq!(oss_demo::file("missing.json"), None);
//! ```
//!
//! Invariants: both forms hold the same numbers, bit for bit; the bytes are those that the training
//! scripts exported, unchanged.
//!
//! What it does not do: it opens and writes no file and depends on nothing. A program that uses
//! only one of the two forms carries only that one, because the linker drops the other.
#![forbid(unsafe_code)]

/// The whole model as one GGUF file: experts in MXFP4, matrices in bfloat16, vectors in float32,
/// with the tokenizer and the chat template in its metadata.
pub static GGUF: &[u8] = include_bytes!("../data/demo.gguf");

/// The weights in the published safetensors layout: experts as `_blocks` and `_scales`, the rest
/// bfloat16.
pub static SAFETENSORS: &[u8] = include_bytes!("../data/model.safetensors");

/// The tokenizer as Hugging Face's `tokenizer.json`.
pub static TOKENIZER: &[u8] = include_bytes!("../data/tokenizer.json");

/// The chat template, a Jinja source that renders harmony.
pub static CHAT_TEMPLATE: &str = include_str!("../data/chat_template.jinja");

/// The files of the safetensors folder: (name, bytes), the weights among them.
pub static FILES: [(&str, &[u8]); 7] = [
    ("chat_template.jinja", CHAT_TEMPLATE.as_bytes()),
    ("config.json", include_bytes!("../data/config.json")),
    ("generation_config.json", include_bytes!("../data/generation_config.json")),
    ("model.safetensors", SAFETENSORS),
    ("special_tokens_map.json", include_bytes!("../data/special_tokens_map.json")),
    ("tokenizer.json", TOKENIZER),
    ("tokenizer_config.json", include_bytes!("../data/tokenizer_config.json")),
];

/// The files of the safetensors folder, as a slice: [`FILES`].
#[must_use]
pub fn files() -> &'static [(&'static str, &'static [u8])] {
    &FILES
}

/// The bytes of the file of the safetensors folder that has this name.
#[must_use]
pub fn file(name: &str) -> Option<&'static [u8]> {
    FILES.iter().find(|(known, _)| *known == name).map(|(_, bytes)| *bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_is_listed_once_and_not_empty() {
        for (index, (name, bytes)) in FILES.iter().enumerate() {
            assert!(!bytes.is_empty(), "{name} is empty");
            assert!(
                FILES[..index].iter().all(|(earlier, _)| earlier < name),
                "{name} out of order"
            );
        }
    }

    #[test]
    fn the_safetensors_header_covers_exactly_the_file() {
        let header = u64::from_le_bytes(SAFETENSORS[..8].try_into().expect("eight bytes"));
        let json = std::str::from_utf8(&SAFETENSORS[8..8 + header as usize]).expect("UTF-8");
        // The largest end offset of the header is the length of the data after it.
        let end = json
            .split("\"data_offsets\":[")
            .skip(1)
            .filter_map(|rest| rest.split([',', ']']).nth(1)?.trim().parse::<usize>().ok())
            .max();
        assert_eq!(end, Some(SAFETENSORS.len() - 8 - header as usize));
    }
}
