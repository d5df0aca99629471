//! A small HTTP client: every wait has an end.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use serde_json::Value;

/// The longest wait for a byte.
const PATIENCE: Duration = Duration::from_secs(20);

/// A connection, kept between requests.
pub(crate) struct Connection {
    stream: BufReader<TcpStream>,
}

/// The head of a response.
#[derive(Debug)]
pub(crate) struct Head {
    pub(crate) status: u16,
    headers: Vec<(String, String)>,
}

/// A whole response.
#[derive(Debug)]
pub(crate) struct Response {
    pub(crate) head: Head,
    pub(crate) body: String,
}

impl Head {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(known, _)| known == name);
        found.map(|(_, value)| value.as_str())
    }

    fn is_chunked(&self) -> bool {
        self.header("transfer-encoding") == Some("chunked")
    }
}

impl Response {
    pub(crate) fn status(&self) -> u16 {
        self.head.status
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|_| panic!("no JSON: {}", self.body))
    }

    /// The response, which has to be a success, as JSON.
    pub(crate) fn fine(&self) -> Value {
        assert_eq!(self.status(), 200, "{}", self.body);
        self.json()
    }

    /// The data of its server-sent events.
    pub(crate) fn frames(&self) -> Vec<String> {
        let lines = self.body.lines().filter_map(|line| line.strip_prefix("data: "));
        lines.map(str::to_owned).collect()
    }
}

impl Connection {
    pub(crate) fn open(address: SocketAddr) -> Self {
        let stream = TcpStream::connect_timeout(&address, PATIENCE).expect("it listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("a time limit");
        Self { stream: BufReader::new(stream) }
    }

    pub(crate) fn send(&mut self, method: &str, path: &str, headers: &str, body: &str) {
        let length = body.len();
        let head = format!("{method} {path} HTTP/1.1\r\nhost: localhost\r\n{headers}");
        let request = format!("{head}content-length: {length}\r\n\r\n{body}");
        // A server that refuses a body may close before it has read all of it.
        let _ = self.stream.get_mut().write_all(request.as_bytes());
    }

    /// Sends bytes as they are.
    pub(crate) fn raw(&mut self, text: &str) {
        self.stream.get_mut().write_all(text.as_bytes()).expect("they are taken");
    }

    /// Whether the server closes the connection.
    pub(crate) fn is_closed(&mut self) -> bool {
        self.stream.fill_buf().is_ok_and(<[u8]>::is_empty)
    }

    /// Whether anything comes so soon.
    pub(crate) fn has_bytes_within(&mut self, time: Duration) -> bool {
        let limit = |time| self.stream.get_ref().set_read_timeout(Some(time));
        limit(time).expect("a time limit");
        let comes = self.stream.fill_buf().is_ok();
        self.stream.get_ref().set_read_timeout(Some(PATIENCE)).expect("a time limit");
        comes
    }

    pub(crate) fn head(&mut self) -> Head {
        let first = self.line();
        let status = first.split(' ').nth(1).and_then(|status| status.parse().ok());
        let status = status.unwrap_or_else(|| panic!("no status: {first:?}"));
        let mut headers = Vec::new();
        loop {
            let line = self.line();
            let Some((name, value)) = line.split_once(':') else { break };
            headers.push((name.to_lowercase(), value.trim().to_owned()));
        }
        Head { status, headers }
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.stream.read_line(&mut line).expect("a line in time");
        line.trim_end().to_owned()
    }

    /// The next chunk of a body; `None` after the last.
    pub(crate) fn chunk(&mut self) -> Option<String> {
        let line = self.line();
        let length = usize::from_str_radix(&line, 16).expect("the length of a chunk");
        let mut bytes = vec![0; length + 2];
        self.stream.read_exact(&mut bytes).expect("a chunk in time");
        bytes.truncate(length);
        (length > 0).then(|| String::from_utf8(bytes).expect("UTF-8"))
    }

    pub(crate) fn response(&mut self) -> Response {
        let head = self.head();
        let body = match head.header("content-length") {
            Some(length) => {
                let mut bytes = vec![0; length.parse().expect("a length")];
                self.stream.read_exact(&mut bytes).expect("a body in time");
                String::from_utf8(bytes).expect("UTF-8")
            }
            None => {
                assert!(head.is_chunked(), "a body has a length or chunks");
                std::iter::from_fn(|| self.chunk()).collect()
            }
        };
        Response { head, body }
    }
}

/// One request on a connection of its own.
pub(crate) fn get(address: SocketAddr, path: &str) -> Response {
    let mut connection = Connection::open(address);
    connection.send("GET", path, "", "");
    connection.response()
}

/// One request on a connection of its own.
pub(crate) fn post(address: SocketAddr, path: &str, body: &Value) -> Response {
    let mut connection = Connection::open(address);
    connection.send("POST", path, "", &body.to_string());
    connection.response()
}
