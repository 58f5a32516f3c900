//! Workspaces of several Bindings, where a backend has them, and their refusal where it hasn't.

use std::sync::Arc;

use anyhow::ensure;
use leasehold::{ErrorKind, ExecutionBindingDestroySpec, WorkspaceFate};

use super::{area, needs};
use crate::Stage;
use crate::stage::refused_without_effect;

area!("sharing" {
    /// A create with an existing Workspace is refused before anything is made where Workspaces cannot be shared.
    an_existing_workspace_is_refused: needs::no_sharing,
    /// Binding and Workspace have one ref where they are one sandbox.
    coupled_refs_are_equal: needs::coupled,
    /// A second Binding sees the Workspace as it is, and has a Home of its own.
    a_second_binding_sees_the_workspace_uncleared: needs::sharing,
    /// A Binding that is destroyed alone leaves the Workspace to the others.
    a_binding_destroyed_alone_keeps_the_workspace: needs::binding_only_destroy,
});

async fn an_existing_workspace_is_refused(stage: Arc<Stage>) -> anyhow::Result<()> {
    let first = stage.create().await?;
    let before = stage.alive().await?;
    let spec = stage.create_spec()?.with_existing_workspace(first.workspace_ref.clone());
    let result = stage.bindings().create_binding(&spec).await;
    if let Ok(made) = &result {
        stage.adopt(made);
    }
    refused_without_effect("attaching a workspace", result, ErrorKind::SharedWorkspaceUnsupported)?;
    ensure!(stage.alive().await? == before, "the refused create made something");
    Ok(())
}

async fn coupled_refs_are_equal(stage: Arc<Stage>) -> anyhow::Result<()> {
    let made = stage.create().await?;
    let (binding, workspace) = (made.binding_ref.as_str(), made.workspace_ref.as_str());
    ensure!(binding == workspace, "binding {binding} has workspace {workspace}");
    Ok(())
}

async fn a_second_binding_sees_the_workspace_uncleared(stage: Arc<Stage>) -> anyhow::Result<()> {
    let first = stage.create().await?;
    stage.run_in(&first, "echo shared > mark; echo private > \"$HOME/mark\"").await?;
    let spec = stage.create_spec()?.with_existing_workspace(first.workspace_ref.clone());
    let second = stage.create_with(&spec).await?;
    ensure!(second.workspace_ref == first.workspace_ref, "the second binding got {}", second.workspace_ref);
    let seen = stage.run_in(&second, "cat mark; cat \"$HOME/mark\" 2>/dev/null || echo none; echo two >> mark").await?;
    ensure!(seen == "shared\nnone", "the second binding sees {seen:?}");
    ensure!(stage.run_in(&first, "cat mark").await? == "shared\ntwo", "the first does not see the second's write");
    Ok(())
}

async fn a_binding_destroyed_alone_keeps_the_workspace(stage: Arc<Stage>) -> anyhow::Result<()> {
    let first = stage.create().await?;
    let spec = stage.create_spec()?.with_existing_workspace(first.workspace_ref.clone());
    let second = stage.create_with(&spec).await?;
    stage.run_in(&second, "echo shared > mark").await?;
    let alone = ExecutionBindingDestroySpec::new(second.binding_ref.clone(), WorkspaceFate::Keep);
    stage.bindings().destroy_binding(&alone).await?;
    ensure!(stage.run_in(&first, "cat mark").await? == "shared", "the workspace went with the binding");
    Ok(())
}
