//! The one error type at this crate's border, opened by questions and never by matching text.

use std::error::Error;
use std::fmt::{self, Write as _};
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// A cause of any type.
pub type BoxError = Box<dyn Error + Send + Sync + 'static>;

/// The most bytes of a message that came from elsewhere (chosen: a provider's whole sentence, never its page).
pub const MAX_MESSAGE_BYTES: usize = 1024;

/// What went wrong, as far as a caller can act on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ErrorKind {
    /// A Binding could not be made; what was newly made has been cleaned up, or the attempt was logged.
    BindingCreate,
    /// The provider has no room for another Binding.
    BindingCapacityExhausted,
    /// A Binding could not be reached; it may still be there.
    BindingAcquire,
    /// The Binding is confirmed to be gone.
    BindingLost,
    /// A Binding or a Home Snapshot could not be deleted.
    BindingDestroy,
    /// A Home Snapshot could not be made.
    HomeSnapshotCreate,
    /// The Home Snapshot is confirmed to be gone.
    HomeSnapshotNotFound,
    /// The Home is over the backend's limit for a snapshot.
    HomeSnapshotTooLarge,
    /// The backend cannot attach a second Binding to a Workspace. Nothing was done.
    SharedWorkspaceUnsupported,
    /// The backend cannot destroy a Binding and keep its Workspace. Nothing was done.
    WorkspacePreservationUnsupported,
    /// The Workspace exists but cannot be used.
    WorkspaceUnavailable,
    /// The lease belongs to another backend, or was released before. Nothing was done.
    ForeignLease,
    /// The work was cancelled below us. Never wrapped in another kind and never retried.
    Cancelled,
    /// The request is beyond the backend's capabilities. Nothing was done.
    Unsupported,
    /// The request is malformed. Nothing was done.
    InvalidInput,
    /// The named job or file does not exist.
    NotFound,
    /// The named job or file is in a state that forbids the request.
    Conflict,
    /// The credentials were refused.
    Unauthorized,
    /// A transport to the sandbox failed.
    Unavailable,
    /// No answer came in time.
    TimedOut,
    /// The lease's connections were closed.
    Closed,
    /// The other side failed in a way that has no kind of its own.
    Internal,
}

impl ErrorKind {
    /// Whether the same request could do better a little later.
    #[must_use]
    pub const fn is_transient(self) -> bool {
        matches!(self, Self::BindingCapacityExhausted | Self::Unavailable | Self::TimedOut)
    }

    /// The name used in logs and on the wire.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::BindingCreate => "binding_create",
            Self::BindingCapacityExhausted => "binding_capacity_exhausted",
            Self::BindingAcquire => "binding_acquire",
            Self::BindingLost => "binding_lost",
            Self::BindingDestroy => "binding_destroy",
            Self::HomeSnapshotCreate => "home_snapshot_create",
            Self::HomeSnapshotNotFound => "home_snapshot_not_found",
            Self::HomeSnapshotTooLarge => "home_snapshot_too_large",
            Self::SharedWorkspaceUnsupported => "shared_workspace_unsupported",
            Self::WorkspacePreservationUnsupported => "workspace_preservation_unsupported",
            Self::WorkspaceUnavailable => "workspace_unavailable",
            Self::ForeignLease => "foreign_lease",
            Self::Cancelled => "cancelled",
            Self::Unsupported => "unsupported",
            Self::InvalidInput => "invalid_input",
            Self::NotFound => "not_found",
            Self::Conflict => "conflict",
            Self::Unauthorized => "unauthorized",
            Self::Unavailable => "unavailable",
            Self::TimedOut => "timed_out",
            Self::Closed => "closed",
            Self::Internal => "internal",
        }
    }
}

/// Whether the other side may have acted although the call failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Effect {
    /// Certainly not: the request never left, or was refused.
    None,
    /// Nobody here can know.
    Unknown,
}

/// Why an operation of the contract failed.
///
/// `Display` is one line for the caller and never repeats the source; print the chain to see every cause.
#[derive(Debug)]
pub struct RuntimeError {
    kind: ErrorKind,
    effect: Effect,
    operation: &'static str,
    driver: &'static str,
    message: String,
    code: Option<String>,
    status: Option<u16>,
    retry_after: Option<Duration>,
    source: Option<BoxError>,
}

impl RuntimeError {
    /// An error whose effect is not known; see [`RuntimeError::without_effect`].
    ///
    /// The message is cleaned by [`clean_message`].
    pub fn new(kind: ErrorKind, operation: &'static str, driver: &'static str, message: impl AsRef<str>) -> Self {
        Self {
            kind,
            effect: Effect::Unknown,
            operation,
            driver,
            message: clean_message(message.as_ref()),
            code: None,
            status: None,
            retry_after: None,
            source: None,
        }
    }

    /// States that the other side certainly did not act.
    #[must_use]
    pub fn without_effect(self) -> Self {
        self.with_effect(Effect::None)
    }

    /// States whether the other side may have acted.
    #[must_use]
    pub fn with_effect(mut self, effect: Effect) -> Self {
        self.effect = effect;
        self
    }

    /// Keeps the cause.
    #[must_use]
    pub fn with_source(mut self, source: impl Into<BoxError>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// Keeps the other side's own error code.
    #[must_use]
    pub fn with_code(mut self, code: impl AsRef<str>) -> Self {
        self.code = Some(clean_message(code.as_ref()));
        self
    }

    /// Keeps the other side's HTTP status.
    #[must_use]
    pub fn with_status(mut self, status: u16) -> Self {
        self.status = Some(status);
        self
    }

    /// Keeps how long the other side asked us to wait.
    #[must_use]
    pub fn with_retry_after(mut self, wait: Duration) -> Self {
        self.retry_after = Some(wait);
        self
    }

    /// What went wrong.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// Whether the other side may have acted.
    #[must_use]
    pub fn effect(&self) -> Effect {
        self.effect
    }

    /// The operation of the contract that failed.
    #[must_use]
    pub fn operation(&self) -> &'static str {
        self.operation
    }

    /// The driver that was asked.
    #[must_use]
    pub fn driver(&self) -> &'static str {
        self.driver
    }

    /// The text for the caller, without secrets.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.message
    }

    /// The other side's own error code (`job_not_found`, `timeout`, …), if it gave one.
    #[must_use]
    pub fn code(&self) -> Option<&str> {
        self.code.as_deref()
    }

    /// The other side's HTTP status, if one was seen.
    #[must_use]
    pub fn status(&self) -> Option<u16> {
        self.status
    }

    /// How long the other side asked us to wait, if it did.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        self.retry_after
    }
}

impl fmt::Display for RuntimeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} failed on {}: {}", self.operation, self.driver, self.message)
    }
}

impl Error for RuntimeError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.source.as_ref().map(|source| source.as_ref() as &(dyn Error + 'static))
    }
}

/// Makes text from elsewhere fit for one line of an error or a log: control characters escaped, at most [`MAX_MESSAGE_BYTES`].
#[must_use]
pub fn clean_message(text: &str) -> String {
    const CUT: &str = "… (cut)";
    let mut clean = String::with_capacity(text.len().min(MAX_MESSAGE_BYTES));
    for character in text.chars() {
        let before = clean.len();
        if character.is_control() || is_invisible(character) {
            write!(clean, "{}", character.escape_default()).expect("writing to a string does not fail");
        } else {
            clean.push(character);
        }
        if clean.len() > MAX_MESSAGE_BYTES {
            clean.truncate(before);
            let mut end = before.min(MAX_MESSAGE_BYTES - CUT.len());
            while !clean.is_char_boundary(end) {
                end -= 1;
            }
            clean.truncate(end);
            clean.push_str(CUT);
            break;
        }
    }
    clean
}

/// Line separators and direction overrides: not control characters to Unicode, but able to forge what a terminal or a log viewer shows.
fn is_invisible(character: char) -> bool {
    matches!(character, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn display_is_one_line_without_the_source() {
        let error =
            RuntimeError::new(ErrorKind::BindingCreate, "create_binding", "e2b", "stale connection\nfoo\u{1b}[31m")
                .with_source(std::io::Error::other("hidden"));
        assert_eq!(error.to_string(), "create_binding failed on e2b: stale connection\\nfoo\\u{1b}[31m");
        assert_eq!(error.source().unwrap().to_string(), "hidden");
    }

    #[test]
    fn long_messages_are_cut_at_a_character() {
        let exact = "x".repeat(MAX_MESSAGE_BYTES);
        assert_eq!(clean_message(&exact), exact);
        for text in
            ["x".repeat(MAX_MESSAGE_BYTES + 1), "ü".repeat(MAX_MESSAGE_BYTES), "\n".repeat(5000), "🦀".repeat(300)]
        {
            let clean = clean_message(&text);
            assert!(clean.len() <= MAX_MESSAGE_BYTES, "{} bytes", clean.len());
            assert!(clean.ends_with("(cut)"));
        }
    }

    #[test]
    fn names_are_the_serialised_names() {
        for kind in
            [ErrorKind::BindingCreate, ErrorKind::HomeSnapshotTooLarge, ErrorKind::ForeignLease, ErrorKind::TimedOut]
        {
            assert_eq!(serde_json::to_string(&kind).unwrap(), format!("\"{}\"", kind.name()));
        }
    }
}
