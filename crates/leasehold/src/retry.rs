//! Retry as data and one pure decision. Clock and jitter are the caller's; this module only decides.

use std::num::NonZeroU32;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{Effect, RuntimeError};

/// Whether an operation may be sent again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Repeat {
    /// A second identical call does no harm.
    Safe,
    /// Harmless because the other side recognises the operation's key.
    WithKey,
    /// Only when the first one certainly had no effect.
    Never,
}

/// How often and how fast to try again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "PolicyWire", into = "PolicyWire")]
pub struct RetryPolicy {
    max_attempts: NonZeroU32,
    first_delay: Duration,
    max_delay: Duration,
    budget: Duration,
}

/// Why a policy makes no sense.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidPolicy {
    /// No attempt at all.
    #[error("max_attempts is 0: at least one attempt is made")]
    NoAttempts,
    /// The cap lies below the first delay.
    #[error("max_delay_ms {max_ms} is below first_delay_ms {first_ms}: raise the cap")]
    CapBelowFirst {
        /// The cap in milliseconds.
        max_ms: u64,
        /// The first delay in milliseconds.
        first_ms: u64,
    },
}

impl RetryPolicy {
    /// Checks and makes a policy: attempts in all, first delay (doubled each time up to the cap), and a limit on all of it together.
    ///
    /// # Errors
    /// [`InvalidPolicy`].
    pub fn new(
        max_attempts: u32,
        first_delay: Duration,
        max_delay: Duration,
        budget: Duration,
    ) -> Result<Self, InvalidPolicy> {
        let max_attempts = NonZeroU32::new(max_attempts).ok_or(InvalidPolicy::NoAttempts)?;
        if max_delay < first_delay {
            return Err(InvalidPolicy::CapBelowFirst { max_ms: millis(max_delay), first_ms: millis(first_delay) });
        }
        Ok(Self { max_attempts, first_delay, max_delay, budget })
    }

    /// One attempt and no more.
    #[must_use]
    pub const fn once() -> Self {
        Self::fixed(NonZeroU32::MIN, Duration::ZERO)
    }

    /// A number of attempts with exactly the same delay between them, and no other limit.
    #[must_use]
    pub const fn fixed(max_attempts: NonZeroU32, delay: Duration) -> Self {
        Self { max_attempts, first_delay: delay, max_delay: delay, budget: Duration::MAX }
    }

    /// Attempts in all, the first one included.
    #[must_use]
    pub const fn max_attempts(&self) -> u32 {
        self.max_attempts.get()
    }

    /// The delay after this failed attempt (1-based), before jitter: doubled each time, capped.
    #[must_use]
    pub fn delay_after(&self, attempt: u32) -> Duration {
        let doublings = attempt.saturating_sub(1);
        let factor = 1_u32.checked_shl(doublings).unwrap_or(u32::MAX);
        self.first_delay.saturating_mul(factor).min(self.max_delay)
    }

    /// Decides what follows a failed attempt. Pure.
    ///
    /// `attempt` is 1-based and counts the one that just failed; `elapsed` is the time since the first one began; `delay` is
    /// [`RetryPolicy::delay_after`], with the caller's jitter if it wants any.
    #[must_use]
    pub fn decide(
        &self,
        repeat: Repeat,
        failure: Failure,
        attempt: u32,
        elapsed: Duration,
        delay: Duration,
    ) -> Decision {
        if !failure.transient {
            return Decision::GiveUp(GiveUp::NotTransient);
        }
        if repeat == Repeat::Never && failure.effect != Effect::None {
            return Decision::GiveUp(GiveUp::MayHaveHappened);
        }
        if attempt >= self.max_attempts.get() {
            return Decision::GiveUp(GiveUp::AttemptsSpent);
        }
        let wait = failure.retry_after.map_or(delay, |server| server.max(delay));
        if elapsed.saturating_add(wait) > self.budget {
            return Decision::GiveUp(GiveUp::BudgetSpent);
        }
        Decision::RetryAfter(wait)
    }
}

/// What a decision needs to know of an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Failure {
    /// Whether the same request could do better later, by the rules of whoever asks.
    pub transient: bool,
    /// Whether the other side may have acted.
    pub effect: Effect,
    /// How long the other side asked us to wait, if that is to be heard.
    pub retry_after: Option<Duration>,
}

impl From<&RuntimeError> for Failure {
    fn from(error: &RuntimeError) -> Self {
        Self { transient: error.kind().is_transient(), effect: error.effect(), retry_after: error.retry_after() }
    }
}

/// What follows a failed attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    /// Wait so long, then try again.
    RetryAfter(Duration),
    /// The error stands.
    GiveUp(GiveUp),
}

/// Which bound ended the attempts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum GiveUp {
    /// Trying again would fail again.
    #[error("not transient")]
    NotTransient,
    /// Trying again could do it twice.
    #[error("may have happened")]
    MayHaveHappened,
    /// All attempts were made.
    #[error("attempts spent")]
    AttemptsSpent,
    /// The time for all attempts is over.
    #[error("budget spent")]
    BudgetSpent,
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct PolicyWire {
    max_attempts: u32,
    first_delay_ms: u64,
    max_delay_ms: u64,
    /// None = no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    budget_ms: Option<u64>,
}

impl TryFrom<PolicyWire> for RetryPolicy {
    type Error = InvalidPolicy;

    fn try_from(wire: PolicyWire) -> Result<Self, InvalidPolicy> {
        let budget = wire.budget_ms.map_or(Duration::MAX, Duration::from_millis);
        Self::new(
            wire.max_attempts,
            Duration::from_millis(wire.first_delay_ms),
            Duration::from_millis(wire.max_delay_ms),
            budget,
        )
    }
}

impl From<RetryPolicy> for PolicyWire {
    fn from(policy: RetryPolicy) -> Self {
        Self {
            max_attempts: policy.max_attempts.get(),
            first_delay_ms: millis(policy.first_delay),
            max_delay_ms: millis(policy.max_delay),
            budget_ms: (policy.budget != Duration::MAX).then(|| millis(policy.budget)),
        }
    }
}
