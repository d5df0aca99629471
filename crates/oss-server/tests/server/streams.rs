//! Streams join to the whole answers, and end with whoever reads them.

use std::time::Duration;

use serde_json::{Value, json};

use crate::answers::{question, weather};
use crate::client::{Connection, post};
use crate::support::{endless, engine_options, load, server, server_options, start, with, within};

/// The chunks of a stream, whose end has to be right.
fn chunks(path: &str, body: &Value) -> Vec<Value> {
    let response = post(server(), path, body);
    assert_eq!(response.status(), 200, "{}", response.body);
    assert_eq!(response.head.header("content-type"), Some("text/event-stream"));
    let mut frames = response.frames();
    assert_eq!(frames.pop().as_deref(), Some("[DONE]"));
    frames.iter().map(|frame| serde_json::from_str(frame).expect("JSON")).collect()
}

fn joined(chunks: &[Value], field: impl Fn(&Value) -> &Value) -> String {
    let texts = chunks.iter().filter_map(|chunk| field(&chunk["choices"][0]).as_str());
    texts.collect()
}

#[test]
fn the_chunks_of_a_chat_join_to_the_whole_answer() {
    let path = "/v1/chat/completions";
    let body = json!({
        "messages": question("What is 17 + 25?"), "temperature": 0, "logprobs": true,
    });
    let whole = post(server(), path, &body).fine();
    let stream = json!({"stream": true, "stream_options": {"include_usage": true}});
    let mut chunks = chunks(path, &with(&body, &stream));
    let last = chunks.pop().unwrap();
    assert_eq!(last["choices"], json!([]));
    assert_eq!(last["usage"]["total_tokens"], whole["usage"]["total_tokens"]);
    assert!(chunks.iter().all(|chunk| chunk.get("usage") == Some(&Value::Null)));
    assert!(chunks.iter().all(|chunk| chunk["id"] == last["id"]));
    // Who times the first chunk times the first token: it says more than whose it is.
    let first = &chunks[0]["choices"][0]["delta"];
    assert_eq!(first["role"], "assistant");
    assert!(first["reasoning"].as_str().is_some_and(|text| !text.is_empty()), "{first}");
    let has_role = |chunk: &&Value| chunk["choices"][0]["delta"].get("role").is_some();
    assert_eq!(chunks.iter().filter(has_role).count(), 1);
    let message = &whole["choices"][0]["message"];
    assert_eq!(joined(&chunks, |choice| &choice["delta"]["content"]), message["content"]);
    assert_eq!(joined(&chunks, |choice| &choice["delta"]["reasoning"]), message["reasoning"]);
    assert_eq!(joined(&chunks, |choice| &choice["finish_reason"]), "stop");
    let logprobs = chunks
        .iter()
        .filter_map(|chunk| chunk["choices"][0]["logprobs"]["content"].as_array().cloned());
    let logprobs: Vec<Value> = logprobs.flatten().collect();
    assert_eq!(json!(logprobs), whole["choices"][0]["logprobs"]["content"]);
}

#[test]
fn the_chunks_of_a_completion_join_to_the_whole_answer() {
    let path = "/v1/completions";
    let body = json!({"prompt": "Once upon a time", "temperature": 0.9, "seed": 3, "n": 2});
    for more in [json!({}), json!({"echo": true}), json!({"echo": true, "logprobs": 1})] {
        let body = with(&body, &more);
        let whole = post(server(), path, &body).fine();
        let chunks = chunks(path, &with(&body, &json!({"stream": true})));
        assert!(chunks.iter().all(|chunk| chunk.get("usage").is_none()));
        for index in 0..2 {
            let own = || chunks.iter().filter(|chunk| chunk["choices"][0]["index"] == index);
            let own = || own().map(|chunk| &chunk["choices"][0]);
            let text: String = own().filter_map(|choice| choice["text"].as_str()).collect();
            assert_eq!(text, whole["choices"][index]["text"]);
            let tops = own().filter_map(|choice| choice["logprobs"]["top_logprobs"].as_array());
            let tops: Vec<Value> = tops.flatten().cloned().collect();
            let expected = &whole["choices"][index]["logprobs"]["top_logprobs"];
            assert_eq!(tops, expected.as_array().cloned().unwrap_or_default());
        }
    }
}

#[test]
fn an_answer_that_shows_nothing_has_a_role_all_the_same() {
    let body = json!({
        "messages": question("What is 17 + 25?"), "include_reasoning": false, "max_tokens": 2,
        "n": 2, "stream": true,
    });
    let chunks = chunks("/v1/chat/completions", &body);
    let choices: Vec<&Value> = chunks.iter().map(|chunk| &chunk["choices"][0]).collect();
    assert_eq!(choices.len(), 2, "{choices:?}");
    assert!(choices.iter().all(|choice| choice["delta"] == json!({"role": "assistant"})));
    assert!(choices.iter().all(|choice| choice["finish_reason"] == "length"));
}

#[test]
fn silence_is_broken_by_a_comment_unless_none_are_wanted() {
    let body = json!({
        "prompt": "Once upon a time ".repeat(500), "max_tokens": 1, "stream": true,
    });
    for (heartbeat, comes) in [(Duration::from_millis(2), true), (Duration::ZERO, false)] {
        let options = oss_server::ServerOptions { heartbeat, ..server_options() };
        let running = start(options, engine_options());
        let stream = post(running.address, "/v1/completions", &body).body;
        assert_eq!(stream.contains(": keep-alive\n\n"), comes, "{stream}");
        assert!(stream.ends_with("data: [DONE]\n\n"));
    }
}

#[test]
fn a_call_comes_in_pieces_that_join_to_it() {
    let body = json!({
        "messages": question("How is the weather in Lisbon?"), "tools": weather(),
        "temperature": 0, "stream": true,
    });
    let chunks = chunks("/v1/chat/completions", &body);
    let calls: Vec<&Value> = chunks
        .iter()
        .map(|chunk| &chunk["choices"][0]["delta"]["tool_calls"][0])
        .filter(|call| !call.is_null())
        .collect();
    assert_eq!(calls[0]["function"]["name"], "get_weather");
    assert_eq!(calls[0]["type"], "function");
    assert!(calls[0]["id"].as_str().is_some_and(|id| id.starts_with("call_")));
    assert!(calls.len() > 2 && calls[1..].iter().all(|call| call.get("id").is_none()));
    let arguments = calls.iter().filter_map(|call| call["function"]["arguments"].as_str());
    assert_eq!(arguments.collect::<String>(), "{\"city\":\"Lisbon\"}");
    assert_eq!(joined(&chunks, |choice| &choice["finish_reason"]), "tool_calls");
}

#[test]
fn a_client_that_goes_takes_its_request_with_it_within_a_second() {
    let running = start(server_options(), engine_options());
    let address = running.address;
    for stream in [true, false] {
        let mut connection = Connection::open(address);
        connection.send("POST", "/v1/completions", "", &endless(stream).to_string());
        if stream {
            assert_eq!(connection.head().status, 200);
            assert!(connection.chunk().is_some());
        }
        within(Duration::from_secs(10), "it runs", || load(address)["num_running_reqs"] == 1);
        drop(connection);
        let free = || load(address)["num_running_reqs"] == 0;
        within(Duration::from_secs(1), "it runs no more", free);
        assert_eq!(load(address)["num_used_tokens"], 0);
    }
    running.handle.drain();
    assert!(running.ended().is_none());
}
