//! Who may use a lease, and that it always comes back.

use std::sync::Arc;

use anyhow::{Context as _, anyhow, bail, ensure};
use leasehold::{Commands, ErrorKind, Files, LeaseId, RunCommand, RuntimeLayout, RuntimeLease, with_lease};

use super::{area, needs};
use crate::stage::{refused, refused_without_effect};
use crate::{Held, Stage, State};

area!("leases" {
    /// A lease of another backend is refused, and nothing is done to the real one.
    a_foreign_lease_is_refused: needs::nothing,
    /// A snapshot of another backend's lease is refused.
    a_snapshot_of_a_foreign_lease_is_refused: needs::snapshots,
    /// A lease that was released is refused the second time.
    a_second_release_is_refused: needs::nothing,
    /// A released lease runs no more commands.
    a_released_lease_runs_nothing: needs::nothing,
    /// A snapshot of a released lease is refused.
    a_snapshot_of_a_released_lease_is_refused: needs::snapshots,
    /// A lease that is dropped unreleased is released by the backend.
    a_dropped_lease_is_released: needs::memory,
    /// A lease whose task is aborted or panics is released by the backend.
    a_lease_of_a_dead_task_is_released: needs::memory,
    /// `with_lease` gives the body's value, and the Binding is idle afterwards.
    with_lease_releases_after_success: needs::memory,
    /// `with_lease` gives the body's own error, and the Binding is idle afterwards.
    with_lease_releases_after_failure: needs::memory,
    /// After a lease was dropped the Binding can be acquired, and everything is there.
    a_dropped_lease_loses_nothing: needs::nothing,
});

/// Another backend's lease that shows a real one's inside, as a decorator would.
struct Stranger<'a> {
    id: LeaseId,
    inner: &'a dyn RuntimeLease,
}

impl RuntimeLease for Stranger<'_> {
    fn id(&self) -> LeaseId {
        self.id
    }

    fn layout(&self) -> &RuntimeLayout {
        self.inner.layout()
    }

    fn commands(&self) -> &dyn Commands {
        self.inner.commands()
    }

    fn files(&self) -> &dyn Files {
        self.inner.files()
    }
}

fn stranger(held: &Held) -> Stranger<'_> {
    Stranger { id: LeaseId::fresh(), inner: held.lease() }
}

async fn a_foreign_lease_is_refused(stage: Arc<Stage>) -> anyhow::Result<()> {
    let binding = stage.create().await?;
    let lease = stage.acquire(&binding).await?;
    let result = stage.bindings().release(&stranger(&lease)).await;
    refused_without_effect("release of a foreign lease", result, ErrorKind::ForeignLease)?;
    ensure!(lease.ok("echo here").await? == "here", "the real lease was harmed");
    lease.release().await
}

async fn a_snapshot_of_a_foreign_lease_is_refused(stage: Arc<Stage>) -> anyhow::Result<()> {
    let binding = stage.create().await?;
    let lease = stage.acquire(&binding).await?;
    let result = stage.snapshots().create_from_runtime(&stage.snapshot_spec()?, &stranger(&lease)).await;
    refused_without_effect("snapshot of a foreign lease", result, ErrorKind::ForeignLease)?;
    lease.release().await
}

async fn a_second_release_is_refused(stage: Arc<Stage>) -> anyhow::Result<()> {
    let binding = stage.create().await?;
    let lease = stage.acquire(&binding).await?;
    stage.bindings().release(lease.lease()).await?;
    let result = stage.bindings().release(lease.lease()).await;
    refused_without_effect("a second release", result, ErrorKind::ForeignLease)
}

async fn a_released_lease_runs_nothing(stage: Arc<Stage>) -> anyhow::Result<()> {
    let binding = stage.create().await?;
    let lease = stage.acquire(&binding).await?;
    stage.bindings().release(lease.lease()).await?;
    refused(
        "a command under a released lease",
        lease.lease().commands().run(RunCommand::new(": > ran")).await,
        ErrorKind::Closed,
    )?;
    ensure!(stage.run_in(&binding, "ls -A").await?.is_empty(), "the command under the released lease ran");
    Ok(())
}

async fn a_snapshot_of_a_released_lease_is_refused(stage: Arc<Stage>) -> anyhow::Result<()> {
    let binding = stage.create().await?;
    let lease = stage.acquire(&binding).await?;
    stage.bindings().release(lease.lease()).await?;
    let before = stage.alive().await?;
    let result = stage.snapshots().create_from_runtime(&stage.snapshot_spec()?, lease.lease()).await;
    refused_without_effect("snapshot of a released lease", result, ErrorKind::ForeignLease)?;
    ensure!(stage.alive().await? == before, "the refused snapshot made something");
    Ok(())
}

async fn a_dropped_lease_is_released(stage: Arc<Stage>) -> anyhow::Result<()> {
    let binding = stage.create().await?;
    let lease = stage.acquire(&binding).await?;
    lease.ok("true").await?;
    drop(lease);
    stage.until_state(&binding.binding_ref, State::Idle).await
}

async fn a_lease_of_a_dead_task_is_released(stage: Arc<Stage>) -> anyhow::Result<()> {
    let binding = stage.create().await?;

    let (held, wait) = tokio::sync::oneshot::channel();
    let lease = stage.acquire(&binding).await?;
    let task = tokio::spawn(async move {
        let holding = lease;
        // The receiver waits for it below.
        held.send(()).ok();
        std::future::pending::<()>().await;
        drop(holding);
    });
    wait.await.context("the task ended before it was aborted")?;
    task.abort();
    stage.until_state(&binding.binding_ref, State::Idle).await.context("after an abort")?;

    let lease = stage.acquire(&binding).await?;
    let task = tokio::spawn(async move {
        let _holding = lease;
        // Unwinds like any panic, without a message on the test's output.
        std::panic::resume_unwind(Box::new("planned"));
    });
    ensure!(task.await.is_err_and(|error| error.is_panic()), "the task did not panic");
    stage.until_state(&binding.binding_ref, State::Idle).await.context("after a panic")
}

/// Runs a future to its end on this thread: that of an async closure over a lease cannot be shown to be `Send` (rust-lang/rust#110338), and a
/// case's future must be.
fn here<F: Future>(future: F) -> F::Output {
    tokio::task::block_in_place(|| tokio::runtime::Handle::current().block_on(future))
}

async fn with_lease_releases_after_success(stage: Arc<Stage>) -> anyhow::Result<()> {
    let binding = stage.create().await?;
    let answer = here(with_lease(stage.bindings(), &binding.binding_ref, async |lease| {
        anyhow::Ok(lease.commands().run(RunCommand::new("echo body")).await?.output)
    }))?;
    ensure!(answer.contains("body"), "the body gave {answer:?}");
    stage.until_state(&binding.binding_ref, State::Idle).await
}

async fn with_lease_releases_after_failure(stage: Arc<Stage>) -> anyhow::Result<()> {
    let binding = stage.create().await?;
    let failing = async |_| Err::<(), _>(anyhow!("the body's own error"));
    match here(with_lease(stage.bindings(), &binding.binding_ref, failing)) {
        Ok(()) => bail!("the failed body succeeded"),
        Err(error) => ensure!(error.to_string() == "the body's own error", "another error came out: {error:#}"),
    }
    stage.until_state(&binding.binding_ref, State::Idle).await
}

async fn a_dropped_lease_loses_nothing(stage: Arc<Stage>) -> anyhow::Result<()> {
    let binding = stage.create().await?;
    let lease = stage.acquire(&binding).await?;
    lease.ok("echo written > mark").await?;
    drop(lease);
    stage.harness().settle().await?;
    ensure!(stage.run_in(&binding, "cat mark").await? == "written", "the write under the dropped lease is gone");
    Ok(())
}
