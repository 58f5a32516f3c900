//! A lease on one sandbox: who holds it, what it reaches, and what its commands and files may do.

use std::collections::HashMap;
use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures_core::Stream;
use leasehold::{
    ByteStream, Commands, DeleteJob, Effect, ErrorKind, FileEntry, Files, JobId, JobOutput, JobState, LeaseId,
    RunCommand, RuntimeError, RuntimeLayout, RuntimeLease,
};
use tokio_util::sync::CancellationToken;

use super::Inner;
use super::attempt::DRIVER;
use super::failure::{SeamError, SeamErrorKind};
use super::seams::{ControlPlane, DataPlane, Sandbox, SeamStream};

/// A lease on one sandbox. Dropped unreleased, it is released by the driver's own task.
pub struct E2bLease<C: ControlPlane> {
    id: LeaseId,
    layout: RuntimeLayout,
    sandbox: Arc<C::Sandbox>,
    commands: LeaseCommands,
    files: LeaseFiles<C::Sandbox>,
    driver: Arc<Inner<C>>,
}

impl<C: ControlPlane> E2bLease<C> {
    /// Registers a lease with its driver.
    pub(super) fn register(driver: &Arc<Inner<C>>, held: Held<C>) -> Self {
        let id = LeaseId::fresh();
        let layout = driver.config.layout.clone();
        let lease = Self {
            id,
            layout: layout.clone(),
            sandbox: Arc::clone(&held.sandbox),
            commands: LeaseCommands { layout, data_plane: Arc::clone(&held.data_plane), ended: held.ended.clone() },
            files: LeaseFiles { sandbox: Arc::clone(&held.sandbox), ended: held.ended.clone() },
            driver: Arc::clone(driver),
        };
        driver.leases.insert(id, held);
        lease
    }

    /// The sandbox, as the seam's own type. It stays usable after the release, when the sandbox is paused.
    #[must_use]
    pub fn sandbox(&self) -> &Arc<C::Sandbox> {
        &self.sandbox
    }
}

impl<C: ControlPlane> RuntimeLease for E2bLease<C> {
    fn id(&self) -> LeaseId {
        self.id
    }

    fn layout(&self) -> &RuntimeLayout {
        &self.layout
    }

    fn commands(&self) -> &dyn Commands {
        &self.commands
    }

    fn files(&self) -> &dyn Files {
        &self.files
    }
}

impl<C: ControlPlane> Drop for E2bLease<C> {
    fn drop(&mut self) {
        if let Some(held) = self.driver.leases.take(self.id) {
            self.driver.release_in_background(held);
        }
    }
}

impl<C: ControlPlane> fmt::Debug for E2bLease<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("E2bLease").field("id", &self.id).field("sandbox", &self.sandbox.id()).finish_non_exhaustive()
    }
}

/// What a lease holds until it is released.
pub(super) struct Held<C: ControlPlane> {
    pub(super) sandbox: Arc<C::Sandbox>,
    pub(super) data_plane: Arc<dyn DataPlane>,
    pub(super) usage: Usage,
    /// Taken while the sandbox is being captured, so that a release does not pause it in the middle.
    pub(super) capturing: Arc<tokio::sync::Mutex<()>>,
    /// Cancelled at the release: the lease is of no use any more.
    pub(super) ended: CancellationToken,
}

impl<C: ControlPlane> Held<C> {
    pub(super) fn new(sandbox: Arc<C::Sandbox>, data_plane: Arc<dyn DataPlane>, usage: Usage) -> Self {
        Self { sandbox, data_plane, usage, capturing: Arc::default(), ended: CancellationToken::new() }
    }
}

/// A leased sandbox and its capture lock.
pub(super) type Source<C> = (Arc<<C as ControlPlane>::Sandbox>, Arc<tokio::sync::Mutex<()>>);

/// A driver's unreleased leases.
pub(super) struct Leases<C: ControlPlane>(Mutex<HashMap<LeaseId, Held<C>>>);

impl<C: ControlPlane> Leases<C> {
    pub(super) fn new() -> Self {
        Self(Mutex::new(HashMap::new()))
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<LeaseId, Held<C>>> {
        // Every section below is one map operation, so a poisoned map is whole.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn insert(&self, id: LeaseId, held: Held<C>) {
        self.lock().insert(id, held);
    }

    /// Takes what a lease holds: only one caller ever gets it.
    pub(super) fn take(&self, id: LeaseId) -> Option<Held<C>> {
        let held = self.lock().remove(&id)?;
        held.ended.cancel();
        Some(held)
    }

    /// The sandbox of an unreleased lease, and its capture lock.
    pub(super) fn source(&self, id: LeaseId) -> Option<Source<C>> {
        self.lock().get(&id).map(|held| (Arc::clone(&held.sandbox), Arc::clone(&held.capturing)))
    }

    pub(super) fn take_all(&self) -> Vec<Held<C>> {
        let all: Vec<_> = self.lock().drain().map(|(_, held)| held).collect();
        for held in &all {
            held.ended.cancel();
        }
        all
    }
}

/// How many acquires and leases of this driver use each sandbox: only the last one out pauses it.
#[derive(Debug, Clone, Default)]
pub(super) struct Users(Arc<Mutex<HashMap<String, usize>>>);

/// One user of one sandbox.
#[derive(Debug)]
pub(super) struct Usage {
    users: Users,
    sandbox: Option<String>,
}

impl Users {
    pub(super) fn enter(&self, sandbox: &str) -> Usage {
        *self.lock().entry(sandbox.to_owned()).or_insert(0) += 1;
        Usage { users: self.clone(), sandbox: Some(sandbox.to_owned()) }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// True when nobody else uses the sandbox now.
    fn leave(&self, sandbox: &str) -> bool {
        let mut users = self.lock();
        match users.get_mut(sandbox) {
            Some(count) if *count > 1 => {
                *count -= 1;
                false
            }
            _ => {
                users.remove(sandbox);
                true
            }
        }
    }
}

impl Usage {
    /// Ends this use; true when it was the last one.
    pub(super) fn end(mut self) -> bool {
        self.sandbox.take().is_none_or(|sandbox| self.users.leave(&sandbox))
    }
}

impl Drop for Usage {
    fn drop(&mut self) {
        if let Some(sandbox) = self.sandbox.take() {
            self.users.leave(&sandbox);
        }
    }
}

fn closed(operation: &'static str) -> RuntimeError {
    RuntimeError::new(ErrorKind::Closed, operation, DRIVER, "lease was released").without_effect()
}

/// The daemon's commands with the lease's layout applied.
struct LeaseCommands {
    layout: RuntimeLayout,
    data_plane: Arc<dyn DataPlane>,
    ended: CancellationToken,
}

impl LeaseCommands {
    fn open(&self, operation: &'static str) -> Result<&dyn Commands, RuntimeError> {
        if self.ended.is_cancelled() { Err(closed(operation)) } else { Ok(self.data_plane.commands()) }
    }
}

#[async_trait]
impl Commands for LeaseCommands {
    async fn run(&self, mut command: RunCommand) -> Result<JobOutput, RuntimeError> {
        let commands = self.open("run")?;
        command.cwd = Some(self.layout.resolve_cwd(command.cwd.as_deref())?);
        command.env.insert("HOME".to_owned(), self.layout.home_dir().to_owned());
        commands.run(command).await
    }

    async fn wait(&self, job: &JobId, offset: u64, timeout: Duration) -> Result<JobOutput, RuntimeError> {
        self.open("wait")?.wait(job, offset, timeout).await
    }

    async fn read_output(&self, job: &JobId, offset: u64) -> Result<JobOutput, RuntimeError> {
        self.open("read_output")?.read_output(job, offset).await
    }

    async fn input(&self, job: &JobId, text: &str, offset: u64, timeout: Duration) -> Result<JobOutput, RuntimeError> {
        self.open("input")?.input(job, text, offset, timeout).await
    }

    async fn interrupt(&self, job: &JobId, grace: Duration) -> Result<JobState, RuntimeError> {
        self.open("interrupt")?.interrupt(job, grace).await
    }

    async fn tail(&self, job: &JobId) -> Result<JobOutput, RuntimeError> {
        self.open("tail")?.tail(job).await
    }

    async fn delete(&self, job: &JobId, how: DeleteJob) -> Result<(), RuntimeError> {
        self.open("delete")?.delete(job, how).await
    }
}

/// The sandbox's files in the contract's terms.
struct LeaseFiles<S> {
    sandbox: Arc<S>,
    ended: CancellationToken,
}

impl<S: Sandbox> LeaseFiles<S> {
    fn open(&self, operation: &'static str) -> Result<&S, RuntimeError> {
        if self.ended.is_cancelled() { Err(closed(operation)) } else { Ok(&self.sandbox) }
    }

    /// What may go wrong with a file, without the sandbox's traffic token.
    fn error(&self, operation: &'static str) -> impl Fn(SeamError) -> RuntimeError + Send + Sync + 'static + use<S> {
        let secret = self.sandbox.traffic_token().map(str::to_owned);
        move |error| file_error(operation, error.redacted(secret.as_deref()))
    }
}

#[async_trait]
impl<S: Sandbox> Files for LeaseFiles<S> {
    async fn exists(&self, path: &str) -> Result<bool, RuntimeError> {
        self.open("exists")?.files().exists(path).await.map_err(self.error("exists"))
    }

    async fn make_dir(&self, path: &str) -> Result<bool, RuntimeError> {
        self.open("make_dir")?.files().make_dir(path).await.map_err(self.error("make_dir"))
    }

    async fn list(&self, path: &str) -> Result<Vec<FileEntry>, RuntimeError> {
        self.open("list")?.files().list(path).await.map_err(self.error("list"))
    }

    async fn remove(&self, path: &str) -> Result<(), RuntimeError> {
        self.open("remove")?.files().remove(path).await.map_err(self.error("remove"))
    }

    async fn read(&self, path: &str) -> Result<ByteStream, RuntimeError> {
        let body = self.open("read")?.files().read(path).await.map_err(self.error("read"))?;
        Ok(Box::pin(Mapped { body, map: self.error("read") }))
    }

    async fn write(&self, path: &str, body: ByteStream) -> Result<(), RuntimeError> {
        let unread = |error: RuntimeError| {
            SeamError::new(SeamErrorKind::Write, format!("body could not be read: {}", error.message()))
                .with_source(error)
        };
        let body: SeamStream = Box::pin(Mapped { body, map: unread });
        self.open("write")?.files().write(path, body).await.map_err(self.error("write"))
    }
}

/// A body whose errors are given in other terms.
struct Mapped<E, M> {
    body: Pin<Box<dyn Stream<Item = Result<Bytes, E>> + Send>>,
    map: M,
}

impl<E, F, M: Fn(E) -> F + Unpin> Stream for Mapped<E, M> {
    type Item = Result<Bytes, F>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let piece = std::task::ready!(self.body.as_mut().poll_next(context));
        Poll::Ready(piece.map(|piece| piece.map_err(&self.map)))
    }
}

/// What a failed file call means to the lease's user.
fn file_error(operation: &'static str, error: SeamError) -> RuntimeError {
    let kind = match error.kind() {
        SeamErrorKind::NotFound | SeamErrorKind::Status(404) => ErrorKind::NotFound,
        SeamErrorKind::Validation | SeamErrorKind::Status(400 | 422) => ErrorKind::InvalidInput,
        SeamErrorKind::Status(409) => ErrorKind::Conflict,
        SeamErrorKind::Status(401 | 403) => ErrorKind::Unauthorized,
        SeamErrorKind::Cancelled => ErrorKind::Cancelled,
        SeamErrorKind::Closed => ErrorKind::Closed,
        SeamErrorKind::ConnectTimeout | SeamErrorKind::ReadTimeout | SeamErrorKind::Pool | SeamErrorKind::Deadline => {
            ErrorKind::TimedOut
        }
        kind if kind.in_health_set() => ErrorKind::Unavailable,
        _ => ErrorKind::Internal,
    };
    let effect: Effect = error.effect();
    let failed = RuntimeError::new(kind, operation, DRIVER, error.message()).with_effect(effect);
    match error.kind() {
        SeamErrorKind::Status(status) => failed.with_status(status).with_source(error),
        _ => failed.with_source(error),
    }
}
