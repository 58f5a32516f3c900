//! Which bytes of an output file one answer shows.
//!
//! Offsets are byte positions. An answer holds whole characters only: a start inside a UTF-8 sequence moves forward past it,
//! an end inside one moves back, and at least one character is shown even when it exceeds the limit. Bytes that are no UTF-8
//! count as characters of their own and read as U+FFFD, so that every reader makes progress through binary output. While
//! the job runs, an unfinished sequence at the very end is not shown yet.

use std::io;

/// Bytes of the longest UTF-8 sequence.
const MAX_CHARACTER_BYTES: u64 = 4;

/// Where the bytes come from: a file read at a position, or a slice in tests.
pub(super) trait ReadAt {
    /// Fills `buffer` from `offset` on as far as there are bytes; returns how many.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize>;
}

impl ReadAt for std::fs::File {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let mut filled = 0;
        while filled < buffer.len() {
            match std::os::unix::fs::FileExt::read_at(self, &mut buffer[filled..], offset + filled as u64) {
                Ok(0) => break,
                Ok(count) => filled += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(filled)
    }
}

/// A part of the output.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Window {
    /// Its text.
    pub(super) text: String,
    /// Where the next read starts.
    pub(super) next: u64,
    /// More whole characters follow already.
    pub(super) more: bool,
}

/// How far the output has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Extent {
    /// Bytes in the file.
    pub(super) size: u64,
    /// Whether no byte follows any more.
    pub(super) complete: bool,
}

/// Reads up to `limit` bytes from `offset` on. `offset` is at most the extent's size.
pub(super) fn read(source: &impl ReadAt, extent: Extent, offset: u64, limit: u64) -> io::Result<Window> {
    let before = offset.min(MAX_CHARACTER_BYTES - 1);
    let first = offset - before;
    // Room for the rest of a character at either end, and for one whole character beyond the limit.
    let wanted = (extent.size - first).min(before + limit + 2 * MAX_CHARACTER_BYTES);
    let mut buffer = vec![0; usize::try_from(wanted).map_err(|_| io::ErrorKind::InvalidInput)?];
    let filled = source.read_at(&mut buffer, first)?;
    buffer.truncate(filled);
    let at_end = first + filled as u64 >= extent.size || filled < usize::try_from(wanted).unwrap_or(usize::MAX);
    let start = start_of_character(&buffer, usize::try_from(before).unwrap_or(0).min(filled));
    let bytes = &buffer[start..];
    let limit = usize::try_from(limit).unwrap_or(usize::MAX).max(1);
    let mut taken = 0;
    while taken < bytes.len().min(limit) {
        // Whole characters within the limit in one go; what stops there is looked at by itself.
        taken += match std::str::from_utf8(&bytes[taken..bytes.len().min(limit)]) {
            Ok(text) => text.len(),
            Err(error) => error.valid_up_to(),
        };
        if taken == bytes.len().min(limit) {
            break;
        }
        let length = match character_length(&bytes[taken..]) {
            Length::Whole(length) => length,
            Length::Unfinished if at_end && !extent.complete => break,
            Length::Unfinished => bytes.len() - taken,
        };
        if taken + length > limit && taken > 0 {
            break;
        }
        taken += length;
    }
    let rest = &bytes[taken..];
    let more = match rest.first() {
        None => !at_end,
        Some(_) => !at_end || extent.complete || matches!(character_length(rest), Length::Whole(_)),
    };
    let next = first + (start + taken) as u64;
    Ok(Window { text: String::from_utf8_lossy(&bytes[..taken]).into_owned(), next, more })
}

/// Reads the last `limit` bytes from a character's start on; nothing follows by definition.
pub(super) fn tail(source: &impl ReadAt, extent: Extent, limit: u64) -> io::Result<Window> {
    let mut window = read(source, extent, extent.size.saturating_sub(limit), limit)?;
    window.more = false;
    Ok(window)
}

enum Length {
    /// So many bytes: one character, or bytes that can be no part of one.
    Whole(usize),
    /// The bytes end inside a sequence that is right so far.
    Unfinished,
}

fn character_length(bytes: &[u8]) -> Length {
    let head = &bytes[..bytes.len().min(4)];
    match std::str::from_utf8(head) {
        Ok(text) => Length::Whole(text.chars().next().map_or(1, char::len_utf8)),
        Err(error) if error.valid_up_to() > 0 => {
            let text = std::str::from_utf8(&head[..error.valid_up_to()]).expect("checked up to here");
            Length::Whole(text.chars().next().map_or(1, char::len_utf8))
        }
        Err(error) => error.error_len().map_or(Length::Unfinished, Length::Whole),
    }
}

/// The first index from `at` on that does not lie inside a UTF-8 sequence begun before it.
fn start_of_character(bytes: &[u8], at: usize) -> usize {
    let is_continuation = |byte: u8| byte & 0b1100_0000 == 0b1000_0000;
    if bytes.get(at).is_none_or(|byte| !is_continuation(*byte)) {
        return at;
    }
    let lead = (0..at).rev().take(3).find(|index| !is_continuation(bytes[*index]));
    let Some(lead) = lead else { return at };
    match character_length(&bytes[lead..]) {
        Length::Whole(length) if lead + length > at => lead + length,
        Length::Unfinished => bytes.len(),
        Length::Whole(_) => at,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    impl ReadAt for &[u8] {
        fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
            let from = usize::try_from(offset).unwrap().min(self.len());
            let count = buffer.len().min(self.len() - from);
            buffer[..count].copy_from_slice(&self[from..from + count]);
            Ok(count)
        }
    }

    fn window(bytes: &[u8], complete: bool, offset: u64, limit: u64) -> (String, u64, bool) {
        let Window { text, next, more } =
            read(&bytes, Extent { size: bytes.len() as u64, complete }, offset, limit).unwrap();
        (text, next, more)
    }

    #[test]
    fn limits_cut_between_characters_and_say_that_more_is_there() {
        assert_eq!(window(b"hello", true, 0, 8), ("hello".into(), 5, false));
        assert_eq!(window(b"hello", true, 0, 5), ("hello".into(), 5, false));
        assert_eq!(window(b"hello", true, 0, 4), ("hell".into(), 4, true));
        assert_eq!(window(b"hello", true, 4, 4), ("o".into(), 5, false));
        assert_eq!(window(b"hello", true, 5, 4), (String::new(), 5, false));
        let text = "aä€😀".as_bytes();
        assert_eq!(window(text, true, 0, 2), ("a".into(), 1, true));
        assert_eq!(window(text, true, 1, 2), ("ä".into(), 3, true));
        assert_eq!(window(text, true, 3, 1), ("€".into(), 6, true));
        assert_eq!(window(text, true, 6, 1), ("😀".into(), 10, false));
    }

    #[test]
    fn a_start_inside_a_character_moves_forward() {
        let text = "€x".as_bytes();
        for offset in [1, 2] {
            assert_eq!(window(text, true, offset, 8), ("x".into(), 4, false));
        }
        assert_eq!(window("😀".as_bytes(), true, 3, 8), (String::new(), 4, false));
    }

    #[test]
    fn an_unfinished_character_waits_for_the_rest_while_the_job_runs() {
        let text = &b"ab\xe4\xb8"[..];
        assert_eq!(window(text, false, 0, 8), ("ab".into(), 2, false));
        assert_eq!(window(text, false, 2, 8), (String::new(), 2, false));
        assert_eq!(window(text, true, 2, 8), ("\u{fffd}".into(), 4, false));
        assert_eq!(window(text, true, 0, 2), ("ab".into(), 2, true));
        assert_eq!(window(text, false, 0, 2), ("ab".into(), 2, false));
    }

    #[test]
    fn binary_output_is_shown_byte_for_byte() {
        let bytes = [0x80u8; 10];
        assert_eq!(window(&bytes, false, 5, 3), ("\u{fffd}".repeat(3), 8, true));
        let all: Vec<u8> = (0..=255).collect();
        assert_eq!(window(&all, true, 0, 1000).1, 256);
    }

    #[test]
    fn tails_start_at_a_character_and_end_at_the_end() {
        let text = "ä€x".as_bytes();
        let extent = Extent { size: text.len() as u64, complete: true };
        for (limit, expected) in [(1, "x"), (2, "x"), (3, "x"), (4, "€x"), (5, "€x"), (6, "ä€x"), (100, "ä€x")]
        {
            let Window { text, next, more } = tail(&text, extent, limit).unwrap();
            assert_eq!((text.as_str(), next, more), (expected, 6, false), "{limit}");
        }
    }

    #[test]
    fn a_file_that_the_user_cut_short_ends_the_reading() {
        let bytes = &b"abc"[..];
        let Window { text, more, .. } = read(&bytes, Extent { size: 100, complete: true }, 0, 8).unwrap();
        assert_eq!((text.as_str(), more), ("abc", false));
        let Window { text, more, .. } = read(&bytes, Extent { size: 100, complete: true }, 50, 8).unwrap();
        assert_eq!((text.as_str(), more), ("", false));
    }

    proptest! {
        #[test]
        fn paging_with_any_limits_reads_everything_once(
            text in "[a-zäß€😀\n]{0,60}",
            limits in proptest::collection::vec(1u64..9, 1..6),
        ) {
            let bytes = text.as_bytes();
            let (mut offset, mut seen) = (0, String::new());
            for limit in limits.iter().cycle() {
                let (part, next, more) = window(bytes, true, offset, *limit);
                prop_assert!(part.len() as u64 <= *limit || part.chars().count() == 1);
                prop_assert_eq!(next, offset + part.len() as u64);
                seen.push_str(&part);
                offset = next;
                if !more { break; }
            }
            prop_assert_eq!(seen, text);
        }

        #[test]
        fn paging_through_any_bytes_ends_and_equals_lossy_decoding(
            bytes in proptest::collection::vec(any::<u8>(), 0..80),
            limit in 1u64..9,
        ) {
            let (mut offset, mut seen) = (0, String::new());
            loop {
                let (part, next, more) = window(&bytes, true, offset, limit);
                prop_assert!(next > offset || (!more && part.is_empty()));
                seen.push_str(&part);
                offset = next;
                if !more { break; }
            }
            prop_assert_eq!(offset, bytes.len() as u64);
            prop_assert_eq!(seen, String::from_utf8_lossy(&bytes));
        }

        #[test]
        fn more_is_only_said_when_the_next_read_shows_something(
            bytes in proptest::collection::vec(any::<u8>(), 0..40),
            offset in any::<prop::sample::Index>(),
            limit in 1u64..9,
            complete in any::<bool>(),
        ) {
            let offset = offset.index(bytes.len() + 1) as u64;
            let (_, next, more) = window(&bytes, complete, offset, limit);
            let (following, _, _) = window(&bytes, complete, next, limit);
            prop_assert_eq!(more, !following.is_empty());
        }
    }
}
