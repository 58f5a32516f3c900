//! Points in time on the wire: `YYYY-MM-DDTHH:MM:SSZ`, whole seconds, UTC.

use std::fmt;
use std::str::FromStr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

/// A wall-clock time in whole seconds, UTC; for display and ordering, never for deadlines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Timestamp(i64);

/// Text that is no timestamp.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("timestamp {0:?} is not of the form YYYY-MM-DDTHH:MM:SSZ")]
pub struct BadTimestamp(String);

const DAY_SECONDS: i64 = 86_400;

impl Timestamp {
    /// Seconds since 1970-01-01T00:00:00Z.
    #[must_use]
    pub fn unix_seconds(self) -> i64 {
        self.0
    }

    /// The time as the standard library has it.
    #[must_use]
    pub fn to_system_time(self) -> SystemTime {
        let distance = Duration::from_secs(self.0.unsigned_abs());
        if self.0 < 0 { UNIX_EPOCH - distance } else { UNIX_EPOCH + distance }
    }
}

impl From<SystemTime> for Timestamp {
    /// Cuts fractions of a second.
    fn from(time: SystemTime) -> Self {
        let seconds = |distance: Duration| i64::try_from(distance.as_secs()).unwrap_or(i64::MAX);
        match time.duration_since(UNIX_EPOCH) {
            Ok(after) => Self(seconds(after)),
            Err(before) => Self(-seconds(before.duration())),
        }
    }
}

// Days to civil date and back, proleptic Gregorian: an era is 400 years of 146,097 days and years start in March, so that
// the leap day is the last of its year.
fn civil_from_days(days: i64) -> (i64, i64, i64) {
    let shifted = days + 719_468;
    let era = shifted.div_euclid(146_097);
    let day_of_era = shifted.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let march_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * march_month + 2) / 5 + 1;
    let month = if march_month < 10 { march_month + 3 } else { march_month - 9 };
    (era * 400 + year_of_era + i64::from(month <= 2), month, day)
}

fn days_from_civil(year: i64, month: i64, day: i64) -> i64 {
    let year = year - i64::from(month <= 2);
    let era = year.div_euclid(400);
    let year_of_era = year.rem_euclid(400);
    let march_month = if month > 2 { month - 3 } else { month + 9 };
    let day_of_year = (153 * march_month + 2) / 5 + day - 1;
    era * 146_097 + year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year - 719_468
}

impl fmt::Display for Timestamp {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (year, month, day) = civil_from_days(self.0.div_euclid(DAY_SECONDS));
        let second = self.0.rem_euclid(DAY_SECONDS);
        let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
        write!(formatter, "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
    }
}

impl FromStr for Timestamp {
    type Err = BadTimestamp;

    fn from_str(text: &str) -> Result<Self, BadTimestamp> {
        let bad = || BadTimestamp(text.chars().take(64).collect());
        let bytes = text.as_bytes();
        let separators = [(4, b'-'), (7, b'-'), (10, b'T'), (13, b':'), (16, b':'), (19, b'Z')];
        if bytes.len() != 20 || separators.iter().any(|&(at, separator)| bytes[at] != separator) {
            return Err(bad());
        }
        let number = |from: usize, to: usize| {
            bytes[from..to]
                .iter()
                .try_fold(0_i64, |sum, byte| byte.is_ascii_digit().then(|| sum * 10 + i64::from(byte - b'0')))
        };
        let fields = [(0, 4), (5, 7), (8, 10), (11, 13), (14, 16), (17, 19)].map(|(from, to)| number(from, to));
        let [Some(year), Some(month), Some(day), Some(hour), Some(minute), Some(second)] = fields else {
            return Err(bad());
        };
        let days = days_from_civil(year, month, day);
        let real_date = (1..=12).contains(&month) && civil_from_days(days) == (year, month, day);
        if !real_date || hour > 23 || minute > 59 || second > 59 {
            return Err(bad());
        }
        Ok(Self(days * DAY_SECONDS + hour * 3600 + minute * 60 + second))
    }
}

impl TryFrom<String> for Timestamp {
    type Error = BadTimestamp;

    fn try_from(text: String) -> Result<Self, BadTimestamp> {
        text.parse()
    }
}

impl From<Timestamp> for String {
    fn from(time: Timestamp) -> Self {
        time.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_times_are_written_and_read() {
        let known = [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_796_083_200, "2026-12-01T00:00:00Z"),
            (4_107_542_399, "2100-02-28T23:59:59Z"),
            (-1, "1969-12-31T23:59:59Z"),
        ];
        for (seconds, text) in known {
            assert_eq!(Timestamp(seconds).to_string(), text);
            assert_eq!(text.parse(), Ok(Timestamp(seconds)));
        }
    }

    #[test]
    fn every_day_of_four_centuries_survives_the_round_trip() {
        for day in -10_000..150_000 {
            let time = Timestamp(day * DAY_SECONDS + 12_345);
            assert_eq!(time.to_string().parse(), Ok(time));
        }
    }

    #[test]
    fn what_is_no_time_is_refused() {
        for bad in [
            "",
            "2026-12-01",
            "2026-02-30T00:00:00Z",
            "2026-13-01T00:00:00Z",
            "2026-12-01T24:00:00Z",
            "2026-12-01T00:00:00.5Z",
            "2026-12-01 00:00:00Z",
            "+026-12-01T00:00:00Z",
        ] {
            assert!(bad.parse::<Timestamp>().is_err(), "{bad}");
        }
    }
}
