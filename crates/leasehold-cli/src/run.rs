//! `run` and `exec`: a lease on a sandbox for the length of one command.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use anyhow::Context as _;
use leasehold::{BindingRef, ExecutionBindingBackend as _};
use leasehold_e2b::{ProcessSpec, Sandbox, SandboxState};
use serde::Deserialize;

use crate::args::{ExecArgs, ProcessArgs, RunArgs};
use crate::context::{Context, HOME, WORKSPACE, name_of};
use crate::name_lock::NameLock;
use crate::{command, transfer};

/// What becomes of the sandbox after the command.
enum After {
    Destroy,
    Keep,
    /// Pause it, unless another command uses the name.
    Share(NameLock),
    /// Leave it running, as it was found: it is somebody else's.
    Leave,
}

pub(crate) async fn run(context: &Context, args: &RunArgs) -> anyhow::Result<u8> {
    if let Some(dir) = &args.workspace
        && !dir.is_dir()
    {
        anyhow::bail!("--workspace {}: not a directory", dir.display());
    }
    let (binding, after) = match &args.name {
        Some(name) => named(context, name, args.home.as_deref()).await?,
        None => {
            let binding = context.create(None, args.home.as_deref()).await?;
            (binding, if args.keep { After::Keep } else { After::Destroy })
        }
    };
    leased(context, &binding, after, &args.process, args.workspace.as_deref()).await
}

pub(crate) async fn exec(context: &Context, args: &ExecArgs) -> anyhow::Result<u8> {
    let binding = context.find(&args.binding).await?;
    let info = context.client.get(binding.as_str()).await?;
    let after = match name_of(&info) {
        None if info.state == SandboxState::Running => After::Leave,
        name => After::Share(NameLock::shared(&context.data_dir, name.unwrap_or(binding.as_str())).await?),
    };
    leased(context, &binding, after, &args.process, None).await
}

/// Gets or makes the kept sandbox of this name.
async fn named(context: &Context, name: &str, home: Option<&str>) -> anyhow::Result<(BindingRef, After)> {
    let mut lock = NameLock::shared(&context.data_dir, name).await?;
    if let Some(found) = context.find_name(name).await? {
        if home.is_some() {
            anyhow::bail!(
                "{name} exists already and keeps its own Home; leave --home away, or `leasehold rm {name}` first"
            );
        }
        return Ok((found, After::Share(lock)));
    }
    lock = lock.into_exclusive().await?;
    let binding = match context.find_name(name).await? {
        Some(found) => found,
        None => {
            let made = context.create(Some(name), home).await?;
            context.keep(&made).await?;
            made
        }
    };
    Ok((binding, After::Share(lock.into_shared().await?)))
}

async fn leased(
    context: &Context,
    binding: &BindingRef,
    after: After,
    process: &ProcessArgs,
    workspace: Option<&Path>,
) -> anyhow::Result<u8> {
    let outcome = async {
        let lease = context.driver.acquire_lease(binding).await?;
        let outcome = in_sandbox(lease.sandbox().handle(), process, workspace).await;
        let outcome = match outcome {
            Ok(code) => Ok(code),
            Err(error) => Err(match why_it_ended(context, binding).await {
                Some(reason) => error.context(format!("the sandbox ended under the command: {reason}")),
                None => error,
            }),
        };
        match &after {
            // Destroying ends the lease's sandbox; pausing it first would be work for nothing.
            After::Destroy | After::Leave => context.driver.detach(lease),
            After::Share(lock) => context.give_back(lease, lock).await?,
            After::Keep => context.driver.release(&lease).await?,
        }
        outcome
    }
    .await;
    match after {
        // What could not be copied back is there and nowhere else.
        After::Destroy if workspace.is_some() && outcome.is_err() => {
            context.keep(binding).await?;
            crate::complain(&format!(
                "kept {binding}, whose workspace is at {WORKSPACE}; `leasehold rm {binding}` removes it"
            ));
            outcome
        }
        After::Destroy => {
            let destroyed = context.destroy(binding).await;
            let code = outcome?;
            destroyed.context("the command ended, but its sandbox could not be destroyed; the host tries again")?;
            Ok(code)
        }
        After::Keep => {
            context.keep(binding).await?;
            crate::complain(&format!("kept {binding}"));
            outcome
        }
        After::Share(_) | After::Leave => outcome,
    }
}

/// Why the processes of a sandbox are gone, if they are. The host may learn of it a moment after the command's streams broke.
async fn why_it_ended(context: &Context, binding: &BindingRef) -> Option<String> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Known {
        reason: Option<String>,
        memory_lost: Option<String>,
    }
    let path = format!("/leasehold/v1/sandboxes/{binding}");
    for _ in 0..20 {
        let known: Known = context.api.call(http::Method::GET, &path).await.ok()?;
        if let Some(reason) = known.reason.or(known.memory_lost) {
            return Some(reason);
        }
        tokio::time::sleep(Duration::from_millis(25)).await;
    }
    None
}

/// Copies the workspace in, runs the command, copies the workspace back whatever the command's code.
async fn in_sandbox(sandbox: &Sandbox, process: &ProcessArgs, workspace: Option<&Path>) -> anyhow::Result<u8> {
    let Some(dir) = workspace else { return command::run(sandbox, process, HOME, WORKSPACE).await };
    let dir: PathBuf = dir.to_owned();
    let since = SystemTime::now();
    transfer::copy_in(sandbox, &dir, WORKSPACE).await.context("cannot copy the workspace in")?;
    let outcome = command::run(sandbox, process, HOME, WORKSPACE).await;
    let copied = transfer::copy_back(sandbox, WORKSPACE, &dir, since).await;
    let code = outcome?;
    let copied = copied.context("the command ended, but the workspace could not be copied back")?;
    if copied.refused > 0 {
        crate::complain(&format!(
            "{} entries of the workspace cannot be written here and were left out",
            copied.refused
        ));
    }
    if copied.failed > 0 {
        anyhow::bail!("the command ended, but {} entries of the workspace could not be copied back", copied.failed);
    }
    Ok(code)
}

/// A helper command inside, whose failure is ours.
pub(crate) async fn helper(sandbox: &Sandbox, spec: &ProcessSpec) -> anyhow::Result<()> {
    use leasehold_e2b::Output;
    let mut process = sandbox.start(spec).await?;
    let mut complaint = Vec::new();
    loop {
        match process.next().await? {
            Some(Output::Stderr(bytes)) if complaint.len() < 4096 => complaint.extend_from_slice(&bytes),
            Some(Output::End(end)) if end.exit_code == 0 => return Ok(()),
            Some(Output::End(end)) => anyhow::bail!("{}: {}", end.status, String::from_utf8_lossy(&complaint).trim()),
            Some(_) => {}
            None => anyhow::bail!("its end was not reported"),
        }
    }
}
