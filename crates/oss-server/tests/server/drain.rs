//! The end of a server, step by step.

use std::thread;
use std::time::Duration;

use oss_server::{Phase, ServerOptions};
use serde_json::json;

use crate::client::{Connection, get, post};
use crate::support::{endless, engine_options, eventually, load, server_options, start};

fn options(settle: u64, timeout: u64) -> ServerOptions {
    ServerOptions {
        drain_settle: Duration::from_millis(settle),
        drain_timeout: Duration::from_millis(timeout),
        ..server_options()
    }
}

#[test]
fn a_drain_tells_routers_then_refuses_then_ends_what_is_left() {
    let running = start(options(1500, 500), engine_options());
    let address = running.address;
    let mut left = Connection::open(address);
    left.send("POST", "/v1/completions", "", &endless(true).to_string());
    assert_eq!(left.head().status, 200);
    let mut whole = Connection::open(address);
    whole.send("POST", "/v1/completions", "", &endless(false).to_string());
    eventually("both run", || load(address)["num_running_reqs"] == 2);
    let reader = thread::spawn(move || std::iter::from_fn(|| left.chunk()).collect::<String>());

    running.handle.drain();
    eventually("it drains", || running.handle.phase() == Phase::Draining);
    for path in ["/health", "/ready", "/health/ready", "/readyz"] {
        let probe = get(address, path);
        assert_eq!((probe.status(), &probe.json()["status"]), (503, &json!("draining")), "{path}");
    }
    assert_eq!(get(address, "/live").status(), 200);
    let short = json!({"prompt": "Once", "max_tokens": 2});
    post(address, "/v1/completions", &short).fine();

    eventually("it refuses", || running.handle.phase() == Phase::Refusing);
    let refused = post(address, "/v1/completions", &short);
    assert_eq!(refused.status(), 503);
    assert_eq!(refused.head.header("connection"), Some("close"));
    assert!(refused.head.header("retry-after").is_some());
    assert_eq!(refused.json()["error"]["code"], "draining");
    assert_eq!(get(address, "/livez").status(), 200);

    let body = reader.join().unwrap();
    assert!(body.ends_with("data: [DONE]\n\n"));
    let error = body.rsplit("data: ").nth(1).unwrap();
    assert!(error.contains("\"code\":\"draining\""), "{error}");
    assert_eq!(whole.response().status(), 503);
    assert!(running.ended().is_none());
    assert_eq!(running.handle.phase(), Phase::Closed);
}

#[test]
fn what_runs_may_finish_and_then_the_server_ends_at_once() {
    let running = start(options(50, 20_000), engine_options());
    let address = running.address;
    let mut connection = Connection::open(address);
    let body = json!({"prompt": "Once", "max_tokens": 2000, "ignore_eos": true, "stream": true});
    connection.send("POST", "/v1/completions", "", &body.to_string());
    assert_eq!(connection.head().status, 200);
    running.handle.drain();
    let text: String = std::iter::from_fn(|| connection.chunk()).collect();
    assert!(text.ends_with("data: [DONE]\n\n") && !text.contains("error"));
    assert!(text.contains("\"finish_reason\":\"length\""));
    assert!(running.ended().is_none());
}

#[test]
fn a_drain_can_be_asked_for_over_http_from_this_machine() {
    let running = start(options(0, 1000), engine_options());
    for header in ["x-forwarded-for: 10.0.0.1\r\n", "origin: http://elsewhere\r\n"] {
        let mut connection = Connection::open(running.address);
        connection.send("POST", "/admin/drain", header, "");
        assert_eq!(connection.response().status(), 403, "{header}");
    }
    let answer = post(running.address, "/admin/drain", &json!({}));
    assert_eq!(answer.status(), 202, "{}", answer.body);
    assert!(running.ended().is_none());
}
