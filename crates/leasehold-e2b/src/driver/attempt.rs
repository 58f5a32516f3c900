//! One call of a seam by its rule: bounded, tried again where the rule says so, logged, and its failure given a meaning.

use std::future::Future;
use std::time::Duration;

use leasehold::retry::{Decision, GiveUp};
use leasehold::{Effect, ErrorKind, RuntimeError};
use tokio_util::sync::CancellationToken;

use super::failure::{SeamError, SeamErrorKind};
use super::record::{self, Subject};
use super::table::{OnAbsence, Rule};

/// The name of this driver in errors.
pub(super) const DRIVER: &str = "e2b";

/// A call that failed for good.
#[derive(Debug)]
pub(super) struct Failed {
    /// The last failure, without secrets.
    pub(super) error: SeamError,
    /// Attempts really made.
    pub(super) attempts: u32,
    /// Whether any attempt may have had its effect.
    pub(super) effect: Effect,
}

/// Makes a call by its rule. `deadline` bounds each attempt; once `left` is cancelled no further attempt begins.
pub(super) async fn attempt<T, F>(
    rule: &Rule,
    subject: &Subject,
    deadline: Duration,
    left: Option<&CancellationToken>,
    mut call: impl FnMut() -> F,
) -> Result<T, Failed>
where
    F: Future<Output = Result<T, SeamError>>,
{
    let mut attempts = 1;
    let mut effect = Effect::None;
    loop {
        let outcome = tokio::time::timeout(deadline, call()).await.unwrap_or_else(|_| Err(no_answer(rule, deadline)));
        let error = match outcome {
            Ok(value) => return Ok(value),
            Err(error) => error.redacted(subject.secret.as_deref()),
        };
        if error.effect() == Effect::Unknown {
            effect = Effect::Unknown;
        }
        let decision = rule.decide(&error, attempts);
        match decision {
            Decision::RetryAfter(delay) if !left.is_some_and(CancellationToken::is_cancelled) => {
                if rule.logs_retries() {
                    record::retrying(rule, subject, attempts, &error);
                }
                tokio::time::sleep(delay).await;
                if left.is_some_and(CancellationToken::is_cancelled) {
                    return Err(Failed { error, attempts, effect });
                }
                attempts += 1;
            }
            _ => {
                if rule.logs_retries() && decision == Decision::GiveUp(GiveUp::AttemptsSpent) {
                    record::exhausted(rule, subject, attempts, &error);
                }
                return Err(Failed { error, attempts, effect });
            }
        }
    }
}

/// Makes a call whose confirmed absence may be the wanted state.
pub(super) async fn ensure<F>(
    rule: &Rule,
    subject: &Subject,
    deadline: Duration,
    call: impl FnMut() -> F,
) -> Result<(), Failed>
where
    F: Future<Output = Result<(), SeamError>>,
{
    match attempt(rule, subject, deadline, None, call).await {
        Err(failed) if failed.error.kind() == SeamErrorKind::NotFound && rule.on_absence == OnAbsence::Success => {
            Ok(())
        }
        outcome => outcome,
    }
}

/// Makes a clean-up call: what its rule does not raise is logged and ignored.
///
/// Ok says whether the call succeeded; the error is one that must not be ignored.
pub(super) async fn clean_up<F>(
    rule: &Rule,
    subject: &Subject,
    deadline: Duration,
    call: impl FnMut() -> F,
) -> Result<bool, RuntimeError>
where
    F: Future<Output = Result<(), SeamError>>,
{
    match ensure(rule, subject, deadline, call).await {
        Ok(()) => Ok(true),
        Err(failed) => match rule.raised_as(failed.error.kind()) {
            Some(kind) => Err(failed.raise(kind, subject)),
            None => {
                record::ignored(rule, subject, failed.attempts, &failed.error);
                Ok(false)
            }
        },
    }
}

impl Failed {
    /// The error that the caller of the contract sees, by the rule.
    pub(super) fn by_rule(self, rule: &Rule, subject: &Subject) -> RuntimeError {
        // A rule that raises nothing is a clean-up's and does not come here; `Internal` would show a wrong call.
        let kind = rule.raised_as(self.error.kind()).unwrap_or(ErrorKind::Internal);
        self.raise(kind, subject)
    }

    fn raise(self, kind: ErrorKind, subject: &Subject) -> RuntimeError {
        let message = match self.attempts {
            1 => self.error.message().to_owned(),
            attempts => format!("{} ({attempts} attempts)", self.error.message()),
        };
        let mut error = RuntimeError::new(kind, subject.function, DRIVER, message).with_effect(self.effect);
        if let SeamErrorKind::Status(status) = self.error.kind() {
            error = error.with_status(status);
        }
        if let Some(wait) = self.error.retry_after() {
            error = error.with_retry_after(wait);
        }
        error.with_source(self.error)
    }
}

fn no_answer(rule: &Rule, deadline: Duration) -> SeamError {
    let text = format!("{} got no answer within {} ms", rule.call.name(), deadline.as_millis());
    SeamError::new(SeamErrorKind::Deadline, text)
}
