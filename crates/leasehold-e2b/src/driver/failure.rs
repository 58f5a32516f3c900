//! What can go wrong below the driver, by phase, and the two sets of it that may be tried again.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use leasehold::{BoxError, Effect, clean_message};

/// Where one request failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum SeamErrorKind {
    /// No connection: refused, name not found, TLS failed.
    Connect,
    /// No connection in time.
    ConnectTimeout,
    /// The read time-out fired.
    ReadTimeout,
    /// Reading the answer's body failed: reset, unexpected end.
    Read,
    /// Writing the request failed: broken pipe, aborted body.
    Write,
    /// The answer breaks the protocol: incomplete message, parse error, h2 error.
    RemoteProtocol,
    /// No free connection in time.
    Pool,
    /// Our own total deadline passed.
    Deadline,
    /// An HTTP status that says no, and that has no kind of its own here.
    Status(u16),
    /// The answer could not be decoded.
    Decode,
    /// The answer decodes but makes no sense, or the request does not.
    Validation,
    /// Confirmed absence: status 404 *with* a JSON body whose integer `code` is 404, from the control plane. Another 404 is `Status(404)`.
    NotFound,
    /// No room for another sandbox: status 429 on create.
    Capacity,
    /// The work was cancelled below.
    Cancelled,
    /// The data plane was closed.
    Closed,
    /// Anything else.
    Other,
}

/// The failures of the control plane after which an idempotent call is tried once more.
///
/// Source: the seed's driver (httpx `ConnectError`, `ReadTimeout`, `ReadError`, `WriteError`,
/// `RemoteProtocolError`). Not in it, on purpose: the connect time-out, waiting for the pool, our deadline, any status, decoding.
const CONTROL_SET: [SeamErrorKind; 5] = [
    SeamErrorKind::Connect,
    SeamErrorKind::ReadTimeout,
    SeamErrorKind::Read,
    SeamErrorKind::Write,
    SeamErrorKind::RemoteProtocol,
];

impl SeamErrorKind {
    /// Whether an idempotent control-plane call may be tried once more.
    #[must_use]
    pub fn in_control_set(self) -> bool {
        CONTROL_SET.contains(&self)
    }

    /// Whether the daemon may still be starting: any request error, any time-out, status 500–599.
    #[must_use]
    pub fn in_health_set(self) -> bool {
        match self {
            Self::ConnectTimeout | Self::Pool | Self::Deadline => true,
            Self::Status(status) => (500..=599).contains(&status),
            kind => kind.in_control_set(),
        }
    }

    /// The name in log records: the seed's exception class where it has one.
    #[must_use]
    pub const fn exception_type(self) -> &'static str {
        match self {
            Self::Connect => "ConnectError",
            Self::ConnectTimeout => "ConnectTimeout",
            Self::ReadTimeout => "ReadTimeout",
            Self::Read => "ReadError",
            Self::Write => "WriteError",
            Self::RemoteProtocol => "RemoteProtocolError",
            Self::Pool => "PoolTimeout",
            Self::Deadline => "DeadlineExceeded",
            Self::Status(_) => "HTTPStatusError",
            Self::Decode => "DecodingError",
            Self::Validation => "ValidationError",
            Self::NotFound => "NotFoundError",
            Self::Capacity => "CapacityExhaustedError",
            Self::Cancelled => "CancelledError",
            Self::Closed => "ClosedError",
            Self::Other => "RuntimeError",
        }
    }

    /// Whether the other side may have acted, as far as the kind alone tells.
    #[must_use]
    pub const fn default_effect(self) -> Effect {
        match self {
            Self::Connect | Self::ConnectTimeout | Self::Pool | Self::NotFound | Self::Capacity | Self::Closed => {
                Effect::None
            }
            // A timeout (408) may come from a proxy after the request went through; other 4xx are refusals.
            Self::Status(status) if status >= 400 && status < 500 && status != 408 => Effect::None,
            _ => Effect::Unknown,
        }
    }
}

/// The most bytes of a cause's text that are kept (chosen: far above what is shown, so that a secret is never cut before it is redacted).
const MAX_KEPT_BYTES: usize = 16 * 1024;

/// Why one request failed.
///
/// The message is the first cause's own text. It is shown capped, with control characters escaped and E2B keys redacted.
#[derive(Clone)]
pub struct SeamError {
    kind: SeamErrorKind,
    effect: Effect,
    text: String,
    message: String,
    retry_after: Option<Duration>,
    source: Option<Arc<dyn std::error::Error + Send + Sync>>,
}

impl SeamError {
    /// A failure, with the effect that its kind implies.
    pub fn new(kind: SeamErrorKind, text: impl Into<String>) -> Self {
        let mut text: String = text.into();
        text.truncate(text.floor_char_boundary(MAX_KEPT_BYTES));
        let message = clean_message(&redact(&text, None));
        Self { kind, effect: kind.default_effect(), text, message, retry_after: None, source: None }
    }

    /// States what the transport knows better than the kind.
    #[must_use]
    pub fn with_effect(mut self, effect: Effect) -> Self {
        self.effect = effect;
        self
    }

    /// Keeps how long the other side asked us to wait.
    #[must_use]
    pub fn with_retry_after(mut self, wait: Duration) -> Self {
        self.retry_after = Some(wait);
        self
    }

    /// Keeps the cause, which must hold no secret.
    #[must_use]
    pub fn with_source(mut self, source: impl Into<BoxError>) -> Self {
        self.source = Some(Arc::from(source.into()));
        self
    }

    /// Where it failed.
    #[must_use]
    pub fn kind(&self) -> SeamErrorKind {
        self.kind
    }

    /// Whether the other side may have acted.
    #[must_use]
    pub fn effect(&self) -> Effect {
        self.effect
    }

    /// The first cause's own text, fit for one line.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.message
    }

    /// How long the other side asked us to wait, if it did.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        self.retry_after
    }

    /// The same failure without this secret in it. A cause that shows the secret is dropped.
    pub(super) fn redacted(mut self, secret: Option<&str>) -> Self {
        let Some(secret) = secret else { return self };
        self.message = clean_message(&redact(&self.text, Some(secret)));
        self.text = redact(&self.text, Some(secret));
        let mut cause = self.source.as_ref().map(|source| source.as_ref() as &dyn std::error::Error);
        while let Some(error) = cause {
            if error.to_string().contains(secret) {
                self.source = None;
                break;
            }
            cause = error.source();
        }
        self
    }
}

impl fmt::Debug for SeamError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SeamError")
            .field("kind", &self.kind)
            .field("effect", &self.effect)
            .field("message", &self.message)
            .finish_non_exhaustive()
    }
}

impl fmt::Display for SeamError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.kind.exception_type(), self.message)
    }
}

impl std::error::Error for SeamError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_ref().map(|source| source.as_ref() as &(dyn std::error::Error + 'static))
    }
}

/// Hides a known secret, and whatever has the form of an E2B key (`e2b_` and at least 16 letters or digits).
fn redact(text: &str, secret: Option<&str>) -> String {
    const HIDDEN: &str = "[redacted]";
    const PREFIX: &str = "e2b_";
    const SHORTEST_KEY: usize = 16;
    let known = match secret {
        Some(secret) if !secret.is_empty() => text.replace(secret, HIDDEN),
        _ => text.to_owned(),
    };
    let mut shown = String::with_capacity(known.len());
    let mut rest = known.as_str();
    while let Some(at) = rest.find(PREFIX) {
        let (before, key) = rest.split_at(at);
        let after = key[PREFIX.len()..].trim_start_matches(|character: char| character.is_ascii_alphanumeric());
        let length = key.len() - PREFIX.len() - after.len();
        shown.push_str(before);
        shown.push_str(if length >= SHORTEST_KEY { HIDDEN } else { &key[..PREFIX.len() + length] });
        rest = after;
    }
    shown.push_str(rest);
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_hidden_and_what_only_looks_like_one_is_not() {
        let key = format!("e2b_{}", "a1".repeat(20));
        for (text, shown) in [
            (format!("key {key}, again {key}"), "key [redacted], again [redacted]".to_owned()),
            ("e2b_0123456789abcde".to_owned(), "e2b_0123456789abcde".to_owned()),
            ("e2b_0123456789abcdef".to_owned(), "[redacted]".to_owned()),
            ("leasehold_e2b_x e2b_".to_owned(), "leasehold_e2b_x e2b_".to_owned()),
            (format!("ü{key}ü"), "ü[redacted]ü".to_owned()),
        ] {
            assert_eq!(SeamError::new(SeamErrorKind::Other, text).message(), shown);
        }
    }

    #[test]
    fn a_secret_is_hidden_also_where_the_message_is_cut() {
        let text = format!("{}traffic-token", "x".repeat(leasehold::MAX_MESSAGE_BYTES - 12));
        let error = SeamError::new(SeamErrorKind::Other, text).redacted(Some("traffic-token"));
        assert!(!error.message().contains("traffic-t"), "{}", error.message());
        assert!(!format!("{error} {error:?}").contains("traffic-t"));
        assert!(format!("{error:?}").contains("Other"));
        // What is kept of the text is cut too, far behind what is shown: redacting makes the text shorter.
        let error =
            SeamError::new(SeamErrorKind::Other, "traffic-token-1".repeat(2000)).redacted(Some("traffic-token-1"));
        assert!(!error.message().contains("traff"), "{}", error.message());
    }

    #[test]
    fn a_cause_that_shows_the_secret_is_dropped_and_another_is_kept() {
        let with = |cause: &str| {
            let error = SeamError::new(SeamErrorKind::Other, "x").with_source(std::io::Error::other(cause.to_owned()));
            std::error::Error::source(&error.redacted(Some("secret"))).is_some()
        };
        assert!(with("harmless"));
        assert!(!with("the secret is out"));
        let inner = SeamError::new(SeamErrorKind::Other, "a secret inside");
        let nested = SeamError::new(SeamErrorKind::Other, "x")
            .with_source(SeamError::new(SeamErrorKind::Other, "y").with_source(inner));
        assert!(std::error::Error::source(&nested.redacted(Some("secret"))).is_none());
    }

    #[test]
    fn no_secret_leaves_the_text_alone() {
        let error = SeamError::new(SeamErrorKind::Other, "plain");
        assert_eq!(error.clone().redacted(None).message(), "plain");
        assert_eq!(error.clone().redacted(Some("")).message(), "plain");
        assert_eq!(error.to_string(), "RuntimeError: plain");
        assert_eq!(error.retry_after(), None);
    }

    #[test]
    fn every_kind_has_a_name_of_its_own() {
        use SeamErrorKind::*;
        let kinds = [
            Connect,
            ConnectTimeout,
            ReadTimeout,
            Read,
            Write,
            RemoteProtocol,
            Pool,
            Deadline,
            Status(500),
            Decode,
            Validation,
            NotFound,
            Capacity,
            Cancelled,
            Closed,
            Other,
        ];
        let names: std::collections::BTreeSet<_> = kinds.iter().map(|kind| kind.exception_type()).collect();
        assert_eq!(names.len(), kinds.len());
    }
}
