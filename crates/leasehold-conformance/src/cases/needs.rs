//! When a promise applies.

use leasehold::WorkspaceMode;

use crate::{Profile, Separation};

type Needs = Result<(), &'static str>;

fn require(holds: bool, reason: &'static str) -> Needs {
    if holds { Ok(()) } else { Err(reason) }
}

/// Every backend owes it.
pub(super) fn nothing(_: &Profile) -> Needs {
    Ok(())
}

/// Home Snapshots.
pub(super) fn snapshots(profile: &Profile) -> Needs {
    require(profile.capabilities.home_snapshots, "no home snapshots")
}

/// Access to files without a command.
pub(super) fn files(profile: &Profile) -> Needs {
    require(profile.capabilities.files, "no file access")
}

/// Processes that survive a release.
pub(super) fn memory(profile: &Profile) -> Needs {
    require(profile.capabilities.memory_kept_on_release, "memory is not kept on release")
}

/// One sandbox is Binding and Workspace.
pub(super) fn coupled(profile: &Profile) -> Needs {
    require(profile.capabilities.workspace_mode == WorkspaceMode::Coupled, "workspaces are not coupled to bindings")
}

/// Shared Workspaces.
pub(super) fn sharing(profile: &Profile) -> Needs {
    require(profile.capabilities.shared_workspace, "workspaces cannot be shared")
}

/// No shared Workspaces.
pub(super) fn no_sharing(profile: &Profile) -> Needs {
    require(!profile.capabilities.shared_workspace, "workspaces can be shared")
}

/// A Binding that can be destroyed alone.
pub(super) fn binding_only_destroy(profile: &Profile) -> Needs {
    require(profile.capabilities.binding_only_destroy, "a binding cannot be destroyed alone")
}

/// No Binding can be destroyed alone.
pub(super) fn no_binding_only_destroy(profile: &Profile) -> Needs {
    require(!profile.capabilities.binding_only_destroy, "a binding can be destroyed alone")
}

/// Process tables of their own.
pub(super) fn own_processes(profile: &Profile) -> Needs {
    require(profile.separation == Separation::Processes, "bindings share one process table")
}
