//! Pages that a browser on this machine shows.

use std::net::SocketAddr;

use oss_server::ServerOptions;
use serde_json::json;

use crate::client::{Connection, Response};
use crate::support::{bare, server, server_options};

/// What a completion is answered that has these headers and no others.
fn ask(address: SocketAddr, headers: &[&str]) -> Response {
    let body = json!({"prompt": "Once", "max_tokens": 1}).to_string();
    let length = format!("content-length: {}", body.len());
    let mut head = vec!["POST /v1/completions HTTP/1.1"];
    head.extend(headers);
    head.extend([length.as_str(), "", &body]);
    let mut connection = Connection::open(address);
    connection.raw(&head.join("\r\n"));
    connection.response()
}

#[test]
fn without_a_key_only_this_machine_is_asked_for_by_name() {
    let name = |host: &str| ask(server(), &[&format!("host: {host}")]);
    for host in ["localhost", "LOCALHOST:80", "127.0.0.1:8000", "[::1]", "[::1]:8", "10.0.0.7"] {
        name(host).fine();
    }
    // As a container calls its host, and machines of a network each other.
    for host in ["host.docker.internal:8000", "box.LOCAL", "api.localhost", "box:8000"] {
        name(host).fine();
    }
    for host in ["evil.example", "evil.example:8000", "localhost.evil.example", "local.x", "a:b:c"]
    {
        let refused = name(host);
        assert_eq!(refused.status(), 403, "{host}");
        let message = refused.json()["error"]["message"].clone();
        let expected = format!("host: got {host}, expected localhost, an address or");
        assert!(message.as_str().is_some_and(|said| said.starts_with(&expected)), "{message}");
    }
}

#[test]
fn without_a_key_pages_from_elsewhere_are_refused_unless_a_proxy_lets_them_in() {
    let from = |headers: &[&str]| ask(server(), &[&["host: localhost"], headers].concat());
    for origin in ["http://localhost:3000", "http://127.0.0.1", "http://0.0.0.0:1", "app://x"] {
        from(&[&format!("origin: {origin}")]).fine();
    }
    for origin in ["https://evil.example", "http://10.0.0.7", "null", "http://localhost.x"] {
        let origin = format!("origin: {origin}");
        assert_eq!(from(&[&origin]).status(), 403, "{origin}");
        from(&[&origin, "x-forwarded-for: 10.0.0.1"]).fine();
        // Pages from elsewhere can write no such header, but those of another name can.
        let both = ["host: evil.example", &origin, "forwarded: for=10.0.0.1"];
        assert_eq!(ask(server(), &both).status(), 403);
    }
}

#[test]
fn with_a_key_names_and_origins_are_anybodys() {
    let options = ServerOptions { api_key: Some("secret".to_owned()), ..server_options() };
    let running = bare(options);
    let key = "authorization: Bearer secret";
    let asked = ask(running.address, &["host: model.example", "origin: https://a.example", key]);
    assert_eq!(asked.status(), 503, "it has no model");
}

#[test]
fn probes_are_anybodys() {
    let mut connection = Connection::open(server());
    connection.raw("GET /health HTTP/1.1\r\nhost: model.example\r\n\r\n");
    assert_eq!(connection.response().status(), 200);
    connection.raw("GET /v1/models HTTP/1.1\r\nhost: model.example\r\n\r\n");
    assert_eq!(connection.response().status(), 403);
    connection.raw("GET /v1/models HTTP/1.0\r\n\r\n");
    assert_eq!(connection.response().status(), 200);
}
