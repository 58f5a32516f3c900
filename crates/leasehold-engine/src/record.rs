//! What is on disk about a boot: enough for another host process to adopt the sandbox or to end it.

use std::fs::{self, File};
use std::io::Write;

use serde::{Deserialize, Serialize};

use crate::cgroup::Group;
use crate::error::{During, EngineError, ErrorKind};
use crate::paths::SandboxDir;
use crate::spec::ProcessId;

/// Written before the first effect of a boot, completed when the process is known, removed when nothing of it is left.
///
/// It is not synced to disk: what it describes does not survive a power failure either.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct BootRecord {
    pub(crate) boot_id: String,
    /// The machine's own boot id: process numbers of another one mean nothing.
    pub(crate) machine_boot_id: String,
    pub(crate) group: Group,
    pub(crate) process: Option<ProcessId>,
}

const STAGE: &str = "record";

impl BootRecord {
    /// Reads the record; none if there is none, or if it is from before the machine booted, when nothing of it can be left.
    pub(crate) fn read(sandbox: &SandboxDir) -> Result<Option<Self>, EngineError> {
        let path = sandbox.record();
        let text = match fs::read(&path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            other => other.during(STAGE, format_args!("cannot read {}", path.display()))?,
        };
        let record: Self = serde_json::from_slice(&text).map_err(|error| {
            EngineError::new(ErrorKind::Corrupt, STAGE, format!("{} is not a boot record: {error}", path.display()))
        })?;
        Ok((record.machine_boot_id == machine_boot_id()?).then_some(record))
    }

    /// Replaces the record in one step.
    pub(crate) fn write(&self, sandbox: &SandboxDir) -> Result<(), EngineError> {
        let path = sandbox.record();
        let temporary = path.with_extension("new");
        let text = serde_json::to_vec(self).map_err(|error| {
            EngineError::new(ErrorKind::Io, STAGE, format!("cannot write the boot record: {error}"))
        })?;
        File::create(&temporary)
            .and_then(|mut file| file.write_all(&text))
            .and_then(|()| fs::rename(&temporary, &path))
            .during(STAGE, format_args!("cannot write {}", path.display()))
    }
}

pub(crate) fn machine_boot_id() -> Result<String, EngineError> {
    const PATH: &str = "/proc/sys/kernel/random/boot_id";
    Ok(fs::read_to_string(PATH).during(STAGE, PATH)?.trim().to_owned())
}

/// A random boot id, as the kernel would make one (UUID version 4).
pub(crate) fn new_boot_id() -> Result<String, EngineError> {
    let mut bytes = [0u8; 16];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())
        .during(STAGE, "cannot get random bytes")?;
    bytes[6] = bytes[6] & 0x0f | 0x40;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    let hex = crate::spec::hex(&bytes);
    Ok(format!("{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn boot_ids_are_uuids_and_differ() {
        let (one, two) = (new_boot_id().unwrap(), new_boot_id().unwrap());
        assert_ne!(one, two);
        let lengths: Vec<_> = one.split('-').map(str::len).collect();
        assert_eq!(lengths, [8, 4, 4, 4, 12]);
        assert_eq!(&one[14..15], "4");
    }
}
