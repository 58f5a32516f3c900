//! Wall-clock time as the API shows it and the ledger stores it: microseconds since 1970, UTC.
//!
//! Microseconds, and always six digits in text, because clients compare `endAt` for equality: a time that went through
//! JSON and the ledger must come back as it was.

use std::fmt;
use std::time::Duration;

use jiff::Timestamp;

/// A point of wall-clock time, in microseconds since 1970 UTC.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Wall(i64);

impl Wall {
    /// This moment.
    pub(crate) fn now() -> Self {
        Self(Timestamp::now().as_microsecond())
    }

    pub(crate) const fn from_micros(micros: i64) -> Self {
        Self(micros)
    }

    pub(crate) const fn micros(self) -> i64 {
        self.0
    }

    /// `seconds` later. Saturates at the ends of the range.
    pub(crate) const fn plus_seconds(self, seconds: i64) -> Self {
        Self(self.0.saturating_add(seconds.saturating_mul(1_000_000)))
    }

    /// How long until `self`, seen from `now`; zero when it has passed.
    pub(crate) fn since(self, now: Self) -> Duration {
        Duration::from_micros(u64::try_from(self.0.saturating_sub(now.0)).unwrap_or(0))
    }

    /// Reads RFC 3339.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        text.parse::<Timestamp>().ok().map(|time| Self(time.as_microsecond()))
    }
}

/// RFC 3339 with six digits, as the API shows it.
impl fmt::Display for Wall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let clamped = self.0.clamp(Timestamp::MIN.as_second() * 1_000_000, Timestamp::MAX.as_second() * 1_000_000);
        let time = Timestamp::from_microsecond(clamped).expect("clamped to the range just above");
        write!(f, "{time:.6}")
    }
}

impl fmt::Debug for Wall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_comes_back_from_text_as_it_was() {
        for micros in [0, 1, 999_999, 1_788_000_000_000_000, 1_788_000_000_123_456] {
            let wall = Wall::from_micros(micros);
            assert_eq!(Wall::parse(&wall.to_string()), Some(wall));
        }
        assert_eq!(Wall::from_micros(1_788_264_000_100_000).to_string(), "2026-09-01T12:00:00.100000Z");
    }

    #[test]
    fn extreme_times_do_not_panic() {
        assert!(!Wall::from_micros(i64::MAX).to_string().is_empty());
        assert_eq!(Wall::from_micros(i64::MAX).plus_seconds(i64::MAX).micros(), i64::MAX);
    }
}
