//! Work that the driver owns: a caller only waits for it. What the caller drops is finished or undone, never aborted.

use std::any::Any;
use std::future::Future;
use std::panic::{AssertUnwindSafe, resume_unwind};

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use leasehold::{ErrorKind, RuntimeError};
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::Instrument as _;
use tracing::instrument::WithSubscriber as _;

use super::attempt::DRIVER;

/// What a panic carries.
pub(super) type Panic = Box<dyn Any + Send>;

/// Runs a step and catches its panic, so that it can be undone before it unwinds further.
pub(super) async fn caught<F: Future>(step: F) -> Result<F::Output, Panic> {
    AssertUnwindSafe(step).catch_unwind().await
}

/// The driver's tasks.
#[derive(Debug, Clone)]
pub(super) struct Tasks {
    tracker: TaskTracker,
    runtime: Handle,
    /// Cancelled when the driver takes no more work.
    closed: CancellationToken,
}

impl Tasks {
    /// Tasks on this thread's runtime; panics without one.
    pub(super) fn new() -> Self {
        let tracker = TaskTracker::new();
        // Only a closed tracker can be waited for; it takes tasks all the same.
        tracker.close();
        Self { tracker, runtime: Handle::current(), closed: CancellationToken::new() }
    }

    /// Runs work that nobody waits for.
    pub(super) fn detach(&self, work: impl Future<Output = ()> + Send + 'static) {
        self.tracker.spawn_on(work.in_current_span().with_current_subscriber(), &self.runtime);
    }

    /// Runs work in a task of its own and waits for it.
    ///
    /// `work` gets a token that is cancelled when the caller has left; what it gives must undo itself when it is dropped. A panic of the
    /// work goes on in the caller.
    pub(super) async fn own<T, F>(
        &self,
        operation: &'static str,
        work: impl FnOnce(CancellationToken) -> F,
    ) -> Result<T, RuntimeError>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, RuntimeError>> + Send + 'static,
    {
        if self.closed.is_cancelled() {
            return Err(
                RuntimeError::new(ErrorKind::Unavailable, operation, DRIVER, "driver is shut down").without_effect()
            );
        }
        self.own_always(operation, work).await
    }

    /// [`Tasks::own`] also after [`Tasks::close`], for work that only gives back.
    pub(super) async fn own_always<T, F>(
        &self,
        operation: &'static str,
        work: impl FnOnce(CancellationToken) -> F,
    ) -> Result<T, RuntimeError>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, RuntimeError>> + Send + 'static,
    {
        let left = CancellationToken::new();
        let _leaves = left.clone().drop_guard();
        let (answer, waiting) = oneshot::channel();
        let work = work(left);
        self.detach(async move {
            // A caller that has left does not hear it; what is dropped here undoes itself.
            drop(answer.send(caught(work).await));
        });
        match waiting.await {
            Ok(Ok(outcome)) => outcome,
            Ok(Err(panic)) => resume_unwind(panic),
            Err(_) => Err(RuntimeError::new(
                ErrorKind::Cancelled,
                operation,
                DRIVER,
                "runtime of the driver is shutting down",
            )),
        }
    }

    /// Refuses new work.
    pub(super) fn close(&self) {
        self.closed.cancel();
    }

    /// Waits for a moment without work under way.
    pub(super) async fn drained(&self) {
        self.tracker.wait().await;
    }

    /// Tasks not yet done.
    pub(super) fn unfinished(&self) -> usize {
        self.tracker.len()
    }
}

/// Something made whose owner is not known yet: undone unless somebody keeps it.
#[must_use = "dropping it undoes what was made"]
pub(super) struct Unclaimed<T> {
    value: Option<T>,
    undo: Option<BoxFuture<'static, ()>>,
    tasks: Tasks,
}

impl<T> Unclaimed<T> {
    pub(super) fn new(value: T, tasks: &Tasks, undo: impl Future<Output = ()> + Send + 'static) -> Self {
        Self { value: Some(value), undo: Some(undo.boxed()), tasks: tasks.clone() }
    }

    /// Takes it; it is not undone any more.
    pub(super) fn claim(mut self) -> T {
        self.undo = None;
        self.value.take().expect("the value is only taken here, which consumes the holder")
    }
}

impl<T> Drop for Unclaimed<T> {
    fn drop(&mut self) {
        if let Some(undo) = self.undo.take() {
            self.tasks.detach(undo);
        }
    }
}
