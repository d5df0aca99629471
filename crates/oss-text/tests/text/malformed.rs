//! The harmony parser on what models should not write.

use std::sync::LazyLock;

use oss_text::chat::Role;
use oss_text::harmony::{Conversation, Message};
use oss_text::harmony::{End, Event, Kind, Parser, Tokens, parse, render};
use oss_text::{Error, Special, Tokenizer};
use proptest::prelude::*;

static DEMO: LazyLock<Tokenizer> =
    LazyLock::new(|| Tokenizer::from_json(oss_demo::TOKENIZER).unwrap());

/// The messages of a completion, each as `role:name|channel|recipient|type|text`.
fn read(completion: &str) -> Vec<String> {
    let show = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
    let line = |message: Message| {
        let text = message.text().unwrap().to_owned();
        let (role, name) = (message.role.name(), show(message.name));
        let (channel, recipient) = (show(message.channel), show(message.recipient));
        format!("{role}:{name}|{channel}|{recipient}|{}|{text}", show(message.content_type))
    };
    let ids = DEMO.encode(completion, Special::Parse);
    parse(&DEMO, &ids).unwrap().into_iter().map(line).collect()
}

#[test]
fn odd_headers_mean_the_likeliest() {
    // Where the reference library (0.0.8) gives messages they are these, unless noted.
    let call = "assistant:-|commentary|functions.f|<|constrain|>json|{}";
    let plain = "assistant:-|commentary|functions.f|-|{}";
    let cases = [
        ("<|channel|>commentary to=functions.f <|constrain|>json<|message|>{}<|call|>", call),
        ("<|channel|>commentary to=functions.f<|constrain|>json<|message|>{}<|call|>", call),
        ("<|channel|>commentary functions.f <|constrain|>json<|message|>{}<|call|>", call),
        (" to=functions.f<|channel|>commentary <|constrain|>json<|message|>{}<|call|>", call),
        (" to=functions.f<|channel|>commentary<|message|>{}<|call|>", plain),
        ("assistant to=functions.f <|channel|>commentary  <|constrain|>json  <|message|>{}", call),
        // The reference takes the marker for the recipient.
        ("<|channel|>commentary to=functions.f <|constrain|> json<|message|>{}<|call|>", call),
        (
            "<|channel|>commentary to=functions.f json<|message|>{}<|call|>",
            "assistant:-|commentary|functions.f|json|{}",
        ),
        ("<|channel|>commentary json<|message|>{}<|call|>", "assistant:-|commentary|json|-|{}"),
        (
            "<|channel|>analysis to=python code<|message|>1+1<|call|>",
            "assistant:-|analysis|python|code|1+1",
        ),
        // The reference takes the type for a recipient.
        (
            "<|channel|>final <|constrain|>json<|message|>{}<|return|>",
            "assistant:-|final|-|<|constrain|>json|{}",
        ),
        ("<|message|>Hi<|return|>", "assistant:-|-|-|-|Hi"),
        ("assistant<|channel|>final<|message|>x<|return|>", "assistant:-|final|-|-|x"),
        ("<|channel|>weird<|message|>x<|return|>", "assistant:-|weird|-|-|x"),
        ("<|channel|>final\n<|message|>x<|return|>", "assistant:-|final|-|-|x"),
        // From here on the reference errs, or takes markers for text.
        ("<|channel|> final<|message|>x<|return|>", "assistant:-|final|-|-|x"),
        ("<|channel|><|message|>x<|return|>", "assistant:-|-|-|-|x"),
        ("<|start|>assistant<|channel|>final<|message|>x<|return|>", "assistant:-|final|-|-|x"),
        ("final<|message|>x", "assistant:-|final|-|-|x"),
        ("<|channel|>commentary to=a to=b<|message|>{}", "assistant:-|commentary|b|-|{}"),
        (
            "<|channel|>commentary to=functions.f<|channel|>commentary <|constrain|>json\
             <|message|>{}<|call|>",
            call,
        ),
        (" to=functions.f<|channel|>commentary<|channel|>commentary<|message|>{}<|call|>", plain),
        ("<|channel|>analysis<|channel|>final<|message|>x<|return|>", "assistant:-|final|-|-|x"),
        ("<|channel|>commentary to=<|message|>{}", "assistant:-|commentary|-|-|{}"),
    ];
    for (completion, expected) in cases {
        assert_eq!(read(completion), [expected], "{completion}");
    }
}

#[test]
fn a_channel_whose_name_went_wrong_is_no_answer() {
    let answer = "<|start|>assistant<|channel|>final<|message|>42<|return|>";
    for (first, begins) in [("commentary?", "<|end|>"), ("??", "<|end|>"), ("bash", "")] {
        let completion = format!("<|channel|>{first}{begins}{answer}");
        let reasoning = format!("assistant:-|analysis|-|-|{first}");
        assert_eq!(read(&completion), [&reasoning, "assistant:-|final|-|-|42"], "{completion}");
    }
    // Where the turn ends there it is the best that there is.
    assert_eq!(read("<|channel|>Hello<|return|>"), ["assistant:-|final|-|-|Hello"]);
    let doubled = "<|channel|>bash<|channel|>commentary<|message|>ls<|end|>";
    let expected = ["assistant:-|analysis|-|-|bash", "assistant:-|commentary|-|-|ls"];
    assert_eq!(read(doubled), expected);
}

#[test]
fn text_without_a_header_is_the_answer() {
    let cases = [
        ("Hello there", "assistant:-|final|-|-|Hello there"),
        (" Hello\n<|return|>", "assistant:-|final|-|-| Hello\n"),
        ("Hi", "assistant:-|final|-|-|Hi"),
        ("as", "assistant:-|final|-|-|as"),
        ("to be or not to be<|return|>", "assistant:-|final|-|-|to be or not to be"),
        ("<|channel|>final Hello<|return|>", "assistant:-|final|-|-|Hello"),
        ("<|channel|>final Hello, how are you?", "assistant:-|final|-|-|Hello, how are you?"),
        ("<|channel|>analysis\nI think\nhard", "assistant:-|analysis|-|-|I think\nhard"),
        (
            "<|channel|>commentary to=functions.f {\"a\": 1}<|call|>",
            "assistant:-|commentary|functions.f|-|{\"a\": 1}",
        ),
    ];
    for (completion, expected) in cases {
        assert_eq!(read(completion), [expected], "{completion}");
    }
}

#[test]
fn text_that_begins_with_a_roles_name_is_the_answer_where_no_message_was_started() {
    let texts = [
        "user wants x",
        " user wants x. Here it is:\n1",
        "user: x",
        "system 7 is old",
        "tool to=functions.f of choice",
        "functions.f is what I need",
    ];
    for text in texts {
        let completion = format!("<|channel|>analysis<|message|>a<|end|>{text}<|return|>");
        let answer = format!("assistant:-|final|-|-|{text}");
        assert_eq!(read(&completion), ["assistant:-|analysis|-|-|a", &answer], "{text}");
    }
    let cases = [
        ("<|end|>assistant wants x", "assistant:-|final|-|-|wants x"),
        ("<|start|>user wants x", "user:-|final|-|-|wants x"),
        ("<|end|>user<|channel|>final<|message|>x", "user:-|final|-|-|x"),
    ];
    for (completion, expected) in cases {
        assert_eq!(read(completion), [expected], "{completion}");
    }
}

#[test]
fn a_header_that_is_cut_off_says_nothing() {
    let cases = [
        "",
        "<|return|>",
        "<|channel|>ana",
        "<|channel|>final",
        "<|start|>",
        "<|start|>assistant",
        "assistant",
        " to=functions.f<|channel|>commentary",
        "<|start|><|start|><|channel|>",
        "<|end|>\n<|end|>",
    ];
    for completion in cases {
        assert_eq!(read(completion), [""; 0], "{completion}");
    }
}

#[test]
fn forgotten_ends_and_starts_are_mended() {
    let two = ["assistant:-|analysis|-|-|a", "assistant:-|final|-|-|b"];
    let completions = [
        "<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>final<|message|>b",
        "<|channel|>analysis<|message|>a<|start|>assistant<|channel|>final<|message|>b<|return|>",
        "<|channel|>analysis<|message|>a<|channel|>final<|message|>b<|return|>",
        "<|channel|>analysis<|message|>a<|end|>assistant<|channel|>final<|message|>b<|return|>",
        "<|channel|>analysis<|message|>a<|end|><|channel|>final<|message|>b<|return|>",
        "<|channel|>analysis<|message|>a<|end|>\n<|start|>assistant<|channel|>final<|message|>b",
        "<|channel|>analysis<|message|>a<|return|><|start|>assistant<|channel|>final<|message|>b",
        "<|channel|>analysis<|channel|>analysis<|message|>a<|end|>b",
        "<|channel|>analysis<|message|>a<|endoftext|>b",
        "<|channel|>analysis<|message|><|constrain|>a<|message|><|end|><|start|>final<|message|>b",
    ];
    for completion in completions.iter().take(9) {
        assert_eq!(read(completion), two, "{completion}");
    }
    assert_eq!(read(completions[9])[0], two[0]);
}

#[test]
fn other_roles_are_kept_apart() {
    let completion = "<|channel|>analysis<|message|>x<|end|>\
        <|start|>functions.f to=assistant<|channel|>commentary<|message|>r<|end|>\
        <|start|>user:bo<|message|>y<|end|><|start|>foo<|message|>z<|end|>\
        <|start|>foo to=assistant<|message|>t<|end|><|start|> to=functions.f<|message|>u<|call|>";
    let expected = [
        "assistant:-|analysis|-|-|x",
        "tool:functions.f|commentary|assistant|-|r",
        "user:bo|-|-|-|y",
        "assistant:foo|-|-|-|z",
        "tool:foo|-|assistant|-|t",
        "assistant:-|-|functions.f|-|u",
    ];
    assert_eq!(read(completion), expected);
}

#[test]
fn text_flows_as_soon_as_it_cannot_be_a_header() {
    let mut parser = Parser::new(&DEMO).unwrap();
    let mut shown = String::new();
    for id in DEMO.encode("Once upon a time", Special::AsText) {
        for event in parser.push(id) {
            match event {
                Event::Start(header) => assert_eq!(header.kind(), Kind::Answer),
                Event::Delta(delta) => shown.push_str(&delta),
                Event::End(_) => panic!("nothing ends here"),
            }
        }
        assert!(DEMO.decode(&[id]).len() <= shown.len(), "nothing is held back");
    }
    assert_eq!(shown, "Once upon a time");
    assert_eq!(parser.finish(), [Event::End(End::Eof)]);
}

#[test]
fn a_message_says_how_it_ended() {
    let cases = [
        ("<|end|>", End::End),
        ("<|return|>", End::Return),
        ("<|call|>", End::Call),
        ("<|endoftext|>", End::Eof),
        ("<|start|>", End::Cut),
        ("<|channel|>", End::Cut),
    ];
    for (token, end) in cases {
        let mut parser = Parser::new(&DEMO).unwrap();
        let ids = DEMO.encode(&format!("<|message|>a{token}"), Special::Parse);
        let events: Vec<Event> = ids.iter().flat_map(|&id| parser.push(id)).collect();
        assert_eq!(events[2..], [Event::End(end)], "{token}");
    }
}

#[test]
fn a_vocabulary_without_the_markers_is_an_error() {
    let vocabulary = oss_text::Vocabulary {
        model: "gpt2".to_owned(),
        pre: "gpt-2".to_owned(),
        tokens: vec!["a".into(), "<|start|>".into()],
        types: vec![1, 3],
        ..oss_text::Vocabulary::default()
    };
    let tokenizer = Tokenizer::from_vocabulary(&vocabulary).unwrap();
    let error = Parser::new(&tokenizer).unwrap_err();
    assert!(matches!(error, Error::NoHarmonyToken { expected: "<|message|>" }), "{error}");
}

/// Words that no header rule knows, so that they are text wherever they stand.
const WORDS: [&str; 4] = ["Zq1 ", "zq2, ", "zq3\n", "Zq4 é🚀 "];

fn token_stream() -> impl Strategy<Value = Vec<u32>> {
    let markers = [
        "<|start|>",
        "<|channel|>",
        "<|message|>",
        "<|end|>",
        "<|return|>",
        "<|call|>",
        "<|constrain|>",
        "<|endoftext|>",
        "<|endofprompt|>",
    ];
    let headers = [
        "assistant",
        "analysis",
        "final",
        "commentary",
        " to=functions.f",
        "json",
        " ",
        "user",
        "functions.f",
        "\n",
        " to=",
        "system",
    ];
    let piece = prop_oneof![
        4 => prop::sample::select(markers.to_vec()),
        3 => prop::sample::select(headers.to_vec()),
        3 => prop::sample::select(WORDS.to_vec()),
    ];
    let text = piece.prop_map(|piece| DEMO.encode(piece, Special::Parse));
    let any = prop::collection::vec(0..2100_u32, 1..4);
    prop::collection::vec(prop_oneof![5 => text, 1 => any], 0..24).prop_map(|v| v.concat())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn any_stream_of_tokens_gives_messages_in_order(ids in token_stream()) {
        let mut parser = Parser::new(&DEMO).unwrap();
        let mut events: Vec<Event> = ids.iter().flat_map(|&id| parser.push(id)).collect();
        events.extend(parser.finish());
        let mut open = false;
        for event in events {
            match event {
                Event::Start(_) => prop_assert!(!std::mem::replace(&mut open, true)),
                Event::Delta(text) => prop_assert!(open && !text.is_empty()),
                Event::End(_) => prop_assert!(std::mem::replace(&mut open, false)),
            }
        }
        prop_assert!(!open);
        // A finished parser begins anew.
        let again: Vec<Event> = ids.iter().flat_map(|&id| parser.push(id)).collect();
        let first: Vec<Event> =
            {
                let mut fresh = Parser::new(&DEMO).unwrap();
                ids.iter().flat_map(|&id| fresh.push(id)).collect()
            };
        prop_assert_eq!(again, first);
    }

    #[test]
    fn no_text_is_lost(pieces in prop::collection::vec(0..12_usize, 0..16)) {
        // Markers and words alone: every word is in a content or in a field of a header.
        let markers = ["<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|call|>",
            "<|constrain|>", "<|start|>assistant", "<|channel|>final"];
        let text: String = pieces.iter().map(|&piece| {
            if piece < 8 { markers[piece] } else { WORDS[piece - 8] }
        }).collect();
        let found = read(&text).concat();
        for word in ["Zq1", "zq2,", "zq3", "Zq4", "é🚀"] {
            let (given, kept) = (text.matches(word).count(), found.matches(word).count());
            prop_assert_eq!(given, kept, "{} in {:?}: {:?}", word, text, found);
        }
    }

    #[test]
    fn what_is_rendered_is_parsed_back(texts in prop::collection::vec("\\PC{0,12}", 1..5)) {
        let channels = ["analysis", "commentary", "final"];
        let message = |(at, text): (usize, &String)| Message {
            recipient: (at % 2 == 1).then(|| "functions.f".to_owned()),
            ..Message::new(Role::Assistant, text.as_str()).on(channels[at % 2])
        };
        let messages: Vec<Message> = texts.iter().enumerate().map(message).collect();
        let conversation = Conversation { messages: messages.clone() };
        // The beginning of the answer, with which a prompt ends, is no message yet.
        let ids = render(&conversation, &DEMO).unwrap();
        prop_assert_eq!(parse(&DEMO, &ids).unwrap(), messages);
    }
}

#[test]
fn the_turn_stops_at_return_call_and_end_of_text() {
    let tokens = Tokens::of(&DEMO).unwrap();
    assert_eq!(DEMO.decode(&tokens.stops()), "<|return|><|call|><|endoftext|>");
}
