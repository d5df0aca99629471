//! What is refused, and how it is said.

use serde_json::{Map, Value, json};

use crate::answers::question;
use crate::client::{Connection, get, post};
use crate::support::{bare, engine_options, server, server_options, start, with};

const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";
const RESPONSES: &str = "/v1/responses";

/// Status, and the field that an error is about.
fn refused(path: &str, body: &Value) -> (u16, Value) {
    let response = post(server(), path, body);
    let error = response.json()["error"].clone();
    for field in ["message", "type"] {
        assert!(error[field].is_string(), "{}", response.body);
    }
    (response.status(), error["param"].clone())
}

#[test]
fn a_request_that_cannot_be_served_is_told_which_field_is_at_fault() {
    let body = json!({"messages": question("Hi"), "max_tokens": 1});
    let chat = |more: Value| (CHAT, with(&body, &more));
    let image = json!([{"role": "user", "content": [
        {"type": "text", "text": "What is this?"},
        {"type": "image_url", "image_url": {"url": "data:,"}},
    ]}]);
    let prompts = vec![vec![1; 400]; 128];
    let echoed = json!({"prompt": prompts, "echo": true, "logprobs": 20, "max_tokens": 0});
    let stops: Vec<u32> = (0..257).collect();
    let biases: Map<String, Value> = (0..1025).map(|id| (id.to_string(), json!(1))).collect();
    let pairs: Map<String, Value> = (0..17).map(|key| (key.to_string(), json!("x"))).collect();
    let table = [
        (chat(json!({"messages": null})), "messages"),
        (chat(json!({"messages": []})), "messages"),
        (chat(json!({"messages": image})), "messages[0]"),
        (chat(json!({"messages": [{"role": "wizard", "content": "Hi"}]})), "messages[0]"),
        (chat(json!({"messages": [{"role": "tool", "content": "4"}]})), "messages"),
        (chat(json!({"temperature": "hot"})), "temperature"),
        (chat(json!({"temperature": -1})), "temperature"),
        (chat(json!({"top_p": 2})), "top_p"),
        (chat(json!({"n": 0})), "n"),
        (chat(json!({"max_tokens": 0})), "max_tokens"),
        (chat(json!({"max_tokens": 1.5})), "max_tokens"),
        (chat(json!({"logit_bias": {"x": 1}})), "logit_bias"),
        (chat(json!({"logit_bias": {"999999": 1}})), "logit_bias"),
        (chat(json!({"logit_bias": biases})), "logit_bias"),
        (chat(json!({"logprobs": true, "top_logprobs": 21})), "top_logprobs"),
        (chat(json!({"top_logprobs": 2})), "top_logprobs"),
        (chat(json!({"functions": [{"name": "f"}]})), "functions"),
        (chat(json!({"function_call": "auto"})), "function_call"),
        (chat(json!({"tools": [{"type": "web_search"}]})), "tools[0]"),
        (chat(json!({"tools": [{"type": "function", "function": {"name": "a b"}}]})), "tools"),
        (chat(json!({"tool_choice": "required"})), "tool_choice"),
        (
            chat(json!({"tool_choice": {"type": "function", "function": {"name": "f"}}})),
            "tool_choice",
        ),
        (chat(json!({"modalities": ["text", "audio"]})), "modalities"),
        (chat(json!({"reasoning_effort": "none"})), "reasoning_effort"),
        (chat(json!({"stream_options": {"include_usage": true}})), "stream_options"),
        (chat(json!({"stop": 3})), "stop"),
        (chat(json!({"stop": "x".repeat(1025)})), "stop"),
        (chat(json!({"stop_token_ids": stops})), "stop_token_ids"),
        (chat(json!({"min_tokens": 9, "max_tokens": 8})), "min_tokens"),
        (chat(json!({"presence_penalty": 101})), "presence_penalty"),
        (chat(json!({"frequency_penalty": -1e30})), "frequency_penalty"),
        (chat(json!({"repetition_penalty": 1e-30})), "repetition_penalty"),
        (chat(json!({"chat_template_kwargs": {"enable_thinking": false}})), "chat_template_kwargs"),
        (
            chat(json!({"chat_template_kwargs": {"reasoning_effort": "max"}})),
            "chat_template_kwargs.reasoning_effort",
        ),
        (chat(json!({"store": "yes"})), "store"),
        (chat(json!({"regex": "[0-9]{4}"})), "regex"),
        (chat(json!({"ebnf": "root ::= \"a\""})), "ebnf"),
        (chat(json!({"best_of": 4})), "best_of"),
        (chat(json!({"no_stop_trim": true})), "no_stop_trim"),
        (chat(json!({"skip_special_tokens": false})), "skip_special_tokens"),
        (chat(json!({"cache_salt": "x"})), "cache_salt"),
        (chat(json!({"repeat_penalty": 1.1})), "repeat_penalty"),
        (chat(json!({"xtc_probability": 0.5})), "xtc_probability"),
        (chat(json!({"mirostat": 2})), "mirostat"),
        (chat(json!({"mirostat_mode": 1})), "mirostat_mode"),
        (chat(json!({"top_n_sigma": 1.0})), "top_n_sigma"),
        (chat(json!({"dynatemp_range": 0.5})), "dynatemp_range"),
        (chat(json!({"tfs_z": 0.9})), "tfs_z"),
        (chat(json!({"top_a": 0.2})), "top_a"),
        (chat(json!({"no_repeat_ngram_size": 3})), "no_repeat_ngram_size"),
        (
            chat(json!({"dry_multiplier": 1, "dry_sequence_breakers": ["."]})),
            "dry_sequence_breakers",
        ),
        (chat(json!({"dry_multiplier": -1})), "dry_multiplier"),
        (chat(json!({"dry_base": 0.5})), "dry_base"),
        (chat(json!({"dry_allowed_length": 0})), "dry_allowed_length"),
        (chat(json!({"dry_penalty_last_n": -2})), "dry_penalty_last_n"),
        (chat(json!({"repeat_last_n": -2})), "repeat_last_n"),
        (chat(json!({"length_penalty": 0.5})), "length_penalty"),
        (chat(json!({"return_tokens_as_token_ids": true})), "return_tokens_as_token_ids"),
        (chat(json!({"separate_reasoning": false})), "separate_reasoning"),
        (chat(json!({"add_special_tokens": true})), "add_special_tokens"),
        ((COMPLETIONS, json!({})), "prompt"),
        ((COMPLETIONS, json!({"prompt": ""})), "prompt"),
        ((COMPLETIONS, json!({"prompt": []})), "prompt"),
        ((COMPLETIONS, json!({"prompt": {"text": "x"}})), "prompt"),
        ((COMPLETIONS, json!({"prompt": [99_999_999]})), "prompt"),
        ((COMPLETIONS, json!({"prompt": "x", "echo": 1})), "echo"),
        ((COMPLETIONS, echoed), "logprobs"),
        ((COMPLETIONS, json!({"prompt": "x", "suffix": "y"})), "suffix"),
        ((COMPLETIONS, json!({"prompt": "x", "best_of": 3})), "best_of"),
        ((COMPLETIONS, json!({"prompt": "x", "guided_regex": "a+"})), "guided_regex"),
        ((COMPLETIONS, json!({"prompt": "x", "json_schema": "{}"})), "json_schema"),
        (("/detokenize", json!({"tokens": [99_999_999]})), "tokens"),
        (("/tokenize", json!({})), "prompt"),
        (("/tokenize", json!({"messages": [{"role": "tool", "content": "4"}]})), "messages"),
        ((RESPONSES, json!({"input": "Hi", "reasoning": {"effort": 3}})), "reasoning.effort"),
        ((RESPONSES, json!({"input": "Hi", "user": [1, 2, 3]})), "user"),
        ((RESPONSES, json!({"input": "Hi", "safety_identifier": 7})), "safety_identifier"),
        ((RESPONSES, json!({"input": "Hi", "metadata": {"a": 1}})), "metadata"),
        ((RESPONSES, json!({"input": "Hi", "metadata": pairs})), "metadata"),
        ((RESPONSES, json!({"input": "Hi", "metadata": {"k".repeat(65): ""}})), "metadata"),
        ((RESPONSES, json!({"input": "Hi", "metadata": {"k": "v".repeat(513)}})), "metadata"),
        (
            (RESPONSES, json!({"input": "Hi", "reasoning": {"summary": "detailed"}})),
            "reasoning.summary",
        ),
    ];
    for ((path, body), param) in table {
        assert_eq!(refused(path, &body), (400, json!(param)), "{body}");
    }
}

#[test]
fn an_unknown_tool_choice_is_told_all_that_there_are() {
    let body = json!({"messages": question("Hi"), "tool_choice": "sometimes"});
    let message = post(server(), CHAT, &body).json()["error"]["message"].clone();
    let expected = "tool_choice: got \"sometimes\", expected auto, none, required or a function";
    assert_eq!(message, expected);
}

#[test]
fn errors_are_short_whatever_is_at_fault() {
    let long = "x".repeat(100_000);
    let chat = |more: Value| (CHAT, with(&json!({"messages": question("Hi")}), &more));
    for (path, body) in [
        chat(json!({"temperature": long})),
        chat(json!({"model": long})),
        chat(json!({"reasoning_effort": long})),
        chat(json!({"logit_bias": {long.as_str(): 1}})),
        chat(json!({"logit_bias": {long.as_str(): "a lot"}})),
        chat(json!({"tool_choice": {"type": long}})),
        (RESPONSES, json!({"input": [{"type": long}]})),
    ] {
        let response = post(server(), path, &body);
        assert!((400..=404).contains(&response.status()), "{}", response.status());
        let error = response.json()["error"].clone();
        for said in [&error["message"], &error["param"]] {
            let length = said.as_str().unwrap().chars().count();
            assert!(length <= 600, "{length} characters");
        }
    }
    let (path, body) = chat(json!({"temperature": long}));
    let message = post(server(), path, &body).json()["error"]["message"].clone();
    let message = message.as_str().unwrap();
    assert!(message.starts_with("temperature: invalid type: string \"xxx"), "{message}");
    assert!(message.contains("x…x") && message.ends_with("xxx\", expected f32"), "{message}");
}

#[test]
fn what_gateways_add_and_what_nobody_knows_is_accepted() {
    let body = json!({
        "model": "", "messages": question("Hi"), "max_tokens": 1, "stream": false,
        "stream_options": null, "logprobs": false, "top_logprobs": null, "echo": false, "n": null,
        "stop": null, "tools": null, "tool_choice": null, "response_format": {"type": "text"},
        "modalities": ["text"], "store": true, "user": "somebody", "service_tier": "auto",
        "chat_template_kwargs": {}, "presence_penalty": -2, "frequency_penalty": 2,
        "parallel_tool_calls": false, "min_tokens": 0, "top_k": -1, "nobody_knows_this": {"a": 1},
    });
    post(server(), CHAT, &body).fine();
    let same = vec![3; 300];
    let none = json!({
        "functions": [], "function_call": "none", "bad_words": [], "documents": [],
        "logits_processors": [], "suffix": "", "stop_token_ids": same, "cache_salt": null,
        "repeat_penalty": 1.0, "length_penalty": 1, "return_tokens_as_token_ids": false,
        "separate_reasoning": true, "xtc_probability": 0.0, "xtc_threshold": 0.1, "mirostat": 0,
        "mirostat_mode": 0, "mirostat_tau": 5.0, "mirostat_eta": 0.1, "top_n_sigma": -1.0,
        "dynatemp_range": 0.0, "dynatemp_exponent": 1.0, "tfs_z": 1, "top_a": 0.0,
        "no_repeat_ngram_size": 0, "repeat_last_n": 64, "dry_multiplier": 0.0, "dry_base": 1.75,
        "dry_allowed_length": 2, "dry_penalty_last_n": -1, "dry_sequence_breakers": ["\n", ":"],
    });
    post(server(), CHAT, &with(&body, &none)).fine();
    let body = json!({
        "prompt": "Hi", "max_tokens": 1, "stream": false, "logprobs": null, "echo": null,
        "best_of": 1, "suffix": "", "seed": -3,
    });
    post(server(), COMPLETIONS, &body).fine();
    let body = json!({
        "input": "Hi", "max_output_tokens": 1, "reasoning": {"effort": null, "summary": "auto"},
    });
    post(server(), RESPONSES, &body).fine();
}

#[test]
fn how_long_to_think_may_come_as_a_variable_of_a_template() {
    let prompt = |more: Value| {
        let body = with(&json!({"messages": question("Hi")}), &more);
        post(server(), "/tokenize", &body).fine()["tokens"].clone()
    };
    let low = prompt(json!({"reasoning_effort": "low"}));
    assert_eq!(prompt(json!({"chat_template_kwargs": {"reasoning_effort": "low"}})), low);
    assert_ne!(prompt(json!({})), low);
}

#[test]
fn a_prompt_that_is_too_long_is_the_requests_fault() {
    let engine = oss_engine::EngineOptions { context_len: Some(64), ..engine_options() };
    let running = start(server_options(), engine);
    let long = "word ".repeat(100);
    for (path, body) in [
        (CHAT, json!({"messages": question(&long), "stream": true})),
        (COMPLETIONS, json!({"prompt": long})),
    ] {
        let response = post(running.address, path, &body);
        assert_eq!(response.status(), 400);
        assert_eq!(response.json()["error"]["code"], "context_length_exceeded");
    }
    assert_eq!(crate::support::load(running.address)["num_total_reqs"], 0);
    let body = json!({"prompt": ["Once", "Once", long], "n": 2});
    let response = post(running.address, COMPLETIONS, &body);
    assert_eq!(response.json()["error"]["code"], "context_length_exceeded");
    let page = get(running.address, "/metrics").body;
    let none = "oss_requests_submitted_total{model_name=\"demo\",engine=\"0\"} 0\n";
    assert!(page.contains(none), "none of several is taken: {page}");
}

#[test]
fn bodies_that_are_no_json_or_too_long_are_refused() {
    let mut connection = Connection::open(server());
    for (body, said) in [("{\"a\":", "not JSON"), ("[1]", "got a list"), ("", "not JSON")] {
        connection.send("POST", CHAT, "", body);
        let response = connection.response();
        assert_eq!(response.status(), 400);
        assert!(response.body.contains(said), "{}", response.body);
    }
    let options = oss_server::ServerOptions { max_body: 1000, ..server_options() };
    let running = start(options, engine_options());
    for length in [1001, 3_000_000] {
        let mut connection = Connection::open(running.address);
        connection.send("POST", CHAT, "", &" ".repeat(length));
        let response = connection.response();
        assert_eq!(response.status(), 413);
        assert_eq!(response.json()["error"]["code"], "body_too_long");
    }
    let mut connection = Connection::open(running.address);
    let chunk = format!("7d0\r\n{}\r\n0\r\n\r\n", " ".repeat(2000));
    connection.send("POST", CHAT, "transfer-encoding: chunked\r\nx-no-", "");
    connection.raw(&chunk);
    assert_eq!(connection.response().status(), 413);
}

#[test]
fn unknown_models_paths_and_methods_are_not_found() {
    let body = json!({"model": "gpt-9", "messages": question("Hi")});
    let response = post(server(), CHAT, &body);
    assert_eq!(response.status(), 404);
    assert_eq!(response.json()["error"]["code"], "model_not_found");
    assert_eq!(get(server(), "/v1/models/gpt-9").status(), 404);
    assert_eq!(get(server(), "/v1/models/demo").fine()["id"], "demo");
    for path in ["/v1/models/%ff", "/v1/responses/%ff"] {
        let response = get(server(), path);
        assert_eq!(response.status(), 400, "{path}");
        assert_eq!(response.json()["error"]["type"], "invalid_request_error");
    }
    assert_eq!(get(server(), "/v1/embeddings").status(), 404);
    assert_eq!(get(server(), CHAT).status(), 405);
    for path in ["/v1/embeddings", CHAT] {
        let message = get(server(), path).json()["error"]["message"].clone();
        assert!(message.as_str().is_some_and(|said| said.contains(path)), "{message}");
    }
    assert_eq!(get(server(), CHAT).head.header("allow"), Some("POST"));
}

#[test]
fn who_sends_a_long_body_hears_why_nobody_reads_it() {
    let key = Some("secret".to_owned());
    let locked = bare(oss_server::ServerOptions { api_key: key, ..server_options() });
    let loading = bare(server_options());
    let body = " ".repeat(3_000_000);
    for (address, method, path, status) in [
        (locked.address, "POST", CHAT, 401),
        (loading.address, "POST", CHAT, 503),
        (loading.address, "POST", "/tokenize", 503),
        (loading.address, "POST", "/v1/embeddings", 404),
        (loading.address, "PUT", CHAT, 405),
    ] {
        let mut connection = Connection::open(address);
        // All of the body has been taken, so that the next request is heard.
        for _ in 0..2 {
            connection.send(method, path, "", &body);
            assert_eq!(connection.response().status(), status, "{method} {path}");
        }
    }
}

#[test]
fn who_waits_to_be_asked_for_a_body_is_asked_only_where_it_is_read() {
    let key = Some("secret".to_owned());
    let options = oss_server::ServerOptions { api_key: key, max_body: 1000, ..server_options() };
    let running = start(options, engine_options());
    let waits = |headers: &str, length: usize| {
        let mut connection = Connection::open(running.address);
        let head = format!("POST {CHAT} HTTP/1.1\r\nhost: localhost\r\nexpect: 100-continue\r\n");
        connection.raw(&format!("{head}{headers}content-length: {length}\r\n\r\n"));
        connection
    };
    let key = "authorization: Bearer secret\r\n";
    for (headers, length, status) in [("", 3, 401), (key, 1001, 413)] {
        let mut connection = waits(headers, length);
        let response = connection.response();
        assert_eq!(response.status(), status);
        assert_eq!(response.head.header("connection"), Some("close"));
        assert!(connection.is_closed());
    }
    let mut connection = waits(key, 3);
    assert_eq!(connection.head().status, 100);
    connection.raw("[1]");
    let response = connection.response();
    assert_eq!((response.status(), response.head.header("connection")), (400, None));
}

#[test]
fn a_key_is_asked_for_where_there_is_one() {
    let options =
        oss_server::ServerOptions { api_key: Some("secret".to_owned()), ..server_options() };
    let running = start(options, engine_options());
    let status = |path: &str, header: &str| {
        let mut connection = Connection::open(running.address);
        connection.send("GET", path, header, "");
        connection.response().status()
    };
    for header in ["", "authorization: Bearer secre\r\n", "authorization: secret\r\n"] {
        assert_eq!(status("/v1/models", header), 401, "{header}");
    }
    let refused = get(running.address, "/v1/models");
    assert_eq!(refused.head.header("www-authenticate"), Some("Bearer"));
    assert_eq!(status("/v1/models", "authorization: Bearer secret\r\n"), 200);
    for path in ["/health", "/live", "/metrics"] {
        assert_eq!(status(path, ""), 200, "{path}");
    }
    let drain = |header: &str| {
        let mut connection = Connection::open(running.address);
        connection.send("POST", "/admin/drain", header, "");
        connection.response().status()
    };
    // A proxy on this machine that adds no header looks like anybody on it.
    for header in ["", "x-forwarded-for: 10.0.0.1\r\n", "authorization: Bearer secre\r\n"] {
        assert_eq!(drain(header), 401, "{header}");
    }
    assert_eq!(drain("x-forwarded-for: 10.0.0.1\r\nauthorization: Bearer secret\r\n"), 202);
    assert!(running.ended().is_none());
}

#[test]
fn options_out_of_their_range_are_refused_before_it_listens() {
    let options = oss_server::ServerOptions { max_connections: 0, ..server_options() };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let error = runtime.block_on(oss_server::Server::bind(options)).map(|_| ()).unwrap_err();
    let said = error.to_string();
    assert!(said.starts_with("option max_connections: got 0, expected 1 to "), "{said}");
}

#[test]
fn connections_that_say_nothing_are_closed_and_bodies_that_do_not_come_are_refused() {
    let idle_timeout = std::time::Duration::from_millis(500);
    let options = oss_server::ServerOptions { idle_timeout, ..server_options() };
    let running = start(options, engine_options());
    let mut silent = Connection::open(running.address);
    assert!(silent.is_closed());
    let mut kept = Connection::open(running.address);
    kept.send("GET", "/health", "", "");
    assert_eq!(kept.response().status(), 200);
    assert!(kept.is_closed());
    let mut slow = Connection::open(running.address);
    slow.raw("POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 9\r\n\r\n{");
    assert_eq!(slow.response().status(), 408);
}
