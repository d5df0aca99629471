//! Whole answers are the library's.

use oss_engine::{ChatRequest, Message, Request, Tool};
use serde_json::{Value, json};

use crate::client::{Connection, post};
use crate::support::{MODEL, engine, server, with};

const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";

pub(crate) fn question(text: &str) -> Value {
    json!([{"role": "user", "content": [{"type": "text", "text": text}]}])
}

pub(crate) fn weather() -> Value {
    json!([{"type": "function", "function": {
        "name": "get_weather", "description": "Tells the weather of a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    }}])
}

#[test]
fn a_chat_is_answered_as_the_library_answers_it() {
    let chat = ChatRequest::new(vec![Message::user("What is 47 + 38?")]);
    for seed in 1..4 {
        let mut request = Request::chat(chat.clone()).max_tokens(80).seed(seed);
        request.sampling.temperature = Some(1.3);
        let expected = engine().generate(request).unwrap();
        let body = json!({
            "model": MODEL, "messages": question("What is 47 + 38?"), "seed": seed,
            "temperature": 1.3, "max_completion_tokens": 80, "stream": false, "logprobs": null,
        });
        let answer = post(server(), CHAT, &body).fine();
        let choice = &answer["choices"][0];
        assert_eq!(choice["message"]["content"], expected.text, "seed {seed}");
        assert_eq!(choice["message"]["reasoning_content"], expected.reasoning);
        assert_eq!(choice["message"]["reasoning"], expected.reasoning);
        assert_eq!(choice["finish_reason"], expected.finish_reason.as_str());
        let usage = &answer["usage"];
        assert_eq!(usage["prompt_tokens"], expected.usage.prompt_tokens);
        assert_eq!(usage["completion_tokens"], expected.usage.completion_tokens);
        assert_eq!(answer["object"], "chat.completion");
    }
}

#[test]
fn several_choices_are_the_librarys_choices() {
    let body = json!({
        "messages": question("Tell me a story."), "seed": 5, "temperature": 1.5, "n": 3,
        "max_tokens": 20,
    });
    let answer = post(server(), CHAT, &body).fine();
    let mut completion_tokens = 0;
    for choice in 0..3 {
        let chat = ChatRequest::new(vec![Message::user("Tell me a story.")]);
        let mut request = Request::chat(chat).max_tokens(20).seed(5);
        request.sampling.temperature = Some(1.5);
        request.choice = choice;
        let expected = engine().generate(request).unwrap();
        completion_tokens += expected.usage.completion_tokens;
        let got = &answer["choices"][choice as usize];
        assert_eq!(got["index"], choice);
        assert_eq!(got["message"]["content"], expected.text);
    }
    assert_eq!(answer["usage"]["completion_tokens"], completion_tokens);
}

#[test]
fn texts_and_tokens_are_continued_as_the_library_continues_them() {
    let expected = engine().generate(Request::text("One day").max_tokens(30).greedy()).unwrap();
    let ids = engine()
        .submit(Request::text("One day").max_tokens(1))
        .unwrap()
        .prompt_token_ids()
        .to_vec();
    for prompt in [json!("One day"), json!(["One day"]), json!(ids), json!([ids])] {
        let body = json!({"prompt": prompt, "max_tokens": 30, "temperature": 0, "echo": false});
        let answer = post(server(), COMPLETIONS, &body).fine();
        assert_eq!(answer["choices"][0]["text"], expected.text, "{prompt}");
        assert_eq!(answer["choices"][0]["finish_reason"], "length");
    }
    let both = json!({"prompt": ["One day", "Once"], "n": 2, "max_tokens": 4, "seed": 1});
    let answer = post(server(), COMPLETIONS, &both).fine();
    let indices: Vec<_> =
        answer["choices"].as_array().unwrap().iter().map(|c| &c["index"]).collect();
    assert_eq!(indices, [0, 1, 2, 3]);
    assert_eq!(answer["usage"]["completion_tokens"], 16);
}

#[test]
fn a_completion_without_a_limit_has_sixteen_tokens_and_stops_end_it_early() {
    let answer = post(server(), COMPLETIONS, &json!({"prompt": "Once", "temperature": 0})).fine();
    assert_eq!(answer["usage"]["completion_tokens"], 16);
    let text = answer["choices"][0]["text"].as_str().unwrap();
    let stop = text.split_whitespace().last().unwrap();
    let body = json!({"prompt": "Once", "temperature": 0, "stop": [stop]});
    let stopped = post(server(), COMPLETIONS, &body).fine();
    assert_eq!(stopped["choices"][0]["finish_reason"], "stop");
    assert_eq!(stopped["choices"][0]["text"], text[..text.find(stop).unwrap()]);
}

#[test]
fn an_answer_has_at_least_so_many_tokens_or_exactly_as_many() {
    let body = json!({
        "messages": question("What is 17 + 25?"), "temperature": 0, "max_tokens": 90,
    });
    let ask = |more: Value| {
        let answer = post(server(), CHAT, &with(&body, &more)).fine();
        let finish = answer["choices"][0]["finish_reason"].as_str().unwrap().to_owned();
        (answer["usage"]["completion_tokens"].as_u64().unwrap(), finish)
    };
    let (plain, _) = ask(json!({}));
    assert!(plain < 70, "{plain}");
    assert!(ask(json!({"min_tokens": 80})).0 >= 80);
    let (stopped, finish) = ask(json!({"min_tokens": 80, "stop": [" "]}));
    assert!((81..90).contains(&stopped) && finish == "stop", "{stopped}, {finish}");
    assert_eq!(ask(json!({"ignore_eos": true})).0, 90);
}

#[test]
fn a_tool_is_called_and_its_result_is_used() {
    let mut messages = question("How is the weather in Lisbon?");
    let body = json!({"messages": messages, "tools": weather(), "temperature": 0});
    let answer = post(server(), CHAT, &body).fine();
    let choice = &answer["choices"][0];
    assert_eq!(choice["finish_reason"], "tool_calls");
    let call = &choice["message"]["tool_calls"][0];
    assert_eq!(call["function"]["name"], "get_weather");
    assert_eq!(call["function"]["arguments"], "{\"city\":\"Lisbon\"}");
    assert_eq!(choice["message"]["content"], Value::Null);

    let result =
        json!({"role": "tool", "tool_call_id": call["id"], "content": "{\"sky\":\"sunny\"}"});
    messages.as_array_mut().unwrap().extend([choice["message"].clone(), result]);
    let body = json!({"messages": messages, "tools": weather(), "temperature": 0});
    let got = post(server(), CHAT, &body).fine();
    let tools: Vec<Tool> = serde_json::from_value(weather()).unwrap();
    let messages: Vec<Message> = serde_json::from_value(messages).unwrap();
    let chat = ChatRequest { tools, ..ChatRequest::new(messages) };
    let expected = engine().generate(Request::chat(chat).greedy()).unwrap();
    assert_eq!(got["choices"][0]["message"]["content"], expected.text);
}

#[test]
fn a_call_that_is_not_complete_is_not_handed_out_to_be_run() {
    let mark = json!({"prompt": "\":\""});
    let mark = post(server(), "/tokenize", &mark).fine()["tokens"].clone();
    let ask = |more: Value| {
        let body = json!({
            "messages": question("How is the weather in Lisbon?"), "tools": weather(),
            "temperature": 0,
        });
        post(server(), CHAT, &with(&body, &more))
    };
    // A token that stands in the arguments ends the answer.
    let stop = json!({"stop_token_ids": mark});
    let stopped = ask(stop.clone()).fine()["choices"][0].clone();
    assert_eq!(stopped["finish_reason"], "stop", "{stopped}");
    assert!(stopped["message"].get("tool_calls").is_none(), "{stopped}");
    assert_eq!(stopped["message"]["content"], "");
    let begun = ask(with(&stop, &json!({"stream": true})));
    assert!(begun.body.contains("get_weather"), "{}", begun.body);
    // Who reads `length` knows that the end is missing.
    let whole = ask(json!({})).fine()["usage"]["completion_tokens"].as_u64().unwrap();
    let cut = ask(json!({"max_tokens": whole - 2})).fine()["choices"][0].clone();
    assert_eq!(cut["finish_reason"], "length");
    assert_eq!(cut["message"]["tool_calls"].as_array().map(Vec::len), Some(1), "{cut}");
}

#[test]
fn a_call_can_be_forced_or_forbidden() {
    let ask = |choice: Value| {
        let body = json!({
            "messages": question("What is 2 + 3?"), "tools": weather(), "tool_choice": choice,
            "temperature": 0, "max_tokens": 60,
        });
        post(server(), CHAT, &body).fine()["choices"][0]["message"].clone()
    };
    let function = json!({"type": "function", "function": {"name": "get_weather"}});
    for forced in [function, json!("required")] {
        assert_eq!(ask(forced)["tool_calls"][0]["function"]["name"], "get_weather");
    }
    assert!(ask(json!("none"))["tool_calls"].is_null());
}

#[test]
fn logprobs_are_of_the_visible_tokens_alone() {
    let body = json!({
        "messages": question("What is 17 + 25?"), "temperature": 0, "logprobs": true,
        "top_logprobs": 3,
    });
    let answer = post(server(), CHAT, &body).fine();
    let content = answer["choices"][0]["logprobs"]["content"].as_array().unwrap();
    let text: String = content.iter().map(|token| token["token"].as_str().unwrap()).collect();
    assert_eq!(text, answer["choices"][0]["message"]["content"]);
    for token in content {
        assert_eq!(token["top_logprobs"].as_array().unwrap().len(), 3);
        assert_eq!(token["top_logprobs"][0]["token"], token["token"], "greedy");
        assert_eq!(token["top_logprobs"][0]["logprob"], token["logprob"]);
    }
    let body = json!({"prompt": "Once upon", "temperature": 0, "logprobs": 2, "max_tokens": 9});
    let choice = post(server(), COMPLETIONS, &body).fine()["choices"][0].clone();
    let tokens = choice["logprobs"]["tokens"].as_array().unwrap();
    let text: String = tokens.iter().map(|token| token.as_str().unwrap()).collect();
    assert_eq!(text, choice["text"]);
    assert_eq!(choice["logprobs"]["text_offset"].as_array().unwrap().len(), 9);
}

/// A choice's text, and its tokens' texts together.
fn spelled(answer: &Value) -> (String, String) {
    let choice = &answer["choices"][0];
    let text = choice["text"].as_str().or(choice["message"]["content"].as_str()).unwrap();
    let chat = choice["logprobs"]["content"].as_array();
    let tokens = match chat {
        Some(content) => content.iter().map(|token| token["token"].as_str().unwrap()).collect(),
        None => {
            let tokens = choice["logprobs"]["tokens"].as_array().unwrap();
            tokens.iter().map(|token| token.as_str().unwrap()).collect()
        }
    };
    (text.to_owned(), tokens)
}

#[test]
fn logprobs_are_of_text_that_was_held_back_and_of_control_tokens_that_are_shown() {
    let mut body =
        json!({"messages": question("What is 17 + 25?"), "temperature": 0, "logprobs": true});
    let (text, _) = spelled(&post(server(), CHAT, &body).fine());
    // The text's end waits for more of a stop text, until the answer is over.
    body["stop"] = json!(format!("{}~", text.chars().last().unwrap()));
    assert_eq!(spelled(&post(server(), CHAT, &body).fine()), (text.clone(), text));

    let body = json!({
        "prompt": "What is 17 + 25?<|end|>", "parse_special": true, "temperature": 0,
        "logprobs": 1, "max_tokens": 60, "ignore_eos": true, "skip_special_tokens": false,
    });
    let (text, tokens) = spelled(&post(server(), COMPLETIONS, &body).fine());
    assert!(text.contains("<|"), "{text}");
    assert_eq!(tokens, text);
}

#[test]
fn tokens_begin_in_the_text_where_their_character_does() {
    let format = json!({"type": "json_schema", "json_schema": {
        "name": "x", "schema": {"const": "a☃b☃☃c"},
    }});
    let body = json!({
        "prompt": "Snow:", "response_format": format, "logprobs": 0, "max_tokens": 60,
    });
    let answer = post(server(), COMPLETIONS, &body).fine();
    let text = answer["choices"][0]["text"].as_str().unwrap();
    let logprobs = &answer["choices"][0]["logprobs"];
    let tokens = logprobs["tokens"].as_array().unwrap();
    assert!(tokens.len() > text.chars().count(), "a snowman is several tokens: {answer}");
    for (token, offset) in tokens.iter().zip(logprobs["text_offset"].as_array().unwrap()) {
        let rest: String = text.chars().skip(offset.as_u64().unwrap() as usize).collect();
        let token = token.as_str().unwrap();
        let fragment = token.contains('\u{fffd}') && rest.starts_with('☃');
        assert!(fragment || rest.starts_with(token), "{token:?} at {rest:?}");
    }
}

#[test]
fn an_echoed_prompt_comes_before_its_answer_with_the_log_probabilities_of_both() {
    let body = json!({"temperature": 0, "max_tokens": 8, "echo": true});
    let ask = |more: Value| post(server(), COMPLETIONS, &with(&body, &more)).fine();
    let prompt = "The dog had a ☃ in its garden. The dog";
    let plain = ask(json!({"prompt": prompt, "echo": false}));
    let answer = ask(json!({"prompt": prompt}));
    let said = plain["choices"][0]["text"].as_str().unwrap();
    assert_eq!(answer["choices"][0]["text"], format!("{prompt}{said}"));
    assert!(answer["choices"][0]["logprobs"].is_null());

    let scored = ask(json!({"prompt": [prompt, "Once"], "logprobs": 1, "n": 2}));
    let usage = &scored["usage"];
    let choices = scored["choices"].as_array().unwrap();
    assert_eq!(choices.len(), 4);
    assert!(choices[2]["text"].as_str().unwrap().starts_with("Once"));
    assert_eq!(choices[0]["text"], answer["choices"][0]["text"]);
    let logprobs = |name: &str| choices[0]["logprobs"][name].as_array().unwrap().clone();
    let (own, top) = (logprobs("token_logprobs"), logprobs("top_logprobs"));
    let count = plain["usage"]["prompt_tokens"].as_u64().unwrap() as usize;
    assert!(usage["prompt_tokens"].as_u64().unwrap() as usize > count);
    assert_eq!(own.len(), count + 8);
    assert!(own[0].is_null() && top[0].is_null());
    let tokens = logprobs("tokens");
    for (index, (own, top)) in own.iter().zip(&top).enumerate().skip(1) {
        let tops = top.as_object().unwrap().values().map(|top| top.as_f64().unwrap());
        let best = tops.fold(f64::NEG_INFINITY, f64::max);
        let (token, own) = (tokens[index].as_str().unwrap(), own.as_f64().unwrap());
        assert!(own <= best && best <= 0.0, "{own}, {best}");
        assert!(top[token] == own || token.contains('\u{fffd}'), "{token:?} in {top}");
        assert!(index < count || own == best, "greedy");
    }
    let text: Vec<char> = choices[0]["text"].as_str().unwrap().chars().collect();
    for (token, offset) in tokens.iter().zip(logprobs("text_offset")) {
        let rest: String = text[offset.as_u64().unwrap() as usize..].iter().collect();
        let token = token.as_str().unwrap();
        let fragment = token.contains('\u{fffd}') && rest.trim_start().starts_with('☃');
        assert!(fragment || rest.starts_with(token), "{token:?} at {rest:?}");
    }
}

#[test]
fn an_echoed_prompt_alone_has_the_text_of_its_tokens_but_for_control_tokens() {
    let body = json!({
        "prompt": "<|start|>user<|message|>Hi!<|end|>", "parse_special": true, "logprobs": 0,
        "max_tokens": 0, "echo": true,
    });
    let ask = |more: Value| {
        let answer = post(server(), COMPLETIONS, &with(&body, &more)).fine();
        assert_eq!(answer["usage"]["completion_tokens"], 0);
        answer["choices"][0].clone()
    };
    let (hidden, shown) = (ask(json!({})), ask(json!({"skip_special_tokens": false})));
    assert_eq!((&hidden["text"], &hidden["finish_reason"]), (&json!("userHi!"), &json!("length")));
    assert_eq!(shown["text"], "<|start|>user<|message|>Hi!<|end|>");
    assert_eq!(hidden["logprobs"]["token_logprobs"], shown["logprobs"]["token_logprobs"]);
    assert_eq!(hidden["logprobs"]["tokens"][0], "<|start|>");
    let offsets = |choice: &Value| choice["logprobs"]["text_offset"].as_array().unwrap().clone();
    assert_eq!(offsets(&hidden)[..2], [json!(0), json!(0)]);
    assert_eq!(offsets(&shown)[1], "<|start|>".len());
    let ids = post(server(), "/tokenize", &json!({"prompt": "Once upon a time"})).fine();
    let tokens = ask(json!({"prompt": ids["tokens"]}));
    assert_eq!(tokens["text"], "Once upon a time");
    let bare = ask(json!({"prompt": "Once upon a time", "add_special_tokens": false}));
    assert_eq!(bare["logprobs"], tokens["logprobs"]);
}

#[test]
fn beside_an_echo_the_token_that_ends_an_answer_is_reported_though_no_text_shows_it() {
    for skips in [true, false] {
        let body = json!({
            "prompt": "Once upon a time", "max_tokens": 500, "temperature": 0, "echo": true,
            "logprobs": 1, "skip_special_tokens": skips,
        });
        let answer = post(server(), COMPLETIONS, &body).fine();
        let count = answer["usage"]["total_tokens"].as_u64().unwrap() as usize;
        let choice = &answer["choices"][0];
        assert_eq!(choice["finish_reason"], "stop");
        let tokens = choice["logprobs"]["tokens"].as_array().unwrap();
        assert_eq!(tokens.len(), count);
        let last = tokens[count - 1].as_str().unwrap();
        assert!(last.starts_with("<|") && last.ends_with("|>"), "{last}");
        assert!(!choice["text"].as_str().unwrap().contains(last));
    }
}

#[test]
fn a_prompt_that_came_before_is_cached_and_the_answer_the_same() {
    let text = "There was a little dog who lived by the river. ".repeat(4);
    let body = json!({"prompt": text, "temperature": 0, "max_tokens": 8});
    let (first, second) =
        (post(server(), COMPLETIONS, &body).fine(), post(server(), COMPLETIONS, &body).fine());
    assert_eq!(first["choices"][0]["text"], second["choices"][0]["text"]);
    let cached = |answer: &Value| {
        answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap()
    };
    assert!(cached(&second) >= 16 && cached(&first) < cached(&second));
}

#[test]
fn a_connection_is_kept_and_a_request_keeps_its_name() {
    let mut connection = Connection::open(server());
    let body = json!({"prompt": "Once", "max_tokens": 1}).to_string();
    for name in ["first", "second"] {
        let header = format!("x-request-id: {name}\r\n");
        connection.send("POST", COMPLETIONS, &header, &body);
        let response = connection.response();
        response.fine();
        assert_eq!(response.head.header("x-request-id"), Some(name));
    }
    connection.send("GET", "/version", "", "");
    let response = connection.response();
    assert!(response.head.header("x-request-id").unwrap().starts_with("req-"));
    assert!(response.fine()["version"].is_string());
}
