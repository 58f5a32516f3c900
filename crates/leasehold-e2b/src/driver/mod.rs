//! The driver: Leasehold's contract on any E2B-compatible endpoint, by the rules of the seed.
//!
//! One sandbox is both Binding and Workspace (mode *coupled*), and its id is both refs. [`table`] holds every rule of retry and failure
//! as data. Whatever changes the provider's world runs in a task that the driver owns: a caller that leaves does not abort a request,
//! its answer is awaited and then undone.

mod acquire;
mod attempt;
mod config;
mod create;
mod destroy;
mod failure;
mod lease;
mod owned;
mod record;
mod release;
mod seams;
mod snapshot;
pub mod table;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use leasehold::{
    BindingRef, Capabilities, ErrorKind, ExecutionBindingAllocation, ExecutionBindingBackend,
    ExecutionBindingCreateSpec, ExecutionBindingDestroySpec, HomeSnapshotBackend, HomeSnapshotCreateSpec, RuntimeError,
    RuntimeLease, SnapshotRef,
};

use attempt::DRIVER;
pub use config::{DEFAULT_DEADLINE, DEFAULT_HOME, DEFAULT_WORKSPACE, DriverConfig, MAX_ACTIVE_TIMEOUT, SHELLCTL_PORT};
pub use failure::{SeamError, SeamErrorKind};
pub use lease::E2bLease;
use lease::{Held, Leases, Users};
use owned::Tasks;
pub use record::TARGET as LOG_TARGET;
pub use seams::{
    ControlPlane, CreateSandbox, DataPlane, DataPlaneFactory, DataPlaneTarget, Memory, Sandbox, SandboxFiles,
    SeamStream,
};

/// Leasehold's contract on one E2B-compatible endpoint. Cheap to clone; clones share leases and tasks.
pub struct Driver<C: ControlPlane> {
    inner: Arc<Inner<C>>,
}

/// What all clones, leases and tasks of one driver share.
struct Inner<C: ControlPlane> {
    control: C,
    data_planes: Arc<dyn DataPlaneFactory>,
    config: DriverConfig,
    capabilities: Capabilities,
    tasks: Tasks,
    leases: Leases<C>,
    users: Users,
}

/// How a driver's shutdown ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use = "unfinished work may have left something behind"]
pub struct Shutdown {
    /// Tasks that were not done at the deadline. They go on while their runtime lives; after that the provider's own time-out pauses
    /// what they would have paused or killed.
    pub unfinished: usize,
}

impl<C: ControlPlane> Driver<C> {
    /// A driver whose tasks run on the current tokio runtime.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    #[must_use]
    pub fn new(control: C, data_planes: Arc<dyn DataPlaneFactory>, config: DriverConfig) -> Self {
        let mut capabilities = Capabilities::minimal();
        capabilities.home_snapshots = true;
        capabilities.memory_kept_on_release = true;
        capabilities.files = true;
        let inner = Inner {
            control,
            data_planes,
            config,
            capabilities,
            tasks: Tasks::new(),
            leases: Leases::new(),
            users: Users::default(),
        };
        Self { inner: Arc::new(inner) }
    }

    /// The control plane it was made with.
    #[must_use]
    pub fn control_plane(&self) -> &C {
        &self.inner.control
    }

    /// What it is set to.
    #[must_use]
    pub fn config(&self) -> &DriverConfig {
        &self.inner.config
    }

    /// [`ExecutionBindingBackend::acquire`] with the lease's own type, for callers that need the provider's sandbox.
    ///
    /// # Errors
    /// Those of the trait's method.
    ///
    /// # Cancel safety
    /// A dropped acquire is undone in the background.
    pub async fn acquire_lease(&self, binding: &BindingRef) -> Result<E2bLease<C>, RuntimeError> {
        let (inner, binding) = (Arc::clone(&self.inner), binding.clone());
        self.inner.tasks.own(acquire::FUNCTION, |left| acquire::acquire(inner, binding, left)).await
    }

    /// A lease on a sandbox that is connected already, with its open data plane. Nothing is verified.
    #[must_use]
    pub fn adopt(&self, sandbox: C::Sandbox, data_plane: Arc<dyn DataPlane>) -> E2bLease<C> {
        let usage = self.inner.users.enter(sandbox.id());
        E2bLease::register(&self.inner, Held::new(Arc::new(sandbox), data_plane, usage))
    }

    /// Ends a lease without pausing its sandbox: somebody outside of this driver uses it too, or it is destroyed next.
    ///
    /// # Repeating
    /// A lease that was released before is left as it is.
    pub fn detach(&self, lease: E2bLease<C>) {
        drop(self.inner.leases.take(lease.id()));
    }

    /// Waits until nothing is under way, clean-up behind callers that left included. The driver goes on to take work.
    ///
    /// # Cancel safety
    /// Dropping it stops waiting; the tasks go on.
    pub async fn settled(&self) {
        self.inner.tasks.drained().await;
    }

    /// Takes no more work, releases all leases, and waits for the driver's tasks at most `deadline`.
    ///
    /// # Repeating
    /// Safe: a second call waits again.
    ///
    /// # Cancel safety
    /// Dropping it stops waiting; the tasks go on.
    pub async fn shutdown(&self, deadline: Duration) -> Shutdown {
        self.inner.tasks.close();
        for held in self.inner.leases.take_all() {
            self.inner.release_in_background(held);
        }
        let drained = tokio::time::timeout(deadline, self.inner.tasks.drained()).await;
        Shutdown { unfinished: if drained.is_ok() { 0 } else { self.inner.tasks.unfinished() } }
    }
}

impl<C: ControlPlane> Clone for Driver<C> {
    fn clone(&self) -> Self {
        Self { inner: Arc::clone(&self.inner) }
    }
}

impl<C: ControlPlane> fmt::Debug for Driver<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Driver").field("config", &self.inner.config).finish_non_exhaustive()
    }
}

/// The refusal of a lease that is not this driver's, or not any more.
fn foreign(operation: &'static str, lease: &dyn RuntimeLease) -> RuntimeError {
    let message = format!(
        "{} is not a live lease of this driver: it was released before or belongs to another backend",
        lease.id()
    );
    RuntimeError::new(ErrorKind::ForeignLease, operation, DRIVER, message).without_effect()
}

/// Checks a ref that becomes one component of a URL's path.
fn sandbox_id<'a>(operation: &'static str, reference: &'a str) -> Result<&'a str, RuntimeError> {
    let letters = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    if !reference.is_empty() && reference.bytes().all(letters) {
        return Ok(reference);
    }
    let message = format!("{reference:?} is not a sandbox id: use the ref that create_binding gave");
    Err(RuntimeError::new(ErrorKind::InvalidInput, operation, DRIVER, message).without_effect())
}

#[async_trait]
impl<C: ControlPlane> ExecutionBindingBackend for Driver<C> {
    fn capabilities(&self) -> &Capabilities {
        &self.inner.capabilities
    }

    async fn create_binding(
        &self,
        spec: &ExecutionBindingCreateSpec,
    ) -> Result<ExecutionBindingAllocation, RuntimeError> {
        let request = create::Request::check(spec, &self.inner.config)?;
        let inner = Arc::clone(&self.inner);
        let created = self.inner.tasks.own(create::FUNCTION, |left| create::create(inner, request, left)).await?;
        Ok(created.claim())
    }

    async fn acquire(&self, binding: &BindingRef) -> Result<Box<dyn RuntimeLease>, RuntimeError> {
        Ok(Box::new(self.acquire_lease(binding).await?))
    }

    async fn release(&self, lease: &dyn RuntimeLease) -> Result<(), RuntimeError> {
        let held = self.inner.leases.take(lease.id()).ok_or_else(|| foreign(release::FUNCTION, lease))?;
        let inner = Arc::clone(&self.inner);
        self.inner.tasks.own_always(release::FUNCTION, |_| release::release(inner, held)).await
    }

    async fn destroy_binding(&self, spec: &ExecutionBindingDestroySpec) -> Result<(), RuntimeError> {
        let id = destroy::check(spec)?;
        let inner = Arc::clone(&self.inner);
        self.inner.tasks.own(destroy::FUNCTION, |_| destroy::destroy(inner, id)).await
    }
}

#[async_trait]
impl<C: ControlPlane> HomeSnapshotBackend for Driver<C> {
    async fn create_from_runtime(
        &self,
        spec: &HomeSnapshotCreateSpec,
        source: &dyn RuntimeLease,
    ) -> Result<SnapshotRef, RuntimeError> {
        let (sandbox, capturing) =
            self.inner.leases.source(source.id()).ok_or_else(|| foreign(snapshot::CREATE, source))?;
        let inner = Arc::clone(&self.inner);
        let name = snapshot::name_of(spec);
        let work = |left| snapshot::create(inner, sandbox, capturing, name, left);
        Ok(self.inner.tasks.own(snapshot::CREATE, work).await?.claim())
    }

    async fn delete(&self, snapshot: &SnapshotRef) -> Result<(), RuntimeError> {
        let (inner, snapshot) = (Arc::clone(&self.inner), snapshot::check(snapshot)?);
        self.inner.tasks.own(snapshot::DELETE, |_| snapshot::delete(inner, snapshot)).await
    }
}
