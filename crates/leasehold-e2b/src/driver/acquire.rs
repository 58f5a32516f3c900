//! Acquiring a lease: connect, check the Workspace, open the data plane, wait for the daemon. Whatever fails closes and pauses again.

use std::panic::resume_unwind;
use std::sync::Arc;

use leasehold::{BindingRef, Effect, ErrorKind, RuntimeError};
use tokio_util::sync::CancellationToken;

use super::Inner;
use super::attempt::{DRIVER, attempt, clean_up};
use super::lease::{E2bLease, Held, Usage};
use super::owned::caught;
use super::record::Subject;
use super::seams::{ControlPlane, DataPlane, DataPlaneTarget, Memory, Sandbox};
use super::table;

/// The operation's name in errors and records.
pub(super) const FUNCTION: &str = "acquire";

/// Acquires a lease. Dropped unseen, it releases itself.
pub(super) async fn acquire<C: ControlPlane>(
    inner: Arc<Inner<C>>,
    binding: BindingRef,
    left: CancellationToken,
) -> Result<E2bLease<C>, RuntimeError> {
    let id = super::sandbox_id(FUNCTION, binding.as_str())?;
    let subject = Subject::new(FUNCTION, id);
    if left.is_cancelled() {
        return Err(caller_left().without_effect());
    }
    let usage = inner.users.enter(id);
    let config = &inner.config;
    let connect = || inner.control.connect(id, config.active_timeout);
    let sandbox = match caught(attempt(&table::CONNECT, &subject, config.deadline, Some(&left), connect)).await {
        Ok(Ok(sandbox)) => Arc::new(sandbox),
        Ok(Err(failed)) => {
            if failed.effect == Effect::Unknown {
                pause_unseen(&inner, &subject, usage).await;
            }
            return Err(failed.by_rule(&table::CONNECT, &subject));
        }
        Err(panic) => {
            pause_unseen(&inner, &subject, usage).await;
            resume_unwind(panic)
        }
    };
    let subject = subject.with_secret(sandbox.traffic_token());
    let mut opened = None;
    let outcome = caught(verify(&inner, sandbox.as_ref(), &subject, &left, &mut opened)).await;
    let error = match outcome {
        // A caller that has left drops the lease, which releases itself.
        Ok(Ok(data_plane)) => return Ok(E2bLease::register(&inner, Held::new(sandbox, data_plane, usage))),
        Ok(Err(error)) => Ok(error),
        Err(panic) => Err(panic),
    };
    undo(&inner, sandbox.as_ref(), &subject, opened, usage).await;
    Err(error.unwrap_or_else(|panic| resume_unwind(panic)))
}

fn caller_left() -> RuntimeError {
    RuntimeError::new(ErrorKind::Cancelled, FUNCTION, DRIVER, "caller left")
}

/// Checks that Home and Workspace can be used. `opened` holds the data plane as soon as there is one, also when a later step fails.
async fn verify<C: ControlPlane>(
    inner: &Inner<C>,
    sandbox: &C::Sandbox,
    subject: &Subject,
    left: &CancellationToken,
    opened: &mut Option<Arc<dyn DataPlane>>,
) -> Result<Arc<dyn DataPlane>, RuntimeError> {
    let config = &inner.config;
    let workspace = config.layout.workspace_dir();
    let stays = || if left.is_cancelled() { Err(caller_left()) } else { Ok(()) };
    stays()?;
    let exists = attempt(&table::EXISTS, subject, config.deadline, Some(left), || sandbox.files().exists(workspace))
        .await
        .map_err(|failed| failed.by_rule(&table::EXISTS, subject))?;
    if !exists {
        let message = format!("workspace {workspace} of sandbox {} is gone", subject.id);
        return Err(RuntimeError::new(ErrorKind::BindingLost, FUNCTION, DRIVER, message).without_effect());
    }
    stays()?;
    let Some(token) = sandbox.traffic_token().filter(|token| !token.is_empty()) else {
        let message = format!("sandbox {} has no traffic access token: its ports would be public", subject.id);
        return Err(RuntimeError::new(ErrorKind::BindingAcquire, FUNCTION, DRIVER, message));
    };
    let target = DataPlaneTarget {
        sandbox_id: sandbox.id().to_owned(),
        host: sandbox.host_for(config.shellctl_port),
        port: config.shellctl_port,
        traffic_token: token.to_owned(),
    };
    let data_plane = inner.data_planes.open(target).map_err(|error| {
        let error = error.redacted(Some(token));
        RuntimeError::new(ErrorKind::BindingAcquire, FUNCTION, DRIVER, error.message()).with_source(error)
    })?;
    let data_plane = opened.insert(data_plane);
    attempt(&table::READY, subject, config.deadline, Some(left), || data_plane.health())
        .await
        .map_err(|failed| failed.by_rule(&table::READY, subject))?;
    Ok(Arc::clone(data_plane))
}

/// Closes and pauses after a failed acquire. Everything is swallowed, panics too: the first error wins.
async fn undo<C: ControlPlane>(
    inner: &Inner<C>,
    sandbox: &C::Sandbox,
    subject: &Subject,
    opened: Option<Arc<dyn DataPlane>>,
    usage: Usage,
) {
    let deadline = inner.config.deadline;
    if let Some(data_plane) = opened {
        drop(caught(clean_up(&table::CLOSE_AFTER_ACQUIRE, subject, deadline, || data_plane.close())).await);
    }
    if usage.end() {
        drop(caught(clean_up(&table::PAUSE_AFTER_ACQUIRE, subject, deadline, || sandbox.pause(Memory::Keep))).await);
    }
}

/// Pauses by id a sandbox that a connect may have woken although its answer never came.
async fn pause_unseen<C: ControlPlane>(inner: &Inner<C>, subject: &Subject, usage: Usage) {
    if usage.end() {
        let pause = || inner.control.pause(&subject.id);
        drop(caught(clean_up(&table::PAUSE_AFTER_ACQUIRE, subject, inner.config.deadline, pause)).await);
    }
}
