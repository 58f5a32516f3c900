//! What can go wrong in the engine, as one type that is opened by questions.

use std::error::Error as StdError;
use std::fmt;

/// The kind of an [`EngineError`]: what a caller should do next.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The sandbox or layer does not exist.
    NotFound,
    /// The sandbox is in a state that rules the operation out, for example it already runs.
    Conflict,
    /// The request itself is wrong; repeating it will not help.
    InvalidInput,
    /// This machine, or the engine on it, cannot do that.
    Unsupported,
    /// Something ran out: disk space, processes, memory.
    Exhausted,
    /// A stored layer is not what it should be.
    Corrupt,
    /// An operation did not end in its time.
    Timeout,
    /// The guest died or said that it cannot work.
    Guest,
    /// The operating system refused something it normally does not refuse.
    Io,
}

/// An operation of the engine that failed, and at which step.
#[derive(Debug)]
pub struct EngineError {
    kind: ErrorKind,
    stage: &'static str,
    id: Option<String>,
    message: String,
    source: Option<Box<dyn StdError + Send + Sync>>,
}

impl EngineError {
    pub(crate) fn new(kind: ErrorKind, stage: &'static str, message: impl Into<String>) -> Self {
        Self { kind, stage, id: None, message: message.into(), source: None }
    }

    /// An operating system's error, whose kind follows from its number.
    pub(crate) fn io(stage: &'static str, message: impl Into<String>, error: impl Into<std::io::Error>) -> Self {
        let error = error.into();
        let kind = kind_of(&error);
        Self { kind, stage, id: None, message: format!("{}: {error}", message.into()), source: Some(Box::new(error)) }
    }

    pub(crate) fn of(mut self, id: &str) -> Self {
        self.id.get_or_insert_with(|| id.to_owned());
        self
    }

    pub(crate) fn adding(mut self, fact: impl fmt::Display) -> Self {
        self.message = format!("{}; {fact}", self.message);
        self
    }

    /// What a caller should do next.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// The step that failed: a short constant word.
    #[must_use]
    pub fn stage(&self) -> &'static str {
        self.stage
    }

    /// The sandbox or layer, when it is about one.
    #[must_use]
    pub fn id(&self) -> Option<&str> {
        self.id.as_deref()
    }

    /// The text without step and id.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.message
    }
}

impl fmt::Display for EngineError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.id {
            Some(id) => write!(formatter, "{} of {id}: {}", self.stage, self.message),
            None => write!(formatter, "{}: {}", self.stage, self.message),
        }
    }
}

impl StdError for EngineError {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.source.as_deref().map(|source| source as &(dyn StdError + 'static))
    }
}

fn kind_of(error: &std::io::Error) -> ErrorKind {
    error.raw_os_error().map_or(ErrorKind::Io, kind_of_errno)
}

/// The one table from error numbers to kinds.
pub(crate) fn kind_of_errno(errno: i32) -> ErrorKind {
    match errno {
        libc::ENOENT => ErrorKind::NotFound,
        libc::ENOSPC | libc::EDQUOT | libc::ENOMEM | libc::EMFILE | libc::ENFILE | libc::EAGAIN | libc::EUSERS => {
            ErrorKind::Exhausted
        }
        libc::ENOSYS | libc::EOPNOTSUPP | libc::ENODEV => ErrorKind::Unsupported,
        libc::ETIMEDOUT => ErrorKind::Timeout,
        _ => ErrorKind::Io,
    }
}

/// Attaches step and object to an operating system's error.
pub(crate) trait During<T> {
    fn during(self, stage: &'static str, what: impl fmt::Display) -> Result<T, EngineError>;
}

impl<T, E: Into<std::io::Error>> During<T> for Result<T, E> {
    fn during(self, stage: &'static str, what: impl fmt::Display) -> Result<T, EngineError> {
        self.map_err(|error| EngineError::io(stage, what.to_string(), error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_is_exhaustion() {
        let error =
            EngineError::io("snapshot", "cannot write", std::io::Error::from_raw_os_error(libc::ENOSPC)).of("i1");
        assert_eq!(error.kind(), ErrorKind::Exhausted);
        assert_eq!((error.stage(), error.id()), ("snapshot", Some("i1")));
        assert!(error.to_string().starts_with("snapshot of i1: cannot write: No space left"), "{error}");
        assert!(std::error::Error::source(&error).is_some());
    }

    #[test]
    fn the_first_id_stays() {
        let error = EngineError::new(ErrorKind::NotFound, "layer", "missing").of("sha256:a").of("i1");
        assert_eq!(error.id(), Some("sha256:a"));
    }
}
