//! A full queue, and requests that leave it.

use std::time::Duration;

use oss_engine::EngineOptions;
use oss_server::ServerOptions;
use serde_json::json;

use crate::answers::question;
use crate::client::{Connection, get, post};
use crate::support::{
    endless, engine_options, eventually, load, narrow, server_options, start, within,
};

#[test]
fn a_full_queue_is_429_with_a_time_to_come_again_and_who_leaves_it_makes_room() {
    let running = narrow(server_options());
    let address = running.address;
    let ask = |stream| {
        let mut connection = Connection::open(address);
        connection.send("POST", "/v1/completions", "", &endless(stream).to_string());
        connection
    };
    let within =
        |what: &str, holds: &dyn Fn() -> bool| within(Duration::from_secs(10), what, holds);
    let runs = ask(false);
    within("the first one runs", &|| load(address)["num_running_reqs"] == 1);
    let none = || load(address)["num_waiting_reqs"] == 0;
    for (body, param) in
        [(json!({"prompt": "x", "n": 2}), "n"), (json!({"prompt": ["x", "y"]}), "prompt")]
    {
        let many = post(address, "/v1/completions", &body);
        assert_eq!(many.status(), 400, "more answers than the queue has places");
        assert_eq!(many.json()["error"]["param"], param);
        within("the one that was taken has left again", &none);
    }
    assert_eq!(load(address)["num_waiting_uncached_tokens"], 0);
    let waits = ask(true);
    within("the second one waits", &|| load(address)["num_waiting_reqs"] == 1);
    assert_eq!(load(address)["num_waiting_uncached_tokens"], 4);

    for stream in [false, true] {
        let refused = post(address, "/v1/completions", &endless(stream));
        assert_eq!(refused.status(), 429, "{}", refused.body);
        let seconds = refused.head.header("retry-after").unwrap();
        assert!((1..=60).contains(&seconds.parse::<u32>().unwrap()));
        assert_eq!(refused.json()["error"]["code"], "queue_full");
    }
    assert_eq!(get(address, "/health").status(), 200, "full is not unhealthy");
    assert_eq!(load(address)["num_total_reqs"], 2, "what was refused does not wait");

    drop(waits);
    let left = || load(address)["num_waiting_reqs"] == 0;
    crate::support::within(Duration::from_secs(1), "who waited has left", left);
    assert_eq!(load(address)["num_waiting_uncached_tokens"], 0);
    drop(runs);
    let body = json!({"messages": question("Hi"), "max_tokens": 2});
    post(address, "/v1/chat/completions", &body).fine();
    let page = get(address, "/metrics").body;
    assert!(page.contains("oss_requests_shed_total{model_name=\"demo\",engine=\"0\"} 4"), "{page}");
}

#[test]
fn the_headers_of_a_stream_come_when_it_is_admitted() {
    let running = narrow(server_options());
    let address = running.address;
    let mut first = Connection::open(address);
    first.send("POST", "/v1/completions", "", &endless(false).to_string());
    within(Duration::from_secs(10), "it runs", || load(address)["num_running_reqs"] == 1);
    let mut second = Connection::open(address);
    let body = json!({"prompt": "Once", "max_tokens": 2, "stream": true});
    second.send("POST", "/v1/completions", "", &body.to_string());
    within(Duration::from_secs(10), "it waits", || load(address)["num_waiting_reqs"] == 1);
    assert!(!second.has_bytes_within(Duration::from_millis(100)));
    drop(first);
    assert!(second.response().body.ends_with("data: [DONE]\n\n"));
}

#[test]
fn a_request_that_takes_too_long_ends_with_504() {
    let request_timeout = Duration::from_millis(500);
    let options = ServerOptions { request_timeout, ..server_options() };
    let running = narrow(options);
    let late = post(running.address, "/v1/completions", &endless(false));
    assert_eq!(late.status(), 504, "{}", late.body);
    let stream = post(running.address, "/v1/completions", &endless(true));
    let frames = stream.frames();
    assert!(frames[frames.len() - 2].contains("timeout_error"));
    assert_eq!(frames.last().unwrap(), "[DONE]");
}

#[test]
fn requests_that_wait_to_be_read_are_counted() {
    let running = start(server_options(), engine_options());
    let address = running.address;
    let body = json!({"prompt": "Once upon a time ".repeat(10_000)});
    std::thread::scope(|scope| {
        for _ in 0..6 {
            scope.spawn(|| post(address, "/tokenize", &body).fine());
        }
        // Two are read.
        eventually("others wait", || load(address)["num_waiting_reqs"].as_u64() > Some(2));
    });
    assert_eq!(load(address)["num_waiting_reqs"], 0);
}

#[test]
fn who_gave_up_its_pages_waits_again() {
    // No room for two whole contexts.
    let engine = EngineOptions { cache_bytes: Some(2 << 20), ..engine_options() };
    let running = start(server_options(), engine);
    let address = running.address;
    let ask = |_| {
        let mut connection = Connection::open(address);
        connection.send("POST", "/v1/completions", "", &endless(false).to_string());
        connection
    };
    let asking = [0, 1].map(ask);
    within(Duration::from_secs(10), "both run", || load(address)["num_running_reqs"] == 2);
    eventually("one waits", || {
        let load = load(address);
        load["num_running_reqs"] == 1 && load["num_waiting_reqs"] == 1
    });
    drop(asking);
    eventually("both have left", || load(address)["num_total_reqs"] == 0);
}
