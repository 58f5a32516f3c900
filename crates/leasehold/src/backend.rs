//! What a driver owes.

use async_trait::async_trait;

use crate::{
    BindingRef, Capabilities, ExecutionBindingAllocation, ExecutionBindingCreateSpec, ExecutionBindingDestroySpec,
    HomeSnapshotCreateSpec, RuntimeError, RuntimeLease, SnapshotRef,
};

/// Execution Bindings of one provider.
#[async_trait]
pub trait ExecutionBindingBackend: Send + Sync {
    /// What this backend can do. A request beyond it is refused before any call leaves.
    fn capabilities(&self) -> &Capabilities;

    /// Makes a Binding; returns only when Home and Workspace are usable.
    ///
    /// On failure what was newly made is cleaned up, and a Workspace that was there before is not harmed.
    ///
    /// # Errors
    /// [`BindingCreate`](crate::ErrorKind::BindingCreate), [`BindingCapacityExhausted`](crate::ErrorKind::BindingCapacityExhausted),
    /// [`SharedWorkspaceUnsupported`](crate::ErrorKind::SharedWorkspaceUnsupported) before anything was done.
    ///
    /// # Repeating
    /// Every create is a new participant; a second one with the same spec makes a second Binding.
    ///
    /// # Cancel safety
    /// A dropped create is undone in the background: nothing stays that nobody knows.
    async fn create_binding(
        &self,
        spec: &ExecutionBindingCreateSpec,
    ) -> Result<ExecutionBindingAllocation, RuntimeError>;

    /// Reactivates a Binding and verifies that Home and Workspace are there; never makes a replacement.
    ///
    /// # Errors
    /// [`BindingLost`](crate::ErrorKind::BindingLost) for confirmed loss, [`BindingAcquire`](crate::ErrorKind::BindingAcquire) for everything else.
    ///
    /// # Cancel safety
    /// A dropped acquire is undone in the background.
    async fn acquire(&self, binding: &BindingRef) -> Result<Box<dyn RuntimeLease>, RuntimeError>;

    /// Closes the lease's connections and may suspend the Binding; never deletes. The lease is of no use afterwards.
    ///
    /// # Errors
    /// [`ForeignLease`](crate::ErrorKind::ForeignLease) for another backend's lease or one that was released before; nothing is done then.
    ///
    /// # Cancel safety
    /// A dropped release is finished in the background.
    async fn release(&self, lease: &dyn RuntimeLease) -> Result<(), RuntimeError>;

    /// Destroys a Binding, and its Workspace if the spec says so; never the snapshot it came from.
    ///
    /// # Errors
    /// [`WorkspacePreservationUnsupported`](crate::ErrorKind::WorkspacePreservationUnsupported) before anything was done,
    /// [`BindingDestroy`](crate::ErrorKind::BindingDestroy).
    ///
    /// # Repeating
    /// Safe: a Binding that is confirmed to be gone counts as destroyed.
    ///
    /// # Cancel safety
    /// A dropped destroy is finished in the background.
    async fn destroy_binding(&self, spec: &ExecutionBindingDestroySpec) -> Result<(), RuntimeError>;
}

/// Home Snapshots of one provider.
#[async_trait]
pub trait HomeSnapshotBackend: Send + Sync {
    /// Captures the Home of a leased Binding; the source goes on and stays leased.
    ///
    /// # Errors
    /// [`HomeSnapshotCreate`](crate::ErrorKind::HomeSnapshotCreate), [`HomeSnapshotTooLarge`](crate::ErrorKind::HomeSnapshotTooLarge),
    /// [`ForeignLease`](crate::ErrorKind::ForeignLease).
    ///
    /// # Cancel safety
    /// A dropped create is undone in the background.
    async fn create_from_runtime(
        &self,
        spec: &HomeSnapshotCreateSpec,
        source: &dyn RuntimeLease,
    ) -> Result<SnapshotRef, RuntimeError>;

    /// Deletes a snapshot; Bindings made from it are untouched.
    ///
    /// # Errors
    /// [`BindingDestroy`](crate::ErrorKind::BindingDestroy).
    ///
    /// # Repeating
    /// Safe: a snapshot that is confirmed to be gone counts as deleted.
    ///
    /// # Cancel safety
    /// A dropped delete is finished in the background.
    async fn delete(&self, snapshot: &SnapshotRef) -> Result<(), RuntimeError>;
}
