//! What the host needs from an engine, and nothing more.
//!
//! The host owns states, times and records; an engine owns processes, mounts and layers. Every call here blocks and may be
//! repeated; the host calls them on blocking threads only.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::{fmt, io};

use serde::{Deserialize, Serialize};

use crate::secret::Secret;

/// An engine, as the host sees it.
pub(crate) trait Sandboxes: Send + Sync + 'static {
    /// Who it is and what it can promise on this machine.
    fn facts(&self) -> EngineFacts;
    /// Cold-boots a sandbox and returns when its guest is ready. On failure no process, mount, cgroup or run directory is
    /// left; the files of a sandbox that existed before stay.
    fn start(&self, spec: &StartSpec) -> Result<Running, Failure>;
    /// Freezes every process.
    fn pause(&self, id: &str) -> Result<(), Failure>;
    /// Thaws every process.
    fn resume(&self, id: &str) -> Result<(), Failure>;
    /// Kills every process and removes all but the files.
    fn stop(&self, id: &str, process: Option<ProcessId>) -> Result<(), Failure>;
    /// Deletes the files of a stopped sandbox.
    fn remove(&self, id: &str) -> Result<(), Failure>;
    /// Both, for files that are of no use any more.
    fn destroy(&self, id: &str, process: Option<ProcessId>) -> Result<(), Failure> {
        self.stop(id, process).and_then(|()| self.remove(id))
    }
    /// Stores the writable layer of a frozen or stopped sandbox, durably, and names it.
    fn snapshot(&self, id: &str) -> Result<String, Failure>;
    /// Deletes a stored layer.
    fn delete_layer(&self, digest: &str) -> Result<(), Failure>;
    /// Takes over a sandbox of an earlier host process, if exactly that process still runs.
    fn adopt(&self, id: &str, process: ProcessId) -> Result<Option<Running>, Failure>;
    /// Ids of which anything is left: processes, cgroups, run directories, files.
    fn leftovers(&self) -> Result<Vec<String>, Failure>;
    /// A connection to one of the guest's sockets.
    fn connect(&self, id: &str, socket: Door) -> io::Result<UnixStream>;
    /// What a sandbox uses now.
    fn usage(&self, id: &str) -> Result<Usage, Failure>;
}

/// The guest's sockets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Door {
    /// E2B's envd protocol, port 49983.
    Envd,
    /// The shellctl protocol, port 5004.
    Shellctl,
    /// The host's own requests.
    Control,
}

/// Who an engine is, for the information routes.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct EngineFacts {
    pub(crate) name: String,
    pub(crate) version: String,
    pub(crate) isolation: String,
    pub(crate) id_mode: String,
    pub(crate) cgroup: String,
    pub(crate) degraded: Vec<String>,
}

/// What a sandbox is started with.
#[derive(Debug, Clone)]
pub(crate) struct StartSpec {
    pub(crate) id: String,
    /// Digests, lowest first.
    pub(crate) layers: Vec<String>,
    pub(crate) limits: Limits,
    pub(crate) identity: Identity,
}

/// What a sandbox is told about itself.
#[derive(Clone)]
pub(crate) struct Identity {
    pub(crate) sandbox_id: String,
    pub(crate) template_id: String,
    /// Raised with every start.
    pub(crate) generation: u64,
    /// envd's token; none: calls need none.
    pub(crate) access_token: Option<Secret>,
    /// Variables for every process.
    pub(crate) envs: BTreeMap<String, String>,
}

/// Says whose it is, not what it holds: variables are often secrets.
impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Identity").field("sandbox_id", &self.sandbox_id).finish_non_exhaustive()
    }
}

/// Upper bounds of what one sandbox may use. `None` is no bound.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Memory, in bytes.
    pub memory_bytes: Option<u64>,
    /// Processor time, in thousandths of a core.
    pub cpu_millis: Option<u64>,
    /// Processes and threads.
    pub pids: Option<u64>,
}

/// A process, so that another one with the same number is not taken for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ProcessId {
    pub(crate) pid: u32,
    pub(crate) start_time: u64,
}

/// A sandbox that runs. The descriptor becomes readable when its first process ends.
#[derive(Debug)]
pub(crate) struct Running {
    pub(crate) process: ProcessId,
    pub(crate) pidfd: OwnedFd,
    pub(crate) boot_id: String,
}

/// What a sandbox uses, where the machine can tell.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub(crate) struct Usage {
    #[serde(rename = "memoryBytes")]
    pub(crate) memory_bytes: Option<u64>,
    #[serde(rename = "cpuMicros")]
    pub(crate) cpu_micros: Option<u64>,
    pub(crate) pids: Option<u64>,
}

/// Why an engine could not do it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub(crate) struct Failure {
    pub(crate) kind: FailureKind,
    pub(crate) message: String,
}

/// What a caller should make of a [`Failure`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FailureKind {
    /// The request itself cannot be met.
    Invalid,
    /// This engine or machine cannot do that.
    Unsupported,
    /// No room for one more.
    Capacity,
    /// Something here is broken.
    Internal,
}

impl Failure {
    pub(crate) fn internal(message: impl Into<String>) -> Self {
        Self { kind: FailureKind::Internal, message: message.into() }
    }

    pub(crate) fn capacity(limit: usize) -> Self {
        Self {
            kind: FailureKind::Capacity,
            message: format!(
                "you have reached the maximum number of concurrent sandboxes ({limit}). If you need more, kill or pause \
                 one, or start the host with a higher limit"
            ),
        }
    }
}
