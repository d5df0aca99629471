//! The follower held against plain sets of texts, token by token.

use std::sync::{Arc, OnceLock};

use oss_text::chat::{Message, Tool};
use oss_text::harmony::{self, Kind, Tokens};
use oss_text::{Special, Tokenizer};
use oss_weights::Container;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::{Follower, Grammar, Harmony, Messages, Vocabulary};
use crate::chat::{ChatRequest, ToolChoice};
use crate::constraint::Constraint;
use crate::error::Result;
use crate::text_side::Text;

const SIZE: u32 = 2048;

fn text() -> &'static Text {
    static TEXT: OnceLock<Text> = OnceLock::new();
    TEXT.get_or_init(|| {
        let container = Container::from_bytes("demo.gguf", oss_demo::GGUF, Vec::new()).unwrap();
        Text::from_container(&container).unwrap()
    })
}

fn tokenizer() -> &'static Tokenizer {
    text().tokenizer().unwrap()
}

fn vocabulary() -> &'static Arc<Vocabulary> {
    static VOCABULARY: OnceLock<Arc<Vocabulary>> = OnceLock::new();
    VOCABULARY.get_or_init(|| Arc::new(Vocabulary::new(tokenizer(), SIZE as usize).unwrap()))
}

fn token(name: &str) -> u32 {
    tokenizer().token_id(name).unwrap()
}

/// A text that ends with `<|return|>`.
fn plain(grammar: &Grammar) -> Follower {
    let compiled = vocabulary().compile(grammar, "grammar").unwrap();
    Follower::new(vocabulary().clone(), Messages::text(compiled, vec![token("<|return|>")]))
}

fn chat(tool_choice: ToolChoice, strict: bool) -> ChatRequest {
    let numbers = json!({"type": "object", "required": ["a", "b"], "additionalProperties": false,
        "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}});
    let city = json!({"type": "object", "required": ["city"], "additionalProperties": false,
        "properties": {"city": {"type": "string", "maxLength": 9}}});
    let tools: Vec<Tool> = serde_json::from_value(json!([
        {"type": "function", "function": {"name": "add", "strict": strict, "parameters": numbers}},
        {"type": "function", "function": {"name": "weather", "parameters": city}},
    ]))
    .unwrap();
    ChatRequest { tools, tool_choice, ..ChatRequest::new(vec![Message::user("Hi")]) }
}

/// The messages of a harmony answer that these tokens end, too.
fn messages(
    chat: &ChatRequest,
    grammar: Option<&Grammar>,
    stop_token_ids: &[u32],
) -> Result<Messages> {
    let (vocabulary, tokenizer) = (vocabulary(), tokenizer());
    let tokens = Tokens::of(tokenizer).unwrap();
    Harmony { vocabulary, tokenizer, tokens, chat, stop_token_ids }.messages(grammar)
}

fn answer(chat: &ChatRequest, grammar: Option<&Grammar>) -> Follower {
    Follower::new(vocabulary().clone(), messages(chat, grammar, &[]).unwrap())
}

fn allowed(follower: &mut Follower) -> Vec<u32> {
    follower.mask().unwrap().unwrap().allowed().collect()
}

/// Small numbers that look random.
struct Dice(u64);

impl Dice {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888);
        (self.0 >> 33) as usize % n
    }
}

/// Draws tokens until the answer is finished or `most` have come, control tokens and the last
/// allowed ones more often than chance would.
fn walk(follower: &mut Follower, dice: &mut Dice, most: usize) -> Vec<u32> {
    let mut ids = Vec::new();
    while !follower.is_finished() && ids.len() < most {
        let allowed = allowed(follower);
        assert!(!allowed.is_empty(), "nothing may follow {:?}", tokenizer().decode(&ids));
        let control: Vec<u32> =
            allowed.iter().copied().filter(|id| tokenizer().is_special(*id)).collect();
        let among = if dice.below(4) == 0 && !control.is_empty() { &control } else { &allowed };
        let id = among[dice.below(among.len())];
        follower.accept(id);
        ids.push(id);
    }
    ids
}

/// All masks along random texts of a grammar are exactly those of a finite set of texts.
fn is_the_set(grammar: &Grammar, set: &[String]) {
    let end = token("<|return|>");
    for seed in 0..30 {
        let (mut follower, mut dice, mut so_far) = (plain(grammar), Dice(seed), Vec::new());
        while !follower.is_finished() {
            let got = allowed(&mut follower);
            let leads_on = |id: &u32| {
                if *id == end {
                    return set.iter().any(|text| text.as_bytes() == so_far.as_slice());
                }
                let bytes = tokenizer().token_bytes(*id).unwrap();
                let next = [so_far.as_slice(), bytes].concat();
                !tokenizer().is_special(*id)
                    && set.iter().any(|text| text.as_bytes().starts_with(&next))
            };
            let expected: Vec<u32> = (0..SIZE).filter(leads_on).collect();
            assert_eq!(got, expected, "after {:?}", String::from_utf8_lossy(&so_far));
            let id = got[dice.below(got.len())];
            follower.accept(id);
            if id != end {
                so_far.extend(tokenizer().token_bytes(id).unwrap());
            }
        }
        assert!(set.iter().any(|text| text.as_bytes() == so_far.as_slice()));
    }
}

#[test]
fn the_masks_of_an_expression_are_those_of_its_texts() {
    let mut set = Vec::new();
    for day in ["sun", "sunny", "rain/snow", "süß"] {
        for number in ["", " 1", " 2", " 12"] {
            set.push(format!("{day}{number}"));
        }
    }
    let expression = "(sun|sunny|rain/snow|süß)( (1|2|12))?";
    is_the_set(&Grammar::regex(expression), &set);
    let lark = "start: day number?\nday: \"sun\" | \"sunny\" | \"rain/snow\" | \"süß\"\n\
        number: \" \" (\"1\" | \"2\" | \"12\")\n";
    is_the_set(&Grammar::lark(lark), &set);
}

#[test]
fn the_masks_of_a_schema_are_those_of_its_texts() {
    let schema = json!({"enum": ["red", "green", "a \"b\"", 12, null, true]});
    let set = ["\"red\"", "\"green\"", r#""a \"b\"""#, "12", "null", "true"];
    is_the_set(&Grammar::json_schema(schema), &set.map(str::to_owned));
}

/// What `person` describes.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Person {
    name: String,
    age: u8,
    likes: Vec<Like>,
    parent: Option<Box<Person>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum Like {
    Cats,
    Dogs,
}

fn person() -> Grammar {
    Grammar::json_schema(json!({
        "$ref": "#/$defs/person",
        "$defs": {"person": {
            "type": "object", "additionalProperties": false,
            "required": ["name", "age", "likes", "parent"],
            "properties": {
                "name": {"type": "string", "maxLength": 8},
                "age": {"type": "integer", "minimum": 0, "maximum": 130},
                "likes": {"type": "array", "maxItems": 2, "items": {"enum": ["cats", "dogs"]}},
                "parent": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/person"}]},
            },
        }},
    }))
}

fn check(person: &Person) {
    assert!(person.name.chars().count() <= 8 && person.age <= 130 && person.likes.len() <= 2);
    assert!(person.likes.iter().all(|like| matches!(like, Like::Cats | Like::Dogs)));
    person.parent.iter().for_each(|parent| check(parent));
}

#[test]
fn every_accepted_text_parses_and_fits_its_schema() {
    let mut complete = 0;
    for seed in 0..60 {
        let mut follower = plain(&person());
        let ids = walk(&mut follower, &mut Dice(seed), 400);
        if !follower.is_finished() {
            continue;
        }
        let json = tokenizer().decode_text(&ids);
        check(&serde_json::from_str(&json).unwrap_or_else(|error| panic!("{json}: {error}")));
        complete += 1;
    }
    assert!(complete > 40, "only {complete} texts came to their end");
}

/// Whether a text is allowed as a whole, in one way to cut it into tokens.
fn takes(follower: &mut Follower, ids: &[u32]) -> bool {
    let end = token("<|return|>");
    for id in ids.iter().chain([&end]) {
        if follower.is_finished() {
            return *id == end;
        }
        if !allowed(follower).contains(id) {
            return false;
        }
        follower.accept(*id);
    }
    true
}

#[test]
fn what_fits_a_schema_is_allowed_however_it_is_written() {
    let bytes = |text: &str| -> Vec<u32> {
        let one = |byte: u8| (0..SIZE).find(|id| tokenizer().token_bytes(*id) == Some(&[byte]));
        text.bytes().map(|byte| one(byte).unwrap()).collect()
    };
    let value = json!({"name": "Bo \"é\"", "age": 7, "likes": ["cats", "dogs"], "parent":
        {"name": "", "age": 130, "likes": [], "parent": null}});
    for text in [value.to_string(), serde_json::to_string_pretty(&value).unwrap()] {
        for ids in [tokenizer().encode(&text, Special::AsText), bytes(&text)] {
            assert!(takes(&mut plain(&person()), &ids), "{text}");
        }
    }
    let wrong = [
        json!({"name": "Bo", "age": 131, "likes": [], "parent": null}),
        json!({"name": "Bo", "age": 7, "likes": ["birds"], "parent": null}),
        json!({"name": "Bo", "age": 7, "likes": []}),
        json!({"name": "Bo", "age": "7", "likes": [], "parent": null}),
        json!({"name": "Bo", "age": 7, "likes": [], "parent": null, "more": 1}),
        json!({"name": "123456789", "age": 7, "likes": [], "parent": null}),
    ];
    for value in wrong {
        assert!(!takes(&mut plain(&person()), &bytes(&value.to_string())), "{value}");
    }
    let object = Grammar::json_object();
    for (text, fits) in [("{\"a\": [1, {}]}", true), ("[1]", false), ("{\"a\": }", false)] {
        assert_eq!(takes(&mut plain(&object), &bytes(text)), fits, "{text}");
    }
}

/// What is shown of an answer, and its calls.
fn shown(ids: &[u32]) -> (String, Vec<(String, String)>) {
    let (mut text, mut calls) = (String::new(), Vec::new());
    for message in harmony::parse(tokenizer(), ids).unwrap() {
        let harmony::Content::Text(content) = message.content else { panic!("no text") };
        let header = harmony::Header {
            role: message.role,
            name: message.name,
            channel: message.channel,
            recipient: message.recipient,
            content_type: message.content_type,
        };
        match header.kind() {
            Kind::Reasoning => {}
            Kind::Answer | Kind::Preamble => text += &content,
            Kind::ToolCall => calls.push((header.function().unwrap().to_owned(), content)),
            Kind::Foreign => panic!("another role spoke: {content}"),
        }
    }
    (text, calls)
}

#[test]
fn what_a_harmony_answer_shows_fits_its_grammar_or_is_a_call() {
    let (mut answers, mut calls_seen, mut thoughts) = (0, 0, 0);
    for seed in 0..120 {
        let chat = chat(ToolChoice::Auto, seed % 2 == 0);
        let mut follower = answer(&chat, Some(&person()));
        let ids = walk(&mut follower, &mut Dice(seed), 300);
        let (text, calls) = shown(&ids);
        thoughts += usize::from(ids.iter().filter(|id| **id == token("<|start|>")).count() > 1);
        if !follower.is_finished() {
            continue;
        }
        match calls.as_slice() {
            [] => {
                check(&serde_json::from_str(&text).unwrap());
                answers += 1;
            }
            [(name, arguments)] => {
                assert_eq!(text, "");
                assert!(["add", "weather"].contains(&name.as_str()), "{name}");
                if seed % 2 == 0 && name == "add" {
                    numbers(arguments);
                }
                calls_seen += 1;
            }
            several => panic!("{several:?}"),
        }
    }
    let seen = (answers, calls_seen, thoughts);
    assert!(answers > 10 && calls_seen > 10 && thoughts > 10, "{seen:?}");
}

fn numbers(arguments: &str) {
    let arguments: Value = serde_json::from_str(arguments).unwrap();
    assert!(arguments["a"].is_number() && arguments["b"].is_number(), "{arguments}");
    assert_eq!(arguments.as_object().unwrap().len(), 2);
}

#[test]
fn a_required_call_comes_and_its_arguments_fit() {
    let mut names = Vec::new();
    for seed in 0..60 {
        let mut follower = answer(&chat(ToolChoice::Required, false), None);
        let ids = walk(&mut follower, &mut Dice(seed), 300);
        if !follower.is_finished() {
            continue;
        }
        let (_, calls) = shown(&ids);
        let [(name, arguments)] = calls.as_slice() else { panic!("{calls:?}") };
        match name.as_str() {
            "add" => numbers(arguments),
            _ => {
                let city: Value = serde_json::from_str(arguments).unwrap();
                assert!(city["city"].as_str().unwrap().chars().count() <= 9);
            }
        }
        names.push(name.clone());
    }
    for name in ["add", "weather"] {
        assert!(names.iter().filter(|got| *got == name).count() > 5, "{names:?}");
    }
}

#[test]
fn what_cannot_be_held_is_refused_with_its_reason() {
    let table = [
        (Grammar::json_schema(json!({"type": "strin"})), "strin"),
        (Grammar::json_schema(json!({"type": "string", "not": {"const": "a"}})), "not"),
        (Grammar::json_schema(json!(7)), "schema"),
        (Grammar::json_schema(json!(false)), "false"),
        (Grammar::json_schema(json!({"$ref": "#/$defs/none"})), "none"),
        (Grammar::json_schema(json!({"type": "string", "pattern": "("})), "("),
        (Grammar::regex("(a"), "a"),
        (Grammar::lark("start: rest"), "rest"),
        (Grammar::lark("start: <|end|>"), "control token"),
        (Grammar::lark("start: <[2044]>"), "control token"),
        (Grammar::lark("start: text \"a\"\ntext[stop=\"x\"]: /.*/"), "rollback"),
    ];
    for (grammar, word) in table {
        let Err(error) = vocabulary().compile(&grammar, "grammar") else {
            panic!("{grammar:?} was taken");
        };
        let told = error.to_string();
        assert!(
            told.starts_with("unsupported ")
                && told.contains(" in `grammar`: ")
                && told.contains(word),
            "{told}"
        );
        assert_eq!(error.kind(), crate::ErrorKind::InvalidInput);
        assert_eq!(error.field(), Some("grammar"));
    }
}

#[test]
fn an_end_that_is_text_stays_text_until_the_grammar_accepts() {
    let one = |text: &str| {
        let ids = tokenizer().encode(text, Special::AsText);
        assert_eq!(ids.len(), 1, "{text}");
        ids[0]
    };
    let (quote, end) = (one("\""), token("<|return|>"));
    let ending_with_quotes = |grammar: &Grammar| {
        let compiled = vocabulary().compile(grammar, "grammar").unwrap();
        Follower::new(vocabulary().clone(), Messages::text(compiled, vec![end, quote]))
    };
    let mut follower = ending_with_quotes(&Grammar::json_schema(json!({"const": "a"})));
    for id in [quote, one("a"), quote] {
        let may_follow = allowed(&mut follower);
        assert!(may_follow.contains(&id) && !may_follow.contains(&end), "{may_follow:?}");
        assert!(!follower.is_finished());
        follower.accept(id);
    }
    assert!(allowed(&mut follower).contains(&end));

    // Where the text may end it is an end, though the grammar has no place for it.
    let mut follower = ending_with_quotes(&Grammar::regex("a+"));
    assert!(!allowed(&mut follower).contains(&quote));
    follower.accept(one("a"));
    let may_follow = allowed(&mut follower);
    assert!([quote, end, one("a")].iter().all(|id| may_follow.contains(id)), "{may_follow:?}");
    follower.accept(quote);
    assert!(follower.is_finished());
}

#[test]
fn the_longest_chain_of_references_and_the_largest_object_compile() {
    let definition = |i: usize| match i {
        2_400 => json!({"const": "end"}),
        _ => json!({"$ref": format!("#/$defs/a{}", i + 1)}),
    };
    let definitions: Map<String, Value> =
        (1..=2_400).map(|i| (format!("a{i}"), definition(i))).collect();
    let chain = Grammar::json_schema(json!({"$defs": definitions, "$ref": "#/$defs/a1"}));
    let encode = |text: &str| tokenizer().encode(text, Special::AsText);
    assert!(takes(&mut plain(&chain), &encode("\"end\"")));

    let names: Vec<String> = (0..2_000).map(|i| format!("p{i}")).collect();
    let properties: Map<String, Value> =
        names.iter().map(|name| (name.clone(), json!({"type": "null"}))).collect();
    let object = json!({"type": "object", "properties": properties, "required": names,
        "additionalProperties": false});
    let mut follower = plain(&Grammar::json_schema(object));
    for id in encode("{\"p0\": null, \"p1\": null, ") {
        assert!(allowed(&mut follower).contains(&id));
        follower.accept(id);
    }
}

#[test]
fn options_in_a_schema_are_not_the_requests() {
    let schema = json!({"type": "object", "x-guidance": {"whitespace_pattern": "x*"}});
    let follower = &mut plain(&Grammar::json_schema(schema));
    follower.accept(tokenizer().encode("{", Special::AsText)[0]);
    let may_follow = |text: &str, allowed: &[u32]| {
        allowed.contains(&tokenizer().encode(text, Special::AsText)[0])
    };
    let allowed = allowed(follower);
    assert!(may_follow("}", &allowed) && may_follow(" ", &allowed) && !may_follow("x", &allowed));
}

#[test]
fn a_tool_that_is_not_strict_is_held_as_far_as_it_goes() {
    let mut chat = chat(ToolChoice::Function("add".to_owned()), false);
    let exotic = json!({"type": "object", "required": ["a"], "not": {"required": ["z"]},
        "properties": {"a": {"oneOf": [{"type": "integer"}, {"type": "number"}]}}});
    chat.tools[0].function.parameters = Some(exotic);
    let mut follower = answer(&chat, None);
    assert!(takes_call(&mut follower, "{\"a\": 3}"));
    assert!(!takes_call(&mut answer(&chat, None), "{\"a\": \"3\"}"));
    chat.tools[0].function.strict = Some(true);
    let Err(error) = messages(&chat, None, &[]) else { panic!("it was taken") };
    assert_eq!(error.field(), Some("tools"));
    assert!(error.to_string().contains("add: "), "{error}");

    // Where nothing of it is understood, any object goes.
    let unknown = json!({"type": "object", "properties": {"a": {"type": "strin"}}});
    chat.tools[0].function.parameters = Some(unknown);
    chat.tools[0].function.strict = None;
    assert!(takes_call(&mut answer(&chat, None), "{\"a\": \"3\"}"));
    assert!(!takes_call(&mut answer(&chat, None), "[3]"));
    chat.tools[0].function.strict = Some(true);
    assert!(messages(&chat, None, &[]).is_err());
}

fn takes_call(follower: &mut Follower, text: &str) -> bool {
    tokenizer().encode(text, Special::AsText).into_iter().all(|id| {
        let may = allowed(follower).contains(&id);
        follower.accept(id);
        may
    })
}
