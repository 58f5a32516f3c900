//! Jobs over time: waiting, reading by offset, input, interrupting, deleting.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use leasehold::{CommandMode, DeleteJob, ErrorKind, JobId, JobOutput, JobStatus, RunCommand};

use super::{area, needs};
use crate::stage::refused;
use crate::{Held, Stage};

/// How long a run waits before it answers with a running job.
const SHORT: Duration = Duration::from_millis(50);

area!("jobs" {
    /// A run that is not waited for answers with a running job, which goes on and can be waited for.
    a_run_that_times_out_goes_on: needs::nothing,
    /// Each read starts where the last one ended; a read from the start gives everything again.
    reads_continue_at_the_offset: needs::nothing,
    /// Text that is typed reaches the job's terminal.
    input_reaches_the_terminal: needs::nothing,
    /// An interrupt ends the whole tree: other sessions, double forks, and those that ignore being asked.
    an_interrupt_ends_the_whole_tree: needs::nothing,
    /// An interrupt asks first: a job that cleans up after itself has the grace for it.
    an_interrupt_asks_first: needs::nothing,
    /// An interrupted job is said to be terminated, and its output stays readable.
    an_interrupted_job_keeps_its_output: needs::nothing,
    /// A running job is not deleted unless forced, and then it ends first.
    a_running_job_is_deleted_by_force_only: needs::nothing,
    /// A job that never was, or was deleted, is not found, and deleting it again is fine.
    an_unknown_job_is_not_found: needs::nothing,
});

/// Starts a script that is expected to go on, and waits until it has said `word`.
pub(super) async fn start(lease: &Held, script: &str, word: &str) -> anyhow::Result<JobOutput> {
    start_in(lease, script, word, CommandMode::Stdio).await
}

async fn start_in(lease: &Held, script: &str, word: &str, mode: CommandMode) -> anyhow::Result<JobOutput> {
    let commands = lease.lease().commands();
    let mut job = commands.run(RunCommand::new(script).mode(mode).timeout(SHORT)).await?;
    let deadline = tokio::time::Instant::now() + lease.patience();
    let mut output = std::mem::take(&mut job.output);
    while !output.contains(word) {
        ensure!(!job.done, "job {} ended ({:?}) before it said {word:?}: {output:?}", job.job_id, job.status);
        if tokio::time::Instant::now() >= deadline {
            bail!("job {} has not said {word:?} within {:?}: {output:?}", job.job_id, lease.patience());
        }
        job = commands.wait(&job.job_id, job.offset, lease.patience()).await?;
        output.push_str(&job.output);
    }
    ensure!(!job.done, "job {} ended as it said {word:?}", job.job_id);
    job.output = output;
    Ok(job)
}

/// Waits for a job's end; the output is all after `offset`.
pub(super) async fn finish(lease: &Held, job: &JobId, mut offset: u64) -> anyhow::Result<JobOutput> {
    let deadline = tokio::time::Instant::now() + lease.patience();
    let mut output = String::new();
    loop {
        let mut seen = lease.lease().commands().wait(job, offset, lease.patience()).await.context("wait")?;
        output.push_str(&seen.output);
        offset = seen.offset;
        if seen.done && !seen.truncated {
            seen.output = output;
            return Ok(seen);
        }
        ensure!(tokio::time::Instant::now() < deadline, "job {job} is {:?} after {:?}", seen.status, lease.patience());
    }
}

async fn a_run_that_times_out_goes_on(stage: Arc<Stage>) -> anyhow::Result<()> {
    let binding = stage.create().await?;
    let lease = stage.acquire(&binding).await?;
    let job =
        start(&lease, "echo started; while [ ! -e go ]; do sleep 0.02; done; echo done; exit 5", "started").await?;
    ensure!(job.exit_code.is_none() && !job.status.is_terminal(), "the running job is {job:?}");
    lease.ok(": > go").await?;
    let ended = finish(&lease, &job.job_id, job.offset).await?;
    ensure!(ended.status == JobStatus::Exited && ended.exit_code == Some(5), "the job ended as {ended:?}");
    ensure!(ended.output == "done\n", "after the first output came {:?}", ended.output);
    lease.release().await
}

async fn reads_continue_at_the_offset(stage: Arc<Stage>) -> anyhow::Result<()> {
    let binding = stage.create().await?;
    let lease = stage.acquire(&binding).await?;
    let commands = lease.lease().commands();
    let script = "echo erste-ü; while [ ! -e go ]; do sleep 0.02; done; echo zweite";
    let job = start(&lease, script, "\n").await?;
    ensure!(job.offset == "erste-ü\n".len() as u64, "the offset counts bytes, it is {}", job.offset);
    let nothing = commands.read_output(&job.job_id, job.offset).await?;
    ensure!(nothing.output.is_empty() && nothing.offset == job.offset, "nothing new gave {nothing:?}");
    lease.ok(": > go").await?;
    let rest = finish(&lease, &job.job_id, job.offset).await?;
    ensure!(rest.output == "zweite\n", "the second read gave {:?}", rest.output);
    let all = commands.read_output(&job.job_id, 0).await?;
    ensure!(all.output == "erste-ü\nzweite\n", "a read from the start gave {:?}", all.output);
    let tail = commands.tail(&job.job_id).await?;
    ensure!(tail.output.ends_with("zweite\n") && tail.offset == rest.offset, "the tail is {tail:?}");
    lease.release().await
}

async fn input_reaches_the_terminal(stage: Arc<Stage>) -> anyhow::Result<()> {
    let binding = stage.create().await?;
    let lease = stage.acquire(&binding).await?;
    let job = start_in(&lease, "echo ready; read -r line; echo \"got:$line\"", "ready", CommandMode::Pty).await?;
    let commands = lease.lease().commands();
    let typed = commands.input(&job.job_id, "hello\n", job.offset, lease.patience()).await?;
    let rest = finish(&lease, &job.job_id, typed.offset).await?;
    let output = typed.output + &rest.output;
    // A terminal may echo what is typed.
    ensure!(output.contains("got:hello"), "the terminal shows {output:?}");
    ensure!(rest.exit_code == Some(0), "the job ended with {:?}", rest.exit_code);
    lease.release().await
}

/// Reports the processes of `pids` that are there and are not zombies.
const STILL_THERE: &str = r#"for p in $(cat pids); do
if [ -e /proc/$p/status ] && ! grep -q '^State:.Z' /proc/$p/status; then echo "$p"; fi; done 2>/dev/null; true"#;

async fn an_interrupt_ends_the_whole_tree(stage: Arc<Stage>) -> anyhow::Result<()> {
    let binding = stage.create().await?;
    let lease = stage.acquire(&binding).await?;
    let tree = r#"echo $$ >> pids
sleep 1000 & echo $! >> pids
setsid sh -c 'echo $$ >> pids; sleep 1000 & echo $! >> pids; wait' &
(setsid sh -c 'trap "" TERM HUP INT; echo $$ >> pids; sleep 1000 & echo $! >> pids; while :; do sleep 1; done' >/dev/null 2>&1 &)
while [ "$(wc -l < pids)" -lt 6 ]; do sleep 0.01; done
echo ready
wait"#;
    let job = start(&lease, tree, "ready").await?;
    ensure!(lease.ok(STILL_THERE).await?.lines().count() == 6, "the tree did not come up");
    lease.lease().commands().interrupt(&job.job_id, Duration::from_millis(200)).await?;
    let left = stage.until(|| async { Ok(lease.ok(STILL_THERE).await?.is_empty()) }).await?;
    ensure!(left, "after the interrupt there are still {:?}", lease.ok(STILL_THERE).await?.lines().collect::<Vec<_>>());
    lease.release().await
}

async fn an_interrupt_asks_first(stage: Arc<Stage>) -> anyhow::Result<()> {
    let binding = stage.create().await?;
    let lease = stage.acquire(&binding).await?;
    let tidy = "trap 'echo tidied > tidied; exit 0' TERM; echo ready; while :; do sleep 0.02; done";
    let job = start(&lease, tidy, "ready").await?;
    let state = lease.lease().commands().interrupt(&job.job_id, lease.patience()).await?;
    ensure!(state.done, "after the interrupt the job is {:?}", state.status);
    ensure!(lease.ok("cat tidied 2>/dev/null || echo no").await? == "tidied", "the job had no time to tidy up");
    lease.release().await
}

async fn an_interrupted_job_keeps_its_output(stage: Arc<Stage>) -> anyhow::Result<()> {
    let binding = stage.create().await?;
    let lease = stage.acquire(&binding).await?;
    let job = start(&lease, "echo before; sleep 1000", "before").await?;
    lease.lease().commands().interrupt(&job.job_id, Duration::from_millis(100)).await?;
    let ended = finish(&lease, &job.job_id, 0).await?;
    ensure!(ended.status == JobStatus::Terminated, "the job is said to be {:?}", ended.status);
    ensure!(ended.output == "before\n", "its output is {:?}", ended.output);
    lease.release().await
}

async fn a_running_job_is_deleted_by_force_only(stage: Arc<Stage>) -> anyhow::Result<()> {
    let binding = stage.create().await?;
    let lease = stage.acquire(&binding).await?;
    let commands = lease.lease().commands();
    let job = start(&lease, "echo $$ > pids; echo ready; sleep 1000", "ready").await?;
    refused("deleting a running job", commands.delete(&job.job_id, DeleteJob::IfDone).await, ErrorKind::Conflict)?;
    ensure!(!lease.ok(STILL_THERE).await?.is_empty(), "the refused delete ended the job");
    commands.delete(&job.job_id, DeleteJob::Force { grace: Some(Duration::from_millis(100)) }).await?;
    let ended = stage.until(|| async { Ok(lease.ok(STILL_THERE).await?.is_empty()) }).await?;
    ensure!(ended, "the deleted job still runs");
    refused("reading a deleted job", commands.read_output(&job.job_id, 0).await, ErrorKind::NotFound)?;
    lease.release().await
}

async fn an_unknown_job_is_not_found(stage: Arc<Stage>) -> anyhow::Result<()> {
    let binding = stage.create().await?;
    let lease = stage.acquire(&binding).await?;
    let commands = lease.lease().commands();
    let job = commands.run(RunCommand::new("true").mode(CommandMode::Stdio)).await?;
    let how = DeleteJob::Force { grace: None };
    commands.delete(&job.job_id, how).await?;
    commands.delete(&job.job_id, how).await.context("a second delete")?;
    refused("waiting for a deleted job", commands.wait(&job.job_id, 0, SHORT).await, ErrorKind::NotFound)?;
    refused("interrupting a deleted job", commands.interrupt(&job.job_id, SHORT).await, ErrorKind::NotFound)?;
    refused("the tail of a deleted job", commands.tail(&job.job_id).await, ErrorKind::NotFound)?;
    lease.release().await
}
