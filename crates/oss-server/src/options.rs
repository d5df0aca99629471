//! How a server is made.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use tokio::sync::Semaphore;

use crate::error::{Error, Result};

/// The shortest time that may be given to what ends with it: with 0, everything would at once.
const SHORTEST: Duration = Duration::from_millis(1);
/// The longest time, three years: adding it to what a clock says cannot overflow.
const LONGEST: Duration = Duration::from_secs(100_000_000);

/// How a server is made; what concerns the model is in
/// [`EngineOptions`](oss_engine::EngineOptions). What is out of its range is refused by
/// [`Server::bind`](crate::Server::bind).
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
    /// What clients have to show as `Authorization: Bearer …`: not empty, without control
    /// characters and without blanks at its ends, which headers lose. `None`: nothing.
    pub api_key: Option<String>,
    /// The most bytes of a request's body; at least 1.
    pub max_body: usize,
    /// The most requests that wait to be read, as long ones do; more are refused with 429. At least
    /// 1: each waits, if only for a moment.
    pub max_unread: usize,
    /// The most connections at once; further ones wait to be accepted. From 1 to
    /// [`Semaphore::MAX_PERMITS`].
    pub max_connections: usize,
    /// How long a connection may say nothing between two requests, take to send a header or a
    /// body, or take nothing of what is written to it; from 1 ms to 100,000,000 s.
    pub idle_timeout: Duration,
    /// How long a request may take from its submission; then it ends with an error. From 1 ms to
    /// 100,000,000 s.
    pub request_timeout: Duration,
    /// After so long without anything to send, a stream gets a comment, so that nobody on the way
    /// takes it for dead; 0: none, for clients that cannot read comments. Up to 100,000,000 s.
    pub heartbeat: Duration,
    /// How long requests are still taken after a drain began: routers need this to notice. Up to
    /// 100,000,000 s.
    pub drain_settle: Duration,
    /// How long requests may go on after that; up to 100,000,000 s.
    pub drain_timeout: Duration,
    /// How long a layer of a step may take before the server says that it is not alive; from 1 ms
    /// to 100,000,000 s.
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
            heartbeat: Duration::from_secs(15),
            drain_settle: Duration::from_secs(5),
            drain_timeout: Duration::from_secs(30),
            stall_timeout: Duration::from_secs(120),
            tell_date: false,
        }
    }
}

impl ServerOptions {
    /// Refuses what a server could not listen with, or would answer nobody with.
    pub(crate) fn check(&self) -> Result<()> {
        let counts = [
            ("max_body", self.max_body, usize::MAX),
            ("max_unread", self.max_unread, usize::MAX),
            ("max_connections", self.max_connections, Semaphore::MAX_PERMITS),
        ];
        for (field, got, most) in counts {
            if !(1..=most).contains(&got) {
                let expected = match most {
                    usize::MAX => "at least 1".to_owned(),
                    most => format!("1 to {most}"),
                };
                return Err(Error::Option { field, got: got.to_string(), expected });
            }
        }
        let times = [
            ("idle_timeout", self.idle_timeout, SHORTEST),
            ("request_timeout", self.request_timeout, SHORTEST),
            ("heartbeat", self.heartbeat, Duration::ZERO),
            ("drain_settle", self.drain_settle, Duration::ZERO),
            ("drain_timeout", self.drain_timeout, Duration::ZERO),
            ("stall_timeout", self.stall_timeout, SHORTEST),
        ];
        for (field, got, least) in times {
            if !(least..=LONGEST).contains(&got) {
                let expected = format!("{least:?} to {LONGEST:?}");
                return Err(Error::Option { field, got: format!("{got:?}"), expected });
            }
        }
        let at_fault = match self.api_key.as_deref() {
            Some("") => "an empty one",
            Some(key) if key.trim_ascii() != key => "one with blanks at its ends",
            Some(key) if key.contains(char::is_control) => "one with control characters",
            _ => return Ok(()),
        };
        // The key itself is nobody's who reads errors.
        let expected = "a key that fits a header, or none".to_owned();
        Err(Error::Option { field: "api_key", got: at_fault.to_owned(), expected })
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
            .field("heartbeat", &self.heartbeat)
            .field("drain_settle", &self.drain_settle)
            .field("drain_timeout", &self.drain_timeout)
            .field("stall_timeout", &self.stall_timeout)
            .field("tell_date", &self.tell_date)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_out_of_its_range_is_refused_with_its_name() {
        let (zero, long) = (Duration::ZERO, LONGEST + SHORTEST);
        let key = |key: &str| ServerOptions { api_key: Some(key.into()), ..Default::default() };
        let table = [
            ("max_body", ServerOptions { max_body: 0, ..Default::default() }),
            ("max_unread", ServerOptions { max_unread: 0, ..Default::default() }),
            ("max_connections", ServerOptions { max_connections: 0, ..Default::default() }),
            (
                "max_connections",
                ServerOptions { max_connections: usize::MAX, ..Default::default() },
            ),
            ("idle_timeout", ServerOptions { idle_timeout: zero, ..Default::default() }),
            ("request_timeout", ServerOptions { request_timeout: zero, ..Default::default() }),
            ("heartbeat", ServerOptions { heartbeat: long, ..Default::default() }),
            ("drain_settle", ServerOptions { drain_settle: long, ..Default::default() }),
            ("drain_timeout", ServerOptions { drain_timeout: long, ..Default::default() }),
            ("stall_timeout", ServerOptions { stall_timeout: zero, ..Default::default() }),
            ("api_key", key("")),
            ("api_key", key("secret\n")),
            ("api_key", key("sec\nret")),
        ];
        for (field, options) in table {
            let error = options.check().unwrap_err().to_string();
            assert!(error.starts_with(&format!("option {field}: got ")), "{error}");
        }
        let error = ServerOptions { idle_timeout: zero, ..Default::default() }.check().unwrap_err();
        assert_eq!(error.to_string(), "option idle_timeout: got 0ns, expected 1ms to 100000000s");
        ServerOptions::default().check().unwrap();
        let least = ServerOptions {
            max_body: 1,
            max_unread: 1,
            max_connections: 1,
            heartbeat: zero,
            drain_settle: zero,
            drain_timeout: zero,
            api_key: Some("a b".to_owned()),
            ..ServerOptions::default()
        };
        least.check().unwrap();
    }
}
