//! `ls`, `rm` and `snapshot`.

use anyhow::Context as _;
use leasehold::{AgentId, HomeSnapshotBackend as _, HomeSnapshotCreateSpec, HomeSnapshotId, SnapshotRef, TenantId};
use leasehold_e2b::{SandboxInfo, SandboxQuery, SandboxState, SnapshotInfo, SnapshotQuery};
use serde::Serialize;

use crate::args::{ListArgs, RemoveArgs, SnapshotCommand};
use crate::context::{Context, name_of, random_number};
use crate::name_lock::NameLock;
use crate::print_line;

#[derive(Serialize)]
struct Row<'a> {
    name: Option<&'a str>,
    id: &'a str,
    state: &'static str,
    template: &'a str,
    started_at: &'a str,
    end_at: &'a str,
}

impl<'a> Row<'a> {
    fn new(info: &'a SandboxInfo) -> Self {
        let state = match info.state {
            SandboxState::Running => "running",
            SandboxState::Paused => "paused",
        };
        Self {
            name: name_of(info),
            id: &info.sandbox_id,
            state,
            template: &info.template_id,
            started_at: &info.started_at,
            end_at: &info.end_at,
        }
    }
}

pub(crate) async fn list(context: &Context, args: &ListArgs) -> anyhow::Result<u8> {
    let all = context.client.list_all(&SandboxQuery::default()).await?;
    let rows = all.iter().map(Row::new);
    if args.json {
        for row in rows {
            print_line(&serde_json::to_string(&row)?)?;
        }
        return Ok(0);
    }
    let width = all.iter().filter_map(name_of).map(str::len).max().unwrap_or(0).max(4);
    print_line(&format!("{:width$}  {:21}  {:7}  STARTED", "NAME", "ID", "STATE"))?;
    for row in rows {
        print_line(&format!("{:width$}  {:21}  {:7}  {}", row.name.unwrap_or("-"), row.id, row.state, row.started_at))?;
    }
    Ok(0)
}

pub(crate) async fn remove(context: &Context, args: &RemoveArgs) -> anyhow::Result<u8> {
    // All are looked up before any is destroyed: a mistyped name destroys nothing.
    let mut found = Vec::new();
    for binding in &args.bindings {
        found.push(context.find(binding).await?);
    }
    for binding in found {
        context.destroy(&binding).await.with_context(|| format!("cannot destroy {binding}"))?;
    }
    Ok(0)
}

pub(crate) async fn snapshot(context: &Context, command: &SnapshotCommand) -> anyhow::Result<u8> {
    match command {
        SnapshotCommand::Create { binding } => create_snapshot(context, binding).await,
        SnapshotCommand::Ls { json } => list_snapshots(context, *json).await,
        SnapshotCommand::Rm { snapshots } => {
            for snapshot in snapshots {
                let known = SnapshotRef::new(snapshot)?;
                context.driver.delete(&known).await.with_context(|| format!("cannot delete {snapshot}"))?;
            }
            Ok(0)
        }
    }
}

async fn create_snapshot(context: &Context, binding: &str) -> anyhow::Result<u8> {
    let found = context.find(binding).await?;
    let info = context.client.get(found.as_str()).await?;
    let name = name_of(&info).unwrap_or(found.as_str()).to_owned();
    let lock = NameLock::shared(&context.data_dir, &name).await?;
    let lease = context.driver.acquire_lease(&found).await?;
    let id = HomeSnapshotId::new(format!("{name}-{:08x}", random_number()?))?;
    let spec = HomeSnapshotCreateSpec::new(TenantId::new("local")?, AgentId::new(&name)?, id);
    let made = context.driver.create_from_runtime(&spec, &lease).await;
    context.give_back(lease, &lock).await?;
    print_line(made?.as_str())?;
    Ok(0)
}

async fn list_snapshots(context: &Context, json: bool) -> anyhow::Result<u8> {
    #[derive(Serialize)]
    struct SnapshotRow<'a> {
        snapshot: &'a str,
        names: &'a [String],
    }
    for SnapshotInfo { snapshot_id, names, .. } in &context.client.list_all_snapshots(&SnapshotQuery::default()).await?
    {
        let line = if json {
            serde_json::to_string(&SnapshotRow { snapshot: snapshot_id, names })?
        } else {
            snapshot_id.clone()
        };
        print_line(&line)?;
    }
    Ok(0)
}
