//! What a backend can do, as data. A request beyond it is refused before any call leaves.

use serde::{Deserialize, Serialize};

/// How a backend keeps Workspaces.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum WorkspaceMode {
    /// One sandbox is both Binding and Workspace; their refs are equal in text.
    Coupled,
    /// A Workspace is a volume of its own, mounted into its Bindings.
    Volume,
}

/// What the backend, as composed, can do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Capabilities {
    /// How Workspaces are kept.
    pub workspace_mode: WorkspaceMode,
    /// Several Bindings can share one Workspace.
    pub shared_workspace: bool,
    /// A Binding can be destroyed while its Workspace stays.
    pub binding_only_destroy: bool,
    /// Home Snapshots can be made and deleted.
    pub home_snapshots: bool,
    /// A Home Snapshot never contains Workspace data. Where false, later creates empty the captured Workspace.
    pub snapshot_excludes_workspace: bool,
    /// A released Binding keeps its memory, so processes go on at the next acquire.
    pub memory_kept_on_release: bool,
    /// Leases give access to files without running a command.
    pub files: bool,
}

impl Capabilities {
    /// Nothing but the smallest backend: coupled Workspaces and no extras. Set what yours can do more.
    #[must_use]
    pub const fn minimal() -> Self {
        Self {
            workspace_mode: WorkspaceMode::Coupled,
            shared_workspace: false,
            binding_only_destroy: false,
            home_snapshots: false,
            snapshot_excludes_workspace: false,
            memory_kept_on_release: false,
            files: false,
        }
    }
}
