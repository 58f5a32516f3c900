//! What one Binding must not see or do to another.

use std::sync::Arc;

use anyhow::ensure;

use super::{area, jobs, needs};
use crate::Stage;

area!("isolation" {
    /// Two Bindings see neither each other's Home nor each other's Workspace.
    files_are_private: needs::nothing,
    /// Ending a Binding leaves the commands of another alone.
    destroy_spares_other_bindings: needs::nothing,
    /// A Binding's process table shows its own processes only.
    processes_are_private: needs::own_processes,
    /// Orphans are reaped: no zombie stays in a Binding's process table.
    orphans_are_reaped: needs::own_processes,
});

async fn files_are_private(stage: Arc<Stage>) -> anyhow::Result<()> {
    let (first, second) = (stage.create().await?, stage.create().await?);
    let one = stage.acquire(&first).await?;
    let two = stage.acquire(&second).await?;
    one.ok("echo one > \"$HOME/secret\"; echo one > secret").await?;
    let seen = two.ok("ls -A \"$HOME\" . | grep -c secret || true").await?;
    ensure!(seen == "0", "the second binding sees {seen} of the first one's files");
    two.ok("echo two > \"$HOME/secret\"; echo two > secret").await?;
    let seen = one.ok("cat \"$HOME/secret\" secret").await?;
    ensure!(seen == "one\none", "the first binding sees {seen:?}");
    one.release().await?;
    two.release().await
}

async fn destroy_spares_other_bindings(stage: Arc<Stage>) -> anyhow::Result<()> {
    let (first, second) = (stage.create().await?, stage.create().await?);
    let one = stage.acquire(&first).await?;
    let two = stage.acquire(&second).await?;
    let waiting = "echo started; while [ ! -e go ]; do sleep 0.02; done; echo done";
    let job = jobs::start(&one, waiting, "started").await?;
    jobs::start(&two, waiting, "started").await?;
    two.release().await?;
    stage.destroy(&second).await?;
    one.ok(": > go").await?;
    let ended = jobs::finish(&one, &job.job_id, job.offset).await?;
    ensure!(ended.exit_code == Some(0) && ended.output == "done\n", "the other binding's job: {ended:?}");
    one.release().await
}

async fn processes_are_private(stage: Arc<Stage>) -> anyhow::Result<()> {
    let (first, second) = (stage.create().await?, stage.create().await?);
    let one = stage.acquire(&first).await?;
    let two = stage.acquire(&second).await?;
    // The pattern does not match itself.
    let marked = "echo ready; sleep 1000.125";
    let look = "cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' ' ' | grep -c '1000[.]125' || true";
    jobs::start(&one, marked, "ready").await?;
    let own = one.ok(look).await?;
    ensure!(own != "0", "the binding does not see its own process");
    let seen = two.ok(look).await?;
    ensure!(seen == "0", "the other binding sees the process");
    one.release().await?;
    two.release().await
}

async fn orphans_are_reaped(stage: Arc<Stage>) -> anyhow::Result<()> {
    let binding = stage.create().await?;
    let lease = stage.acquire(&binding).await?;
    lease.ok("i=0; while [ $i -lt 20 ]; do (setsid sh -c 'exit 3' &); i=$((i+1)); done").await?;
    let zombies = "grep -l '^State:.Z' /proc/[0-9]*/status 2>/dev/null | wc -l";
    let none = stage.until(|| async { Ok(lease.ok(zombies).await? == "0") }).await?;
    ensure!(none, "{} zombies stay", lease.ok(zombies).await?);
    lease.release().await
}
