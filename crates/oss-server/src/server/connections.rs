//! Accepts connections and serves each on a task of its own.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Body;
use axum::http::header::{AUTHORIZATION, CONNECTION, WWW_AUTHENTICATE};
use axum::http::{HeaderMap, HeaderValue, Method, Request, StatusCode};
use axum::response::{IntoResponse as _, Response};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioTimer;
use socket2::{SockRef, TcpKeepalive};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{sleep, timeout};
use tower_service::Service as _;

use crate::app::App;
use crate::ids::{self, REQUEST_ID, same_secret};
use crate::phase::Phase;
use crate::refusal::Refusal;
use crate::routes::body::Lent;
use crate::routes::{self, Caller};
use crate::server::pages;
use crate::server::patient::Patient;

/// How long to wait when the system has no socket left.
const PAUSE: Duration = Duration::from_millis(50);

/// How long a connection has for its first byte: one that never says a word is nobody's.
const FIRST_BYTE: Duration = Duration::from_secs(10);

/// How long connections have to send what was written when the server closes.
const LAST_BYTES: Duration = Duration::from_secs(2);
/// After so long without a byte the system asks whether the other side is still there.
const SILENCE: Duration = Duration::from_secs(60);

/// The task that accepts connections. Dropped, it ends with all of them.
pub(super) struct Serving(JoinHandle<()>);

impl Serving {
    /// Waits until the connections are closed, which they are once the server is.
    pub(super) async fn finish(mut self) {
        // Aborted by nobody but this type; a panic in it was reported where it happened.
        let _ = (&mut self.0).await;
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Serves connections until the server is closed, or has failed.
pub(super) fn serve(app: Arc<App>, listener: TcpListener) -> Serving {
    let router = routes::router(app.clone());
    Serving(tokio::spawn(accept(app, listener, router)))
}

async fn accept(app: Arc<App>, listener: TcpListener, router: Router) {
    let places = Arc::new(Semaphore::new(app.options.max_connections));
    let mut connections = JoinSet::new();
    let next = async || {
        let place = places.clone().acquire_owned().await.expect("it is never closed");
        (place, listener.accept().await)
    };
    loop {
        let (place, accepted) = tokio::select! {
            next = next() => next,
            // Tasks that are over are forgotten.
            Some(_) = connections.join_next() => continue,
            () = app.reached(Phase::Closed) => break,
        };
        match accepted {
            Ok((socket, peer)) => {
                let (app, router) = (app.clone(), router.clone());
                connections.spawn(async move {
                    connection(&app, socket, peer, router).await;
                    drop(place);
                });
            }
            Err(error) => {
                tracing::warn!(%error, "no connection could be accepted");
                sleep(PAUSE).await;
            }
        }
    }
    let all = async { while connections.join_next().await.is_some() {} };
    if timeout(LAST_BYTES, all).await.is_err() {
        tracing::warn!("connections that did not take their last bytes are cut");
    }
}

async fn connection(app: &Arc<App>, socket: TcpStream, peer: SocketAddr, router: Router) {
    // Head and body of a small answer would wait for each other's acknowledgement.
    if let Err(error) = socket.set_nodelay(true) {
        tracing::debug!(%error, %peer, "no TCP_NODELAY");
    }
    // Who vanishes without a word, or behind something that forgets silent connections, would keep
    // his request until it ends.
    let keepalive = TcpKeepalive::new().with_time(SILENCE).with_interval(SILENCE / 4);
    if let Err(error) = SockRef::from(&socket).set_tcp_keepalive(&keepalive) {
        tracing::debug!(%error, %peer, "no keepalive");
    }
    let first = timeout(FIRST_BYTE.min(app.options.idle_timeout), socket.readable());
    let speaks = tokio::select! {
        first = first => first.is_ok(),
        () = app.reached(Phase::Closed) => false,
    };
    if !speaks {
        tracing::debug!(%peer, "connection without a word");
        return;
    }
    let is_local =
        socket.local_addr().is_ok_and(|address| address.ip().to_canonical().is_loopback());
    let socket = Patient::new(socket, app.options.idle_timeout);
    let service = service_fn(|request| respond(app, &router, peer, is_local, request));
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(app.options.idle_timeout);
    let mut serving = std::pin::pin!(builder.serve_connection(socket, service));
    let served = tokio::select! {
        served = serving.as_mut() => served,
        () = app.reached(Phase::Closed) => {
            serving.as_mut().graceful_shutdown();
            serving.await
        }
    };
    if let Err(error) = served {
        tracing::debug!(%error, %peer, "connection broke off");
    }
}

/// Answers one request: names it, looks who asks, and writes down what came of it.
async fn respond(
    app: &Arc<App>,
    router: &Router,
    peer: SocketAddr,
    is_local: bool,
    request: Request<Incoming>,
) -> Result<Response, Infallible> {
    let began = Instant::now();
    let request_id = ids::request_id(request.headers());
    let method = request.method().clone();
    let path = request.uri().path().to_owned();
    let has_key = has_key(app, request.headers());
    let (parts, body) = request.into_parts();
    let body = Lent::new(&parts, body);
    let refused = match &app.options.api_key {
        _ if has_key || routes::OPEN.contains(&path.as_str()) => None,
        Some(_) => Some(no_key()),
        None if is_local => pages::check(&parts.headers).err().map(Refusal::into_response),
        None => None,
    };
    let mut response = match refused {
        Some(refused) => refused,
        None => {
            let mut request = Request::from_parts(parts, Body::new(body.clone()));
            let caller = Caller { is_local, request_id: request_id.clone(), has_key };
            request.extensions_mut().insert(caller);
            router.clone().call(request).await?
        }
    };
    // A body that nobody wants is not asked for: without it the connection ends.
    let held_back = body.is_held_back();
    if !held_back {
        body.discard().await;
    }
    let name = HeaderValue::from_str(&request_id).expect("the name was found fit for a header");
    response.headers_mut().insert(REQUEST_ID, name);
    if held_back || app.phase() >= Phase::Refusing {
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
    let status = response.status().as_u16();
    app.books.responded(status);
    let ms = began.elapsed().as_millis() as u64;
    if method == Method::POST {
        tracing::info!(request_id, path, status, ms, %peer, "response");
    } else {
        // Gateways ask every second or two.
        tracing::debug!(request_id, %method, path, status, ms, %peer, "response");
    }
    Ok(response)
}

fn has_key(app: &App, headers: &HeaderMap) -> bool {
    let Some(expected) = &app.options.api_key else { return false };
    let given = headers.get(AUTHORIZATION).map_or(&b""[..], HeaderValue::as_bytes);
    let bearer = given.get(..7).is_some_and(|scheme| scheme.eq_ignore_ascii_case(b"bearer "));
    bearer && same_secret(given[7..].trim_ascii(), expected.as_bytes())
}

fn no_key() -> Response {
    let message = "authorization: got no valid key, expected `Bearer` and the api key";
    let refusal = Refusal {
        code: Some("invalid_api_key"),
        ..Refusal::new(StatusCode::UNAUTHORIZED, "authentication_error", message)
    };
    let mut response = refusal.into_response();
    response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    response
}
