//! Servers and engines of the demo model.

use std::net::SocketAddr;
use std::sync::OnceLock;
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use oss_engine::{Engine, EngineOptions, Tune};
use oss_server::{Error, Handle, Server, ServerOptions};
use serde_json::{Value, json};

use crate::client::get;

/// The demo model's name.
pub(crate) const MODEL: &str = "demo";

/// A server on a thread of its own.
pub(crate) struct Running {
    pub(crate) address: SocketAddr,
    pub(crate) handle: Handle,
    ended: Receiver<Result<(), Error>>,
}

impl Running {
    /// Why `run` failed, if it did, once it has returned.
    pub(crate) fn ended(&self) -> Option<Error> {
        self.ended.recv_timeout(Duration::from_secs(20)).expect("the server ends").err()
    }
}

/// One thread and no measurements.
pub(crate) fn engine_options() -> EngineOptions {
    EngineOptions {
        threads: Some(1),
        cache_bytes: Some(64 << 20),
        tune: Tune::Off,
        system_root: "/no/such/folder".into(),
        ..EngineOptions::default()
    }
}

pub(crate) fn engine_with(options: EngineOptions) -> Engine {
    Engine::from_bytes_with(oss_demo::GGUF, options).expect("the demo model loads")
}

/// The library's engine, that answers are held against.
pub(crate) fn engine() -> &'static Engine {
    static ENGINE: OnceLock<Engine> = OnceLock::new();
    ENGINE.get_or_init(|| engine_with(engine_options()))
}

/// Any free port, and no time for routers.
pub(crate) fn server_options() -> ServerOptions {
    ServerOptions {
        address: SocketAddr::from(([127, 0, 0, 1], 0)),
        model_name: MODEL.to_owned(),
        drain_settle: Duration::ZERO,
        ..ServerOptions::default()
    }
}

/// A server without an engine yet.
pub(crate) fn bare(options: ServerOptions) -> Running {
    let (started, start) = channel();
    let (end, ended) = channel();
    thread::spawn(move || {
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        let runtime = builder.worker_threads(2).enable_all().build().expect("a runtime");
        let result = runtime.block_on(async {
            let server = Server::bind(options).await?;
            let _ = started.send((server.address(), server.handle()));
            server.run().await
        });
        let _ = end.send(result);
    });
    let (address, handle) = start.recv_timeout(Duration::from_secs(20)).expect("it listens");
    Running { address, handle, ended }
}

/// A server with an engine.
pub(crate) fn start(options: ServerOptions, engine: EngineOptions) -> Running {
    let running = bare(options);
    running.handle.ready(engine_with(engine));
    running
}

/// One server for all tests that need no options of their own.
pub(crate) fn server() -> SocketAddr {
    static SERVER: OnceLock<SocketAddr> = OnceLock::new();
    *SERVER.get_or_init(|| start(server_options(), engine_options()).address)
}

/// A server on which one sequence runs and one waits.
pub(crate) fn narrow(options: ServerOptions) -> Running {
    let engine = EngineOptions { max_sequences: Some(1), queue_limit: 1, ..engine_options() };
    start(options, engine)
}

/// A body with further fields, or other values of those that it has.
pub(crate) fn with(body: &Value, more: &Value) -> Value {
    let mut body = body.clone();
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

/// A completion that takes far longer than any test.
pub(crate) fn endless(stream: bool) -> Value {
    json!({
        "prompt": "Once upon a time", "max_tokens": 120_000, "ignore_eos": true, "stream": stream,
    })
}

/// The first rank's entry of `/v1/loads`.
pub(crate) fn load(address: SocketAddr) -> Value {
    get(address, "/v1/loads?x=1").fine()["loads"][0].clone()
}

/// Waits, within reason, until something holds.
pub(crate) fn eventually(what: &str, holds: impl FnMut() -> bool) {
    within(Duration::from_secs(20), what, holds);
}

/// Waits until something holds.
pub(crate) fn within(limit: Duration, what: &str, mut holds: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !holds() {
        assert!(begin.elapsed() < limit, "not within {limit:?}: {what}");
        thread::sleep(Duration::from_millis(5));
    }
}
