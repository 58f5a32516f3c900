//! Destroying a Binding: one sandbox is Binding and Workspace, so both go or neither.

use std::sync::Arc;

use leasehold::{ErrorKind, ExecutionBindingDestroySpec, RuntimeError, WorkspaceFate};

use super::Inner;
use super::attempt::{DRIVER, ensure};
use super::record::Subject;
use super::seams::ControlPlane;
use super::table;

/// The operation's name in errors and records.
pub(super) const FUNCTION: &str = "destroy_binding";

/// Refuses what this mode cannot do, before any call; gives the sandbox's id.
pub(super) fn check(spec: &ExecutionBindingDestroySpec) -> Result<String, RuntimeError> {
    let refused = |kind, message: String| Err(RuntimeError::new(kind, FUNCTION, DRIVER, message).without_effect());
    let binding = spec.binding_ref();
    let WorkspaceFate::Destroy(workspace) = spec.workspace() else {
        let message =
            format!("binding {binding} cannot go without its workspace: here they are one sandbox, so destroy both");
        return refused(ErrorKind::WorkspacePreservationUnsupported, message);
    };
    if workspace.as_str() != binding.as_str() {
        let message = format!("workspace {workspace} does not belong to binding {binding}: here both refs are equal");
        return refused(ErrorKind::BindingDestroy, message);
    }
    super::sandbox_id(FUNCTION, binding.as_str()).map(str::to_owned)
}

/// Kills by id; confirmed absence is success.
pub(super) async fn destroy<C: ControlPlane>(inner: Arc<Inner<C>>, id: String) -> Result<(), RuntimeError> {
    let subject = Subject::new(FUNCTION, &id);
    ensure(&table::DESTROY, &subject, inner.config.deadline, || inner.control.kill(&id))
        .await
        .map_err(|failed| failed.by_rule(&table::DESTROY, &subject))
}
