//! Prompts as tokens, without an answer.

use oss_engine::{ChatRequest, Message, Request, Tool};
use serde_json::{Value, json};

use crate::answers::{question, weather};
use crate::client::post;
use crate::support::{engine, server};

fn ids(value: &Value) -> Vec<u32> {
    serde_json::from_value(value.clone()).expect("a list of tokens")
}

#[test]
fn a_rendered_chat_is_the_prompt_that_is_used() {
    let text = "Is this <|end|> a control token?";
    let body = json!({
        "messages": question(text), "tools": weather(), "reasoning_effort": "high",
    });
    let got = ids(&post(server(), "/v1/chat/completions/render", &body).fine()["token_ids"]);
    let tools: Vec<Tool> = serde_json::from_value(weather()).unwrap();
    let effort = serde_json::from_value(json!("high")).unwrap();
    let chat = ChatRequest {
        tools,
        reasoning_effort: Some(effort),
        ..ChatRequest::new(vec![Message::user(text)])
    };
    let stream = engine().submit(Request::chat(chat).max_tokens(1)).unwrap();
    assert_eq!(got, stream.prompt_token_ids());
    let answer = post(server(), "/v1/chat/completions", &body).fine();
    assert_eq!(answer["usage"]["prompt_tokens"], got.len());
    let tokenized = post(server(), "/tokenize", &body).fine();
    assert_eq!(ids(&tokenized["tokens"]), got);
    assert_eq!(tokenized["count"], got.len());
}

#[test]
fn a_responses_tokens_are_counted_as_they_are_used() {
    let body = json!({"input": "Is this <|end|> a control token?", "instructions": "Be brief."});
    let got = post(server(), "/v1/responses/input_tokens", &body).fine();
    assert_eq!(got["object"], "response.input_tokens");
    let answer = post(server(), "/v1/responses", &body).fine();
    assert!(got["input_tokens"].as_u64().unwrap() > 10, "{got}");
    assert_eq!(answer["usage"]["input_tokens"], got["input_tokens"]);
}

#[test]
fn rendered_completions_are_one_list_of_tokens_each() {
    let body = json!({"prompt": ["Once upon", "One day"]});
    let got = post(server(), "/v1/completions/render", &body).fine();
    for (index, text) in ["Once upon", "One day"].into_iter().enumerate() {
        let stream = engine().submit(Request::text(text).max_tokens(1)).unwrap();
        assert_eq!(ids(&got[index]["token_ids"]), stream.prompt_token_ids());
    }
    assert_eq!(got.as_array().unwrap().len(), 2);
}

#[test]
fn what_is_tokenized_is_text_again_and_control_tokens_only_on_demand() {
    let text = "Once <|end|> upon";
    let body = json!({"prompt": text, "return_token_strs": true});
    let plain = post(server(), "/tokenize", &body).fine();
    assert_eq!(plain["max_model_len"], engine().context_len());
    let texts: Vec<String> = serde_json::from_value(plain["token_strs"].clone()).unwrap();
    assert_eq!(texts.concat(), text);
    let null = json!({"prompt": text, "messages": null});
    assert_eq!(post(server(), "/tokenize", &null).fine()["tokens"], plain["tokens"]);
    let special = json!({"prompt": text, "parse_special": true});
    let parsed = post(server(), "/tokenize", &special).fine();
    assert!(ids(&parsed["tokens"]).len() < ids(&plain["tokens"]).len());
    for tokens in [&plain["tokens"], &parsed["tokens"]] {
        let back = post(server(), "/detokenize", &json!({"tokens": tokens})).fine();
        assert_eq!(back["prompt"], text);
    }
}
