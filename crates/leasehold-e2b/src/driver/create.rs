//! Making a Binding: create, empty the Workspace, pause. Whatever fails after the sandbox exists kills it.

use std::collections::BTreeMap;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::time::Duration;

use leasehold::{
    BindingRef, Effect, ErrorKind, ExecutionBindingAllocation, ExecutionBindingCreateSpec, RuntimeError, WorkspaceRef,
};
use tokio_util::sync::CancellationToken;

use super::Inner;
use super::attempt::{DRIVER, Failed, attempt, clean_up};
use super::config::DriverConfig;
use super::failure::SeamErrorKind;
use super::owned::{Unclaimed, caught};
use super::record::{self, Subject};
use super::seams::{ControlPlane, CreateSandbox, Memory, Sandbox};
use super::table;

/// The operation's name in errors and records.
pub(super) const FUNCTION: &str = "create_binding";

/// The pair that tells one attempt to create from every other, also from a repetition with the same ids: clean-up after a lost answer
/// must never kill somebody else's sandbox.
const ATTEMPT_KEY: &str = "leasehold.create_id";

/// The pair with the Binding's own id.
const BINDING_KEY: &str = "dify.binding_id";

/// When a create's answer was lost, the sandbox may appear later than we look: look again after each of these. Chosen: a provider's
/// create takes well under a second, a slow one some seconds; after that the provider's time-out pauses it.
const LATER_LOOKS: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(5)];

/// A checked create.
pub(super) struct Request {
    sandbox: CreateSandbox,
    /// The pairs that only this attempt's sandbox has.
    identity: BTreeMap<String, String>,
}

impl Request {
    /// Refuses what this mode cannot do, before any call.
    pub(super) fn check(spec: &ExecutionBindingCreateSpec, config: &DriverConfig) -> Result<Self, RuntimeError> {
        if let Some(workspace) = &spec.existing_workspace_ref {
            let message = format!(
                "workspace {workspace} cannot be shared: here each binding has a workspace of its own, so leave existing_workspace_ref out"
            );
            return Err(refused(ErrorKind::SharedWorkspaceUnsupported, message));
        }
        let mut nonce = [0_u8; 16];
        getrandom::fill(&mut nonce).map_err(|error| {
            refused(ErrorKind::BindingCreate, format!("no random bytes for the create's id: {error}"))
        })?;
        let identity = BTreeMap::from([
            (BINDING_KEY.to_owned(), spec.binding_id.to_string()),
            (ATTEMPT_KEY.to_owned(), format!("{:032x}", u128::from_be_bytes(nonce))),
        ]);
        let mut metadata = identity.clone();
        for (key, value) in [
            ("dify.resource", "runtime-sandbox"),
            ("dify.workspace_id", spec.workspace_id.as_str()),
            ("dify.tenant_id", spec.tenant_id.as_str()),
            ("dify.agent_id", spec.agent_id.as_str()),
        ] {
            metadata.insert(key.to_owned(), value.to_owned());
        }
        let template = spec.home_snapshot_ref.as_ref().map_or(config.template.as_str(), |snapshot| snapshot.as_str());
        Ok(Self { sandbox: CreateSandbox::new(template, config.active_timeout, metadata), identity })
    }
}

fn refused(kind: ErrorKind, message: String) -> RuntimeError {
    RuntimeError::new(kind, FUNCTION, DRIVER, message).without_effect()
}

fn caller_left() -> RuntimeError {
    RuntimeError::new(ErrorKind::Cancelled, FUNCTION, DRIVER, "caller left")
}

/// Why a new sandbox is not going to be used.
enum Stop {
    Failed(RuntimeError),
    /// The caller left.
    Left,
}

/// Makes a Binding. What it gives kills the sandbox unless somebody claims it.
pub(super) async fn create<C: ControlPlane>(
    inner: Arc<Inner<C>>,
    request: Request,
    left: CancellationToken,
) -> Result<Unclaimed<ExecutionBindingAllocation>, RuntimeError> {
    if left.is_cancelled() {
        return Err(caller_left().without_effect());
    }
    // The sandbox has no id yet; its Binding's is the next best name.
    let subject = Subject::new(FUNCTION, &request.identity[BINDING_KEY]);
    let deadline = inner.config.deadline;
    let created =
        caught(attempt(&table::CREATE, &subject, deadline, None, || inner.control.create(request.sandbox.clone())))
            .await;
    let sandbox = match created {
        Ok(Ok(sandbox)) => Arc::new(sandbox),
        Ok(Err(failed)) => {
            if failed.effect == Effect::Unknown {
                kill_lost(&inner, request.identity, !was_answered(&failed)).await;
            }
            return Err(failed.by_rule(&table::CREATE, &subject));
        }
        Err(panic) => {
            kill_lost(&inner, request.identity, true).await;
            resume_unwind(panic)
        }
    };
    let subject = Subject::new(FUNCTION, sandbox.id()).with_secret(sandbox.traffic_token());
    let prepared = caught(async {
        prepare(&inner, sandbox.as_ref(), &subject, &left).await?;
        allocation(sandbox.id()).map_err(Stop::Failed)
    });
    let outcome = match prepared.await {
        // A caller that has left drops the allocation, which kills the sandbox.
        Ok(Ok(allocation)) => {
            let (tasks, killer) = (inner.tasks.clone(), Arc::clone(&inner));
            return Ok(Unclaimed::new(allocation, &tasks, async move {
                // Nobody waits for it any more; its failure has been logged.
                drop(kill(&killer, sandbox.as_ref(), &subject).await);
            }));
        }
        Ok(Err(stop)) => Ok(stop),
        Err(panic) => Err(panic),
    };
    let killed = kill(&inner, sandbox.as_ref(), &subject).await;
    let error = match outcome {
        Err(panic) => resume_unwind(panic),
        Ok(Stop::Left) => caller_left(),
        Ok(Stop::Failed(error)) => error,
    };
    match killed {
        Ok(true) => Err(error.without_effect()),
        Ok(false) => Err(error.with_effect(Effect::Unknown)),
        // A cancelled clean-up is never ignored; what it was to clean up after is its source.
        Err(cancelled) => Err(cancelled.with_source(error)),
    }
}

/// Makes Home and Workspace usable and lets the sandbox sleep until it is acquired.
async fn prepare<C: ControlPlane>(
    inner: &Inner<C>,
    sandbox: &C::Sandbox,
    subject: &Subject,
    left: &CancellationToken,
) -> Result<(), Stop> {
    let deadline = inner.config.deadline;
    let workspace = inner.config.layout.workspace_dir();
    let files = sandbox.files();
    let stays = || if left.is_cancelled() { Err(Stop::Left) } else { Ok(()) };
    stays()?;
    attempt(&table::MAKE_DIR, subject, deadline, Some(left), || files.make_dir(workspace))
        .await
        .map_err(|failed| Stop::Failed(failed.by_rule(&table::MAKE_DIR, subject)))?;
    stays()?;
    let stale = attempt(&table::LIST, subject, deadline, Some(left), || files.list(workspace))
        .await
        .map_err(|failed| Stop::Failed(failed.by_rule(&table::LIST, subject)))?;
    for entry in stale {
        stays()?;
        attempt(&table::REMOVE, subject, deadline, Some(left), || files.remove(&entry.path))
            .await
            .map_err(|failed| Stop::Failed(failed.by_rule(&table::REMOVE, subject)))?;
    }
    stays()?;
    attempt(&table::FIRST_PAUSE, subject, deadline, Some(left), || sandbox.pause(Memory::Keep))
        .await
        .map_err(|failed| Stop::Failed(failed.by_rule(&table::FIRST_PAUSE, subject)))
}

/// One sandbox is both; its id is both refs. An id that no later call would take is a failure now.
fn allocation(id: &str) -> Result<ExecutionBindingAllocation, RuntimeError> {
    let refs = super::sandbox_id(FUNCTION, id)
        .ok()
        .and_then(|id| Some((BindingRef::new(id).ok()?, WorkspaceRef::new(id).ok()?)));
    let (binding_ref, workspace_ref) = refs.ok_or_else(|| {
        RuntimeError::new(
            ErrorKind::BindingCreate,
            FUNCTION,
            DRIVER,
            format!("provider gave a sandbox id that cannot be used: {id:?}"),
        )
    })?;
    Ok(ExecutionBindingAllocation { binding_ref, workspace_ref })
}

/// Kills a new sandbox through its handle. The error is a cancellation.
async fn kill<C: ControlPlane>(
    inner: &Inner<C>,
    sandbox: &C::Sandbox,
    subject: &Subject,
) -> Result<bool, RuntimeError> {
    clean_up(&table::KILL_AFTER_CREATE, subject, inner.config.deadline, || sandbox.kill()).await
}

/// Whether the endpoint answered for itself, so that its work on the request is over. A gateway's 502 and 504 speak for nobody.
fn was_answered(failed: &Failed) -> bool {
    match failed.error.kind() {
        SeamErrorKind::Status(502 | 504) => false,
        SeamErrorKind::Status(_) | SeamErrorKind::Decode | SeamErrorKind::Validation => true,
        _ => false,
    }
}

/// What looking for a lost sandbox gave.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Look {
    /// All that was found is gone.
    Killed,
    /// There is none, now.
    Nothing,
    /// The provider could not be asked, or did not do it.
    Unclear,
}

/// Finds the sandbox of a create whose answer was lost, and kills it: now, and again in the background if it may still appear or if
/// this look was not clear.
async fn kill_lost<C: ControlPlane>(inner: &Arc<Inner<C>>, identity: BTreeMap<String, String>, may_appear: bool) {
    let look = look_and_kill(inner, &identity).await;
    if look == Look::Killed || (look == Look::Nothing && !may_appear) {
        return;
    }
    let looker = Arc::clone(inner);
    inner.tasks.detach(async move {
        for wait in LATER_LOOKS {
            tokio::time::sleep(wait).await;
            if look_and_kill(&looker, &identity).await == Look::Killed {
                return;
            }
        }
    });
}

async fn look_and_kill<C: ControlPlane>(inner: &Inner<C>, identity: &BTreeMap<String, String>) -> Look {
    let deadline = inner.config.deadline;
    let subject = Subject::new(FUNCTION, &identity[BINDING_KEY]);
    let find = || inner.control.find_by_metadata(identity);
    let found = match attempt(&table::FIND_SANDBOX, &subject, deadline, None, find).await {
        Ok(found) if found.is_empty() => return Look::Nothing,
        Ok(found) => found,
        Err(failed) => {
            record::ignored(&table::FIND_SANDBOX, &subject, failed.attempts, &failed.error);
            return Look::Unclear;
        }
    };
    let mut look = Look::Killed;
    for id in &found {
        let subject = Subject::new(FUNCTION, id);
        // The create's own error is already on its way to the caller, so a cancelled kill goes no further either.
        let killed = clean_up(&table::KILL_AFTER_CREATE, &subject, deadline, || inner.control.kill(id)).await;
        if !killed.unwrap_or(false) {
            look = Look::Unclear;
        }
    }
    look
}
