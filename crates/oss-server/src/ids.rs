//! Names of requests and answers, and the comparison of secrets.

use std::hash::{BuildHasher, RandomState};
use std::hint::black_box;

use axum::http::HeaderMap;

/// The header that names a request.
pub(crate) const REQUEST_ID: &str = "x-request-id";

/// The longest name of a request that is taken from outside.
const LONGEST: usize = 128;

/// Sixteen hexadecimal digits that no other call gives, on any replica.
pub(crate) fn unique() -> String {
    // The standard library seeds each `RandomState` anew; its hash is as good as random.
    format!("{:016x}", RandomState::new().hash_one(0_u64))
}

/// The request's own name, where it has one that is fit for logs and headers, or a new one.
pub(crate) fn request_id(headers: &HeaderMap) -> String {
    let given = headers.get(REQUEST_ID).and_then(|value| value.to_str().ok());
    let fit = |id: &&str| {
        !id.is_empty() && id.len() <= LONGEST && id.bytes().all(|byte| byte.is_ascii_graphic())
    };
    given.filter(fit).map_or_else(|| format!("req-{}", unique()), str::to_owned)
}

/// Whether two secrets are the same, in a time that depends on their lengths alone.
pub(crate) fn same_secret(given: &[u8], expected: &[u8]) -> bool {
    let differing = given.iter().zip(expected).fold(0, |all, (a, b)| black_box(all | (a ^ b)));
    given.len() == expected.len() && differing == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_keeps_its_name_where_the_name_is_fit() {
        let of = |name: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(REQUEST_ID, name.parse().expect("a header"));
            request_id(&headers)
        };
        assert_eq!(of("abc-1"), "abc-1");
        for unfit in ["", "a b"] {
            assert!(of(unfit).starts_with("req-"), "{unfit}");
        }
        assert_ne!(request_id(&HeaderMap::new()), request_id(&HeaderMap::new()));
    }

    #[test]
    fn secrets_are_the_same_only_when_every_byte_is() {
        assert!(same_secret(b"key", b"key"));
        for other in ["", "ke", "kez", "keys"] {
            assert!(!same_secret(other.as_bytes(), b"key"), "{other}");
        }
    }
}
