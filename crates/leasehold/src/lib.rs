//! The contract of Leasehold: what a backend owes, and what its callers may rely on.
//!
//! An agent has a *Home* that persists and a *Workspace* for the task at hand. An *Execution Binding* attaches one private Home to a
//! Workspace; a *lease* is live access to one Binding for the length of one operation. A backend is one coherent pair of
//! [`ExecutionBindingBackend`] and [`HomeSnapshotBackend`].
//!
//! This crate does no I/O and knows no async runtime. Refs ([`BindingRef`], [`WorkspaceRef`], [`SnapshotRef`]) are opaque: only the
//! backend that made one may look inside.
//!
//! ```
//! use leasehold::{ExecutionBindingBackend, RunCommand, RuntimeError, BindingRef, with_lease};
//!
//! async fn uname(backend: &dyn ExecutionBindingBackend, binding: &BindingRef) -> Result<String, RuntimeError> {
//!     with_lease(backend, binding, async |lease| {
//!         let job = lease.commands().run(RunCommand::new("uname -a")).await?;
//!         Ok(job.output)
//!     })
//!     .await
//! }
//! ```

mod backend;
mod capability;
mod command;
mod error;
mod file;
mod ident;
mod layout;
mod lease;
pub mod retry;
mod spec;

pub use backend::{ExecutionBindingBackend, HomeSnapshotBackend};
pub use capability::{Capabilities, WorkspaceMode};
pub use command::{CommandMode, Commands, DeleteJob, JobId, JobOutput, JobState, JobStatus, RunCommand};
pub use error::{BoxError, Effect, ErrorKind, MAX_MESSAGE_BYTES, RuntimeError, clean_message};
pub use file::{ByteStream, FileEntry, FileKind, Files, FilesExt};
pub use ident::{
    AgentId, BindingId, BindingRef, HomeSnapshotId, InvalidId, MAX_ID_BYTES, MAX_REF_BYTES, SnapshotRef, TenantId,
    WorkspaceId, WorkspaceRef,
};
pub use layout::RuntimeLayout;
pub use lease::{LeaseId, Leased, RuntimeLease, with_lease};
pub use spec::{
    ExecutionBindingAllocation, ExecutionBindingCreateSpec, ExecutionBindingDestroySpec, HomeSnapshotCreateSpec,
    InvalidDestroySpec, WorkspaceFate,
};
