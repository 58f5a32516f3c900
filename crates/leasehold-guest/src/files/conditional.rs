//! Conditional and partial reads of one file (RFC 9110 §13 and §14).

use std::time::Duration;

use crate::http::Head;

/// What identifies one state of a file's content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Version {
    pub(super) inode: u64,
    pub(super) size: u64,
    /// Last change of the content, in nanoseconds since 1970.
    pub(super) modified_ns: i128,
}

/// How a read is to be answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Answer {
    /// 200, all of it.
    Whole,
    /// 206, the bytes from `start` to `end`, exclusive.
    Part { start: u64, end: u64 },
    /// 304.
    NotModified,
    /// 412.
    PreconditionFailed,
    /// 416.
    OutOfRange,
}

impl Version {
    /// A strong validator: any write changes the time, a replaced file has another inode.
    pub(super) fn etag(&self) -> String {
        format!("\"{:x}-{:x}-{:x}\"", self.inode, self.size, self.modified_ns)
    }

    /// The time for `Last-Modified`.
    pub(super) fn last_modified(&self) -> String {
        http_date(self.modified_seconds())
    }

    fn modified_seconds(&self) -> i64 {
        i64::try_from(self.modified_ns.div_euclid(1_000_000_000)).unwrap_or(i64::MAX)
    }

    /// Decides by the request's headers, in the order of RFC 9110 §13.2.2.
    pub(super) fn answer(&self, head: &Head) -> Answer {
        let etag = self.etag();
        let seconds = self.modified_seconds();
        if let Some(wanted) = head.header("if-match") {
            if !matches_any(wanted, &etag, Comparison::Strong) {
                return Answer::PreconditionFailed;
            }
        } else if head.header("if-unmodified-since").and_then(parse_http_date).is_some_and(|time| seconds > time) {
            return Answer::PreconditionFailed;
        }
        if let Some(known) = head.header("if-none-match") {
            if matches_any(known, &etag, Comparison::Weak) {
                return Answer::NotModified;
            }
        } else if head.header("if-modified-since").and_then(parse_http_date).is_some_and(|time| seconds <= time) {
            return Answer::NotModified;
        }
        let still_same = head.header("if-range").is_none_or(|validator| {
            matches_any(validator, &etag, Comparison::Strong) || parse_http_date(validator) == Some(seconds)
        });
        match head.header("range") {
            Some(range) if still_same && head.method() == "GET" => range_answer(range, self.size),
            _ => Answer::Whole,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Comparison {
    Strong,
    Weak,
}

fn matches_any(list: &str, etag: &str, comparison: Comparison) -> bool {
    list.split(',').map(str::trim).any(|candidate| match candidate.strip_prefix("W/") {
        Some(candidate) => comparison == Comparison::Weak && candidate == etag,
        None => candidate == "*" || candidate == etag,
    })
}

/// A range that is no single byte range is ignored, which RFC 9110 §14.2 allows: the client gets the whole file.
fn range_answer(range: &str, size: u64) -> Answer {
    let single = range.trim().strip_prefix("bytes=").map(str::trim).filter(|spec| !spec.contains(','));
    let Some((first, last)) = single.and_then(|spec| spec.split_once('-')) else { return Answer::Whole };
    let number = |text: &str| {
        (!text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())).then(|| text.parse().unwrap_or(u64::MAX))
    };
    match (first.trim(), last.trim()) {
        ("", "") => Answer::Whole,
        ("", last) => match number(last) {
            None => Answer::Whole,
            Some(0) => Answer::OutOfRange,
            Some(_) if size == 0 => Answer::OutOfRange,
            Some(count) => Answer::Part { start: size.saturating_sub(count), end: size },
        },
        (first, last) => {
            let last = if last.is_empty() { Some(u64::MAX) } else { number(last) };
            match (number(first), last) {
                (Some(first), Some(last)) if first <= last => {
                    if first >= size {
                        return Answer::OutOfRange;
                    }
                    Answer::Part { start: first, end: last.saturating_add(1).min(size) }
                }
                _ => Answer::Whole,
            }
        }
    }
}

const DAYS: [&str; 7] = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"];
const MONTHS: [&str; 12] = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
const DAY_SECONDS: i64 = 86_400;

/// `Sun, 06 Nov 1994 08:49:37 GMT`.
fn http_date(seconds: i64) -> String {
    // shellctl's timestamps already know the calendar: `YYYY-MM-DDTHH:MM:SSZ`.
    let time = std::time::UNIX_EPOCH + Duration::from_secs(u64::try_from(seconds).unwrap_or(0));
    let stamp = shellctl::Timestamp::from(time).to_string();
    let weekday = usize::try_from((seconds.max(0) / DAY_SECONDS).rem_euclid(7)).unwrap_or(0);
    let month = stamp[5..7].parse::<usize>().map_or(0, |month| month.saturating_sub(1).min(11));
    format!("{}, {} {} {} {} GMT", DAYS[weekday], &stamp[8..10], MONTHS[month], &stamp[..4], &stamp[11..19])
}

/// Reads the one form that senders must use; another form counts as no date, and the condition is ignored.
fn parse_http_date(text: &str) -> Option<i64> {
    let text = text.trim();
    let bytes = text.as_bytes();
    if !text.is_ascii() || bytes.len() != 29 || !text.ends_with(" GMT") || &text[3..5] != ", " {
        return None;
    }
    let month = MONTHS.iter().position(|month| *month == &text[8..11])? + 1;
    let stamp = format!("{}-{month:02}-{}T{}Z", &text[12..16], &text[5..7], &text[17..25]);
    stamp.parse::<shellctl::Timestamp>().ok().map(shellctl::Timestamp::unix_seconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    const VERSION: Version = Version { inode: 7, size: 1000, modified_ns: 784_111_777_123_456_789 };

    fn answer(headers: &str) -> Answer {
        let raw = format!("GET /files HTTP/1.1\r\n{headers}\r\n");
        VERSION.answer(&Head::parse(raw.as_bytes()).unwrap().unwrap().0)
    }

    #[test]
    fn dates_are_written_and_read_in_the_preferred_form() {
        assert_eq!(VERSION.last_modified(), "Sun, 06 Nov 1994 08:49:37 GMT");
        for seconds in [0, 951_782_400, 784_111_777, 1_796_083_199] {
            assert_eq!(parse_http_date(&http_date(seconds)), Some(seconds));
        }
        for bad in [
            "",
            "Sunday, 06-Nov-94 08:49:37 GMT",
            "Sun, 06 Nov 1994 08:49:37 CET",
            "Sun, 31 Feb 1994 08:49:37 GMT",
            "ääääääääääääää 29 b",
        ] {
            assert_eq!(parse_http_date(bad), None, "{bad}");
        }
    }

    #[test]
    fn ranges_are_cut_out_or_refused_or_ignored() {
        for (range, expected) in [
            ("bytes=0-0", Answer::Part { start: 0, end: 1 }),
            ("bytes=10-19", Answer::Part { start: 10, end: 20 }),
            ("bytes=990-", Answer::Part { start: 990, end: 1000 }),
            ("bytes=990-99999999999999999999", Answer::Part { start: 990, end: 1000 }),
            ("bytes=-1", Answer::Part { start: 999, end: 1000 }),
            ("bytes=-5000", Answer::Part { start: 0, end: 1000 }),
            ("bytes=1000-", Answer::OutOfRange),
            ("bytes=-0", Answer::OutOfRange),
            ("bytes=5-4", Answer::Whole),
            ("bytes=0-1,3-4", Answer::Whole),
            ("lines=0-1", Answer::Whole),
            ("bytes=a-b", Answer::Whole),
            ("bytes=-", Answer::Whole),
        ] {
            assert_eq!(answer(&format!("Range: {range}\r\n")), expected, "{range}");
        }
        let empty = Version { size: 0, ..VERSION };
        let head = Head::parse(b"GET / HTTP/1.1\r\nRange: bytes=0-\r\n\r\n").unwrap().unwrap().0;
        assert_eq!(empty.answer(&head), Answer::OutOfRange);
    }

    #[test]
    fn conditions_decide_in_the_standards_order() {
        let etag = VERSION.etag();
        let part = Answer::Part { start: 0, end: 1 };
        for (headers, expected) in [
            (format!("If-None-Match: {etag}"), Answer::NotModified),
            (format!("If-None-Match: \"x\", W/{etag}"), Answer::NotModified),
            ("If-None-Match: *".into(), Answer::NotModified),
            ("If-None-Match: \"x\"".into(), Answer::Whole),
            ("If-Modified-Since: Sun, 06 Nov 1994 08:49:37 GMT".into(), Answer::NotModified),
            ("If-Modified-Since: Sun, 06 Nov 1994 08:49:36 GMT".into(), Answer::Whole),
            ("If-None-Match: \"x\"\r\nIf-Modified-Since: Sun, 06 Nov 1994 08:49:37 GMT".into(), Answer::Whole),
            (format!("If-Match: {etag}"), Answer::Whole),
            (format!("If-Match: W/{etag}"), Answer::PreconditionFailed),
            ("If-Match: \"x\"".into(), Answer::PreconditionFailed),
            ("If-Unmodified-Since: Sun, 06 Nov 1994 08:49:36 GMT".into(), Answer::PreconditionFailed),
            ("If-Unmodified-Since: Sun, 06 Nov 1994 08:49:37 GMT".into(), Answer::Whole),
            (format!("If-Range: {etag}\r\nRange: bytes=0-0"), part),
            ("If-Range: \"x\"\r\nRange: bytes=0-0".into(), Answer::Whole),
            ("If-Range: Sun, 06 Nov 1994 08:49:37 GMT\r\nRange: bytes=0-0".into(), part),
            (format!("If-None-Match: {etag}\r\nRange: bytes=0-0"), Answer::NotModified),
        ] {
            assert_eq!(answer(&format!("{headers}\r\n")), expected, "{headers}");
        }
    }
}
