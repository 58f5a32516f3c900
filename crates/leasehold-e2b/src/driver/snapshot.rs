//! Home Snapshots: the exact source sandbox is captured as a whole, so a later create empties the Workspace.

use std::panic::resume_unwind;
use std::sync::Arc;

use leasehold::{Effect, ErrorKind, HomeSnapshotCreateSpec, RuntimeError, SnapshotRef};
use tokio_util::sync::CancellationToken;

use super::Inner;
use super::attempt::{DRIVER, attempt, clean_up, ensure};
use super::owned::{Unclaimed, caught};
use super::record::{self, Subject};
use super::seams::{ControlPlane, Sandbox};
use super::table;

/// The create's name in errors and records.
pub(super) const CREATE: &str = "create_from_runtime";
/// The delete's name in errors and records.
pub(super) const DELETE: &str = "delete";

/// The name that a snapshot is made under, by which it can be found when its answer was lost.
pub(super) fn name_of(spec: &HomeSnapshotCreateSpec) -> String {
    format!("home-{}", spec.home_snapshot_id)
}

/// Refuses a ref that a URL would take for another path.
pub(super) fn check(snapshot: &SnapshotRef) -> Result<String, RuntimeError> {
    if snapshot.as_str().split('/').any(|part| matches!(part, "" | "." | "..")) {
        let message =
            format!("{:?} is not a snapshot ref: use the ref that create_from_runtime gave", snapshot.as_str());
        return Err(RuntimeError::new(ErrorKind::InvalidInput, DELETE, DRIVER, message).without_effect());
    }
    Ok(snapshot.as_str().to_owned())
}

/// Captures a sandbox. What it gives deletes the snapshot unless somebody claims it.
pub(super) async fn create<C: ControlPlane>(
    inner: Arc<Inner<C>>,
    sandbox: Arc<C::Sandbox>,
    capturing: Arc<tokio::sync::Mutex<()>>,
    name: String,
    left: CancellationToken,
) -> Result<Unclaimed<SnapshotRef>, RuntimeError> {
    let _captured = capturing.lock().await;
    let subject = Subject::new(CREATE, sandbox.id()).with_secret(sandbox.traffic_token());
    if left.is_cancelled() {
        return Err(RuntimeError::new(ErrorKind::Cancelled, CREATE, DRIVER, "caller left").without_effect());
    }
    let capture = || sandbox.create_snapshot(&name);
    match caught(attempt(&table::SNAPSHOT, &subject, inner.config.deadline, None, capture)).await {
        Ok(Ok(reference)) => match SnapshotRef::new(&reference) {
            Ok(snapshot) => {
                let (tasks, deleter) = (inner.tasks.clone(), Arc::clone(&inner));
                Ok(Unclaimed::new(snapshot, &tasks, async move { undo(&deleter, &reference).await }))
            }
            Err(error) => {
                delete_lost(&inner, &subject, &name).await;
                Err(RuntimeError::new(ErrorKind::HomeSnapshotCreate, CREATE, DRIVER, error.to_string()))
            }
        },
        Ok(Err(failed)) => {
            if failed.effect == Effect::Unknown {
                delete_lost(&inner, &subject, &name).await;
            }
            Err(failed.by_rule(&table::SNAPSHOT, &subject))
        }
        Err(panic) => {
            delete_lost(&inner, &subject, &name).await;
            resume_unwind(panic)
        }
    }
}

/// Deletes a snapshot; confirmed absence is success.
pub(super) async fn delete<C: ControlPlane>(inner: Arc<Inner<C>>, snapshot: String) -> Result<(), RuntimeError> {
    let subject = Subject::new(DELETE, &snapshot);
    ensure(&table::DELETE_SNAPSHOT, &subject, inner.config.deadline, || inner.control.delete_snapshot(&snapshot))
        .await
        .map_err(|failed| failed.by_rule(&table::DELETE_SNAPSHOT, &subject))
}

/// Deletes a snapshot that nobody waits for any more.
async fn undo<C: ControlPlane>(inner: &Inner<C>, snapshot: &str) {
    let subject = Subject::new(CREATE, snapshot);
    let delete = || inner.control.delete_snapshot(snapshot);
    // Its rule swallows everything, and logs it.
    drop(clean_up(&table::DELETE_AFTER_SNAPSHOT, &subject, inner.config.deadline, delete).await);
}

/// Finds the snapshot whose answer was lost by its name, and deletes it.
async fn delete_lost<C: ControlPlane>(inner: &Inner<C>, subject: &Subject, name: &str) {
    let find = || inner.control.find_snapshots_by_name(name);
    match attempt(&table::FIND_SNAPSHOT, subject, inner.config.deadline, None, find).await {
        Ok(found) => {
            for snapshot in &found {
                undo(inner, snapshot).await;
            }
        }
        Err(failed) => record::ignored(&table::FIND_SNAPSHOT, subject, failed.attempts, &failed.error),
    }
}
