//! What a sandbox is told about itself: the content of `identity.json`.

use std::collections::BTreeMap;
use std::path::Path;
use std::{fmt, fs, io};

use serde::{Deserialize, Serialize};

/// Largest identity file that is read, in bytes. Chosen: far above any set of variables that `execve` would take.
const MAX_BYTES: u64 = 4 << 20;

/// Whether processes of an earlier boot are still there.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Boot {
    /// Started from files alone.
    #[default]
    Cold,
    /// Continued with memory and processes.
    Warm,
}

/// A secret text: compared in constant time, never printed.
#[derive(Clone, Serialize, Deserialize)]
#[serde(transparent)]
pub struct AccessToken(String);

impl AccessToken {
    /// Wraps a token.
    pub fn new(token: impl Into<String>) -> Self {
        Self(token.into())
    }

    /// Whether `candidate` is this token. The time it takes depends on the lengths only.
    #[must_use]
    pub fn matches(&self, candidate: &[u8]) -> bool {
        let token = self.0.as_bytes();
        let difference = token.iter().zip(candidate).fold(0u8, |sum, (a, b)| sum | (a ^ b));
        token.len() == candidate.len() && std::hint::black_box(difference) == 0
    }

    /// The token itself, for what has to be computed from it (signatures).
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for AccessToken {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("AccessToken(..)")
    }
}

impl PartialEq for AccessToken {
    fn eq(&self, other: &Self) -> bool {
        self.matches(other.0.as_bytes())
    }
}

impl Eq for AccessToken {}

/// Identity and settings of one sandbox, written by the engine and read by the guest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Identity {
    /// The sandbox's id.
    pub sandbox_id: String,
    /// The template it was created from.
    pub template_id: String,
    /// Raised by the host whenever the sandbox starts, is restored or is cloned.
    pub generation: u64,
    /// envd's access token. Absent: calls need none, and nobody may act as another user over loopback.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub access_token: Option<AccessToken>,
    /// Variables for every process.
    #[serde(default)]
    pub envs: BTreeMap<String, String>,
    /// The user that acts when a request names none.
    #[serde(default = "default_user")]
    pub default_user: String,
    /// Working directory of processes that ask for none; absent means the user's home.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub default_workdir: Option<String>,
    /// How this boot came about.
    #[serde(default)]
    pub boot: Boot,
}

fn default_user() -> String {
    "user".into()
}

/// An identity that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    /// The file cannot be read.
    #[error("cannot read identity file {path}")]
    Read {
        /// The file.
        path: String,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The file is no identity.
    #[error("identity is not valid JSON of the expected shape")]
    Parse(#[from] serde_json::Error),
    /// A field has a value that cannot be used.
    #[error("identity field {field} {problem}")]
    Field {
        /// The field.
        field: &'static str,
        /// What is wrong with it.
        problem: String,
    },
}

impl Identity {
    /// An identity with defaults: no token, no variables, user `user`, cold boot, generation 1.
    pub fn new(sandbox_id: impl Into<String>, template_id: impl Into<String>) -> Self {
        Self {
            sandbox_id: sandbox_id.into(),
            template_id: template_id.into(),
            generation: 1,
            access_token: None,
            envs: BTreeMap::new(),
            default_user: default_user(),
            default_workdir: None,
            boot: Boot::Cold,
        }
    }

    /// Reads and checks an identity.
    ///
    /// # Errors
    /// When the text is no identity or a field's value cannot be used.
    pub fn parse(json: &[u8]) -> Result<Self, IdentityError> {
        let identity: Self = serde_json::from_slice(json)?;
        identity.check()?;
        Ok(identity)
    }

    /// Reads and checks the identity in a file.
    ///
    /// # Errors
    /// When the file cannot be read (also: larger than 4 MiB), or as [`Identity::parse`].
    pub fn load(path: &Path) -> Result<Self, IdentityError> {
        let read = |path: &Path| {
            let size = fs::metadata(path)?.len();
            if size > MAX_BYTES {
                return Err(io::Error::other(format!("{size} bytes exceed the limit of {MAX_BYTES}")));
            }
            fs::read(path)
        };
        let json = read(path).map_err(|source| IdentityError::Read { path: path.display().to_string(), source })?;
        Self::parse(&json)
    }

    /// Checks every field.
    ///
    /// # Errors
    /// Names the first field whose value cannot be used.
    pub fn check(&self) -> Result<(), IdentityError> {
        let refuse = |field, problem: String| Err(IdentityError::Field { field, problem });
        for (field, value) in [("sandbox_id", &self.sandbox_id), ("template_id", &self.template_id)] {
            if value.is_empty() || value.chars().any(char::is_control) {
                return refuse(field, format!("{value:?} is empty or holds control characters"));
            }
        }
        if self.default_user.is_empty() || self.default_user.contains([':', '\n', '\0', '/']) {
            return refuse("default_user", format!("{:?} is no user name", self.default_user));
        }
        if let Some(dir) = &self.default_workdir
            && (!dir.starts_with('/') || dir.contains('\0'))
        {
            return refuse("default_workdir", format!("{dir:?} is no absolute path"));
        }
        if self.access_token.as_ref().is_some_and(|token| token.0.is_empty()) {
            return refuse("access_token", "is empty; leave it out for an unsecured sandbox".into());
        }
        for (name, value) in &self.envs {
            if name.is_empty() || name.contains(['=', '\0']) {
                return refuse("envs", format!("has the unusable name {name:?}"));
            }
            if value.contains('\0') {
                return refuse("envs", format!("has a NUL byte in the value of {name:?}"));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_identity_survives_its_own_json() {
        let mut identity = Identity::new("i0123", "host");
        identity.access_token = Some(AccessToken::new("t"));
        identity.envs.insert("A".into(), "b=c".into());
        let json = serde_json::to_vec(&identity).unwrap();
        assert_eq!(Identity::parse(&json).unwrap(), identity);
    }

    #[test]
    fn absent_fields_have_the_stated_meaning() {
        let identity = Identity::parse(br#"{"sandbox_id":"i","template_id":"host","generation":3}"#).unwrap();
        assert_eq!(identity.default_user, "user");
        assert_eq!(identity.boot, Boot::Cold);
        assert!(identity.access_token.is_none());
    }

    #[test]
    fn unusable_identities_are_refused_by_field() {
        let refuse = |json: &str| Identity::parse(json.as_bytes()).unwrap_err().to_string();
        assert!(refuse(r#"{"sandbox_id":"i","template_id":"h","generation":1,"extra":1}"#).contains("expected shape"));
        assert!(refuse(r#"{"sandbox_id":"","template_id":"h","generation":1}"#).contains("sandbox_id"));
        for (field, json) in [
            ("envs", r#""envs":{"A=B":"c"}"#),
            ("envs", r#""envs":{"A":"\u0000"}"#),
            ("default_user", r#""default_user":"a:b""#),
            ("default_workdir", r#""default_workdir":"rel""#),
            ("access_token", r#""access_token":"""#),
        ] {
            let message = refuse(&format!(r#"{{"sandbox_id":"i","template_id":"h","generation":1,{json}}}"#));
            assert!(message.contains(field), "{message}");
        }
    }

    #[test]
    fn tokens_match_whole_and_stay_out_of_debug_output() {
        let token = AccessToken::new("secret");
        assert!(token.matches(b"secret"));
        assert!(
            !token.matches(b"secre") && !token.matches(b"secrets") && !token.matches(b"Secret") && !token.matches(b"")
        );
        assert!(!format!("{token:?}").contains("secret"));
    }
}
