//! What went wrong between us and the other side.

use std::time::Duration;

/// The phase in which a request failed. The rows are the one table by which the HTTP library's errors are read:
///
/// | what happened | kind |
/// | --- | --- |
/// | connection refused, name not found, TLS handshake failed | `Connect` |
/// | no connection within the connect time-out | `ConnectTimeout` |
/// | no byte in either direction within the read time-out | `ReadTimeout` |
/// | connection closed before a whole response head, garbage, HTTP/2 protocol error or GOAWAY | `RemoteProtocol` |
/// | broken pipe, or writing the request was aborted | `Write` |
/// | any other I/O failure: reset, body ends too early | `Read` |
/// | our total deadline | `Deadline` |
/// | more than five redirects | `Redirects` |
/// | the caller's own body stream failed | `RequestBody` |
/// | the request cannot be built | `Invalid` |
/// | the body is larger than the caller allows | `TooLarge` |
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum TransportKind {
    /// No connection: refused, name not found, TLS handshake failed. Nothing was sent.
    Connect,
    /// No connection in time. Nothing was sent.
    ConnectTimeout,
    /// The other side kept silent for the read time-out.
    ReadTimeout,
    /// I/O failure while reading: reset, or the body ended too early.
    Read,
    /// I/O failure while writing.
    Write,
    /// The other side broke the protocol, or closed the connection before its answer.
    RemoteProtocol,
    /// Our own total deadline passed.
    Deadline,
    /// The other side keeps redirecting.
    Redirects,
    /// The caller's body stream failed.
    RequestBody,
    /// The request cannot be built: bad URL, bad header.
    Invalid,
    /// The response is larger than allowed.
    TooLarge,
}

impl TransportKind {
    /// Whether the request can have reached the other side, which then may have acted on it.
    #[must_use]
    pub fn may_have_been_sent(self) -> bool {
        !matches!(self, Self::Connect | Self::ConnectTimeout | Self::Invalid)
    }

    /// The kind in words, as it begins an error message.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Connect => "cannot connect",
            Self::ConnectTimeout => "connect timed out",
            Self::ReadTimeout => "read timed out",
            Self::Read => "read failed",
            Self::Write => "write failed",
            Self::RemoteProtocol => "remote protocol error",
            Self::Deadline => "deadline passed",
            Self::Redirects => "too many redirects",
            Self::RequestBody => "request body failed",
            Self::Invalid => "invalid request",
            Self::TooLarge => "response too large",
        }
    }
}

/// A request without a complete answer.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{}: {detail}", kind.as_str())]
pub struct TransportError {
    kind: TransportKind,
    detail: String,
}

impl TransportError {
    /// Makes an error; `detail` is capped and its control characters escaped.
    #[must_use]
    pub fn new(kind: TransportKind, detail: &str) -> Self {
        Self { kind, detail: crate::clean(detail) }
    }

    pub(crate) fn after(kind: TransportKind, limit: Duration) -> Self {
        let what = if kind == TransportKind::Deadline { "no complete answer" } else { "nothing received" };
        Self { kind, detail: format!("{what} within {limit:?}") }
    }

    /// The phase.
    #[must_use]
    pub fn kind(&self) -> TransportKind {
        self.kind
    }

    /// The cause's own text, capped and escaped.
    #[must_use]
    pub fn detail(&self) -> &str {
        &self.detail
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_three_kinds_were_certainly_not_sent() {
        let unsent = [TransportKind::Connect, TransportKind::ConnectTimeout, TransportKind::Invalid];
        assert!(unsent.iter().all(|kind| !kind.may_have_been_sent()));
        for kind in [
            TransportKind::ReadTimeout,
            TransportKind::Read,
            TransportKind::Write,
            TransportKind::RemoteProtocol,
            TransportKind::Deadline,
            TransportKind::Redirects,
            TransportKind::RequestBody,
            TransportKind::TooLarge,
        ] {
            assert!(kind.may_have_been_sent(), "{kind:?}");
        }
    }

    #[test]
    fn messages_name_the_phase_and_escape_the_cause() {
        let error = TransportError::new(TransportKind::Read, "a\nb");
        assert_eq!((error.to_string().as_str(), error.detail()), ("read failed: a\\nb", "a\\nb"));
        let limit = Duration::from_millis(1500);
        let text = |kind| TransportError::after(kind, limit).to_string();
        assert_eq!(text(TransportKind::ReadTimeout), "read timed out: nothing received within 1.5s");
        assert_eq!(text(TransportKind::Deadline), "deadline passed: no complete answer within 1.5s");
    }
}
