//! The driver's log records: target `leasehold_e2b`, level WARN, the seed's fields. Tests count them.

use super::failure::SeamError;
use super::table::Rule;

/// The target of every record.
pub const TARGET: &str = "leasehold_e2b";

/// Who calls, and about what: the fields that all records of one operation share.
#[derive(Debug, Clone)]
pub(super) struct Subject {
    /// The operation of the contract.
    pub(super) function: &'static str,
    /// The sandbox, or the snapshot where one is deleted.
    pub(super) id: String,
    /// What must not appear in a message.
    pub(super) secret: Option<String>,
}

impl Subject {
    pub(super) fn new(function: &'static str, id: impl Into<String>) -> Self {
        Self { function, id: id.into(), secret: None }
    }

    pub(super) fn with_secret(mut self, secret: Option<&str>) -> Self {
        self.secret = secret.filter(|secret| !secret.is_empty()).map(str::to_owned);
        self
    }
}

macro_rules! record {
    ($outcome:literal, $text:literal, $rule:expr, $subject:expr, $attempt:expr, $error:expr) => {
        tracing::warn!(
            target: TARGET,
            e2b_operation = $rule.call.name(),
            sandbox_id = %$subject.id,
            attempt = $attempt,
            cleanup_stage = $rule.stage.name(),
            outcome = $outcome,
            exception_type = $error.kind().exception_type(),
            function = $subject.function,
            error = $error.message(),
            $text
        )
    };
}

/// This attempt failed and another one follows.
pub(super) fn retrying(rule: &Rule, subject: &Subject, attempt: u32, error: &SeamError) {
    record!("retrying", "e2b call failed and is tried again", rule, subject, attempt, error);
}

/// This attempt failed and was the last one allowed.
pub(super) fn exhausted(rule: &Rule, subject: &Subject, attempt: u32, error: &SeamError) {
    record!("retry_exhausted", "e2b call failed on its last attempt", rule, subject, attempt, error);
}

/// A clean-up failed, and the operation's outcome stays what it was.
pub(super) fn ignored(rule: &Rule, subject: &Subject, attempt: u32, error: &SeamError) {
    record!("ignored_cleanup_failure", "e2b clean-up failed and is ignored", rule, subject, attempt, error);
}
