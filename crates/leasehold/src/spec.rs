//! What callers ask for, and what they get. Plain data of checked parts; unknown fields are refused.

use serde::{Deserialize, Serialize};

use crate::{AgentId, BindingId, BindingRef, HomeSnapshotId, SnapshotRef, TenantId, WorkspaceId, WorkspaceRef};

/// A new Execution Binding.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct ExecutionBindingCreateSpec {
    /// Who the agent belongs to.
    pub tenant_id: TenantId,
    /// Whose Home it is.
    pub agent_id: AgentId,
    /// The new participant. Every create is a new one, even when all other ids match.
    pub binding_id: BindingId,
    /// The Workspace to work in.
    pub workspace_id: WorkspaceId,
    /// Attach this Workspace as it is. None = make a new, empty one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub existing_workspace_ref: Option<WorkspaceRef>,
    /// Make the Home from exactly this snapshot; never from a fallback. None = the backend's default Home.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub home_snapshot_ref: Option<SnapshotRef>,
}

impl ExecutionBindingCreateSpec {
    /// A Binding with a default Home in a new Workspace.
    #[must_use]
    pub fn new(tenant_id: TenantId, agent_id: AgentId, binding_id: BindingId, workspace_id: WorkspaceId) -> Self {
        Self { tenant_id, agent_id, binding_id, workspace_id, existing_workspace_ref: None, home_snapshot_ref: None }
    }

    /// Attaches an existing Workspace, without clearing it.
    #[must_use]
    pub fn with_existing_workspace(mut self, workspace: WorkspaceRef) -> Self {
        self.existing_workspace_ref = Some(workspace);
        self
    }

    /// Makes the Home from a snapshot.
    #[must_use]
    pub fn with_home_snapshot(mut self, snapshot: SnapshotRef) -> Self {
        self.home_snapshot_ref = Some(snapshot);
        self
    }
}

/// What a create gave: Home and Workspace are usable.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExecutionBindingAllocation {
    /// The new Binding.
    pub binding_ref: BindingRef,
    /// Its Workspace; equal to `binding_ref` in text where a backend couples the two.
    pub workspace_ref: WorkspaceRef,
}

/// What becomes of the Workspace when a Binding is destroyed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WorkspaceFate {
    /// It stays for other Bindings.
    Keep,
    /// It goes, and this is its ref.
    Destroy(WorkspaceRef),
}

/// The end of a Binding. Destroying a Workspace without naming it cannot be said:
///
/// ```
/// use leasehold::{BindingRef, ExecutionBindingDestroySpec, WorkspaceFate, WorkspaceRef};
///
/// let spec = ExecutionBindingDestroySpec::new(BindingRef::new("b")?, WorkspaceFate::Destroy(WorkspaceRef::new("w")?));
/// assert!(spec.destroys_workspace());
/// assert!(serde_json::from_str::<ExecutionBindingDestroySpec>(r#"{"binding_ref":"b","destroy_workspace":true}"#).is_err());
/// # Ok::<(), leasehold::InvalidId>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "DestroyWire", into = "DestroyWire")]
pub struct ExecutionBindingDestroySpec {
    binding_ref: BindingRef,
    workspace: WorkspaceFate,
}

impl ExecutionBindingDestroySpec {
    /// Destroys a Binding.
    #[must_use]
    pub fn new(binding_ref: BindingRef, workspace: WorkspaceFate) -> Self {
        Self { binding_ref, workspace }
    }

    /// The Binding to destroy.
    #[must_use]
    pub fn binding_ref(&self) -> &BindingRef {
        &self.binding_ref
    }

    /// What becomes of the Workspace.
    #[must_use]
    pub fn workspace(&self) -> &WorkspaceFate {
        &self.workspace
    }

    /// Whether the Workspace goes too.
    #[must_use]
    pub fn destroys_workspace(&self) -> bool {
        matches!(self.workspace, WorkspaceFate::Destroy(_))
    }
}

/// A destroy that would take a Workspace without naming it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("destroy_workspace is true and workspace_ref is missing: name the workspace to destroy")]
pub struct InvalidDestroySpec;

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct DestroyWire {
    binding_ref: BindingRef,
    destroy_workspace: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    workspace_ref: Option<WorkspaceRef>,
}

impl TryFrom<DestroyWire> for ExecutionBindingDestroySpec {
    type Error = InvalidDestroySpec;

    fn try_from(wire: DestroyWire) -> Result<Self, InvalidDestroySpec> {
        let workspace = match (wire.destroy_workspace, wire.workspace_ref) {
            (true, Some(workspace)) => WorkspaceFate::Destroy(workspace),
            (true, None) => return Err(InvalidDestroySpec),
            (false, _) => WorkspaceFate::Keep,
        };
        Ok(Self { binding_ref: wire.binding_ref, workspace })
    }
}

impl From<ExecutionBindingDestroySpec> for DestroyWire {
    fn from(spec: ExecutionBindingDestroySpec) -> Self {
        let destroy_workspace = spec.destroys_workspace();
        let workspace_ref = match spec.workspace {
            WorkspaceFate::Keep => None,
            WorkspaceFate::Destroy(workspace) => Some(workspace),
        };
        Self { binding_ref: spec.binding_ref, destroy_workspace, workspace_ref }
    }
}

/// A new Home Snapshot of a leased Binding.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct HomeSnapshotCreateSpec {
    /// Who the agent belongs to.
    pub tenant_id: TenantId,
    /// Whose Home it is.
    pub agent_id: AgentId,
    /// The new snapshot in the caller's ledger; fresh for every create, since clean-up looks for it by name.
    pub home_snapshot_id: HomeSnapshotId,
}

impl HomeSnapshotCreateSpec {
    /// A snapshot of this agent's Home.
    #[must_use]
    pub fn new(tenant_id: TenantId, agent_id: AgentId, home_snapshot_id: HomeSnapshotId) -> Self {
        Self { tenant_id, agent_id, home_snapshot_id }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_destroy_spec_goes_through_the_wire_unchanged() {
        let keep = ExecutionBindingDestroySpec::new(BindingRef::new("b").unwrap(), WorkspaceFate::Keep);
        let destroy = ExecutionBindingDestroySpec::new(
            BindingRef::new("b").unwrap(),
            WorkspaceFate::Destroy(WorkspaceRef::new("w").unwrap()),
        );
        for spec in [keep, destroy] {
            let text = serde_json::to_string(&spec).unwrap();
            assert_eq!(serde_json::from_str::<ExecutionBindingDestroySpec>(&text).unwrap(), spec, "{text}");
        }
    }

    #[test]
    fn a_destroy_without_the_workspaces_name_is_refused() {
        for text in [
            r#"{"binding_ref":"b","destroy_workspace":true}"#,
            r#"{"binding_ref":"b","destroy_workspace":true,"workspace_ref":""}"#,
            r#"{"binding_ref":"b","destroy_workspace":true,"workspace_ref":null}"#,
            r#"{"binding_ref":"","destroy_workspace":false}"#,
            r#"{"binding_ref":"b","destroy_workspace":false,"force":true}"#,
        ] {
            assert!(serde_json::from_str::<ExecutionBindingDestroySpec>(text).is_err(), "{text} passed");
        }
    }

    #[test]
    fn a_create_spec_refuses_unknown_fields() {
        let text = r#"{"tenant_id":"t","agent_id":"a","binding_id":"b","workspace_id":"w"}"#;
        assert!(serde_json::from_str::<ExecutionBindingCreateSpec>(text).is_ok());
        let text = r#"{"tenant_id":"t","agent_id":"a","binding_id":"b","workspace_id":"w","template":"x"}"#;
        assert!(serde_json::from_str::<ExecutionBindingCreateSpec>(text).is_err());
    }
}
