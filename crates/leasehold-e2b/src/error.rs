//! Errors of the client.

use std::time::Duration;

use envd::{Code, RpcError};
use http::{HeaderMap, StatusCode, header};
use leasehold_http::{Secret, TransportError, TransportKind, clean, redact};
use serde::Deserialize;

/// What kind of failure a [`ClientError`] is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ClientErrorKind {
    /// No complete answer; the phase says how far it got.
    Transport(TransportKind),
    /// Confirmed absence: status 404 *with* a JSON body whose integer `code` is 404. Any other 404 (a proxy's page, a wrong
    /// URL) is [`Status`](Self::Status): taking it for absence would cost a user's work.
    NotFound,
    /// The endpoint has no room for another sandbox: status 429 of a create.
    Capacity,
    /// Any other status that is no success.
    Status,
    /// A success whose body makes no sense.
    Decode,
    /// envd refused the call, with this code.
    Rpc(Code),
    /// The call cannot be made: a malformed id, an argument that is no UTF-8. Nothing was sent.
    InvalidInput,
    /// The client's options are incomplete or contradict each other. Nothing was sent.
    Configuration,
}

/// A failed call. Its message holds the other side's own text, capped at 1 KiB, control characters escaped, keys and tokens
/// redacted.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{operation}: {message}")]
pub struct ClientError {
    kind: ClientErrorKind,
    operation: &'static str,
    message: String,
    status: Option<StatusCode>,
    error_code: Option<String>,
    retry_after: Option<Duration>,
}

impl ClientError {
    pub(crate) fn new(kind: ClientErrorKind, operation: &'static str, message: impl Into<String>) -> Self {
        Self { kind, operation, message: message.into(), status: None, error_code: None, retry_after: None }
    }

    pub(crate) fn invalid(operation: &'static str, message: impl Into<String>) -> Self {
        Self::new(ClientErrorKind::InvalidInput, operation, message)
    }

    pub(crate) fn configuration(message: impl Into<String>) -> Self {
        Self::new(ClientErrorKind::Configuration, "configure client", message)
    }

    pub(crate) fn transport(operation: &'static str, error: &TransportError, secrets: &[&Secret]) -> Self {
        let message = redact(&error.to_string(), secrets.iter().copied());
        Self::new(ClientErrorKind::Transport(error.kind()), operation, message)
    }

    pub(crate) fn decode(operation: &'static str, why: &str, secrets: &[&Secret]) -> Self {
        let message = format!("unexpected answer: {}", clean(&redact(why, secrets.iter().copied())));
        Self::new(ClientErrorKind::Decode, operation, message)
    }

    pub(crate) fn rpc(operation: &'static str, error: &RpcError, secrets: &[&Secret]) -> Self {
        let message = clean(&redact(&error.to_string(), secrets.iter().copied()));
        Self::new(ClientErrorKind::Rpc(error.code), operation, message)
    }

    pub(crate) fn with_status(mut self, status: StatusCode) -> Self {
        self.status = Some(status);
        self
    }

    /// What failed.
    #[must_use]
    pub fn kind(&self) -> ClientErrorKind {
        self.kind
    }

    /// The operation, for example `create sandbox`.
    #[must_use]
    pub fn operation(&self) -> &'static str {
        self.operation
    }

    /// The text without the operation.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.message
    }

    /// The HTTP status, when there was an answer that is no success.
    #[must_use]
    pub fn status(&self) -> Option<u16> {
        self.status.map(|status| status.as_u16())
    }

    /// The body's `error_code`, if it had one.
    #[must_use]
    pub fn error_code(&self) -> Option<&str> {
        self.error_code.as_deref()
    }

    /// How long the other side asks to wait, from a `Retry-After` in whole seconds.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        self.retry_after
    }

    /// The phase, when there was no complete answer.
    #[must_use]
    pub fn transport_kind(&self) -> Option<TransportKind> {
        match self.kind {
            ClientErrorKind::Transport(kind) => Some(kind),
            _ => None,
        }
    }

    /// Whether absence is confirmed.
    #[must_use]
    pub fn is_not_found(&self) -> bool {
        matches!(self.kind, ClientErrorKind::NotFound | ClientErrorKind::Rpc(Code::NotFound))
    }

    /// Whether the other side may have acted on the request although it failed. False only when nothing was sent, or the
    /// answer was a refusal (status below 500).
    #[must_use]
    pub fn may_have_happened(&self) -> bool {
        match self.kind {
            ClientErrorKind::Transport(kind) => kind.may_have_been_sent(),
            ClientErrorKind::NotFound
            | ClientErrorKind::Capacity
            | ClientErrorKind::InvalidInput
            | ClientErrorKind::Configuration => false,
            // A time-out told by a proxy (408) says nothing about what lies behind it.
            ClientErrorKind::Status => {
                self.status.is_none_or(|status| status.is_server_error() || status == StatusCode::REQUEST_TIMEOUT)
            }
            ClientErrorKind::Decode | ClientErrorKind::Rpc(_) => true,
        }
    }
}

/// Which kinds a route's statuses can mean.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Route {
    /// Creates a sandbox: 429 means capacity.
    Create,
    /// Anything else.
    Other,
}

#[derive(Deserialize)]
struct ErrorBody {
    /// An integer for the control plane; the volume API has text here.
    code: Option<serde_json::Value>,
    message: Option<String>,
    error_code: Option<String>,
}

/// Reads an answer that is no success. `body` is an error's text when it could not be read: the status still counts.
pub(crate) fn refused(
    operation: &'static str,
    route: Route,
    status: StatusCode,
    headers: &HeaderMap,
    body: Result<&[u8], &TransportError>,
    secrets: &[&Secret],
) -> ClientError {
    let parsed = body.ok().and_then(|body| serde_json::from_slice::<ErrorBody>(body).ok());
    let confirmed = parsed.as_ref().and_then(|body| body.code.as_ref()?.as_i64()) == Some(404);
    let kind = match status {
        StatusCode::NOT_FOUND if confirmed => ClientErrorKind::NotFound,
        StatusCode::TOO_MANY_REQUESTS if route == Route::Create => ClientErrorKind::Capacity,
        _ => ClientErrorKind::Status,
    };
    let text = match (&parsed, body) {
        (Some(ErrorBody { message: Some(message), .. }), _) => message.clone(),
        (_, Ok(bytes)) => String::from_utf8_lossy(bytes).trim().to_owned(),
        (_, Err(error)) => format!("(body unreadable: {error})"),
    };
    let text = if text.is_empty() && status.is_redirection() {
        "redirect to another origin is not followed".to_owned()
    } else {
        clean(&redact(&text, secrets.iter().copied()))
    };
    let separator = if text.is_empty() { "" } else { ": " };
    ClientError {
        kind,
        operation,
        message: format!("HTTP {}{separator}{text}", status.as_u16()),
        status: Some(status),
        error_code: parsed.and_then(|body| body.error_code).map(|code| clean(&code)),
        retry_after: retry_after(headers),
    }
}

/// `Retry-After` in whole seconds, the only form that E2B's API and SDKs use; a date is ignored.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get(header::RETRY_AFTER)?.to_str().ok()?;
    text.trim().parse().ok().map(Duration::from_secs)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(route: Route, status: u16, body: &str) -> ClientError {
        let status = StatusCode::from_u16(status).unwrap();
        refused("test", route, status, &HeaderMap::new(), Ok(body.as_bytes()), &[&Secret::new("e2b_secret")])
    }

    #[test]
    fn absence_needs_the_status_and_an_integer_code_in_json() {
        let kind = |status, body| read(Route::Other, status, body).kind();
        assert_eq!(kind(404, r#"{"code":404,"message":"gone"}"#), ClientErrorKind::NotFound);
        for body in [
            "",
            "<html>404</html>",
            r#"{"code":"404","message":"x"}"#,
            r#"{"code":502,"message":"x"}"#,
            "[404]",
            "404",
            r#"{"message":"x"}"#,
        ] {
            assert_eq!(kind(404, body), ClientErrorKind::Status, "{body}");
        }
        assert_eq!(kind(502, r#"{"code":404,"message":"The sandbox was not found"}"#), ClientErrorKind::Status);
    }

    #[test]
    fn too_many_requests_is_capacity_on_create_only() {
        let body = r#"{"code":429,"message":"you have reached the maximum number of concurrent E2B sandboxes (20)"}"#;
        assert_eq!(read(Route::Create, 429, body).kind(), ClientErrorKind::Capacity);
        assert_eq!(read(Route::Other, 429, body).kind(), ClientErrorKind::Status);
    }

    #[test]
    fn messages_are_capped_escaped_and_redacted() {
        let error = read(Route::Other, 500, "bad\nkey e2b_secret");
        assert_eq!(error.to_string(), r"test: HTTP 500: bad\nkey [redacted]");
        assert!(read(Route::Other, 500, &"x".repeat(9000)).message().len() <= 1024 + "HTTP 500: ".len());
        assert_eq!(read(Route::Other, 503, "").message(), "HTTP 503");
    }

    #[test]
    fn an_error_tells_its_operation_and_the_endpoints_own_code() {
        let error = read(Route::Other, 409, r#"{"code":409,"message":"x","error_code":"snapshot\nbusy"}"#);
        assert_eq!((error.operation(), error.error_code()), ("test", Some(r"snapshot\nbusy")));
        assert_eq!(read(Route::Other, 409, "").error_code(), None);
        assert_eq!(read(Route::Other, 409, "").transport_kind(), None);
        let lost = ClientError::new(ClientErrorKind::Transport(TransportKind::Read), "t", "");
        assert_eq!(lost.transport_kind(), Some(TransportKind::Read));
    }

    #[test]
    fn retry_after_is_kept() {
        let mut headers = HeaderMap::new();
        headers.insert(header::RETRY_AFTER, "7".parse().unwrap());
        let error = refused("t", Route::Create, StatusCode::TOO_MANY_REQUESTS, &headers, Ok(b""), &[]);
        assert_eq!(error.retry_after(), Some(Duration::from_secs(7)));
        headers.insert(header::RETRY_AFTER, "Tue, 01 Dec 2026 00:00:00 GMT".parse().unwrap());
        let error = refused("t", Route::Create, StatusCode::TOO_MANY_REQUESTS, &headers, Ok(b""), &[]);
        assert_eq!(error.retry_after(), None);
    }

    #[test]
    fn only_refusals_and_unsent_requests_cannot_have_happened() {
        assert!(!read(Route::Other, 409, "").may_have_happened());
        assert!(!read(Route::Other, 404, r#"{"code":404}"#).may_have_happened());
        assert!(read(Route::Other, 500, "").may_have_happened());
        let transport = |kind| ClientError::new(ClientErrorKind::Transport(kind), "t", "").may_have_happened();
        assert!(!transport(TransportKind::Connect));
        assert!(!transport(TransportKind::ConnectTimeout));
        assert!(transport(TransportKind::ReadTimeout));
        assert!(transport(TransportKind::Deadline));
        assert!(!ClientError::invalid("t", "").may_have_happened());
    }
}
