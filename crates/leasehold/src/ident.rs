//! Checked names. Ids are ours and become path and URL parts somewhere, so path-like ones are refused; refs are a backend's and stay opaque.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The longest id, in bytes (chosen: twice a UUID with room for a prefix, and below every file system's name limit).
pub const MAX_ID_BYTES: usize = 128;
/// The longest ref, in bytes (chosen: a provider's `team/name:tag` with room, and still fit for a URL path).
pub const MAX_REF_BYTES: usize = 1024;

/// Why a string is no id or ref.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidId {
    /// The string has no characters.
    #[error("{what} is empty: give at least one character")]
    Empty {
        /// The type that refused it.
        what: &'static str,
    },
    /// The string is over the type's limit.
    #[error("{what} has {length} bytes: at most {limit} are allowed")]
    TooLong {
        /// The type that refused it.
        what: &'static str,
        /// Its length in bytes.
        length: usize,
        /// The most bytes allowed.
        limit: usize,
    },
    /// The string has a control character.
    #[error("{what} {value:?} has a control character: remove it")]
    Control {
        /// The type that refused it.
        what: &'static str,
        /// The refused string.
        value: String,
    },
    /// The string could be read as a path.
    #[error("{what} {value:?} looks like a path: use no `/` or `\\`, and neither `.` nor `..`")]
    PathLike {
        /// The type that refused it.
        what: &'static str,
        /// The refused string.
        value: String,
    },
}

/// Checks what ids and refs have in common.
fn check(what: &'static str, value: &str, limit: usize) -> Result<(), InvalidId> {
    if value.is_empty() {
        return Err(InvalidId::Empty { what });
    }
    if value.len() > limit {
        return Err(InvalidId::TooLong { what, length: value.len(), limit });
    }
    if value.chars().any(char::is_control) {
        return Err(InvalidId::Control { what, value: value.to_owned() });
    }
    Ok(())
}

/// Checks an id of ours, which must also be safe as one path component.
fn check_id(what: &'static str, value: &str) -> Result<(), InvalidId> {
    check(what, value, MAX_ID_BYTES)?;
    if value.contains(['/', '\\']) || value == "." || value == ".." {
        return Err(InvalidId::PathLike { what, value: value.to_owned() });
    }
    Ok(())
}

/// Checks a ref, whose inside belongs to its backend.
fn check_ref(what: &'static str, value: &str) -> Result<(), InvalidId> {
    check(what, value, MAX_REF_BYTES)
}

macro_rules! name {
    ($(#[$doc:meta])* $name:ident, $what:literal, $check:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(String);

        impl $name {
            /// Checks the string and takes it.
            ///
            /// # Errors
            /// [`InvalidId`], naming the type, the value and the rule it breaks.
            pub fn new(value: impl Into<String>) -> Result<Self, InvalidId> {
                let value = value.into();
                $check($what, &value)?;
                Ok(Self(value))
            }

            /// The checked string.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl AsRef<str> for $name {
            fn as_ref(&self) -> &str {
                &self.0
            }
        }

        impl std::str::FromStr for $name {
            type Err = InvalidId;

            fn from_str(value: &str) -> Result<Self, InvalidId> {
                Self::new(value)
            }
        }

        impl TryFrom<String> for $name {
            type Error = InvalidId;

            fn try_from(value: String) -> Result<Self, InvalidId> {
                Self::new(value)
            }
        }

        impl From<$name> for String {
            fn from(value: $name) -> String {
                value.0
            }
        }
    };
}

name!(
    /// The tenant that an agent belongs to.
    TenantId, "tenant id", check_id
);
name!(
    /// The agent that owns a Home.
    AgentId, "agent id", check_id
);
name!(
    /// One Execution Binding in the caller's ledger; fresh for every create.
    BindingId, "binding id", check_id
);
name!(
    /// One Workspace in the caller's ledger.
    WorkspaceId, "workspace id", check_id
);
name!(
    /// One Home Snapshot in the caller's ledger; fresh for every create.
    HomeSnapshotId, "home snapshot id", check_id
);
name!(
    /// A backend's name for an Execution Binding. Opaque.
    BindingRef, "binding ref", check_ref
);
name!(
    /// A backend's name for a Workspace. Opaque.
    WorkspaceRef, "workspace ref", check_ref
);
name!(
    /// A backend's name for a Home Snapshot. Opaque.
    SnapshotRef, "snapshot ref", check_ref
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_refuse_what_could_be_a_path_or_nothing() {
        for bad in ["", ".", "..", "a/b", "/", "..\\x", "a\nb", "a\0", "\u{7f}"] {
            assert!(BindingId::new(bad).is_err(), "{bad:?} passed");
        }
        for good in ["a", "binding-1", "...", "a.b", "0190-ü"] {
            assert_eq!(BindingId::new(good).unwrap().as_str(), good);
        }
        assert!(BindingId::new("x".repeat(MAX_ID_BYTES)).is_ok());
        assert!(BindingId::new("x".repeat(MAX_ID_BYTES + 1)).is_err());
    }

    #[test]
    fn refs_are_opaque_but_never_empty_or_with_control_characters() {
        assert!(SnapshotRef::new("team/name:tag").is_ok());
        assert!(SnapshotRef::new("").is_err());
        assert!(BindingRef::new("a\tb").is_err());
        assert!(BindingRef::new("x".repeat(MAX_REF_BYTES + 1)).is_err());
    }

    #[test]
    fn the_message_names_type_value_and_rule() {
        let error = BindingId::new("a/b").unwrap_err();
        assert_eq!(
            error.to_string(),
            "binding id \"a/b\" looks like a path: use no `/` or `\\`, and neither `.` nor `..`"
        );
    }

    #[test]
    fn decoding_checks_too() {
        assert!(serde_json::from_str::<BindingId>("\"../x\"").is_err());
        assert_eq!(serde_json::from_str::<BindingRef>("\"a/b\"").unwrap().as_str(), "a/b");
        assert_eq!(serde_json::to_string(&BindingId::new("b").unwrap()).unwrap(), "\"b\"");
    }
}
