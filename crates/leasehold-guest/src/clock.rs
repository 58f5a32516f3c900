//! Time that passes only while the guest runs.
//!
//! A paused sandbox sees its monotonic clock jump when it continues (frozen cgroup, gVisor checkpoint), so an absolute
//! deadline would run out while nobody could meet it. A [`Countdown`] keeps what remains and takes at most one
//! [`SLICE`] off it per wait: a pause of any length costs a deadline no more than that.

use std::time::{Duration, Instant};

/// Longest single wait, and so the most that one pause can take off a deadline. Chosen: short beside command time-outs
/// (60 s by default), and one wake-up in 5 s per waiting stream is not felt.
pub const SLICE: Duration = Duration::from_secs(5);

/// A duration that runs out while the guest runs.
#[derive(Debug, Clone)]
pub struct Countdown {
    remaining: Duration,
    since: Instant,
}

impl Countdown {
    /// Starts counting down from `duration`.
    #[must_use]
    pub fn new(duration: Duration) -> Self {
        Self { remaining: duration, since: Instant::now() }
    }

    /// Starts again from `duration`.
    pub fn restart(&mut self, duration: Duration) {
        *self = Self::new(duration);
    }

    /// How long to wait before asking again; zero when it has run out.
    pub fn slice(&mut self) -> Duration {
        let now = Instant::now();
        let ran = now.duration_since(self.since).min(SLICE);
        self.since = now;
        self.remaining = self.remaining.saturating_sub(ran);
        self.remaining.min(SLICE)
    }

    /// Whether it has run out.
    pub fn expired(&mut self) -> bool {
        self.slice().is_zero()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_jump_costs_no_more_than_one_slice() {
        let mut countdown = Countdown::new(Duration::from_secs(60));
        countdown.since = Instant::now().checked_sub(Duration::from_secs(3600)).unwrap();
        assert_eq!(countdown.slice(), SLICE);
        assert!(countdown.remaining > Duration::from_secs(54));
    }

    #[test]
    fn it_runs_out() {
        let mut countdown = Countdown::new(Duration::from_millis(5));
        countdown.since = Instant::now().checked_sub(Duration::from_millis(6)).unwrap();
        assert!(countdown.expired());
    }
}
