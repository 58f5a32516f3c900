//! What cases work with: shorthands over the contract, and an account of what was made, so that it can be destroyed afterwards.

use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use leasehold::{
    AgentId, BindingId, BindingRef, CommandMode, DeleteJob, Effect, ErrorKind, ExecutionBindingAllocation,
    ExecutionBindingBackend, ExecutionBindingCreateSpec, ExecutionBindingDestroySpec, HomeSnapshotBackend,
    HomeSnapshotCreateSpec, HomeSnapshotId, RunCommand, RuntimeError, RuntimeLease, SnapshotRef, TenantId,
    WorkspaceFate, WorkspaceId,
};

use crate::{Harness, State};

/// The most output a case reads of one job (chosen: the largest case makes a third of it).
const MAX_OUTPUT: usize = 1 << 20;

/// One case's access to a backend.
pub struct Stage {
    harness: Arc<dyn Harness>,
    made: Mutex<Made>,
}

#[derive(Debug, Default)]
struct Made {
    bindings: Vec<ExecutionBindingAllocation>,
    snapshots: Vec<SnapshotRef>,
}

/// A lease that a case holds. Dropped unreleased, it is left to the backend, as the contract says.
pub struct Held {
    harness: Arc<dyn Harness>,
    lease: Box<dyn RuntimeLease>,
}

/// How a command ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ran {
    /// Its exit code, if it has one.
    pub exit_code: Option<i32>,
    /// All of its standard output.
    pub output: String,
}

impl Stage {
    pub(crate) fn new(harness: Arc<dyn Harness>) -> Self {
        Self { harness, made: Mutex::default() }
    }

    /// The harness under test.
    #[must_use]
    pub fn harness(&self) -> &Arc<dyn Harness> {
        &self.harness
    }

    /// The backend's Bindings.
    #[must_use]
    pub fn bindings(&self) -> &dyn ExecutionBindingBackend {
        self.harness.bindings()
    }

    /// The backend's Home Snapshots.
    #[must_use]
    pub fn snapshots(&self) -> &dyn HomeSnapshotBackend {
        self.harness.snapshots()
    }

    /// How long to wait for what should happen at once.
    #[must_use]
    pub fn patience(&self) -> Duration {
        self.harness.patience()
    }

    /// A create with fresh ids.
    ///
    /// # Errors
    /// None in practice: the ids are of a fixed form.
    pub fn create_spec(&self) -> anyhow::Result<ExecutionBindingCreateSpec> {
        Ok(ExecutionBindingCreateSpec::new(
            TenantId::new("tenant-1")?,
            AgentId::new("agent-1")?,
            BindingId::new(fresh("binding"))?,
            WorkspaceId::new(fresh("workspace"))?,
        ))
    }

    /// Makes a Binding that is destroyed after the case.
    ///
    /// # Errors
    /// The backend's.
    pub async fn create(&self) -> anyhow::Result<ExecutionBindingAllocation> {
        self.create_with(&self.create_spec()?).await
    }

    /// Makes a Binding from a snapshot.
    ///
    /// # Errors
    /// The backend's.
    pub async fn create_from(&self, snapshot: &SnapshotRef) -> anyhow::Result<ExecutionBindingAllocation> {
        self.create_with(&self.create_spec()?.with_home_snapshot(snapshot.clone())).await
    }

    /// Makes a Binding of this spec.
    ///
    /// # Errors
    /// The backend's.
    pub async fn create_with(&self, spec: &ExecutionBindingCreateSpec) -> anyhow::Result<ExecutionBindingAllocation> {
        let made = self.bindings().create_binding(spec).await.context("create_binding")?;
        self.adopt(&made);
        Ok(made)
    }

    /// Takes note of a Binding that the case made itself.
    pub fn adopt(&self, made: &ExecutionBindingAllocation) {
        self.made.lock().unwrap_or_else(PoisonError::into_inner).bindings.push(made.clone());
    }

    /// Acquires a Binding.
    ///
    /// # Errors
    /// The backend's.
    pub async fn acquire(&self, binding: &ExecutionBindingAllocation) -> anyhow::Result<Held> {
        let lease = self.bindings().acquire(&binding.binding_ref).await.context("acquire")?;
        Ok(Held { harness: self.harness.clone(), lease })
    }

    /// Runs one script under a lease of its own.
    ///
    /// # Errors
    /// The backend's, or the script's exit code was not 0.
    pub async fn run_in(&self, binding: &ExecutionBindingAllocation, script: &str) -> anyhow::Result<String> {
        let lease = self.acquire(binding).await?;
        let output = lease.ok(script).await?;
        lease.release().await?;
        Ok(output)
    }

    /// Destroys a Binding with its Workspace.
    ///
    /// # Errors
    /// The backend's.
    pub async fn destroy(&self, binding: &ExecutionBindingAllocation) -> anyhow::Result<()> {
        let spec = destroy_all(binding);
        self.bindings().destroy_binding(&spec).await.context("destroy_binding")
    }

    /// Makes a snapshot that is deleted after the case.
    ///
    /// # Errors
    /// The backend's.
    pub async fn snapshot(&self, source: &Held) -> anyhow::Result<SnapshotRef> {
        let snapshot = self
            .snapshots()
            .create_from_runtime(&self.snapshot_spec()?, source.lease())
            .await
            .context("create_from_runtime")?;
        self.made.lock().unwrap_or_else(PoisonError::into_inner).snapshots.push(snapshot.clone());
        Ok(snapshot)
    }

    /// A snapshot with a fresh id.
    ///
    /// # Errors
    /// None in practice: the ids are of a fixed form.
    pub fn snapshot_spec(&self) -> anyhow::Result<HomeSnapshotCreateSpec> {
        Ok(HomeSnapshotCreateSpec::new(
            TenantId::new("tenant-1")?,
            AgentId::new("agent-1")?,
            HomeSnapshotId::new(fresh("snapshot"))?,
        ))
    }

    /// Waits until the provider says this about a Binding.
    ///
    /// # Errors
    /// It didn't within one patience; the last answer is told.
    pub async fn until_state(&self, binding: &BindingRef, wanted: State) -> anyhow::Result<()> {
        let last = Mutex::new(None);
        let seen = self
            .until(|| async {
                self.harness.settle().await?;
                let state = self.harness.state(binding).await?;
                *last.lock().unwrap_or_else(PoisonError::into_inner) = Some(state);
                Ok(state == wanted)
            })
            .await?;
        ensure!(seen, "binding {binding} is {:?}, expected {wanted:?}", last.into_inner());
        Ok(())
    }

    /// Waits for a condition, at most one patience. False = it never held.
    ///
    /// # Errors
    /// The condition's own.
    pub async fn until<F, R>(&self, condition: F) -> anyhow::Result<bool>
    where
        F: Fn() -> R,
        R: Future<Output = anyhow::Result<bool>>,
    {
        let deadline = tokio::time::Instant::now() + self.patience();
        let mut pause = Duration::from_millis(1);
        loop {
            if condition().await? {
                return Ok(true);
            }
            if tokio::time::Instant::now() >= deadline {
                return Ok(false);
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(Duration::from_millis(50));
        }
    }

    /// What the provider has now, sorted.
    ///
    /// # Errors
    /// The harness's.
    pub async fn alive(&self) -> anyhow::Result<Vec<String>> {
        self.harness.settle().await?;
        let mut alive = self.harness.alive().await?;
        alive.sort();
        Ok(alive)
    }

    /// Destroys what the case made, snapshots last since Bindings come from them.
    pub(crate) async fn clean_up(&self) -> anyhow::Result<()> {
        let Made { bindings, snapshots } =
            std::mem::take(&mut *self.made.lock().unwrap_or_else(PoisonError::into_inner));
        let mut first = Ok(());
        for binding in &bindings {
            let destroyed = self.destroy(binding).await.with_context(|| format!("binding {}", binding.binding_ref));
            first = first.and(destroyed);
        }
        for snapshot in &snapshots {
            let deleted = self.snapshots().delete(snapshot).await.with_context(|| format!("snapshot {snapshot}"));
            first = first.and(deleted);
        }
        first
    }
}

impl Held {
    /// The lease itself.
    #[must_use]
    pub fn lease(&self) -> &dyn RuntimeLease {
        self.lease.as_ref()
    }

    /// The agent's Home.
    #[must_use]
    pub fn home(&self) -> &str {
        self.lease.layout().home_dir()
    }

    /// The Workspace.
    #[must_use]
    pub fn workspace(&self) -> &str {
        self.lease.layout().workspace_dir()
    }

    /// How long to wait for what should happen at once.
    #[must_use]
    pub fn patience(&self) -> Duration {
        self.harness.patience()
    }

    /// Gives the lease back.
    ///
    /// # Errors
    /// The backend's.
    pub async fn release(self) -> anyhow::Result<()> {
        self.harness.bindings().release(self.lease.as_ref()).await.context("release")
    }

    /// Runs a script without a terminal to its end, reads all of its output, and deletes the job.
    ///
    /// # Errors
    /// The backend's; the script didn't end within one patience; more output than a case may make.
    pub async fn sh(&self, script: &str) -> anyhow::Result<Ran> {
        self.run(RunCommand::new(script)).await.with_context(|| format!("script {script:?}"))
    }

    /// Runs a script that must exit with 0; its output without the last line's end.
    ///
    /// # Errors
    /// Those of [`Held::sh`], and another exit code.
    pub async fn ok(&self, script: &str) -> anyhow::Result<String> {
        let ran = self.sh(script).await?;
        ensure!(ran.exit_code == Some(0), "script {script:?} exited with {:?}: {:?}", ran.exit_code, ran.output);
        Ok(ran.output.trim_end_matches('\n').to_owned())
    }

    /// Runs a command in stdio mode as [`Held::sh`] does.
    ///
    /// # Errors
    /// Those of [`Held::sh`].
    pub async fn run(&self, command: RunCommand) -> anyhow::Result<Ran> {
        let commands = self.lease.commands();
        let patience = self.harness.patience();
        let deadline = tokio::time::Instant::now() + patience;
        let mut job = commands.run(command.mode(CommandMode::Stdio).timeout(patience)).await.context("run")?;
        let mut output = std::mem::take(&mut job.output);
        while !job.done || job.truncated {
            ensure!(output.len() <= MAX_OUTPUT, "more than {MAX_OUTPUT} bytes of output");
            if tokio::time::Instant::now() >= deadline {
                bail!("job {} is still {:?} after {patience:?}, output {output:?}", job.job_id, job.status);
            }
            job = commands.wait(&job.job_id, job.offset, patience).await.context("wait")?;
            output.push_str(&job.output);
        }
        commands.delete(&job.job_id, DeleteJob::IfDone).await.context("delete")?;
        Ok(Ran { exit_code: job.exit_code, output })
    }
}

/// The end of a Binding and of its Workspace.
pub(crate) fn destroy_all(binding: &ExecutionBindingAllocation) -> ExecutionBindingDestroySpec {
    ExecutionBindingDestroySpec::new(binding.binding_ref.clone(), WorkspaceFate::Destroy(binding.workspace_ref.clone()))
}

/// Checks that an operation was refused with this kind.
pub(crate) fn refused<T>(what: &str, result: Result<T, RuntimeError>, kind: ErrorKind) -> anyhow::Result<RuntimeError> {
    match result {
        Ok(_) => bail!("{what} succeeded, expected {}", kind.name()),
        Err(error) if error.kind() == kind => Ok(error),
        Err(error) => bail!("{what} failed with {}, expected {}: {error}", error.kind().name(), kind.name()),
    }
}

/// Checks that an operation was refused with this kind before it had any effect.
pub(crate) fn refused_without_effect<T>(
    what: &str,
    result: Result<T, RuntimeError>,
    kind: ErrorKind,
) -> anyhow::Result<()> {
    let error = refused(what, result, kind)?;
    ensure!(error.effect() == Effect::None, "{what} was refused but says that it may have acted: {error}");
    Ok(())
}

fn fresh(what: &str) -> String {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    format!("{what}-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}
