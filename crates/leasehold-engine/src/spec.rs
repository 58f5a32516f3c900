//! The plain data of the engine's calls.

use std::fmt;
use std::os::fd::OwnedFd;
use std::str::FromStr;

use leasehold_guest::Identity;
use serde::{Deserialize, Serialize};

use crate::error::{EngineError, ErrorKind};

/// What a sandbox is made of.
#[derive(Debug, Clone)]
pub struct StartSpec {
    /// The sandbox's id, also its host name: 1 to 63 of `a`-`z`, `0`-`9` and `-`, not starting or ending with `-`.
    pub id: String,
    /// The read-only base.
    pub template: Template,
    /// Stored layers on top of the base, lowest first.
    pub layers: Vec<LayerDigest>,
    /// Upper bounds on what it uses.
    pub limits: Limits,
    /// What the guest is told about itself.
    pub identity: Identity,
}

/// Where the read-only base comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Template {
    /// This machine's `/usr`, shown read-only, and an `/etc` of our own.
    Host,
}

/// Upper bounds per sandbox. Absent means unlimited.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Limits {
    /// Memory in bytes, page cache included.
    pub memory_bytes: Option<u64>,
    /// Processor time per second of wall time, in thousandths of one processor.
    pub cpu_millis: Option<u64>,
    /// Processes and threads.
    pub pids: Option<u64>,
}

/// A process that is not confused with a later one of the same number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProcessId {
    /// Its id in the host's pid namespace.
    pub pid: u32,
    /// When it started, in clock ticks since the machine booted (`/proc/PID/stat`, field 22).
    pub start_time: u64,
}

/// A sandbox that runs.
#[derive(Debug)]
pub struct Running {
    /// Its first process: the guest.
    pub process: ProcessId,
    /// Becomes readable when that process, and with it the whole sandbox, has ended. Held open it keeps the process id from meaning another.
    pub pidfd: OwnedFd,
    /// What `/proc/sys/kernel/random/boot_id` says inside: new on each start.
    pub boot_id: String,
}

/// A socket of the guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum GuestSocket {
    /// E2B's envd protocol.
    Envd,
    /// The shellctl protocol.
    Shellctl,
    /// Our own: dialling ports inside, preparing for a snapshot.
    Control,
}

impl GuestSocket {
    pub(crate) fn file_name(self) -> &'static str {
        match self {
            Self::Envd => "envd.sock",
            Self::Shellctl => "shellctl.sock",
            Self::Control => "ctl.sock",
        }
    }
}

/// What a sandbox uses now. A figure is absent where the machine does not account it per sandbox.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// Memory in bytes: with a memory controller page cache included, else what no file stands behind.
    pub memory_bytes: Option<u64>,
    /// Processor time since the start, in microseconds.
    pub cpu_micros: Option<u64>,
    /// Processes and threads.
    pub pids: Option<u64>,
}

/// Name of a stored layer: the SHA-256 of its canonical form, written `sha256:` and 64 hexadecimal digits.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct LayerDigest(String);

impl LayerDigest {
    const PREFIX: &str = "sha256:";

    pub(crate) fn of_sha256(digest: &[u8]) -> Self {
        Self(hex(digest))
    }

    /// The 64 digits, for file names.
    #[must_use]
    pub fn hex(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for LayerDigest {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}{}", Self::PREFIX, self.0)
    }
}

impl FromStr for LayerDigest {
    type Err = EngineError;

    fn from_str(text: &str) -> Result<Self, EngineError> {
        let digits = text.strip_prefix(Self::PREFIX).unwrap_or_default();
        if digits.len() == 64 && digits.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f')) {
            Ok(Self(digits.to_owned()))
        } else {
            let message = format!("{text:?} is not sha256: and 64 lower-case hexadecimal digits");
            Err(EngineError::new(ErrorKind::InvalidInput, "digest", message))
        }
    }
}

impl TryFrom<String> for LayerDigest {
    type Error = EngineError;

    fn try_from(text: String) -> Result<Self, EngineError> {
        text.parse()
    }
}

impl From<LayerDigest> for String {
    fn from(digest: LayerDigest) -> Self {
        digest.to_string()
    }
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    use fmt::Write;
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
        write!(text, "{byte:02x}").expect("writing to a string never fails");
        text
    })
}

/// Longest id: a label of a host name (RFC 1035), and the kernel's host name has one byte more.
const LONGEST_ID: usize = 63;

/// Checks an id that will be a file name, a control group's name and a host name.
pub(crate) fn check_id(id: &str) -> Result<(), EngineError> {
    let valid = (1..=LONGEST_ID).contains(&id.len())
        && id.bytes().all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-'))
        && !id.starts_with('-')
        && !id.ends_with('-');
    if valid {
        return Ok(());
    }
    let shown: String = id.chars().take(80).collect();
    let message = format!("{shown:?} is no sandbox id: 1 to {LONGEST_ID} of a-z, 0-9 and -, no - at either end");
    Err(EngineError::new(ErrorKind::InvalidInput, "id", message))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_that_could_be_paths_are_refused() {
        for id in ["", ".", "..", "a/b", "/a", "a\0", "A", "-a", "a-", "a b", "a.b", &"a".repeat(64)] {
            assert_eq!(check_id(id).unwrap_err().kind(), ErrorKind::InvalidInput, "{id:?}");
        }
        for id in ["a", "i0j3k", "home-1", &"a".repeat(63)] {
            check_id(id).unwrap();
        }
    }

    #[test]
    fn digests_round_trip_and_are_strict() {
        let digest = LayerDigest::of_sha256(&[0xab; 32]);
        assert_eq!(digest.to_string().parse::<LayerDigest>().unwrap(), digest);
        let json = serde_json::to_string(&digest).unwrap();
        assert_eq!(serde_json::from_str::<LayerDigest>(&json).unwrap(), digest);
        for text in
            ["", "sha256:", "sha256:../../../../etc/passwd", &"ab".repeat(32), &format!("sha256:{}", "AB".repeat(32))]
        {
            assert!(text.parse::<LayerDigest>().is_err(), "{text:?}");
        }
    }
}
