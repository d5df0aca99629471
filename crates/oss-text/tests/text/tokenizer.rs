//! Token ids equal those of the references.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use oss_text::{Decoder, Error, Special, Tokenizer, Vocabulary};
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::{naive, o200k};

static DEMO: LazyLock<Tokenizer> =
    LazyLock::new(|| Tokenizer::from_json(oss_demo::TOKENIZER).unwrap());

static LLAMA_3: LazyLock<Tokenizer> = LazyLock::new(|| {
    let bpe = tiktoken_rs::cl100k_base_singleton();
    Tokenizer::from_vocabulary(&o200k::vocabulary(bpe, 100_256, "llama-bpe")).unwrap()
});

static GPT_2: LazyLock<Tokenizer> = LazyLock::new(|| {
    let bpe = tiktoken_rs::r50k_base_singleton();
    Tokenizer::from_vocabulary(&o200k::vocabulary(bpe, 50_256, "gpt-2")).unwrap()
});

static SMOLLM: LazyLock<Tokenizer> = LazyLock::new(|| {
    let bpe = tiktoken_rs::r50k_base_singleton();
    Tokenizer::from_vocabulary(&o200k::vocabulary(bpe, 50_256, "smollm")).unwrap()
});

/// A vocabulary trained by `sentencepiece` 0.2 with byte fallback, and its encodings.
static PIECES: LazyLock<Value> =
    LazyLock::new(|| serde_json::from_slice(include_bytes!("../data/sentencepiece.json")).unwrap());

fn pieces() -> Vocabulary<'static> {
    let model = "llama".to_owned();
    let array = |name: &str| PIECES[name].clone();
    Vocabulary {
        model,
        tokens: serde_json::from_value(array("tokens")).unwrap(),
        scores: serde_json::from_value(array("scores")).unwrap(),
        types: serde_json::from_value(array("types")).unwrap(),
        bos: Some(1),
        eos: Some(2),
        ..Vocabulary::default()
    }
}

static SENTENCE_PIECE: LazyLock<Tokenizer> =
    LazyLock::new(|| Tokenizer::from_vocabulary(&pieces()).unwrap());

#[test]
fn o200k_harmony_gives_the_golden_ids() {
    let cases: Value =
        serde_json::from_slice(include_bytes!("../data/tokenizer_o200k_harmony.json")).unwrap();
    let cases = cases.as_array().unwrap();
    assert_eq!(cases.len(), 60);
    for case in cases {
        let text = case["text"].as_str().unwrap();
        let expected: Vec<u32> = serde_json::from_value(case["ids"].clone()).unwrap();
        let got = o200k::TOKENIZER.encode(text, Special::Parse);
        assert_eq!(got, expected, "{text:?}");
        assert_eq!(o200k::TOKENIZER.decode(&expected), text);
    }
}

#[test]
fn sentence_pieces_give_the_ids_of_sentencepiece() {
    let cases = PIECES["cases"].as_array().unwrap();
    assert!(cases.len() > 150);
    for case in cases {
        let text = case["text"].as_str().unwrap();
        let expected: Vec<u32> = serde_json::from_value(case["ids"].clone()).unwrap();
        assert_eq!(SENTENCE_PIECE.encode(text, Special::AsText), expected, "{text:?}");
        assert_eq!(SENTENCE_PIECE.decode_text(&expected), text);
    }
}

#[test]
fn a_sentence_piece_tokenizer_adds_its_space_after_every_control_token() {
    let ids = |text: &str| SENTENCE_PIECE.encode(text, Special::Parse);
    let both = [ids("a"), vec![2], ids("b")].concat();
    assert_eq!(ids("a</s>b"), both);
    assert_eq!(ids("</s>"), [2]);
    let bare = Vocabulary { add_space_prefix: Some(false), ..pieces() };
    let bare = Tokenizer::from_vocabulary(&bare).unwrap();
    assert_eq!(bare.decode_text(&bare.encode(" a", Special::AsText)), " a");
    assert_ne!(bare.encode("the", Special::AsText), ids("the"));
}

#[test]
fn the_demo_models_gguf_arrays_give_the_same_ids_as_its_json() {
    let file: Value = serde_json::from_slice(oss_demo::TOKENIZER).unwrap();
    let mut tokens = vec![Cow::default(); 2048];
    for (token, id) in file["model"]["vocab"].as_object().unwrap() {
        tokens[id.as_u64().unwrap() as usize] = token.into();
    }
    let mut types = vec![1; 2048];
    for added in file["added_tokens"].as_array().unwrap() {
        let id = added["id"].as_u64().unwrap() as usize;
        tokens[id] = added["content"].as_str().unwrap().into();
        types[id] = 3;
    }
    let merge = |pair: &Value| {
        format!("{} {}", pair[0].as_str().unwrap(), pair[1].as_str().unwrap()).into()
    };
    let merges = file["model"]["merges"].as_array().unwrap().iter().map(merge).collect();
    let (model, pre) = ("gpt2".to_owned(), "gpt-4o".to_owned());
    let arrays = Vocabulary { model, pre, tokens, types, merges, ..Vocabulary::default() };
    let arrays = Tokenizer::from_vocabulary(&arrays).unwrap();
    for text in ["Once upon a time\n\nthere was 12345 <|end|> 🐱", "<|start|>user<|message|>hi"] {
        for special in [Special::AsText, Special::Parse] {
            assert_eq!(arrays.encode(text, special), DEMO.encode(text, special), "{text}");
        }
    }
    assert_eq!(arrays.vocabulary_len(), 2048);
    assert_eq!(DEMO.vocabulary_len(), 2048);
}

/// A `tokenizer.json` of a byte-level vocabulary whose tokens split as gpt-oss's do.
fn json_of(vocabulary: &Vocabulary<'_>, merges: Value) -> Vec<u8> {
    let (mut vocab, mut added) = (serde_json::Map::new(), Vec::new());
    for (id, (token, kind)) in vocabulary.tokens.iter().zip(&vocabulary.types).enumerate() {
        match kind {
            3 => added.push(json!({"id": id, "content": token, "special": true, "lstrip": false,
                "normalized": false, "rstrip": false, "single_word": false})),
            _ => drop(vocab.insert(token.to_string(), id.into())),
        }
    }
    let mut file: Value = serde_json::from_slice(oss_demo::TOKENIZER).unwrap();
    file["added_tokens"] = added.into();
    file["model"]["vocab"] = vocab.into();
    file["model"]["merges"] = merges;
    serde_json::to_vec(&file).unwrap()
}

#[test]
fn a_vocabulary_of_200_000_tokens_is_the_same_in_every_spelling() {
    let bpe = tiktoken_rs::o200k_harmony_singleton();
    let vocabulary = o200k::vocabulary(bpe, 199_998, "gpt-4o");
    let pair = |line: &Cow<'_, str>| {
        let (left, right) = line.split_once(' ').unwrap();
        json!([left, right])
    };
    let pairs = Value::from_iter(vocabulary.merges.iter().map(pair));
    let lines = Value::from_iter(vocabulary.merges.iter().map(Cow::to_string));
    let text = "Don't panic: naïve 🚀 12345\n\tsix of \"one\" \\ dozen<|end|>你好 <|start|>";
    for merges in [pairs, lines] {
        let tokenizer = Tokenizer::from_json(&json_of(&vocabulary, merges)).unwrap();
        assert_eq!(tokenizer.vocabulary_len(), o200k::TOKENIZER.vocabulary_len());
        for special in [Special::AsText, Special::Parse] {
            let ids = tokenizer.encode(text, special);
            assert_eq!(ids, o200k::TOKENIZER.encode(text, special));
            assert_eq!(tokenizer.decode(&ids), text);
        }
        for (id, token) in (0..).zip(&vocabulary.tokens) {
            assert_eq!(tokenizer.token_bytes(id), o200k::TOKENIZER.token_bytes(id), "{token}");
            assert_eq!(tokenizer.token_id(token), o200k::TOKENIZER.token_id(token), "{token}");
            assert_eq!(tokenizer.is_special(id), o200k::TOKENIZER.is_special(id), "{token}");
        }
    }
    // Every token that text can give is known by its name and stands for its bytes.
    let ordinary = (0..).zip(&vocabulary.tokens).filter(|&(id, _)| id < 199_998);
    for (id, token) in ordinary {
        assert_eq!(o200k::TOKENIZER.token_id(token), Some(id), "{token}");
        let bytes = bpe.decode_bytes(&[id]).unwrap();
        assert_eq!(o200k::TOKENIZER.token_bytes(id), Some(bytes.as_slice()), "{token}");
    }
}

#[test]
fn untrusted_text_never_yields_control_tokens() {
    for (tokenizer, name) in
        [(&*DEMO, "<|end|>"), (&*o200k::TOKENIZER, "<|end|>"), (&*SENTENCE_PIECE, "</s>")]
    {
        let id = tokenizer.token_id(name).unwrap();
        assert!(tokenizer.is_special(id));
        for text in [name.to_owned(), format!("a{name}{name} b")] {
            let ids = tokenizer.encode(&text, Special::AsText);
            assert!(ids.iter().all(|&id| !tokenizer.is_special(id)), "{text}: {ids:?}");
            assert_eq!(tokenizer.decode_text(&ids), text);
            assert!(tokenizer.encode(&text, Special::Parse).contains(&id), "{text}");
        }
    }
}

#[test]
fn merges_that_build_a_control_token_are_spelt_out() {
    // A file whose model knows `<s>` and a merge that makes it.
    let file = json!({
        "added_tokens": [{"id": 4, "content": "<s>", "special": true, "normalized": false,
            "single_word": false, "lstrip": false, "rstrip": false}],
        "decoder": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true,
            "use_regex": false},
        "model": {"type": "BPE", "vocab": {"<": 0, "s": 1, ">": 2, "<s": 3, "<s>": 4},
            "merges": [["<", "s"], ["<s", ">"]]},
    });
    let tokenizer = Tokenizer::from_json(file.to_string().as_bytes()).unwrap();
    assert_eq!(tokenizer.encode("<s><s", Special::Parse), [4, 3]);
    assert_eq!(tokenizer.encode("<s><s", Special::AsText), [0, 1, 2, 3]);
}

#[test]
fn a_token_may_have_two_names() {
    let mut file: Value = serde_json::from_slice(oss_demo::TOKENIZER).unwrap();
    let mut alias = file["added_tokens"][9].clone();
    assert_eq!(alias["id"], 2047);
    alias["content"] = "<|reserved_2047|>".into();
    file["added_tokens"].as_array_mut().unwrap().insert(0, alias);
    let tokenizer = Tokenizer::from_json(file.to_string().as_bytes()).unwrap();
    let text = "a<|endofprompt|><|reserved_2047|>";
    let ids = tokenizer.encode(text, Special::Parse);
    assert_eq!(ids[1..], [2047, 2047]);
    assert_eq!(tokenizer.token_id("<|reserved_2047|>"), Some(2047));
    assert_eq!(tokenizer.decode(&ids), "a<|endofprompt|><|endofprompt|>");
    let ids = tokenizer.encode(text, Special::AsText);
    assert!(ids.iter().all(|&id| !tokenizer.is_special(id)));
    assert_eq!(tokenizer.vocabulary_len(), 2048);

    let mut alias = file["added_tokens"][0].clone();
    alias["content"] = "<|third|>".into();
    file["added_tokens"].as_array_mut().unwrap().insert(0, alias);
    let tokenizer = Tokenizer::from_json(file.to_string().as_bytes()).unwrap();
    assert_eq!(tokenizer.token_id("<|third|>"), Some(2047));
    assert_eq!(tokenizer.encode("<|third|><|reserved_2047|>", Special::Parse), [2047, 2047]);
}

#[test]
fn the_configuration_tells_the_first_and_the_last_token() {
    assert_eq!((DEMO.bos(), DEMO.eos(), DEMO.adds_bos()), (None, None, false));
    let config = oss_demo::file("tokenizer_config.json").unwrap();
    let demo = DEMO.with_config(config).unwrap();
    assert_eq!((demo.bos(), demo.eos(), demo.adds_bos()), (Some(2038), Some(2040), false));
    let asks =
        DEMO.with_config(br#"{"bos_token": {"content": "<|start|>"}, "add_bos_token": true}"#);
    let asks = asks.unwrap();
    assert_eq!((asks.bos(), asks.adds_bos()), (Some(2043), true));
    assert_eq!((SENTENCE_PIECE.bos(), SENTENCE_PIECE.adds_bos()), (Some(1), true));
    assert!(matches!(DEMO.with_config(b"[]"), Err(Error::Json { .. })));
}

#[test]
fn a_post_processor_tells_the_first_token() {
    let mut file: Value = serde_json::from_slice(oss_demo::TOKENIZER).unwrap();
    file["post_processor"] = json!({
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "<|start|>", "type_id": 0}},
            {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {
            "<|start|>": {"id": "<|start|>", "ids": [2043], "tokens": ["<|start|>"]},
        },
    });
    let tokenizer = Tokenizer::from_json(file.to_string().as_bytes()).unwrap();
    assert_eq!((tokenizer.bos(), tokenizer.adds_bos()), (Some(2043), true));
    assert_eq!(tokenizer.encode("a", Special::AsText), DEMO.encode("a", Special::AsText));
}

#[test]
fn wrong_vocabularies_are_errors_that_say_why() {
    let error = |change: fn(&mut Vocabulary<'_>)| {
        let mut vocabulary = Vocabulary {
            model: "gpt2".to_owned(),
            pre: "gpt-2".to_owned(),
            tokens: ["a", "b", "ab"].map(Cow::from).to_vec(),
            merges: vec!["a b".into()],
            ..Vocabulary::default()
        };
        assert!(Tokenizer::from_vocabulary(&vocabulary).is_ok());
        change(&mut vocabulary);
        Tokenizer::from_vocabulary(&vocabulary).unwrap_err().to_string()
    };
    assert_eq!(
        error(|v| v.pre = "jais".to_owned()),
        "pre-tokeniser `jais` is not supported, expected one of: gpt-4o, o200k, llama-bpe, \
         llama3, llama-v3, gpt-2, smollm"
    );
    for missing in [error(|v| v.pre.clear()), error(|v| v.pre = "default".to_owned())] {
        assert!(missing.contains("`tokenizer.ggml.pre` does not say how"), "{missing}");
        assert!(missing.contains("gguf-new-metadata --pre-tokenizer"), "{missing}");
    }
    assert!(error(|v| v.model = "bert".to_owned()).contains("expected one of: gpt2, llama"));
    assert!(error(|v| v.types = vec![1]).contains("`token_type` has 1 entries, expected 3"));
    assert!(error(|v| v.scores = vec![0.0; 4]).contains("`scores` has 4 entries, expected 3"));
    assert!(error(|v| v.bos = Some(3)).contains("the bos token has id 3"));
    assert!(error(|v| v.merges.push("a".into())).contains("merge 1 is `a`"));
    assert!(error(|v| v.merges.push("b a".into())).contains("merge 1 is `b a`"));
    assert!(error(|v| v.tokens[2] = "a".repeat(5000).into()).contains("token 2 has 5000 bytes"));
    let no_scores = |v: &mut Vocabulary<'_>| {
        v.model = "llama".to_owned();
        v.merges.clear();
    };
    assert!(error(no_scores).contains("`scores` has 0 entries, expected 3"));
}

#[test]
fn wrong_json_is_an_error_and_never_a_panic() {
    for bytes in [&b""[..], b"{}", b"[]", b"{\"model\": {\"type\": \"BPE\"}}", b"\xff\xfe"] {
        assert!(matches!(Tokenizer::from_json(bytes), Err(Error::Json { .. })));
    }
    let unigram = br#"{"model": {"type": "Unigram", "vocab": []}}"#;
    let error = Tokenizer::from_json(unigram).unwrap_err();
    assert_eq!(
        error.to_string(),
        "tokenizer model `Unigram` is not supported, expected one of: BPE"
    );
    // Another family is told as such, though its file can be read as this one's.
    let other = br#"{"model": {"type": "WordLevel", "vocab": {"a": 0}, "merges": []}}"#;
    let error = Tokenizer::from_json(other).unwrap_err();
    assert!(matches!(&error, Error::UnknownModel { got, .. } if got == "WordLevel"), "{error}");
    let file = br#"{"decoder": {"type": "ByteLevel", "add_prefix_space": false,
        "trim_offsets": true, "use_regex": false},
        "model": {"type": "BPE", "vocab": {"a": 4000000000}, "merges": []}}"#;
    let error = Tokenizer::from_json(file).unwrap_err();
    assert_eq!(
        error.to_string(),
        "the largest token has id 4000000000, expected an id below 4194304"
    );
    for at in (0..oss_demo::TOKENIZER.len()).step_by(9973) {
        assert!(Tokenizer::from_json(&oss_demo::TOKENIZER[..at]).is_err());
    }
}

#[test]
fn merges_that_do_not_fit_the_vocabulary_are_an_error() {
    // Found by fuzzing: the `tokenizers` crate's own reader panics on the first.
    let error = |model: Value| {
        let decoder = json!({"type": "ByteLevel", "add_prefix_space": false,
            "trim_offsets": true, "use_regex": false});
        let file = json!({"decoder": decoder, "model": model}).to_string();
        Tokenizer::from_json(file.as_bytes()).unwrap_err().to_string()
    };
    let vocab = json!({"<": 0, "s": 1, ">": 4});
    let merges = json!([["<", "s"]]);
    assert_eq!(
        error(json!({"type": "BPE", "vocab": vocab, "merges": merges})),
        "merge 0 is `< s`, expected two tokens of the vocabulary and a space between"
    );
    assert!(error(json!({"vocab": vocab, "merges": ["<s"]})).starts_with("merge 0 is `<s`"));
    let long = json!({"vocab": vocab, "merges": [["<", "s>"]]});
    assert!(error(long).starts_with("merge 0 is `< s>`"));
    let mixed = json!({"vocab": {"a": 0, "aa": 1}, "merges": [["a", "a"], "a a"]});
    assert!(error(mixed).ends_with("of 2 merges 1 are pairs and the others lines"));
    let three = json!({"vocab": {"a": 0, "aa": 1}, "merges": [["a", "a", "a"]]});
    assert!(error(three).starts_with("tokenizer.json cannot be read: "));
    let number = json!({"vocab": {"a": 0}, "merges": [1]});
    assert!(
        error(number).contains("expected two tokens, or both in one text with a space between")
    );
    let prefix = json!({"vocab": vocab, "merges": [], "continuing_subword_prefix": "é"});
    assert!(error(prefix).contains("continuing_subword_prefix `é` is not supported"));
    let unknown = json!({"vocab": vocab, "merges": [], "unk_token": "?"});
    assert!(error(unknown).contains("unk_token `?` is not in the vocabulary"));
}

#[test]
fn ids_outside_the_vocabulary_are_no_text() {
    assert_eq!(DEMO.token_bytes(2048), None);
    assert_eq!(DEMO.decode(&[u32::MAX]), "");
    assert!(!DEMO.is_special(u32::MAX));
    assert_eq!(DEMO.token_id("no such token"), None);
}

/// Generous: these take some hundredths of a second; quadratic work would take minutes.
const LIMIT: Duration = Duration::from_secs(5);

#[test]
fn long_runs_and_long_texts_take_linear_time() {
    let run = |piece: &str| piece.repeat(100_000 / piece.len());
    let sentence = "The quick brown fox, 12 years old, jumps.\n  It's über-näive 你好 🚀! ";
    let texts = [
        run(" "),
        run("a"),
        run("A"),
        run("\n"),
        run("!"),
        run("1"),
        run("é"),
        run(sentence),
        run(" ") + "a",
    ];
    for tokenizer in [&*o200k::TOKENIZER, &*LLAMA_3, &*SMOLLM, &*SENTENCE_PIECE] {
        for text in &texts {
            let start = Instant::now();
            let ids = tokenizer.encode(text, Special::AsText);
            let spent = start.elapsed();
            assert!(spent < LIMIT, "{spent:?} for {:?}…", text.get(..4));
            assert!(tokenizer.decode_text(&ids) == *text);
        }
    }
}

fn text() -> impl Strategy<Value = String> {
    let pieces = [
        "the ",
        "Hello",
        " world",
        "'s",
        "'LL",
        "don't",
        "123",
        "4567 ",
        "\n",
        "\r\n",
        "\t",
        "  ",
        "   ",
        " \n ",
        " ",
        "é",
        "ß",
        "İ",
        "🚀",
        "👩‍🚀",
        "\u{a0}",
        "\u{3000}",
        "한국",
        "ไทย",
        "ǅ",
        "½",
        "_",
        "//",
        "...",
        "(x)",
        "iPhone",
        "ABC",
        "a\u{301}",
        "你好",
        "。",
        "<|",
        "\0",
        "=",
        "naïve",
    ];
    let piece = prop_oneof![
        6 => prop::sample::select(pieces.to_vec()).prop_map(str::to_owned),
        1 => any::<char>().prop_map(String::from),
        1 => "[ -~]{1,6}",
    ];
    // `▁` is what SentencePiece writes for a space, so it does not come back.
    let text = prop::collection::vec(piece, 0..12);
    text.prop_map(|pieces| pieces.concat().replace('▁', "_"))
}

/// Digits by themselves, then GPT-2.
fn smollm(text: &str) -> Vec<u32> {
    let mut pieces = vec![String::new()];
    for character in text.chars() {
        if character.is_numeric() {
            pieces.extend([character.to_string(), String::new()]);
        } else {
            pieces.last_mut().unwrap().push(character);
        }
    }
    let gpt_2 = tiktoken_rs::r50k_base_singleton();
    pieces.iter().flat_map(|piece| gpt_2.encode_ordinary(piece)).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn byte_level_tokenizers_give_tiktokens_ids(text in text()) {
        let ids = |tokenizer: &Tokenizer, text: &str| tokenizer.encode(text, Special::AsText);
        let o200k = tiktoken_rs::o200k_harmony_singleton();
        prop_assert_eq!(ids(&o200k::TOKENIZER, &text), o200k.encode_ordinary(&text));
        let gpt_2 = tiktoken_rs::r50k_base_singleton();
        prop_assert_eq!(ids(&GPT_2, &text), gpt_2.encode_ordinary(&text));
        prop_assert_eq!(ids(&SMOLLM, &text), smollm(&text));
        // cl100k splits as Llama 3 does, except for white space at the very end.
        let text = text + "x";
        let cl100k = tiktoken_rs::cl100k_base_singleton();
        prop_assert_eq!(ids(&LLAMA_3, &text), cl100k.encode_ordinary(&text));
    }

    #[test]
    fn sentence_pieces_are_merged_by_score(text in text()) {
        let scores: Vec<f32> = serde_json::from_value(PIECES["scores"].clone()).unwrap();
        let tokens = PIECES["tokens"].as_array().unwrap();
        let named = tokens.iter().zip(scores).enumerate().skip(3);
        let pieces: HashMap<String, (u32, f32)> = named
            .map(|(id, (token, score))| (token.as_str().unwrap().to_owned(), (id as u32, score)))
            .collect();
        let ids = SENTENCE_PIECE.encode(&text, Special::AsText);
        prop_assert_eq!(ids, naive::sentence_piece(&text, &pieces));
    }

    #[test]
    fn text_comes_back(text in text()) {
        for tokenizer in [&*DEMO, &*o200k::TOKENIZER, &*LLAMA_3, &*GPT_2, &*SENTENCE_PIECE] {
            let ids = tokenizer.encode(&text, Special::AsText);
            prop_assert_eq!(tokenizer.decode_text(&ids), text.as_str());
        }
    }

    #[test]
    fn increments_join_to_the_lossy_decoding(ids in prop::collection::vec(0..2100_u32, 0..40)) {
        for tokenizer in [&*DEMO, &*SENTENCE_PIECE] {
            let mut decoder = Decoder::new(tokenizer);
            let mut text = String::new();
            let mut bytes = Vec::new();
            for &id in &ids {
                bytes.extend_from_slice(tokenizer.token_bytes(id).unwrap_or_default());
                text.push_str(&decoder.push(id));
                // Nothing whole is held back.
                prop_assert!(String::from_utf8_lossy(&bytes).starts_with(&text));
            }
            text.push_str(&decoder.finish());
            prop_assert_eq!(&text, &String::from_utf8_lossy(&bytes));
            prop_assert_eq!(&text, &tokenizer.decode(&ids));
        }
    }
}

#[test]
fn tokenizers_and_templates_can_be_shared_between_threads() {
    fn shared<T: Send + Sync>() {}
    shared::<Tokenizer>();
    shared::<Decoder>();
    shared::<oss_text::chat::Template>();
    shared::<oss_text::harmony::Parser>();
    assert_eq!(DEMO.clone().vocabulary_len(), 2048);
}

#[test]
fn half_a_character_waits_for_its_end() {
    let ids = DEMO.encode("🐱é", Special::AsText);
    assert!(ids.len() > 2, "the demo model has no token for a cat");
    let mut decoder = Decoder::new(&DEMO);
    let pieces: Vec<String> = ids.iter().map(|&id| decoder.push(id)).collect();
    assert!(pieces.iter().all(|piece| ["", "🐱", "é"].contains(&piece.as_str())), "{pieces:?}");
    assert_eq!(pieces.concat(), "🐱é");
    assert_eq!(decoder.finish(), "");

    let mut decoder = Decoder::without_special(&DEMO);
    let end = DEMO.token_id("<|end|>").unwrap();
    assert_eq!(decoder.push(ids[0]), "");
    assert_eq!(decoder.push(end), "", "a control token passed over ends no character");
    assert_eq!(decoder.finish(), "\u{fffd}");
}
