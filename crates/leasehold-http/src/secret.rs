//! Values that must not be printed.

use std::fmt;

use crate::text::redact;

/// A key or token. Its `Debug` prints nothing, it has no `Display`, and it is cleared from no log because it never gets there.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Secret(String);

impl Secret {
    /// Wraps a value.
    pub fn new(value: impl Into<String>) -> Self {
        Self(value.into())
    }

    /// The value, for the one place that sends it.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.0
    }

    /// Whether there is no value at all.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// `text` without this secret.
    #[must_use]
    pub fn redact_from(&self, text: &str) -> String {
        redact(text, [self])
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, _: &mut fmt::Formatter<'_>) -> fmt::Result {
        Ok(())
    }
}

impl From<String> for Secret {
    fn from(value: String) -> Self {
        Self(value)
    }
}

impl From<&str> for Secret {
    fn from(value: &str) -> Self {
        Self(value.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_prints_nothing() {
        assert_eq!(format!("{:?}", Secret::new("e2b_0123")), "");
        assert_eq!(format!("{:?}", Some(Secret::new("e2b_0123"))), "Some()");
    }
}
