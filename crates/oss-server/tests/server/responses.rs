//! The responses API.

use serde_json::{Value, json};

use crate::answers::{question, weather};
use crate::client::{get, post};
use crate::support::{server, with};

const PATH: &str = "/v1/responses";

/// The output without the names that differ each time.
fn output(response: &Value) -> Value {
    let mut output = response["output"].clone();
    for item in output.as_array_mut().unwrap() {
        let item = item.as_object_mut().unwrap();
        item.remove("id");
        item.remove("call_id");
    }
    output
}

#[test]
fn a_response_says_what_the_chat_says() {
    let body = json!({
        "input": "What is 17 + 25?", "instructions": "Answer with one word.", "temperature": 0,
        "reasoning": {"effort": "low"},
    });
    let got = post(server(), PATH, &body).fine();
    let messages = json!([
        {"role": "system", "content": "Answer with one word."},
        {"role": "user", "content": "What is 17 + 25?"},
    ]);
    let body = json!({"messages": messages, "temperature": 0, "reasoning_effort": "low"});
    let chat = post(server(), "/v1/chat/completions", &body).fine();
    let message = got["output"].as_array().unwrap().iter().find(|item| item["type"] == "message");
    let message = message.expect("a message");
    assert_eq!(message["content"][0]["text"], chat["choices"][0]["message"]["content"]);
    assert_eq!(got["status"], "completed");
    assert_eq!(got["store"], false);
    assert_eq!(got["usage"]["input_tokens"], chat["usage"]["prompt_tokens"]);
    assert_eq!(got["usage"]["output_tokens"], chat["usage"]["completion_tokens"]);
}

#[test]
fn the_events_of_a_response_end_with_the_whole_of_it() {
    let body = json!({"input": question("What is 17 + 25?"), "temperature": 0});
    let whole = post(server(), PATH, &body).fine();
    let mut streamed = body.clone();
    streamed["stream"] = json!(true);
    let response = post(server(), PATH, &streamed);
    let events: Vec<Value> =
        response.frames().iter().map(|frame| serde_json::from_str(frame).unwrap()).collect();
    let numbers: Vec<u64> =
        events.iter().map(|event| event["sequence_number"].as_u64().unwrap()).collect();
    assert_eq!(numbers, (0..events.len() as u64).collect::<Vec<_>>());
    assert_eq!(events[0]["type"], "response.created");
    let last = events.last().unwrap();
    assert_eq!(last["type"], "response.completed");
    assert_eq!(output(&last["response"]), output(&whole));
    for (kind, item) in [("response.reasoning_text.delta", 0), ("response.output_text.delta", 1)] {
        let deltas = events.iter().filter(|event| event["type"] == kind);
        let text: String = deltas.map(|event| event["delta"].as_str().unwrap()).collect();
        assert_eq!(text, whole["output"][item]["content"][0]["text"]);
    }
    let named = response.body.lines().filter(|line| line.starts_with("event: ")).count();
    assert_eq!(named, events.len());
}

#[test]
fn what_a_response_repeats_is_the_same_in_all_its_events() {
    let tool = json!({
        "type": "function", "name": "f", "parameters": {"enum": ["\"", "☃", 1.50, null]},
    });
    let given = json!({
        "instructions": "Say \"yes\".", "metadata": {"a": "b\n"}, "tools": [tool], "user": "me",
        "tool_choice": "none", "temperature": 0.5, "max_output_tokens": 2,
    });
    let body = with(&json!({"input": "Hi", "stream": true}), &given);
    let frames = post(server(), PATH, &body).frames();
    let events: Vec<Value> =
        frames.iter().map(|frame| serde_json::from_str(frame).unwrap()).collect();
    let mut responses: Vec<Value> =
        events.iter().filter_map(|event| event.get("response").cloned()).collect();
    assert_eq!(responses.len(), 3);
    responses.push(post(server(), PATH, &with(&body, &json!({"stream": false}))).fine());
    for response in &responses {
        for (name, value) in given.as_object().unwrap() {
            assert_eq!(&response[name], value, "{response}");
        }
        assert_eq!(response["reasoning"], json!({"effort": null, "summary": null}));
        assert_eq!(response["object"], "response");
    }
    assert!(responses[..3].iter().all(|response| response["id"] == responses[0]["id"]));
    let statuses = responses.iter().map(|response| response["status"].as_str().unwrap());
    let expected = ["in_progress", "in_progress", "incomplete", "incomplete"];
    assert_eq!(statuses.collect::<Vec<_>>(), expected);
}

#[test]
fn a_call_and_its_result_go_round_as_items() {
    let tool = json!({
        "type": "function", "name": "get_weather", "description": "Tells the weather of a city.",
        "parameters": weather()[0]["function"]["parameters"],
    });
    let question = json!({"role": "user", "content": "How is the weather in Lisbon?"});
    let body = json!({"input": [question], "tools": [tool], "temperature": 0});
    let got = post(server(), PATH, &body).fine();
    let items = got["output"].as_array().unwrap().clone();
    let call = items.iter().find(|item| item["type"] == "function_call").expect("a call").clone();
    assert_eq!(call["arguments"], "{\"city\":\"Lisbon\"}");
    let result = json!({
        "type": "function_call_output", "call_id": call["call_id"], "output": "{\"sky\":\"sunny\"}",
    });
    let input: Vec<Value> = [vec![question], items, vec![result]].concat();
    let body = json!({"input": input, "tools": [tool], "temperature": 0});
    let got = post(server(), PATH, &body).fine();
    let says = got["output"].as_array().unwrap().iter().any(|item| item["type"] == "message");
    assert!(says, "{got}");
}

#[test]
fn encrypted_reasoning_may_be_asked_for_as_it_comes_openly() {
    let body = |include: Value| json!({"input": "Hi", "max_output_tokens": 1, "include": include});
    post(server(), PATH, &body(json!(["reasoning.encrypted_content"]))).fine();
    let refused = post(server(), PATH, &body(json!(["message.output_text.logprobs"])));
    assert_eq!(refused.status(), 400);
    assert_eq!(refused.json()["error"]["param"], "include");
}

#[test]
fn nothing_is_kept_and_a_limit_makes_a_response_incomplete() {
    for (field, value) in [
        ("previous_response_id", json!("resp_1")),
        ("conversation", json!("conv_1")),
        ("background", json!(true)),
        ("truncation", json!("auto")),
    ] {
        let response = post(server(), PATH, &json!({"input": "Hi", field: value}));
        assert_eq!(response.status(), 400, "{field}");
        assert_eq!(response.json()["error"]["param"], field);
    }
    let text = json!({"verbosity": "high"});
    let response = post(server(), PATH, &json!({"input": "Hi", "text": text}));
    let param = &response.json()["error"]["param"];
    assert_eq!((response.status(), param), (400, &json!("text.verbosity")));
    // Gateways write what OpenAI takes for left out.
    let stored = json!({"input": "Hi", "store": true, "max_tokens": 3});
    let answer = post(server(), PATH, &stored).fine();
    assert_eq!((&answer["store"], &answer["usage"]["output_tokens"]), (&json!(false), &json!(3)));
    let kept = get(server(), "/v1/responses/resp_1");
    assert_eq!(kept.status(), 404);
    assert_eq!(kept.json()["error"]["code"], "not_stored");
    let cut = post(server(), PATH, &json!({"input": "Hi", "max_output_tokens": 3})).fine();
    assert_eq!(cut["status"], "incomplete");
    assert_eq!(cut["incomplete_details"]["reason"], "max_output_tokens");
}

#[test]
fn a_call_that_the_limit_cuts_is_incomplete_and_a_whole_one_is_not() {
    let tool = json!({"type": "function", "name": "get_weather", "parameters": {
        "type": "object", "properties": {"city": {"type": "string", "minLength": 3}},
        "required": ["city"],
    }});
    for (limit, status) in [(2, "incomplete"), (200, "completed")] {
        let body = json!({
            "input": "How is the weather in Lisbon?", "tools": [tool], "temperature": 0,
            "tool_choice": {"type": "function", "name": "get_weather"},
            "max_output_tokens": limit,
        });
        let whole = post(server(), PATH, &body).fine();
        assert_eq!(whole["status"], status, "{whole}");
        assert_eq!(whole["output"][0]["type"], "function_call");
        assert_eq!(whole["output"][0]["status"], status, "{whole}");
        let mut streamed = body.clone();
        streamed["stream"] = json!(true);
        let frames = post(server(), PATH, &streamed).frames();
        let events: Vec<Value> =
            frames.iter().map(|frame| serde_json::from_str(frame).unwrap()).collect();
        let last = &events.last().unwrap()["response"];
        assert_eq!(output(last), output(&whole));
        let done = events.iter().find(|event| event["type"] == "response.output_item.done");
        assert_eq!(done.unwrap()["item"]["status"], status);
    }
}
