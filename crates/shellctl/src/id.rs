//! Ids of jobs.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The id of a job, made by the daemon. Callers treat it as opaque; it is always safe as one path segment: 1 to 64 characters
/// of `A-Z a-z 0-9 . _ -`, not starting with a dot.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct JobId(String);

/// Text that is no job id.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("job id {0:?} is malformed: 1 to 64 characters of A-Z a-z 0-9 . _ - are allowed, not starting with a dot")]
pub struct BadJobId(String);

const MAX_CHARACTERS: usize = 64;

impl JobId {
    /// Checks `text`.
    ///
    /// # Errors
    /// When it is no job id.
    pub fn new(text: impl Into<String>) -> Result<Self, BadJobId> {
        let text = text.into();
        let right = !text.is_empty()
            && text.len() <= MAX_CHARACTERS
            && !text.starts_with('.')
            && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-'));
        if right { Ok(Self(text)) } else { Err(BadJobId(text.chars().take(MAX_CHARACTERS).collect())) }
    }

    /// The id as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for JobId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl FromStr for JobId {
    type Err = BadJobId;

    fn from_str(text: &str) -> Result<Self, BadJobId> {
        Self::new(text)
    }
}

impl TryFrom<String> for JobId {
    type Error = BadJobId;

    fn try_from(text: String) -> Result<Self, BadJobId> {
        Self::new(text)
    }
}

impl From<JobId> for String {
    fn from(id: JobId) -> Self {
        id.0
    }
}

impl AsRef<str> for JobId {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_of_both_known_daemons_pass_and_path_parts_do_not() {
        for good in ["0123456789abcdef", "12011530-x7k", "a"] {
            assert_eq!(JobId::new(good).unwrap().as_str(), good);
        }
        for bad in ["", ".", "..", "../x", "a/b", "a%2Fb", "a b", ".hidden", "ä", &"a".repeat(65)] {
            assert!(JobId::new(bad).is_err(), "{bad:?}");
        }
        assert!(serde_json::from_str::<JobId>("\"a/b\"").is_err());
    }
}
