//! The server over real sockets, with the demo model.

#[path = "server/answers.rs"]
mod answers;
#[cfg(unix)]
#[path = "server/binary.rs"]
mod binary;
#[path = "server/client.rs"]
mod client;
#[path = "server/drain.rs"]
mod drain;
#[path = "server/formats.rs"]
mod formats;
#[path = "server/overload.rs"]
mod overload;
#[path = "server/pages.rs"]
mod pages;
#[path = "server/probes.rs"]
mod probes;
#[path = "server/refusals.rs"]
mod refusals;
#[path = "server/responses.rs"]
mod responses;
#[path = "server/streams.rs"]
mod streams;
#[path = "server/support.rs"]
mod support;
#[path = "server/tokens.rs"]
mod tokens;
