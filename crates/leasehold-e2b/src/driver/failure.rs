//! What can go wrong below the driver, by phase, and the two sets of it that may be tried again.

use std::fmt;
use std::sync::Arc;

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
/// Source: `facts/runtime-contract.md` §3 of the seed's driver (httpx `ConnectError`, `ReadTimeout`, `ReadError`, `WriteError`,
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

/// Why one request failed.
///
/// The message is the first cause's own text; it is made fit for logs here (capped, control characters escaped), and must hold no secret.
#[derive(Debug, Clone)]
pub struct SeamError {
    kind: SeamErrorKind,
    effect: Effect,
    message: String,
    source: Option<Arc<dyn std::error::Error + Send + Sync>>,
}

impl SeamError {
    /// A failure, with the effect that its kind implies.
    pub fn new(kind: SeamErrorKind, message: impl AsRef<str>) -> Self {
        Self { kind, effect: kind.default_effect(), message: clean_message(message.as_ref()), source: None }
    }

    /// States what the transport knows better than the kind.
    #[must_use]
    pub fn with_effect(mut self, effect: Effect) -> Self {
        self.effect = effect;
        self
    }

    /// Keeps the cause.
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

    /// The first cause's own text.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.message
    }
}

impl fmt::Display for SeamError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for SeamError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_ref().map(|source| source.as_ref() as &(dyn std::error::Error + 'static))
    }
}
