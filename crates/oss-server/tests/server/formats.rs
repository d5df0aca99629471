//! Answers of a given form, on every route that takes one.

use serde_json::{Value, json};

use crate::answers::question;
use crate::client::post;
use crate::support::{server, with};

const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";
const RESPONSES: &str = "/v1/responses";

fn schema() -> Value {
    json!({
        "type": "object", "required": ["city", "degrees"], "additionalProperties": false,
        "properties": {
            "city": {"type": "string", "maxLength": 12},
            "degrees": {"type": "integer", "minimum": -50, "maximum": 50},
        },
    })
}

fn nested() -> Value {
    json!({"type": "json_schema", "json_schema": {
        "name": "weather", "strict": true, "schema": schema(),
    }})
}

fn flat() -> Value {
    json!({"type": "json_schema", "name": "weather", "strict": true, "schema": schema()})
}

/// A text that fits the schema.
fn fits(text: &Value) {
    let value: Value = serde_json::from_str(text.as_str().unwrap()).unwrap();
    let fields = value.as_object().unwrap();
    assert_eq!(fields.keys().collect::<Vec<_>>(), ["city", "degrees"], "{value}");
    assert!(fields["city"].as_str().unwrap().chars().count() <= 12, "{value}");
    assert!((-50..=50).contains(&fields["degrees"].as_i64().unwrap()), "{value}");
}

#[test]
fn a_chat_completion_fits_its_schema_whole_and_streamed() {
    for seed in 0..4 {
        let body = json!({
            "messages": question("How is the weather in Rome?"), "response_format": nested(),
            "temperature": 1, "seed": seed, "max_tokens": 300,
        });
        let answer = post(server(), CHAT, &body).fine();
        let message = &answer["choices"][0]["message"];
        assert_eq!(answer["choices"][0]["finish_reason"], "stop", "{answer}");
        fits(&message["content"]);
        let streamed = post(server(), CHAT, &with(&body, &json!({"stream": true})));
        let chunks = streamed.frames();
        let chunks = chunks.iter().filter_map(|chunk| serde_json::from_str::<Value>(chunk).ok());
        let text: String = chunks
            .filter_map(|chunk| chunk["choices"][0]["delta"]["content"].as_str().map(str::to_owned))
            .collect();
        assert_eq!(message["content"], text);
    }
}

#[test]
fn the_model_is_told_the_schema() {
    let prompt = |format: Value| {
        let body = json!({"messages": question("How is the weather?"), "response_format": format});
        let rendered = post(server(), "/v1/chat/completions/render", &body).fine();
        let tokens = json!({"tokens": rendered["token_ids"]});
        let text = post(server(), "/detokenize", &tokens).fine();
        text["prompt"].as_str().unwrap().to_owned()
    };
    let told = prompt(nested());
    let section = format!("# Response Formats\n\n## weather\n\n{}", schema());
    assert!(told.contains(&section), "{told}");
    assert!(!prompt(json!({"type": "json_object"})).contains("# Response Formats"));
}

#[test]
fn several_choices_fit_and_any_object_is_one() {
    let body = json!({
        "messages": question("How is the weather in Rome?"), "n": 4, "seed": 2,
        "max_tokens": 300, "temperature": 1, "response_format": nested(),
    });
    let answer = post(server(), CHAT, &body).fine();
    for choice in answer["choices"].as_array().unwrap() {
        fits(&choice["message"]["content"]);
    }
    let body = with(&body, &json!({"n": 1, "response_format": {"type": "json_object"}}));
    let answer = post(server(), CHAT, &body).fine();
    let choice = &answer["choices"][0];
    let text = choice["message"]["content"].as_str().unwrap();
    match choice["finish_reason"].as_str().unwrap() {
        "stop" => assert!(serde_json::from_str::<Value>(text).unwrap().is_object(), "{text}"),
        _ => assert!(text.starts_with('{'), "{text}"),
    }
}

#[test]
fn a_schema_beside_json_object_counts() {
    let format = json!({"type": "json_object", "schema": schema()});
    let body = json!({
        "messages": question("How is the weather in Rome?"), "response_format": format,
        "temperature": 1, "seed": 1, "max_tokens": 300,
    });
    fits(&post(server(), CHAT, &body).fine()["choices"][0]["message"]["content"]);
}

#[test]
fn a_completion_fits_its_schema() {
    let body = json!({
        "prompt": "The weather:", "response_format": nested(), "temperature": 1, "seed": 3,
        "max_tokens": 300,
    });
    let answer = post(server(), COMPLETIONS, &body).fine();
    assert_eq!(answer["choices"][0]["finish_reason"], "stop", "{answer}");
    fits(&answer["choices"][0]["text"]);
}

#[test]
fn a_response_fits_its_format_and_repeats_it() {
    let body = json!({
        "input": "How is the weather in Rome?", "text": {"format": flat()}, "temperature": 1,
        "max_output_tokens": 300,
    });
    let answer = post(server(), RESPONSES, &body).fine();
    assert_eq!(answer["status"], "completed", "{answer}");
    let message = answer["output"].as_array().unwrap().iter().find(|i| i["type"] == "message");
    fits(&message.unwrap()["content"][0]["text"]);
    assert_eq!(answer["text"]["format"], flat());
    let plain = json!({"input": "Hi", "max_output_tokens": 1, "text": {"format": null}});
    let plain = post(server(), RESPONSES, &plain).fine();
    assert_eq!(plain["text"], json!({"format": {"type": "text"}}));
}

fn tools(strict: bool) -> Value {
    let tool = |name: &str| {
        json!({"type": "function", "function": {
            "name": name, "description": "Tells it.", "strict": strict, "parameters": schema(),
        }})
    };
    json!([tool("weather_now"), tool("weather_then")])
}

#[test]
fn a_required_call_comes_with_arguments_that_fit() {
    for (seed, strict) in [(1, true), (2, false), (3, true)] {
        let body = json!({
            "messages": question("Hello!"), "tools": tools(strict), "tool_choice": "required",
            "temperature": 1, "seed": seed, "max_tokens": 300,
        });
        let answer = post(server(), CHAT, &body).fine();
        let choice = &answer["choices"][0];
        assert_eq!(choice["finish_reason"], "tool_calls", "{answer}");
        let calls = choice["message"]["tool_calls"].as_array().unwrap();
        assert_eq!(calls.len(), 1, "{answer}");
        fits(&calls[0]["function"]["arguments"]);
    }
    let function = json!({"type": "function", "name": "weather_then"});
    let mut flat = tools(true);
    for tool in flat.as_array_mut().unwrap() {
        let function = tool["function"].clone();
        *tool = with(&json!({"type": "function"}), &function);
    }
    let body = json!({
        "input": "Hello!", "tools": flat, "tool_choice": function, "max_output_tokens": 200,
    });
    let answer = post(server(), RESPONSES, &body).fine();
    let [call] = answer["output"].as_array().unwrap().as_slice() else { panic!("{answer}") };
    assert_eq!(call["name"], "weather_then");
    fits(&call["arguments"]);
}

#[test]
fn formats_that_cannot_be_held_are_refused_by_name() {
    let wrong = |schema: Value| {
        let schema = json!({"name": "x", "schema": schema});
        json!({"type": "json_schema", "json_schema": schema})
    };
    let chat = |more: Value| with(&json!({"messages": question("Hi"), "max_tokens": 1}), &more);
    let completion = |more: Value| with(&json!({"prompt": "x", "max_tokens": 1}), &more);
    let response = |format: Value| json!({"input": "Hi", "text": {"format": format}});
    let broken = json!({"type": "strin"});
    let exotic = json!({"type": "object", "propertyNames": {"pattern": "a"}});
    let flat = |schema: &Value| json!({"type": "json_schema", "name": "x", "schema": schema});
    let mut odd = tools(true);
    odd[0]["function"]["parameters"] = exotic.clone();
    let format = "response_format";
    let table = [
        (CHAT, chat(json!({format: wrong(broken.clone())})), format, "strin"),
        (CHAT, chat(json!({format: wrong(exotic.clone())})), format, "propertyNames"),
        (CHAT, chat(json!({format: "json"})), format, "expected"),
        (CHAT, chat(json!({format: {"type": "xml"}})), "response_format.type", "json_object"),
        (
            CHAT,
            chat(json!({format: {"type": "json_schema"}})),
            "response_format.json_schema",
            "got nothing",
        ),
        (
            CHAT,
            chat(json!({format: {"type": "json_schema", "json_schema": {"name": "x"}}})),
            "response_format.json_schema.schema",
            "got nothing",
        ),
        (CHAT, chat(json!({"tools": odd})), "tools", "weather_now"),
        (CHAT, chat(json!({"tool_choice": "required"})), "tool_choice", "tools to choose from"),
        (COMPLETIONS, completion(json!({format: wrong(broken.clone())})), format, "strin"),
        (COMPLETIONS, completion(json!({format: {"type": 3}})), "response_format.type", "got 3"),
        (RESPONSES, response(flat(&broken)), "text.format", "strin"),
        (RESPONSES, response(flat(&exotic)), "text.format", "propertyNames"),
        (RESPONSES, response(nested()), "text.format.schema", "got nothing"),
        (RESPONSES, response(json!({"type": "grammar"})), "text.format.type", "json_schema"),
    ];
    for (path, body, param, said) in table {
        let answer = post(server(), path, &body);
        assert_eq!(answer.status(), 400, "{body}: {}", answer.body);
        let error = answer.json()["error"].clone();
        assert_eq!(error["param"], param, "{error}");
        assert_eq!(error["type"], "invalid_request_error");
        assert!(error["message"].as_str().unwrap().contains(said), "{error}");
    }
}
