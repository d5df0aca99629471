//! How a server is made.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

/// How a server is made; what concerns the model is in
/// [`EngineOptions`](oss_engine::EngineOptions).
///
/// ```
/// use oss_server::ServerOptions;
/// let options = ServerOptions { model_name: "demo".to_owned(), ..ServerOptions::default() };
/// assert!(options.address.ip().is_loopback());
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct ServerOptions {
    /// Where to listen; port 0 takes any that is free.
    pub address: SocketAddr,
    /// The model's name in requests and answers.
    pub model_name: String,
    /// What clients have to show as `Authorization: Bearer …`; `None`: nothing.
    pub api_key: Option<String>,
    /// The most bytes of a request's body.
    pub max_body: usize,
    /// The most requests that wait to be read, as long ones do; more are refused with 429.
    pub max_unread: usize,
    /// The most connections at once; further ones wait to be accepted.
    pub max_connections: usize,
    /// How long a connection may say nothing between two requests, or take to send a header or a
    /// body.
    pub idle_timeout: Duration,
    /// How long a request may take from its submission; then it ends with an error.
    pub request_timeout: Duration,
    /// How long requests are still taken after a drain began: routers need this to notice.
    pub drain_settle: Duration,
    /// How long requests may go on after that.
    pub drain_timeout: Duration,
    /// How long a step of the model may take before the server says that it is not alive.
    pub stall_timeout: Duration,
    /// Whether models whose format tells the date are told today's, in UTC. The same request on
    /// another day is then another prompt.
    pub tell_date: bool,
}

impl Default for ServerOptions {
    fn default() -> Self {
        Self {
            address: SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 8000),
            model_name: "model".to_owned(),
            api_key: None,
            max_body: 4 << 20,
            max_unread: 256,
            max_connections: 1024,
            idle_timeout: Duration::from_secs(75),
            request_timeout: Duration::from_secs(3600),
            drain_settle: Duration::from_secs(5),
            drain_timeout: Duration::from_secs(30),
            stall_timeout: Duration::from_secs(120),
            tell_date: false,
        }
    }
}

impl fmt::Debug for ServerOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerOptions")
            .field("address", &self.address)
            .field("model_name", &self.model_name)
            .field("api_key", &self.api_key.is_some())
            .field("max_body", &self.max_body)
            .field("max_unread", &self.max_unread)
            .field("max_connections", &self.max_connections)
            .field("idle_timeout", &self.idle_timeout)
            .field("request_timeout", &self.request_timeout)
            .field("drain_settle", &self.drain_settle)
            .field("drain_timeout", &self.drain_timeout)
            .field("stall_timeout", &self.stall_timeout)
            .field("tell_date", &self.tell_date)
            .finish()
    }
}
