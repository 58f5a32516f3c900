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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn failure(transient: bool, effect: Effect, retry_after: Option<Duration>) -> Failure {
        Failure { transient, effect, retry_after }
    }

    fn policy() -> RetryPolicy {
        RetryPolicy::new(3, 100 * MS, 300 * MS, 1000 * MS).unwrap()
    }

    #[test]
    fn each_bound_ends_the_attempts_and_says_so() {
        let decide = |repeat, failure, attempt, elapsed| policy().decide(repeat, failure, attempt, elapsed, 100 * MS);
        let fine = failure(true, Effect::Unknown, None);
        assert_eq!(decide(Repeat::Safe, fine, 1, MS), Decision::RetryAfter(100 * MS));
        assert_eq!(decide(Repeat::WithKey, fine, 2, MS), Decision::RetryAfter(100 * MS));
        assert_eq!(decide(Repeat::Safe, fine, 3, MS), Decision::GiveUp(GiveUp::AttemptsSpent));
        assert_eq!(decide(Repeat::Never, fine, 1, MS), Decision::GiveUp(GiveUp::MayHaveHappened));
        let never_sent = failure(true, Effect::None, None);
        assert_eq!(decide(Repeat::Never, never_sent, 1, MS), Decision::RetryAfter(100 * MS));
        let hopeless = failure(false, Effect::None, None);
        assert_eq!(decide(Repeat::Safe, hopeless, 1, MS), Decision::GiveUp(GiveUp::NotTransient));
        assert_eq!(decide(Repeat::Safe, fine, 1, 900 * MS), Decision::RetryAfter(100 * MS));
        assert_eq!(decide(Repeat::Safe, fine, 1, 901 * MS), Decision::GiveUp(GiveUp::BudgetSpent));
    }

    #[test]
    fn the_other_side_can_lengthen_a_wait_and_not_shorten_it() {
        let wait = |asked| policy().decide(Repeat::Safe, failure(true, Effect::None, Some(asked)), 1, MS, 100 * MS);
        assert_eq!(wait(500 * MS), Decision::RetryAfter(500 * MS));
        assert_eq!(wait(MS), Decision::RetryAfter(100 * MS));
        assert_eq!(wait(Duration::MAX), Decision::GiveUp(GiveUp::BudgetSpent));
    }

    #[test]
    fn delays_double_up_to_the_cap() {
        let delays: Vec<_> = (0..5).map(|attempt| policy().delay_after(attempt)).collect();
        assert_eq!(delays, [100 * MS, 100 * MS, 200 * MS, 300 * MS, 300 * MS]);
        assert_eq!(policy().delay_after(u32::MAX), 300 * MS);
        let fixed = RetryPolicy::fixed(NonZeroU32::new(9).unwrap(), 250 * MS);
        assert!((1..9).all(|attempt| fixed.delay_after(attempt) == 250 * MS));
        assert_eq!(fixed.max_attempts(), 9);
        assert_eq!(RetryPolicy::once().max_attempts(), 1);
    }

    #[test]
    fn a_policy_is_checked_when_it_is_made_or_decoded() {
        assert_eq!(RetryPolicy::new(0, MS, MS, MS), Err(InvalidPolicy::NoAttempts));
        assert_eq!(RetryPolicy::new(1, 2 * MS, MS, MS), Err(InvalidPolicy::CapBelowFirst { max_ms: 1, first_ms: 2 }));
        assert!(RetryPolicy::new(1, MS, MS, Duration::ZERO).is_ok());
        for text in [
            r#"{"max_attempts":0,"first_delay_ms":1,"max_delay_ms":1}"#,
            r#"{"max_attempts":1,"first_delay_ms":2,"max_delay_ms":1}"#,
            r#"{"max_attempts":1,"first_delay_ms":1,"max_delay_ms":1,"jitter":true}"#,
            r#"{"max_attempts":1,"first_delay_ms":-1,"max_delay_ms":1}"#,
        ] {
            assert!(serde_json::from_str::<RetryPolicy>(text).is_err(), "{text} passed");
        }
    }

    #[test]
    fn a_policy_goes_through_text_unchanged() {
        let forever = RetryPolicy::fixed(NonZeroU32::new(2).unwrap(), 250 * MS);
        assert_eq!(
            serde_json::to_string(&forever).unwrap(),
            r#"{"max_attempts":2,"first_delay_ms":250,"max_delay_ms":250}"#
        );
        for policy in [policy(), forever] {
            let text = serde_json::to_string(&policy).unwrap();
            assert_eq!(serde_json::from_str::<RetryPolicy>(&text).unwrap(), policy, "{text}");
        }
    }

    #[test]
    fn an_errors_kind_effect_and_wait_are_what_decides() {
        let busy = RuntimeError::new(crate::ErrorKind::Unavailable, "run", "x", "busy").with_retry_after(MS);
        assert_eq!(Failure::from(&busy), failure(true, Effect::Unknown, Some(MS)));
        let lost = RuntimeError::new(crate::ErrorKind::BindingLost, "acquire", "x", "gone").without_effect();
        assert_eq!(Failure::from(&lost), failure(false, Effect::None, None));
    }

    proptest! {
        #[test]
        fn no_policy_makes_more_attempts_or_takes_longer_than_it_says(
            attempts in 1_u32..20, first in 0_u64..500, more in 0_u64..5000, budget in 0_u64..20_000, took in 0_u64..1000,
        ) {
            let policy = RetryPolicy::new(
                attempts,
                Duration::from_millis(first),
                Duration::from_millis(first + more),
                Duration::from_millis(budget),
            )
            .unwrap();
            let mut elapsed = Duration::ZERO;
            for attempt in 1.. {
                elapsed += Duration::from_millis(took);
                match policy.decide(Repeat::Safe, failure(true, Effect::Unknown, None), attempt, elapsed, policy.delay_after(attempt)) {
                    Decision::GiveUp(GiveUp::AttemptsSpent) => {
                        prop_assert_eq!(attempt, attempts);
                        break;
                    }
                    Decision::GiveUp(bound) => {
                        prop_assert_eq!(bound, GiveUp::BudgetSpent);
                        break;
                    }
                    Decision::RetryAfter(wait) => {
                        elapsed += wait;
                        prop_assert!(attempt < attempts && elapsed <= Duration::from_millis(budget));
                    }
                }
            }
        }
    }
}
