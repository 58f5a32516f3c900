//! What a case is, and what a backend gives to take part.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::BoxFuture;
use leasehold::{BindingRef, Capabilities, ExecutionBindingBackend, HomeSnapshotBackend};

use crate::{Ours, Stage};

/// One promise of the contract.
#[derive(Debug)]
pub struct Case {
    /// Its name, `area::promise`.
    pub name: &'static str,
    /// The promise in one sentence.
    pub promise: &'static str,
    /// Whether the promise applies. The error says why it is skipped; it is printed, never silent.
    pub needs: fn(&Profile) -> Result<(), &'static str>,
    /// Fails when the promise is broken.
    pub run: fn(Arc<Stage>) -> BoxFuture<'static, anyhow::Result<()>>,
}

/// What a backend, as composed, can do: the contract's capabilities, and what only the provider below it decides.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Profile {
    /// What the backend says of itself.
    pub capabilities: Capabilities,
    /// Whether Bindings see each other's processes.
    pub separation: Separation,
}

/// How far Bindings are kept apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Separation {
    /// A Binding sees its own processes only.
    Processes,
    /// Files and jobs are private, the process table is shared.
    FilesOnly,
}

/// What the provider says about a Binding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// Somebody holds a lease, or nobody has suspended it.
    Active,
    /// No lease is held; it costs no running time.
    Idle,
    /// There is no such Binding.
    Gone,
}

/// A backend under test, with the side door through which the cases see what the contract does not show.
#[async_trait]
pub trait Harness: Send + Sync {
    /// The name in reports, `e2b-on-host`.
    fn name(&self) -> &str;

    /// What this backend can do.
    fn profile(&self) -> Profile;

    /// The backend's Bindings.
    fn bindings(&self) -> &dyn ExecutionBindingBackend;

    /// The backend's Home Snapshots.
    fn snapshots(&self) -> &dyn HomeSnapshotBackend;

    /// Everything that the provider has now, by names that stay the same: sandboxes, Workspaces, snapshots.
    async fn alive(&self) -> anyhow::Result<Vec<String>>;

    /// What the provider says about a Binding.
    async fn state(&self, binding: &BindingRef) -> anyhow::Result<State>;

    /// Takes the Workspace of an idle Binding away, by a way that the contract does not have.
    async fn lose_workspace(&self, binding: &BindingRef) -> anyhow::Result<()>;

    /// Waits until the work that the backend does in the background is done.
    async fn settle(&self) -> anyhow::Result<()>;

    /// Where to look on this machine for what was left. None = the provider is elsewhere.
    fn ours(&self) -> Option<Ours>;

    /// How long a case waits for something that should happen at once, before it says that it doesn't.
    fn patience(&self) -> Duration;
}
