//! Answers that fit a grammar, whatever is drawn.

use std::sync::OnceLock;

use oss_engine::{
    ChatRequest, Completion, Constraint, Engine, EngineOptions, ErrorKind, FinishReason, Grammar,
    Mask, Prompt, Request, Result, Speculation, ToolChoice,
};
use oss_text::Special;
use oss_text::chat::{Message, Tool};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::support::{engine, engine_with, options};

/// What `sum` describes.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Sum {
    question: String,
    numbers: Vec<u8>,
    sum: i64,
    mood: Mood,
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum Mood {
    Happy,
    Sad,
}

fn sum() -> Grammar {
    Grammar::json_schema(json!({
        "type": "object", "additionalProperties": false,
        "required": ["question", "numbers", "sum", "mood"],
        "properties": {
            "question": {"type": "string", "maxLength": 20},
            "numbers": {"type": "array", "minItems": 1, "maxItems": 3,
                "items": {"type": "integer", "minimum": 0, "maximum": 99}},
            "sum": {"type": "integer", "minimum": -999, "maximum": 999},
            "mood": {"enum": ["happy", "sad"]},
        },
    }))
}

fn fits(text: &str) {
    let sum: Sum = serde_json::from_str(text).unwrap_or_else(|error| panic!("{text}: {error}"));
    assert!(sum.question.chars().count() <= 20, "{text}");
    assert!((1..=3).contains(&sum.numbers.len()) && sum.numbers.iter().all(|n| *n <= 99), "{text}");
    assert!((-999..=999).contains(&sum.sum) && matches!(sum.mood, Mood::Happy | Mood::Sad));
}

fn hot(request: Request, seed: u64) -> Request {
    let mut request = request.seed(seed);
    request.sampling.temperature = Some(1.0);
    request
}

fn chat() -> ChatRequest {
    ChatRequest::new(vec![Message::user("What is 47 + 38?")])
}

fn asked(seed: u64) -> Request {
    hot(Request::chat(chat()).grammar(sum()).max_tokens(400), seed)
}

fn tools(strict: bool) -> Vec<Tool> {
    let numbers = json!({"type": "object", "required": ["a", "b"], "additionalProperties": false,
        "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}});
    let city = json!({"type": "object", "required": ["city"], "additionalProperties": false,
        "properties": {"city": {"type": "string", "maxLength": 30}}});
    serde_json::from_value(json!([
        {"type": "function", "function": {"name": "add", "strict": strict,
            "description": "Adds two numbers.", "parameters": numbers}},
        {"type": "function", "function": {"name": "get_weather", "strict": strict,
            "description": "Gets the current weather for a city.", "parameters": city}},
    ]))
    .unwrap()
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, untagged)]
enum Arguments {
    Add { a: i64, b: i64 },
    Weather { city: String },
}

/// The one call of an answer, whose arguments fit its tool.
fn call(answer: &Completion) -> &'static str {
    assert!(matches!(answer.finish_reason, FinishReason::ToolCalls), "{answer:?}");
    let [call] = answer.tool_calls.as_slice() else { panic!("{answer:?}") };
    let arguments = &call.function.arguments;
    match (call.function.name.as_str(), serde_json::from_str(arguments).unwrap()) {
        ("add", Arguments::Add { a, b }) => {
            let _numbers = (a, b);
            "add"
        }
        ("get_weather", Arguments::Weather { city }) => {
            assert!(city.chars().count() <= 30, "{arguments}");
            "get_weather"
        }
        _ => panic!("{answer:?}"),
    }
}

#[test]
fn a_schema_is_held_by_an_answer_that_was_thought_about() {
    let (mut complete, mut thoughts) = (0, 0);
    for seed in 0..40 {
        let answer = engine().generate(asked(seed)).unwrap();
        assert!(answer.tool_calls.is_empty());
        thoughts += usize::from(!answer.reasoning.is_empty());
        match answer.finish_reason {
            FinishReason::Stop => fits(&answer.text),
            FinishReason::Length => continue,
            other => panic!("seed {seed}: {other:?}"),
        }
        complete += 1;
        let messages = engine().text().parse(&answer.token_ids()).unwrap();
        let finals = messages.iter().filter(|message| message.channel.as_deref() == Some("final"));
        assert_eq!(finals.count(), 1, "seed {seed}");
    }
    assert!(complete >= 36 && thoughts > 30, "{complete} complete, {thoughts} thought");
}

#[test]
fn drafts_and_company_change_no_token() {
    static ENGINES: OnceLock<[Engine; 4]> = OnceLock::new();
    let engines = ENGINES.get_or_init(|| {
        [Speculation::Off, Speculation::Always(1), Speculation::Always(15), Speculation::Auto]
            .map(|speculation| engine_with(EngineOptions { speculation, ..options() }))
    });
    let [plain, guessing @ ..] = engines;
    let request = |index: u64| match index % 4 {
        0 => asked(index),
        1 => hot(Request::text("Tom has a ball. ".repeat(6)).grammar(sum()).max_tokens(150), index),
        2 => {
            let chat =
                ChatRequest { tools: tools(true), tool_choice: ToolChoice::Required, ..chat() };
            hot(Request::chat(chat).max_tokens(200), index)
        }
        _ => hot(Request::chat(chat()).max_tokens(60), index),
    };
    let alone: Vec<_> = (0..16).map(|i| plain.generate(request(i)).unwrap()).collect();
    for engine in engines {
        let streams: Vec<_> = (0..16).map(|i| engine.submit(request(i)).unwrap()).collect();
        for (index, stream) in streams.into_iter().enumerate() {
            let (got, expected) = (stream.collect_all().unwrap(), &alone[index]);
            assert_eq!(got.token_ids(), expected.token_ids(), "request {index}");
            assert_eq!(got.text, expected.text, "request {index}");
            assert_eq!(
                got.finish_reason.as_str(),
                expected.finish_reason.as_str(),
                "request {index}"
            );
        }
    }
    for engine in &guessing[..2] {
        let metrics = engine.metrics();
        assert!(metrics.accepted_drafts > 0, "{metrics:?}");
        assert!(metrics.accepted_drafts < metrics.drafted_tokens, "no guess was wrong");
    }
}

#[test]
fn a_text_holds_its_grammar_from_the_first_token_and_ends_with_it() {
    let mut complete = 0;
    for seed in 0..20 {
        let json = Request::text("Once upon a time").grammar(sum()).max_tokens(300);
        let answer = engine().generate(hot(json, seed)).unwrap();
        if matches!(answer.finish_reason, FinishReason::Stop) {
            fits(&answer.text);
            complete += 1;
        }
        let number = Request::text("Ben is").grammar(Grammar::regex("[1-9][0-9]? years old"));
        let answer = engine().generate(hot(number, seed)).unwrap();
        assert!(matches!(answer.finish_reason, FinishReason::Stop));
        let number = answer.text.strip_suffix(" years old").unwrap();
        assert!((1..100).contains(&number.parse::<u8>().unwrap()), "{}", answer.text);
    }
    assert!(complete > 15, "{complete} complete");
    // Where it may end and may go on, the model's own stop token ends it.
    let ends = Request::text("Once upon a time").grammar(Grammar::regex("(?s).*"));
    let free = Request::text("Once upon a time");
    let (ends, free) =
        (engine().generate(ends.greedy()).unwrap(), engine().generate(free.greedy()).unwrap());
    assert_eq!(ends.token_ids(), free.token_ids());
    // Without stop tokens it ends where nothing may follow.
    let lark = Grammar::lark("start: \"one\" \"two\"?\n");
    let request = Request { ignore_eos: true, ..Request::text("x").grammar(lark) };
    assert!(["one", "onetwo"].contains(&engine().generate(request).unwrap().text.as_str()));
}

/// The one token of a text.
fn token(text: &str) -> u32 {
    let ids = engine().text().tokenizer().unwrap().encode(text, Special::AsText);
    assert_eq!(ids.len(), 1, "{text}");
    ids[0]
}

#[test]
fn a_stop_token_that_stands_for_text_is_text_until_the_answer_fits() {
    let quote = token("\"");
    let text = |seed| {
        let json = Request::text("Once upon a time").grammar(sum()).max_tokens(400);
        hot(json, seed)
    };
    let call = |seed| {
        let chat = ChatRequest { tools: tools(true), tool_choice: ToolChoice::Required, ..chat() };
        hot(Request::chat(chat).max_tokens(300), seed)
    };
    let requests: [&dyn Fn(u64) -> Request; 3] = [&asked, &text, &call];
    let mut complete = [0; 3];
    for seed in 0..12 {
        for (index, request) in requests.iter().enumerate() {
            let expected = engine().generate(request(seed)).unwrap();
            // One of the last tokens of the answer itself.
            let last = expected.token_ids()[expected.tokens.len() - 3];
            for min_tokens in [0, expected.tokens.len() / 2] {
                let stop_token_ids = vec![quote, last];
                let request = Request { stop_token_ids, min_tokens, ..request(seed) };
                let answer = engine().generate(request).unwrap();
                assert_eq!(
                    answer.token_ids(),
                    expected.token_ids(),
                    "seed {seed}: {}",
                    answer.text
                );
                assert_eq!(answer.finish_reason.as_str(), expected.finish_reason.as_str());
                assert_eq!(answer.text, expected.text);
            }
            if matches!(expected.finish_reason, FinishReason::Stop) {
                fits(&expected.text);
            }
            complete[index] += usize::from(!matches!(expected.finish_reason, FinishReason::Length));
        }
    }
    assert!(complete.iter().all(|count| *count > 6), "{complete:?} complete");

    // Where the answer may end, it ends it.
    let ask = || Request::chat(ChatRequest::new(vec![Message::user("What is 17 + 25?")])).greedy();
    let any = || ask().grammar(Grammar::regex("(?s).*"));
    let whole = engine().generate(any()).unwrap();
    assert_eq!(whole.text, "17 + 25 = 42");
    let stop_token_ids = vec![token(" =")];
    let ended = engine().generate(Request { stop_token_ids, ..any() }).unwrap();
    assert_eq!((ended.text.as_str(), ended.finish_reason.as_str()), ("17 + 25", "stop"));
    assert_eq!(ended.reasoning, whole.reasoning);
}

#[test]
fn an_answer_that_is_cut_off_says_so_and_shows_no_more_than_a_beginning() {
    let request = |tokens| asked(3).max_tokens(tokens);
    let whole = engine().generate(request(400)).unwrap();
    assert!(matches!(whole.finish_reason, FinishReason::Stop));
    let count = whole.tokens.len();
    for tokens in [1, count / 3, count / 2, count - 1] {
        let cut = engine().generate(request(tokens)).unwrap();
        assert!(matches!(cut.finish_reason, FinishReason::Length), "{tokens} of {count}");
        assert!(whole.text.starts_with(&cut.text) && cut.text != whole.text);
    }
}

#[test]
fn a_model_that_would_rather_answer_calls_what_is_required() {
    let mut names = Vec::new();
    for seed in 0..12 {
        let question = if seed % 2 == 0 { "Hello!" } else { "How is the weather in Rome?" };
        let chat = ChatRequest {
            tools: tools(seed % 3 == 0),
            tool_choice: ToolChoice::Required,
            ..ChatRequest::new(vec![Message::user(question)])
        };
        let answer = engine().generate(hot(Request::chat(chat).max_tokens(300), seed)).unwrap();
        names.push(call(&answer));
    }
    for name in ["add", "get_weather"] {
        assert!(names.contains(&name), "{names:?}");
    }
}

#[test]
fn arguments_of_a_forced_call_fit_its_schema_at_any_temperature() {
    let mut complete = 0;
    for seed in 0..20 {
        let chat = ChatRequest {
            tools: tools(false),
            tool_choice: ToolChoice::Function("add".to_owned()),
            ..ChatRequest::new(vec![Message::user("Tell me a story.")])
        };
        let mut request = Request::chat(chat).max_tokens(200).seed(seed);
        request.sampling.temperature = Some(1.5);
        let answer = engine().generate(request).unwrap();
        if matches!(answer.finish_reason, FinishReason::Length) {
            continue;
        }
        assert_eq!(call(&answer), "add");
        assert_eq!((answer.text.as_str(), answer.reasoning.as_str()), ("", ""));
        complete += 1;
    }
    assert!(complete > 15, "{complete} complete");
}

#[test]
fn strict_tools_leave_the_model_its_choice() {
    let ask = |question: &str, seed| {
        let messages = vec![Message::user(question)];
        let chat = ChatRequest { tools: tools(true), ..ChatRequest::new(messages) };
        engine().generate(hot(Request::chat(chat).max_tokens(300), seed)).unwrap()
    };
    for seed in 0..6 {
        assert_eq!(call(&ask("How is the weather in Lisbon?", seed)), "get_weather");
        let answer = ask("Say hello.", seed);
        assert!(!answer.text.is_empty() || !answer.tool_calls.is_empty(), "{answer:?}");
    }
}

#[test]
fn a_grammar_beside_tools_is_an_answer_that_fits_or_a_call() {
    let (mut answers, mut calls) = (0, 0);
    for seed in 0..24 {
        let question = match seed % 2 {
            0 => "What is the capital of France?",
            _ => "How is the weather in Rome?",
        };
        let messages = vec![Message::user(question)];
        let chat = ChatRequest { tools: tools(true), ..ChatRequest::new(messages) };
        let request = Request::chat(chat).grammar(sum()).max_tokens(400);
        let answer = engine().generate(hot(request, seed)).unwrap();
        match answer.finish_reason {
            FinishReason::Stop => {
                fits(&answer.text);
                answers += 1;
            }
            FinishReason::ToolCalls => {
                call(&answer);
                assert_eq!(answer.text, "");
                calls += 1;
            }
            _ => {}
        }
    }
    assert!(answers > 5 && calls > 5, "{answers} answers, {calls} calls");
}

/// Anything.
struct Free;

impl Constraint for Free {
    fn mask(&mut self) -> Result<Option<&Mask>> {
        Ok(None)
    }
    fn accept(&mut self, _token: u32) {}
}

#[test]
fn what_cannot_be_held_is_refused_when_it_is_asked_for() {
    let refused = |request: Request| {
        let error = engine().submit(request).unwrap_err();
        assert!(error.kind() == ErrorKind::InvalidInput, "{error}");
        (error.field(), error.to_string())
    };
    let wrong = || Grammar::json_schema(json!({"type": "object", "propertyNames": {}}));
    for request in [Request::text("x"), Request::chat(chat())] {
        let (field, told) = refused(request.grammar(wrong()));
        assert_eq!(field, Some("grammar"));
        assert!(told.contains("propertyNames"), "{told}");
    }
    let both = Request::text("x").grammar(sum()).constrained(Free);
    assert_eq!(refused(both).0, Some("constraint"));
    let mut odd = tools(true);
    odd[1].function.parameters = Some(json!({"type": "wizard"}));
    let chat = ChatRequest { tools: odd, ..chat() };
    let (field, told) = refused(Request::chat(chat));
    assert_eq!(field, Some("tools"));
    assert!(told.contains("get_weather") && told.contains("wizard"), "{told}");
    let mut spaced = tools(false);
    spaced[0].function.name = "add up".to_owned();
    let (field, told) = refused(Request::chat(ChatRequest { tools: spaced, ..self::chat() }));
    assert_eq!(field, Some("tools"));
    assert!(told.contains("add up") && told.contains("expected up to 128 letters"), "{told}");
    let none = ChatRequest { tool_choice: ToolChoice::Required, ..self::chat() };
    let told = refused(Request::chat(none));
    let expected = "option tool_choice: got required, expected tools to choose from";
    assert_eq!(told, (Some("tool_choice"), expected.to_owned()));
}

#[test]
fn nothing_is_called_where_tools_are_withheld_after_earlier_calls() {
    let messages: Vec<Message> = serde_json::from_value(json!([
        {"role": "user", "content": "What is the weather in Oslo?"},
        {"role": "assistant", "content": null, "tool_calls": [{"id": "a", "type": "function",
            "function": {"name": "get_weather", "arguments": "{\"city\":\"Oslo\"}"}}]},
        {"role": "tool", "tool_call_id": "a", "content": "{\"sky\": \"clear\"}"},
        {"role": "user", "content": "And in Bergen?"},
    ]))
    .unwrap();
    for (tools, tool_choice) in [(tools(false), ToolChoice::None), (Vec::new(), ToolChoice::Auto)] {
        let chat = ChatRequest { tools, tool_choice, ..ChatRequest::new(messages.clone()) };
        assert!(chat.compiles_grammar());
        for seed in 0..10 {
            let request = hot(Request::chat(chat.clone()).max_tokens(200), seed);
            let answer = engine().generate(request).unwrap();
            assert!(answer.tool_calls.is_empty(), "{answer:?}");
            assert!(!matches!(answer.finish_reason, FinishReason::ToolCalls), "{answer:?}");
        }
        let own = Request::chat(chat).constrained(Free).max_tokens(4);
        engine().generate(own).expect("a constraint of one's own is enough");
    }
}

/// The demo model as one whose chats a template writes: it lacks one of the format's markers.
fn with_template() -> &'static Engine {
    static ENGINE: OnceLock<Engine> = OnceLock::new();
    ENGINE.get_or_init(|| {
        let folder = tempfile::tempdir().unwrap();
        let template = "{% for message in messages %}<|start|>{{ message.role }}<|message|>\
            {{ message.content }}<|end|>{% endfor %}{% if tools %}{{ tools[0].function.name }}\
            {% endif %}<|start|>assistant<|channel|>final<|message|>";
        for (name, bytes) in oss_demo::files() {
            let bytes = match *name {
                "chat_template.jinja" => template.as_bytes().to_vec(),
                "tokenizer.json" | "tokenizer_config.json" | "special_tokens_map.json" => {
                    let text = std::str::from_utf8(bytes).unwrap();
                    text.replace("<|constrain|>", "<|restrain|>").into_bytes()
                }
                _ => bytes.to_vec(),
            };
            std::fs::write(folder.path().join(name), bytes).unwrap();
        }
        Engine::load_with(folder.path(), options()).unwrap()
    })
}

#[test]
fn a_chat_that_a_template_wrote_holds_its_grammar_from_the_first_token() {
    let engine = with_template();
    assert!(engine.text().has_chat() && !engine.text().is_harmony());
    let mut complete = 0;
    for seed in 0..20 {
        let answer = engine.generate(asked(seed)).unwrap();
        if matches!(answer.finish_reason, FinishReason::Stop) {
            fits(&answer.text);
            complete += 1;
        }
        assert!(answer.text.is_empty() || answer.text.starts_with('{'), "{}", answer.text);
    }
    assert!(complete > 15, "{complete} complete");
    let offered = ChatRequest { tools: tools(false), ..chat() };
    let error = engine.submit(Request::chat(offered.clone()).grammar(sum())).unwrap_err();
    assert!(
        error.kind() == ErrorKind::InvalidInput && error.to_string().contains("beside tools"),
        "{error}"
    );
    let silent = ChatRequest { tool_choice: ToolChoice::None, ..offered.clone() };
    let request = Request::chat(silent).grammar(Grammar::regex("yes|no"));
    let answer = engine.generate(request).unwrap();
    assert!(["yes", "no"].contains(&answer.text.as_str()));
    let required = ChatRequest { tool_choice: ToolChoice::Required, ..offered };
    let error = engine.submit(Request::chat(required)).unwrap_err();
    assert!(error.to_string().contains("forced tool call"), "{error}");
}

#[test]
fn the_same_grammar_serves_any_object_and_tokens_as_prompts() {
    let ids = engine().text().tokenizer().unwrap();
    let ids = ids.encode("The answer is", Special::AsText);
    for seed in 0..10 {
        let request = Request::new(Prompt::Tokens(ids.clone()));
        let request = hot(request.grammar(Grammar::json_object()).max_tokens(200), seed);
        let answer = engine().generate(request).unwrap();
        match answer.finish_reason {
            FinishReason::Stop => {
                let value: Value = serde_json::from_str(&answer.text).unwrap();
                assert!(value.is_object(), "{value}");
            }
            _ => assert!(answer.text.starts_with('{'), "{}", answer.text),
        }
    }
}
