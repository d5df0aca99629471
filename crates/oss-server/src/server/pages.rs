//! What pages in a browser on this machine may request from a server without a key: nothing, where
//! they come from elsewhere.

use std::net::{IpAddr, Ipv4Addr};

use axum::http::header::{FORWARDED, HOST, ORIGIN};
use axum::http::uri::{Authority, Scheme};
use axum::http::{HeaderMap, HeaderName, StatusCode, Uri};

use crate::refusal::Refusal;

/// The last parts of names that nobody can own in public: `host.docker.internal`, `box.local`.
const PRIVATE: [&str; 3] = ["internal", "local", "localhost"];

/// Refuses a request that came to this machine's own address for a page from elsewhere.
///
/// Who owns a name may let it mean this machine, so that what its pages read here is their own to
/// the browser: they still ask for the name. A page whose name means another machine reads nothing,
/// but can ask: the browser then says where it comes from, and lets it add no header of a proxy.
///
/// # Errors
/// What is refused.
pub(super) fn check(headers: &HeaderMap) -> Result<(), Refusal> {
    let is_ours = |host: &str| host.parse().is_ok_and(|host| !is_public(&host));
    if let Some(host) = text(headers, HOST).filter(|host| !host.is_empty() && !is_ours(host)) {
        let expected = "localhost, an address or a private name, as this server asks for no key";
        return Err(forbidden(format!("host: got {host}, expected {expected}")));
    }
    match text(headers, ORIGIN).filter(|origin| is_elsewhere(origin)) {
        Some(origin) if !comes_through_a_proxy(headers) => {
            let expected = "a page of this machine's, as this server asks for no key";
            Err(forbidden(format!("origin: got {origin}, expected {expected}")))
        }
        _ => Ok(()),
    }
}

/// Whether a proxy says that it passes the request on.
pub(crate) fn comes_through_a_proxy(headers: &HeaderMap) -> bool {
    headers.contains_key(FORWARDED) || headers.contains_key("x-forwarded-for")
}

fn forbidden(message: String) -> Refusal {
    Refusal::new(StatusCode::FORBIDDEN, "permission_error", message)
}

/// A header; nothing that could be a name where it is no text.
fn text(headers: &HeaderMap, name: HeaderName) -> Option<&str> {
    headers.get(name).map(|value| value.to_str().unwrap_or("?"))
}

/// The address that a host is whatever names mean; `None` of other names than `localhost`.
fn address(host: &Authority) -> Option<IpAddr> {
    let host = host.host();
    match host.eq_ignore_ascii_case("localhost") {
        true => Some(Ipv4Addr::LOCALHOST.into()),
        false => host.trim_start_matches('[').trim_end_matches(']').parse().ok(),
    }
}

/// Whether a host is a name that somebody elsewhere may own.
fn is_public(host: &Authority) -> bool {
    let is_private = |last: &str| PRIVATE.iter().any(|private| last.eq_ignore_ascii_case(private));
    let last = host.host().rsplit_once('.').map(|(_, last)| last);
    address(host).is_none() && last.is_some_and(|last| !is_private(last))
}

/// Whether an origin is that of a page from elsewhere, or of one that does not say. Programs that
/// show pages of their own, and a browser's extensions, have other schemes.
fn is_elsewhere(origin: &str) -> bool {
    let Ok(origin) = origin.parse::<Uri>() else { return true };
    let is_web = origin.scheme().is_none_or(|it| *it == Scheme::HTTP || *it == Scheme::HTTPS);
    let address = origin.authority().and_then(address).map(|address| address.to_canonical());
    is_web && !address.is_some_and(|address| address.is_loopback() || address.is_unspecified())
}
