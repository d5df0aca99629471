//! Why a request gets no answer, as OpenAI's API says it.

use axum::body::Body;
use axum::http::header::{CONNECTION, CONTENT_TYPE, RETRY_AFTER};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use oss_engine::ErrorKind;
use serde::Serialize;

use crate::phase::Phase;

/// One refused or failed request.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{message}")]
pub(crate) struct Refusal {
    pub(crate) status: StatusCode,
    pub(crate) kind: &'static str,
    pub(crate) message: String,
    /// The field of the request that is at fault.
    pub(crate) param: Option<String>,
    pub(crate) code: Option<&'static str>,
    /// Seconds after which to try again.
    pub(crate) retry_after: Option<u64>,
    /// The connection ends with this answer.
    pub(crate) closes: bool,
}

/// The fields in which an endpoint takes what errors of the engine are about.
#[derive(Clone, Copy)]
pub(crate) struct Names {
    pub(crate) prompt: &'static str,
    /// What the answer has to look like.
    pub(crate) format: &'static str,
    /// What there are too many of, where the queue has not so many places.
    pub(crate) count: &'static str,
}

impl Names {
    /// Those of an endpoint that takes its prompt in `prompt`.
    pub(crate) const fn of(prompt: &'static str) -> Self {
        Self { prompt, format: "response_format", count: "n" }
    }

    /// The name of what the engine calls `field`.
    fn of_field(self, field: &'static str) -> &'static str {
        match field {
            "grammar" => self.format,
            field => field,
        }
    }
}

/// The most characters of a message, and of the name of a field.
const LONGEST: usize = 500;

/// What clients hear of an error that is not theirs: the log has the rest.
const OURS: &str = "the engine could not answer; the server's log says why";

/// An error about a request in words for clients, who need not know where the model's files lie.
fn said(error: &oss_engine::Error) -> String {
    use oss_engine::Error::{ChatTemplate, NoChatTemplate, NoTokenizer};
    match error {
        NoTokenizer { expected, .. } => {
            format!("the model: got no tokenizer, expected {expected}")
        }
        NoChatTemplate { expected, .. } => {
            format!("the model: got no chat template, expected {expected}")
        }
        ChatTemplate { reason, .. } => {
            format!("the model's chat template is not usable: {reason}")
        }
        error => error.to_string(),
    }
}

/// The body of every error.
#[derive(Serialize)]
struct Envelope<'a> {
    error: Inner<'a>,
}

#[derive(Serialize)]
struct Inner<'a> {
    message: &'a str,
    #[serde(rename = "type")]
    kind: &'a str,
    param: Option<&'a str>,
    code: Option<&'a str>,
}

/// A text as it is, or without its middle where that is long: it may repeat what a client sent.
fn without_middle(text: String) -> String {
    let head = text.char_indices().nth(LONGEST / 2);
    let tail = text.char_indices().nth_back(LONGEST / 2 - 1);
    match head.zip(tail) {
        Some(((head, _), (tail, _))) if head < tail => {
            format!("{}…{}", &text[..head], &text[tail..])
        }
        _ => text,
    }
}

impl Refusal {
    pub(crate) fn new(status: StatusCode, kind: &'static str, message: impl Into<String>) -> Self {
        let message = without_middle(message.into());
        let (param, code, retry_after) = (None, None, None);
        Self { status, kind, message, param, code, retry_after, closes: false }
    }

    /// The request cannot be served as it is.
    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "invalid_request_error", message)
    }

    /// A field is out of its range, or not supported.
    pub(crate) fn field(param: impl Into<String>, what: impl std::fmt::Display) -> Self {
        let param = without_middle(param.into());
        let message = format!("{param}: {what}");
        Self { param: Some(param), ..Self::invalid(message) }
    }

    /// A field asks for what this server does not do.
    pub(crate) fn unsupported(
        param: impl Into<String>,
        got: impl std::fmt::Display,
        expected: &str,
    ) -> Self {
        let refusal = Self::field(param, format!("got {got}, expected {expected}"));
        Self { code: Some("unsupported_value"), ..refusal }
    }

    /// What the phase says to a request that it does not take.
    pub(crate) fn phase(phase: Phase) -> Self {
        let (message, code, wait) = match phase {
            Phase::Loading => ("the model is being loaded", "loading", 5),
            Phase::Failed => ("the engine has failed", "failed", 30),
            _ => ("the server is draining", "draining", 1),
        };
        Self {
            code: Some(code),
            retry_after: Some(wait),
            closes: phase > Phase::Ready,
            ..Self::new(StatusCode::SERVICE_UNAVAILABLE, "service_unavailable_error", message)
        }
    }

    /// The model that is asked for is not here.
    pub(crate) fn no_model(asked: &str, own: &str) -> Self {
        let message = format!("model: got {asked}, expected {own}");
        Self {
            param: Some("model".to_owned()),
            code: Some("model_not_found"),
            ..Self::new(StatusCode::NOT_FOUND, "invalid_request_error", message)
        }
    }

    /// The queue is full: come again after `retry_after` seconds.
    pub(crate) fn overloaded(message: impl Into<String>, retry_after: u64) -> Self {
        Self {
            code: Some("queue_full"),
            retry_after: Some(retry_after),
            ..Self::new(StatusCode::TOO_MANY_REQUESTS, "rate_limit_error", message)
        }
    }

    /// What the engine said, about a request whose parts came as these fields.
    pub(crate) fn engine(error: &oss_engine::Error, names: Names) -> Self {
        use oss_engine::Error::{EmptyPrompt, PromptTooLong, Text, Token};
        let (status, kind) = match error.kind() {
            ErrorKind::Closed => return Self::phase(Phase::Failed),
            ErrorKind::Damaged => {
                let message = "the model's files are damaged".to_owned();
                return Self { message, ..Self::phase(Phase::Failed) };
            }
            ErrorKind::Timeout => (StatusCode::GATEWAY_TIMEOUT, "timeout_error"),
            ErrorKind::InvalidInput => (StatusCode::BAD_REQUEST, "invalid_request_error"),
            _ => {
                tracing::error!(%error, "a request failed");
                return Self::new(StatusCode::INTERNAL_SERVER_ERROR, "server_error", OURS);
            }
        };
        let (param, code) = match error {
            PromptTooLong { .. } => (Some(names.prompt), Some("context_length_exceeded")),
            EmptyPrompt | Token { .. } | Text(_) => (Some(names.prompt), None),
            error => (error.field().map(|field| names.of_field(field)), None),
        };
        let message = match param.filter(|_| error.field().is_some() && param != error.field()) {
            Some(param) => format!("{param}: {}", said(error)),
            None => said(error),
        };
        Self { param: param.map(str::to_owned), code, ..Self::new(status, kind, message) }
    }

    /// The error as JSON.
    pub(crate) fn json(&self) -> String {
        let Self { message, kind, param, code, .. } = self;
        let error = Inner { message, kind, param: param.as_deref(), code: *code };
        serde_json::to_string(&Envelope { error }).expect("strings are JSON")
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let mut response = Response::new(Body::from(self.json()));
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        if let Some(seconds) = self.retry_after {
            headers.insert(RETRY_AFTER, HeaderValue::from(seconds));
        }
        if self.closes {
            headers.insert(CONNECTION, HeaderValue::from_static("close"));
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_written_as_openai_writes_them() {
        let refusal = Refusal::unsupported("n", 0, "1 to 128");
        let expected = r#"{"error":{"message":"n: got 0, expected 1 to 128","#.to_owned()
            + r#""type":"invalid_request_error","param":"n","code":"unsupported_value"}}"#;
        assert_eq!(refusal.json(), expected);
    }

    #[test]
    fn what_is_long_loses_its_middle() {
        let said = |count| Refusal::field("☃", "☃".repeat(count)).message;
        assert_eq!(said(LONGEST - 3).chars().count(), LONGEST);
        assert!(!said(LONGEST - 3).contains('…'));
        assert_eq!(said(LONGEST - 2).chars().count(), LONGEST + 1);
        assert!(said(LONGEST - 2).contains("☃…☃"));
        assert_eq!(said(usize::pow(10, 6)).chars().count(), LONGEST + 1);
        let param = Refusal::field("x".repeat(1000), 1).param;
        assert_eq!(param.map(|param| param.chars().count()), Some(LONGEST + 1));
    }

    #[test]
    fn what_the_engine_says_has_a_status_that_routers_understand() {
        use oss_engine::Error;
        let long = Error::PromptTooLong { got: 9, expected: 8 };
        let panicked = Error::Panicked { message: "x".to_owned() };
        let table = [(long, 400), (Error::Closed, 503), (Error::Timeout, 504), (panicked, 500)];
        for (error, status) in table {
            let refusal = Refusal::engine(&error, Names::of("prompt"));
            assert_eq!(refusal.status.as_u16(), status, "{error}");
        }
    }

    #[test]
    fn clients_do_not_hear_where_the_model_lies() {
        use oss_engine::Error::{ChatTemplate, NoChatTemplate, NoTokenizer};
        let path = std::path::PathBuf::from("/secret/model.gguf");
        let expected = "one beside it";
        for error in [
            NoTokenizer { path: path.clone(), expected },
            NoChatTemplate { path: path.clone(), expected },
            ChatTemplate { path, reason: "it has no end".to_owned() },
        ] {
            let refusal = Refusal::engine(&error, Names::of("prompt"));
            assert_eq!(refusal.status, StatusCode::BAD_REQUEST);
            assert!(!refusal.message.contains("secret"), "{refusal}");
        }
        let panicked = oss_engine::Error::Panicked { message: "/secret/model.gguf".to_owned() };
        let refusal = Refusal::engine(&panicked, Names::of("prompt"));
        assert_eq!((refusal.status.as_u16(), refusal.message.as_str()), (500, OURS));
    }

    #[test]
    fn what_the_engine_calls_otherwise_has_the_name_of_the_request() {
        let reason = "it says so".to_owned();
        let error = oss_engine::Error::Grammar { field: "grammar", what: "JSON schema", reason };
        let refusal = Refusal::engine(&error, Names::of("prompt"));
        assert_eq!(refusal.param.as_deref(), Some("response_format"));
        assert!(
            refusal.message.starts_with("response_format: unsupported JSON schema in `grammar`: ")
        );
    }
}
