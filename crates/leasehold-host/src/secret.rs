//! Secrets: never printed, compared in constant time.

use std::fmt;

use serde::{Deserialize, Serialize};
use subtle::ConstantTimeEq as _;

/// A secret text. `Debug` prints nothing of it.
#[derive(Clone, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Secret(String);

impl Secret {
    /// Takes a text as a secret.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The text itself, for whoever must send it.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.0
    }

    /// Whether `candidate` is this secret. The time taken depends on the lengths only.
    #[must_use]
    pub fn matches(&self, candidate: &[u8]) -> bool {
        self.0.as_bytes().ct_eq(candidate).into()
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_not_printed_and_matches_itself_only() {
        let secret = Secret::new("hush");
        assert!(!format!("{secret:?}").contains("hush"));
        assert!(secret.matches(b"hush"));
        assert!(!secret.matches(b"hus") && !secret.matches(b"hush!") && !secret.matches(b""));
    }
}
