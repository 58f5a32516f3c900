//! Identifiers: how they are made, and which text is one.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Length of the ids we make, the letter included (E2B's have this form: `i` and 20 characters).
const ID_LENGTH: usize = 21;

/// Longest id accepted from a caller. Chosen: three times what we make; an id becomes a file name and a host name label.
const MAX_ID_LENGTH: usize = 63;

/// The namespace of named snapshots; E2B has the team's slug here.
pub(crate) const NAMESPACE: &str = "leasehold";

/// The id of a sandbox: lower-case letters and digits only, so it is one label of a host name and one file name.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct SandboxId(String);

impl SandboxId {
    /// A new random id.
    pub(crate) fn random() -> Self {
        Self(format!("i{}", random_text(ID_LENGTH - 1)))
    }

    /// Reads an id as callers write it: `id` or `id-clientid`, of which only the first part counts.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split('-');
        let id = parts.next().unwrap_or_default();
        let client = parts.next();
        let plain = |part: &str| {
            !part.is_empty()
                && part.len() <= MAX_ID_LENGTH
                && part.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit())
        };
        (plain(id) && client.is_none_or(plain) && parts.next().is_none()).then(|| Self(id.to_owned()))
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for SandboxId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for SandboxId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// `count` random characters of `[a-z0-9]`.
pub(crate) fn random_text(count: usize) -> String {
    const ALPHABET: &[u8; 36] = b"0123456789abcdefghijklmnopqrstuvwxyz";
    let mut text = String::with_capacity(count);
    while text.len() < count {
        for byte in random_bytes::<32>() {
            // 252 is the largest multiple of 36 in a byte: above it the first letters would be likelier.
            if byte < 252 && text.len() < count {
                text.push(char::from(ALPHABET[usize::from(byte % 36)]));
            }
        }
    }
    text
}

/// A random secret: 40 hexadecimal digits (160 bits).
pub(crate) fn random_secret() -> String {
    random_bytes::<20>().iter().map(|byte| format!("{byte:02x}")).collect()
}

fn random_bytes<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).expect("the kernel's random source works on every Linux that has getrandom(2)");
    bytes
}

/// A reference to a template, as it stands in `templateID`: `[namespace/]name[:tag]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TemplateRef {
    pub(crate) namespace: Option<String>,
    pub(crate) name: String,
    pub(crate) tag: String,
}

/// The tag that a reference without one means.
pub(crate) const DEFAULT_TAG: &str = "default";

impl TemplateRef {
    /// Reads a reference; the name is lower-cased.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(crate) fn parse(text: &str) -> Result<Self, &'static str> {
        let (namespace, rest) = match text.split_once('/') {
            Some((namespace, rest)) => (Some(namespace.to_ascii_lowercase()), rest),
            None => (None, text),
        };
        let (name, tag) = rest.split_once(':').unwrap_or((rest, DEFAULT_TAG));
        let name = name.to_ascii_lowercase();
        if namespace.as_deref().is_some_and(|namespace| !is_name(namespace)) {
            return Err("the namespace may hold a-z, 0-9, - and _ only");
        }
        if !is_name(&name) {
            return Err("the name may hold a-z, 0-9, - and _ only, 1 to 128 of them");
        }
        if !is_tag(tag) {
            return Err("the tag may hold a-z, 0-9, -, _ and . only, 1 to 128 of them");
        }
        Ok(Self { namespace, name, tag: tag.to_owned() })
    }
}

impl fmt::Display for TemplateRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(namespace) = &self.namespace {
            write!(f, "{namespace}/")?;
        }
        write!(f, "{}:{}", self.name, self.tag)
    }
}

fn is_name(text: &str) -> bool {
    (1..=128).contains(&text.len())
        && text.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-_".contains(&byte))
}

fn is_tag(text: &str) -> bool {
    (1..=128).contains(&text.len())
        && text.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-_.".contains(&byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_ours_and_distinct() {
        let (a, b) = (SandboxId::random(), SandboxId::random());
        assert_ne!(a, b);
        assert_eq!(a.as_str().len(), 21);
        assert_eq!(SandboxId::parse(a.as_str()), Some(a));
    }

    #[test]
    fn the_part_before_the_dash_is_the_id() {
        assert_eq!(SandboxId::parse("iabc-client1").expect("is one").as_str(), "iabc");
        for bad in ["", "-", "i-", "-i", "a-b-c", "..", "../x", "a/b", "A", "i%2f", "ä", "i.j", &"x".repeat(64)] {
            assert_eq!(SandboxId::parse(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn references_are_read_with_namespace_and_tag() {
        let full = TemplateRef::parse("leasehold/Home:v1.2").expect("is one");
        assert_eq!(
            (full.namespace.as_deref(), full.name.as_str(), full.tag.as_str()),
            (Some("leasehold"), "home", "v1.2")
        );
        assert_eq!(TemplateRef::parse("base").expect("is one").to_string(), "base:default");
        for bad in ["", ":", "a:", "/a", "a/", "a b", "../x", "a/b/c", "a:b:c", "a:B"] {
            assert!(TemplateRef::parse(bad).is_err(), "{bad:?}");
        }
    }
}
