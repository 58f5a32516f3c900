//! What the driver needs from a provider, as narrow traits: implemented on the real client, and in memory by tests.
//!
//! The driver retries, waits, bounds and undoes; an implementation does exactly one request per call, follows the error table of
//! [`SeamErrorKind`](super::SeamErrorKind), and logs nothing.

use std::collections::BTreeMap;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures_core::Stream;
use leasehold::{Commands, FileEntry};

use super::failure::SeamError;

/// A body in pieces.
pub type SeamStream = Pin<Box<dyn Stream<Item = Result<Bytes, SeamError>> + Send + 'static>>;

/// A sandbox to create: always with `autoPause:true, autoPauseMemory:true, autoResume:{enabled:false}` and
/// `network:{allowPublicTraffic:false}` on the wire.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct CreateSandbox {
    /// The template or the exact snapshot to start from.
    pub template: String,
    /// How long it may be active before the provider pauses it.
    pub timeout: Duration,
    /// What the provider is to remember of it.
    pub metadata: BTreeMap<String, String>,
}

impl CreateSandbox {
    /// A sandbox from a template or snapshot.
    pub fn new(template: impl Into<String>, timeout: Duration, metadata: BTreeMap<String, String>) -> Self {
        Self { template: template.into(), timeout, metadata }
    }
}

/// The provider's control plane. Every call is one request, without retries of its own.
#[async_trait]
pub trait ControlPlane: Send + Sync + 'static {
    /// Handle of one reachable sandbox.
    type Sandbox: Sandbox;

    /// Creates a sandbox. Here, and nowhere else, status 429 is [`SeamErrorKind::Capacity`](super::SeamErrorKind::Capacity).
    async fn create(&self, request: CreateSandbox) -> Result<Self::Sandbox, SeamError>;

    /// Resumes a paused sandbox or finds a running one, and lets it be active for `timeout` from now.
    async fn connect(&self, id: &str, timeout: Duration) -> Result<Self::Sandbox, SeamError>;

    /// Pauses by id, keeping memory. A sandbox that is paused already (status 409) is success.
    async fn pause(&self, id: &str) -> Result<(), SeamError>;

    /// Kills by id. Confirmed absence is [`SeamErrorKind::NotFound`](super::SeamErrorKind::NotFound).
    async fn kill(&self, id: &str) -> Result<(), SeamError>;

    /// Deletes a snapshot. Confirmed absence is [`SeamErrorKind::NotFound`](super::SeamErrorKind::NotFound).
    async fn delete_snapshot(&self, snapshot: &str) -> Result<(), SeamError>;

    /// The ids of all sandboxes, running and paused, whose metadata has every one of these pairs.
    async fn find_by_metadata(&self, pairs: &BTreeMap<String, String>) -> Result<Vec<String>, SeamError>;

    /// The refs of the snapshots that were made under exactly this name (for E2B: `name`, or `<team>/name`, in `names`, any tag).
    async fn find_snapshots_by_name(&self, name: &str) -> Result<Vec<String>, SeamError>;
}

/// One reachable sandbox.
#[async_trait]
pub trait Sandbox: Send + Sync + 'static {
    /// The provider's id, which is Binding ref and Workspace ref.
    fn id(&self) -> &str;

    /// The host name that reaches a port inside. Opaque.
    fn host_for(&self, port: u16) -> String;

    /// The token without which a port inside cannot be reached from outside.
    fn traffic_token(&self) -> Option<&str>;

    /// Files inside.
    fn files(&self) -> &dyn SandboxFiles;

    /// Pauses, with the memory kept or dropped. A sandbox that is paused already (status 409) is success.
    async fn pause(&self, memory: Memory) -> Result<(), SeamError>;

    /// Kills.
    async fn kill(&self) -> Result<(), SeamError>;

    /// Captures the whole sandbox under a name and gives the snapshot's ref; the sandbox goes on.
    async fn create_snapshot(&self, name: &str) -> Result<String, SeamError>;
}

/// What a pause does with memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Memory {
    /// Processes go on at the next connect.
    Keep,
    /// Only files stay.
    Drop,
}

/// Files inside one sandbox, one request per call. Paths are absolute.
#[async_trait]
pub trait SandboxFiles: Send + Sync {
    /// Makes a directory with its parents. False = it was there.
    async fn make_dir(&self, path: &str) -> Result<bool, SeamError>;

    /// Whether the path is there. False only when the sandbox itself said so (Stat `not_found`), never for another 404.
    async fn exists(&self, path: &str) -> Result<bool, SeamError>;

    /// The direct children of a directory.
    async fn list(&self, path: &str) -> Result<Vec<FileEntry>, SeamError>;

    /// Removes a file, or a directory with all below.
    async fn remove(&self, path: &str) -> Result<(), SeamError>;

    /// Reads a file as it comes.
    async fn read(&self, path: &str) -> Result<SeamStream, SeamError>;

    /// Writes a file, replacing it.
    async fn write(&self, path: &str, body: SeamStream) -> Result<(), SeamError>;
}

/// The connections of one lease to the command daemon inside a sandbox.
#[async_trait]
pub trait DataPlane: Send + Sync + 'static {
    /// Asks the daemon whether it is ready, once.
    async fn health(&self) -> Result<(), SeamError>;

    /// The daemon's commands as they are: working directory and environment are passed on untouched (the lease resolves them).
    fn commands(&self) -> &dyn Commands;

    /// Ends streams and makes every later call fail with kind `Closed`. Repeating is fine.
    async fn close(&self) -> Result<(), SeamError>;
}

/// What a data plane is opened to.
#[derive(Clone)]
#[non_exhaustive]
pub struct DataPlaneTarget {
    /// The sandbox.
    pub sandbox_id: String,
    /// Its [`Sandbox::host_for`] the daemon's port. Opaque.
    pub host: String,
    /// The daemon's port inside.
    pub port: u16,
    /// Sent as `e2b-traffic-access-token` with every request. Never empty. No other credential is sent.
    pub traffic_token: String,
}

impl DataPlaneTarget {
    /// A target whose traffic token is not empty.
    pub fn new(
        sandbox_id: impl Into<String>,
        host: impl Into<String>,
        port: u16,
        traffic_token: impl Into<String>,
    ) -> Self {
        Self { sandbox_id: sandbox_id.into(), host: host.into(), port, traffic_token: traffic_token.into() }
    }
}

impl fmt::Debug for DataPlaneTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DataPlaneTarget")
            .field("sandbox_id", &self.sandbox_id)
            .field("host", &self.host)
            .field("port", &self.port)
            .finish_non_exhaustive()
    }
}

/// Makes data planes. Sends nothing by itself.
pub trait DataPlaneFactory: Send + Sync + 'static {
    /// Makes the connections of one lease.
    ///
    /// # Errors
    /// [`SeamError`] when the target cannot be addressed.
    fn open(&self, target: DataPlaneTarget) -> Result<Arc<dyn DataPlane>, SeamError>;
}
