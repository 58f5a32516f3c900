//! The driver's rules as data: which call is tried how often, on which failures, and what its failure means. One place, one pure
//! decision; the driver, its tests and `docs/driver-table.md` read it.
//!
//! Source: the seed's test (`docs/seed-map.md`) and what is public about the backend it tests (read December 2026). The last three rows are ours: they undo what a
//! lost answer left behind. Delays are exact: no jitter, no `Retry-After`.

use std::num::NonZeroU32;
use std::time::Duration;

use leasehold::ErrorKind;
use leasehold::retry::{Decision, Failure, Repeat, RetryPolicy};

use super::failure::{SeamError, SeamErrorKind};

/// One call of a seam.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Call {
    /// Create a sandbox.
    Create,
    /// Make the Workspace directory.
    MakeDir,
    /// List the Workspace of a new sandbox.
    List,
    /// Remove a child of a new Workspace.
    Remove,
    /// Connect to a sandbox.
    Connect,
    /// Check that the Workspace is there.
    Exists,
    /// Ask the command daemon whether it is ready.
    Health,
    /// Close a lease's connections.
    CloseDataPlane,
    /// Pause a sandbox with its memory.
    Pause,
    /// Kill a sandbox.
    Kill,
    /// Capture a sandbox.
    CreateSnapshot,
    /// Delete a snapshot.
    DeleteSnapshot,
    /// Find a sandbox whose create's answer was lost.
    FindSandbox,
    /// Find a snapshot whose create's answer was lost.
    FindSnapshot,
}

impl Call {
    /// The name in log records.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Create => "create",
            Self::MakeDir => "make_dir",
            Self::List => "list",
            Self::Remove => "remove",
            Self::Connect => "connect",
            Self::Exists => "exists",
            Self::Health => "health",
            Self::CloseDataPlane => "close_data_plane",
            Self::Pause => "pause",
            Self::Kill => "kill",
            Self::CreateSnapshot => "create_snapshot",
            Self::DeleteSnapshot => "delete_snapshot",
            Self::FindSandbox => "find_sandbox",
            Self::FindSnapshot => "find_snapshot",
        }
    }
}

/// What a call is part of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Stage {
    /// Making a Binding.
    BindingCreate,
    /// Undoing a failed or dropped create.
    BindingCreateCompensation,
    /// Acquiring a lease.
    BindingAcquire,
    /// Undoing a failed or dropped acquire.
    BindingAcquireCompensation,
    /// Releasing a lease.
    BindingRelease,
    /// Destroying a Binding.
    BindingDestroy,
    /// Making a Home Snapshot.
    HomeSnapshotCreate,
    /// Undoing a failed or dropped snapshot.
    HomeSnapshotCreateCompensation,
    /// Deleting a Home Snapshot.
    HomeSnapshotDelete,
}

impl Stage {
    /// The name in log records.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::BindingCreate => "binding_create",
            Self::BindingCreateCompensation => "binding_create_compensation",
            Self::BindingAcquire => "binding_acquire",
            Self::BindingAcquireCompensation => "binding_acquire_compensation",
            Self::BindingRelease => "binding_release",
            Self::BindingDestroy => "binding_destroy",
            Self::HomeSnapshotCreate => "home_snapshot_create",
            Self::HomeSnapshotCreateCompensation => "home_snapshot_create_compensation",
            Self::HomeSnapshotDelete => "home_snapshot_delete",
        }
    }
}

/// After which failures a call is tried again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RetryOn {
    /// None: the call is one-shot, even when nothing was sent.
    Nothing,
    /// [`SeamErrorKind::in_control_set`]. Each retry, and running out of them, is logged.
    ControlSet,
    /// [`SeamErrorKind::in_health_set`]. Waiting for a daemon to start is no event and is not logged.
    HealthSet,
}

/// What a call's last failure means to the operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum OnFailure {
    /// It is raised as this kind. Cancelled is raised as itself.
    Raise(ErrorKind),
    /// It is logged. Cancelled is raised as itself.
    Log,
    /// It is logged, and cancelled is too: the first error wins whatever happens now.
    Swallow,
}

/// What confirmed absence means to the operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum OnAbsence {
    /// A failure like any other.
    Failure,
    /// The wanted state.
    Success,
    /// Raised as this kind.
    Raise(ErrorKind),
}

/// One row of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rule {
    /// The call.
    pub call: Call,
    /// What it is part of.
    pub stage: Stage,
    /// How often and how fast.
    pub policy: RetryPolicy,
    /// On which failures.
    pub retry_on: RetryOn,
    /// What its last failure means.
    pub on_failure: OnFailure,
    /// What confirmed absence means.
    pub on_absence: OnAbsence,
}

/// An idempotent control-plane call: one more attempt after exactly 250 ms (the seed's values).
const CONTROL: (RetryPolicy, RetryOn) =
    (RetryPolicy::fixed(attempts(2), Duration::from_millis(250)), RetryOn::ControlSet);
/// Readiness of the command daemon: three attempts, exactly 500 ms apart (the seed's values).
const HEALTH: (RetryPolicy, RetryOn) =
    (RetryPolicy::fixed(attempts(3), Duration::from_millis(500)), RetryOn::HealthSet);
/// One shot.
const ONCE: (RetryPolicy, RetryOn) = (RetryPolicy::once(), RetryOn::Nothing);

const fn attempts(count: u32) -> NonZeroU32 {
    NonZeroU32::new(count).expect("the table's attempts are positive literals")
}

const fn rule(
    call: Call,
    stage: Stage,
    retry: (RetryPolicy, RetryOn),
    on_failure: OnFailure,
    on_absence: OnAbsence,
) -> Rule {
    Rule { call, stage, policy: retry.0, retry_on: retry.1, on_failure, on_absence }
}

/// Creates a sandbox.
pub const CREATE: Rule =
    rule(Call::Create, Stage::BindingCreate, ONCE, OnFailure::Raise(ErrorKind::BindingCreate), OnAbsence::Failure);
/// Makes the Workspace directory of a new sandbox.
pub const MAKE_DIR: Rule =
    rule(Call::MakeDir, Stage::BindingCreate, ONCE, OnFailure::Raise(ErrorKind::BindingCreate), OnAbsence::Failure);
/// Lists what a new sandbox's Workspace already holds.
pub const LIST: Rule =
    rule(Call::List, Stage::BindingCreate, ONCE, OnFailure::Raise(ErrorKind::BindingCreate), OnAbsence::Failure);
/// Removes one child of a new sandbox's Workspace.
pub const REMOVE: Rule =
    rule(Call::Remove, Stage::BindingCreate, ONCE, OnFailure::Raise(ErrorKind::BindingCreate), OnAbsence::Failure);
/// Pauses a new sandbox.
pub const FIRST_PAUSE: Rule =
    rule(Call::Pause, Stage::BindingCreate, CONTROL, OnFailure::Raise(ErrorKind::BindingCreate), OnAbsence::Failure);
/// Kills a new sandbox whose initialisation failed.
pub const KILL_AFTER_CREATE: Rule =
    rule(Call::Kill, Stage::BindingCreateCompensation, CONTROL, OnFailure::Log, OnAbsence::Success);
/// Connects to a sandbox.
pub const CONNECT: Rule = rule(
    Call::Connect,
    Stage::BindingAcquire,
    CONTROL,
    OnFailure::Raise(ErrorKind::BindingAcquire),
    OnAbsence::Raise(ErrorKind::BindingLost),
);
/// Checks that the Workspace is there.
pub const EXISTS: Rule =
    rule(Call::Exists, Stage::BindingAcquire, ONCE, OnFailure::Raise(ErrorKind::BindingAcquire), OnAbsence::Failure);
/// Waits for the command daemon.
pub const READY: Rule =
    rule(Call::Health, Stage::BindingAcquire, HEALTH, OnFailure::Raise(ErrorKind::BindingAcquire), OnAbsence::Failure);
/// Closes the connections of a failed acquire.
pub const CLOSE_AFTER_ACQUIRE: Rule =
    rule(Call::CloseDataPlane, Stage::BindingAcquireCompensation, ONCE, OnFailure::Swallow, OnAbsence::Failure);
/// Pauses the sandbox of a failed acquire.
pub const PAUSE_AFTER_ACQUIRE: Rule =
    rule(Call::Pause, Stage::BindingAcquireCompensation, CONTROL, OnFailure::Swallow, OnAbsence::Failure);
/// Closes the connections of a released lease.
pub const CLOSE_AT_RELEASE: Rule =
    rule(Call::CloseDataPlane, Stage::BindingRelease, ONCE, OnFailure::Log, OnAbsence::Failure);
/// Pauses the sandbox of a released lease.
pub const PAUSE_AT_RELEASE: Rule =
    rule(Call::Pause, Stage::BindingRelease, CONTROL, OnFailure::Log, OnAbsence::Failure);
/// Kills the sandbox of a destroyed Binding.
pub const DESTROY: Rule =
    rule(Call::Kill, Stage::BindingDestroy, CONTROL, OnFailure::Raise(ErrorKind::BindingDestroy), OnAbsence::Success);
/// Captures a sandbox.
pub const SNAPSHOT: Rule = rule(
    Call::CreateSnapshot,
    Stage::HomeSnapshotCreate,
    ONCE,
    OnFailure::Raise(ErrorKind::HomeSnapshotCreate),
    OnAbsence::Failure,
);
/// Deletes a snapshot.
pub const DELETE_SNAPSHOT: Rule = rule(
    Call::DeleteSnapshot,
    Stage::HomeSnapshotDelete,
    CONTROL,
    OnFailure::Raise(ErrorKind::BindingDestroy),
    OnAbsence::Success,
);
/// Looks for the sandbox of a create whose answer was lost.
pub const FIND_SANDBOX: Rule =
    rule(Call::FindSandbox, Stage::BindingCreateCompensation, CONTROL, OnFailure::Swallow, OnAbsence::Failure);
/// Looks for the snapshot of a create whose answer was lost.
pub const FIND_SNAPSHOT: Rule =
    rule(Call::FindSnapshot, Stage::HomeSnapshotCreateCompensation, CONTROL, OnFailure::Swallow, OnAbsence::Failure);
/// Deletes a snapshot that nobody waits for any more.
pub const DELETE_AFTER_SNAPSHOT: Rule =
    rule(Call::DeleteSnapshot, Stage::HomeSnapshotCreateCompensation, CONTROL, OnFailure::Swallow, OnAbsence::Success);

/// The whole table, in the order of the seed's.
pub const TABLE: [Rule; 19] = [
    CREATE,
    MAKE_DIR,
    LIST,
    REMOVE,
    FIRST_PAUSE,
    KILL_AFTER_CREATE,
    CONNECT,
    EXISTS,
    READY,
    CLOSE_AFTER_ACQUIRE,
    PAUSE_AFTER_ACQUIRE,
    CLOSE_AT_RELEASE,
    PAUSE_AT_RELEASE,
    DESTROY,
    SNAPSHOT,
    DELETE_SNAPSHOT,
    FIND_SANDBOX,
    FIND_SNAPSHOT,
    DELETE_AFTER_SNAPSHOT,
];

impl Rule {
    /// Whether this failure is one after which the call may be tried again, attempts permitting.
    #[must_use]
    pub fn retries(&self, kind: SeamErrorKind) -> bool {
        match self.retry_on {
            RetryOn::Nothing => false,
            RetryOn::ControlSet => kind.in_control_set(),
            RetryOn::HealthSet => kind.in_health_set(),
        }
    }

    /// Decides what follows a failed attempt (1-based). Pure.
    ///
    /// The calls that may be tried again are idempotent, so an unknown effect does not forbid it; `Retry-After` is not heard.
    #[must_use]
    pub fn decide(&self, error: &SeamError, attempt: u32) -> Decision {
        let failure = Failure { transient: self.retries(error.kind()), effect: error.effect(), retry_after: None };
        self.policy.decide(Repeat::Safe, failure, attempt, Duration::ZERO, self.policy.delay_after(attempt))
    }

    /// Whether retries of this call, and running out of them, are events worth a record.
    #[must_use]
    pub fn logs_retries(&self) -> bool {
        self.retry_on == RetryOn::ControlSet
    }

    /// The kind that a failure of this call is raised as. None = it is not raised.
    #[must_use]
    pub fn raised_as(&self, kind: SeamErrorKind) -> Option<ErrorKind> {
        match (kind, self.on_absence, self.on_failure) {
            (SeamErrorKind::NotFound, OnAbsence::Success, _) | (_, _, OnFailure::Swallow) => None,
            (SeamErrorKind::Cancelled, ..) => Some(ErrorKind::Cancelled),
            (SeamErrorKind::NotFound, OnAbsence::Raise(kind), _) => Some(kind),
            (SeamErrorKind::Capacity, ..) if self.call == Call::Create => Some(ErrorKind::BindingCapacityExhausted),
            (_, _, OnFailure::Raise(kind)) => Some(kind),
            (_, _, OnFailure::Log) => None,
        }
    }
}

#[cfg(test)]
mod tests;
