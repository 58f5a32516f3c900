//! Releasing a lease: close, then pause, whatever the close did. Ordinary trouble is logged and never the caller's.

use std::panic::resume_unwind;
use std::sync::Arc;

use leasehold::RuntimeError;

use super::Inner;
use super::attempt::clean_up;
use super::lease::Held;
use super::owned::caught;
use super::record::Subject;
use super::seams::{ControlPlane, Memory, Sandbox as _};
use super::table;

/// The operation's name in errors and records.
pub(super) const FUNCTION: &str = "release";

/// Releases what a lease holds. The error is a cancellation.
pub(super) async fn release<C: ControlPlane>(inner: Arc<Inner<C>>, held: Held<C>) -> Result<(), RuntimeError> {
    let Held { sandbox, data_plane, usage, capturing, ended: _ } = held;
    let deadline = inner.config.deadline;
    let subject = Subject::new(FUNCTION, sandbox.id()).with_secret(sandbox.traffic_token());
    let closed = caught(clean_up(&table::CLOSE_AT_RELEASE, &subject, deadline, || data_plane.close())).await;
    // A snapshot in progress is bounded by the deadline; paused in the middle, both would fail.
    let captured = capturing.lock().await;
    let paused = if usage.end() {
        caught(clean_up(&table::PAUSE_AT_RELEASE, &subject, deadline, || sandbox.pause(Memory::Keep))).await
    } else {
        Ok(Ok(true))
    };
    drop(captured);
    match (closed, paused) {
        (Err(panic), _) | (_, Err(panic)) => resume_unwind(panic),
        (Ok(Err(close)), Ok(Err(pause))) => Err(close.with_source(pause)),
        (Ok(Err(error)), Ok(Ok(_))) | (Ok(Ok(_)), Ok(Err(error))) => Err(error),
        (Ok(Ok(_)), Ok(Ok(_))) => Ok(()),
    }
}

impl<C: ControlPlane> Inner<C> {
    /// Releases what a lease holds that was dropped unreleased.
    pub(super) fn release_in_background(self: &Arc<Self>, held: Held<C>) {
        let inner = Arc::clone(self);
        self.tasks.detach(async move {
            // Nobody waits for it; an ordinary failure has been logged, and a cancellation has nobody left to reach.
            drop(release(inner, held).await);
        });
    }
}
