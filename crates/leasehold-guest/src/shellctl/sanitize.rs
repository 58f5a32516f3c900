//! What of a terminal's byte stream goes into a job's output.
//!
//! Removed: CSI sequences, OSC and the other control strings (ended by BEL, where that is allowed, or ST), all other escape
//! sequences. Invalid UTF-8 becomes U+FFFD. Carriage returns before a line feed belong to the newline; a lone one means that
//! the line is written anew, so what the line held so far is dropped (progress bars keep their last state).
//!
//! The current line is held back until it ends, but not for ever: [`Sanitizer::flush`] hands it out when the terminal has
//! been quiet for a moment, so that prompts and echoes are seen while the job runs. What was handed out cannot be taken
//! back, since readers count bytes; if such a line is then written anew, a newline is put between.

/// A line is handed out when it reaches this many bytes, ended or not. Chosen: far above what people write in one line, and a
/// job that never ends a line costs no more memory.
pub(super) const MAX_LINE_BYTES: usize = 64 * 1024;

/// A control sequence that reaches this many characters is taken for an accident (a binary file on the terminal): it is
/// dropped so far and text goes on, instead of swallowing everything that follows.
pub(super) const MAX_SEQUENCE_CHARS: usize = 4096;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Text,
    /// ESC was seen.
    Escape,
    /// ESC and intermediate characters.
    EscapeIntermediate,
    /// Inside CSI, before its final character.
    Control,
    /// Inside OSC; BEL ends it too.
    OscString,
    /// Inside DCS, SOS, PM or APC; only ST ends it.
    String,
    /// ESC inside one of the strings.
    StringEscape,
}

/// Turns terminal bytes, however they are split, into text.
#[derive(Debug)]
pub(super) struct Sanitizer {
    state: State,
    sequence_chars: usize,
    /// Carriage returns seen whose meaning the next character decides.
    returned: bool,
    /// The current line, as far as it was not handed out.
    line: String,
    /// Whether the current line was handed out in part.
    line_shown: bool,
    /// An unfinished UTF-8 sequence.
    partial: [u8; 4],
    partial_length: usize,
}

impl Default for Sanitizer {
    fn default() -> Self {
        Self {
            state: State::Text,
            sequence_chars: 0,
            returned: false,
            line: String::new(),
            line_shown: false,
            partial: [0; 4],
            partial_length: 0,
        }
    }
}

impl Sanitizer {
    /// Takes bytes and appends finished lines to `out`.
    pub(super) fn push(&mut self, mut bytes: &[u8], out: &mut String) {
        while self.partial_length > 0 && !bytes.is_empty() {
            self.partial[self.partial_length] = bytes[0];
            self.partial_length += 1;
            match std::str::from_utf8(&self.partial[..self.partial_length]) {
                Ok(text) => {
                    let character = text.chars().next().expect("the bytes are not empty");
                    self.partial_length = 0;
                    bytes = &bytes[1..];
                    self.character(character, out);
                }
                Err(error) if error.error_len().is_none() => bytes = &bytes[1..],
                Err(_) => {
                    // The new byte does not continue the sequence: replace what was held, look at the byte afresh.
                    self.partial_length = 0;
                    self.character(char::REPLACEMENT_CHARACTER, out);
                }
            }
        }
        while !bytes.is_empty() {
            match std::str::from_utf8(bytes) {
                Ok(text) => {
                    self.text(text, out);
                    return;
                }
                Err(error) => {
                    let (valid, rest) = bytes.split_at(error.valid_up_to());
                    self.text(std::str::from_utf8(valid).expect("checked up to here"), out);
                    match error.error_len() {
                        Some(length) => {
                            self.character(char::REPLACEMENT_CHARACTER, out);
                            bytes = &rest[length..];
                        }
                        None => {
                            self.partial[..rest.len()].copy_from_slice(rest);
                            self.partial_length = rest.len();
                            return;
                        }
                    }
                }
            }
        }
    }

    /// Whether [`Sanitizer::flush`] would hand out something.
    pub(super) fn holds_text(&self) -> bool {
        !self.line.is_empty()
    }

    /// Hands out the current line as far as it has come.
    pub(super) fn flush(&mut self, out: &mut String) {
        if !self.line.is_empty() {
            out.push_str(&self.line);
            self.line.clear();
            self.line_shown = true;
        }
    }

    /// Hands out what is left when the terminal is closed. An unfinished UTF-8 sequence is replaced, an unfinished control
    /// sequence is dropped, a last carriage return takes nothing away.
    pub(super) fn finish(&mut self, out: &mut String) {
        if self.partial_length > 0 {
            self.partial_length = 0;
            self.character(char::REPLACEMENT_CHARACTER, out);
        }
        self.flush(out);
        *self = Self::default();
    }

    fn text(&mut self, mut text: &str, out: &mut String) {
        while !text.is_empty() {
            if self.state == State::Text && !self.returned {
                // Most output is plain: take it up to the next character that means something.
                let plain = text.bytes().position(|byte| matches!(byte, b'\n' | b'\r' | 0x1b)).unwrap_or(text.len());
                if plain > 0 {
                    self.extend_line(&text[..plain], out);
                    text = &text[plain..];
                    continue;
                }
            }
            let mut characters = text.chars();
            if let Some(character) = characters.next() {
                self.character(character, out);
            }
            text = characters.as_str();
        }
    }

    fn extend_line(&mut self, text: &str, out: &mut String) {
        self.line.push_str(text);
        if self.line.len() >= MAX_LINE_BYTES {
            self.flush(out);
        }
    }

    fn character(&mut self, character: char, out: &mut String) {
        self.sequence_chars += 1;
        let overlong = self.sequence_chars > MAX_SEQUENCE_CHARS;
        match (self.state, character) {
            (State::Text, _) => self.plain(character, out),
            // CAN and SUB abort any sequence.
            (_, '\u{18}' | '\u{1a}') => self.state = State::Text,
            (State::StringEscape, '\\') => self.state = State::Text,
            // ESC inside a string that starts no ST starts the next sequence.
            (State::StringEscape, _) => {
                self.state = State::Escape;
                self.character(character, out);
            }
            (State::OscString | State::String, '\u{1b}') => self.state = State::StringEscape,
            (State::OscString, '\u{7}') => self.state = State::Text,
            (State::OscString | State::String, _) => {
                if overlong {
                    self.state = State::Text;
                }
            }
            (_, '\u{1b}') => self.begin_escape(),
            (State::Escape, '[') => self.state = State::Control,
            (State::Escape, ']') => self.state = State::OscString,
            (State::Escape, 'P' | 'X' | '^' | '_') => self.state = State::String,
            (State::Escape | State::EscapeIntermediate, ' '..='/') if !overlong => {
                self.state = State::EscapeIntermediate
            }
            (State::Escape | State::EscapeIntermediate, '0'..='~') => self.state = State::Text,
            (State::Control, ' '..='?') if !overlong => {}
            (State::Control, '@'..='~') => self.state = State::Text,
            // Nothing that belongs into a sequence: it ends here, the character counts as text.
            (State::Escape | State::EscapeIntermediate | State::Control, _) => {
                self.state = State::Text;
                self.plain(character, out);
            }
        }
    }

    fn begin_escape(&mut self) {
        self.state = State::Escape;
        self.sequence_chars = 0;
    }

    fn plain(&mut self, character: char, out: &mut String) {
        match character {
            '\u{1b}' => self.begin_escape(),
            '\r' => self.returned = true,
            '\n' => {
                self.returned = false;
                self.line.push('\n');
                out.push_str(&self.line);
                self.line.clear();
                self.line_shown = false;
            }
            _ => {
                if std::mem::take(&mut self.returned) {
                    self.line.clear();
                    if std::mem::take(&mut self.line_shown) {
                        out.push('\n');
                    }
                }
                self.extend_line(character.encode_utf8(&mut [0; 4]), out);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn whole(bytes: &[u8]) -> String {
        let mut sanitizer = Sanitizer::default();
        let mut out = String::new();
        sanitizer.push(bytes, &mut out);
        sanitizer.finish(&mut out);
        out
    }

    #[test]
    fn sequences_are_removed_and_text_stays() {
        for (raw, clean) in [
            ("plain\n", "plain\n"),
            ("\x1b[31mred\x1b[0m\n", "red\n"),
            ("\x1b[?2004h$ \x1b[?2004l", "$ "),
            ("\x1b[38;2;1;2;3mx", "x"),
            ("\x1b]0;title\x07after", "after"),
            ("\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "link"),
            ("\x1bP1$r0m\x1b\\x", "x"),
            ("\x1b_a\x07b\x1b\\x", "x"),
            ("\x1b(B\x1b=\x1b>\x1b7x\x1b8", "x"),
            ("\x1b[31\x18x", "x"),
            ("\x1b[3\x1b[1mx", "x"),
            ("\x1b]0;a\x1b[1mx", "x"),
            ("\x1b[3ä", "ä"),
            ("a\tb\u{8}c\n", "a\tb\u{8}c\n"),
            ("unfinished \x1b[3", "unfinished "),
        ] {
            assert_eq!(whole(raw.as_bytes()), clean, "{raw:?}");
        }
    }

    #[test]
    fn carriage_returns_end_or_rewrite_lines() {
        for (raw, clean) in [
            ("a\r\nb\r\n", "a\nb\n"),
            ("a\r\r\nb", "a\nb"),
            ("10%\r20%\r30%\n", "30%\n"),
            ("long line\rx\n", "x\n"),
            ("kept\r", "kept"),
            ("a\n\n\r\nb\n", "a\n\n\nb\n"),
            ("a\r\x1b[K\r\nb", "a\nb"),
            ("a\r\x1b[Kb\n", "b\n"),
        ] {
            assert_eq!(whole(raw.as_bytes()), clean, "{raw:?}");
        }
    }

    #[test]
    fn a_line_that_was_shown_is_ended_instead_of_taken_back() {
        let mut sanitizer = Sanitizer::default();
        let mut out = String::new();
        sanitizer.push(b"10%", &mut out);
        assert_eq!(out, "");
        assert!(sanitizer.holds_text());
        sanitizer.flush(&mut out);
        assert_eq!(out, "10%");
        sanitizer.push(b"\r20%\r30%\r\nx\r\n", &mut out);
        assert_eq!(out, "10%\n30%\nx\n");
        sanitizer.push(b"y", &mut out);
        sanitizer.flush(&mut out);
        sanitizer.push(b"z\r\n", &mut out);
        assert_eq!(out, "10%\n30%\nx\nyz\n");
    }

    #[test]
    fn invalid_bytes_are_replaced() {
        assert_eq!(whole(b"a\xffb\n"), "a\u{fffd}b\n");
        assert_eq!(whole(b"a\xe4\xb8"), "a\u{fffd}");
        assert_eq!(whole("a\u{1f600}".as_bytes()), "a\u{1f600}");
    }

    #[test]
    fn a_binary_file_cannot_silence_what_follows() {
        let mut raw = b"\x1b]".to_vec();
        raw.extend(std::iter::repeat_n(b'x', MAX_SEQUENCE_CHARS + 10));
        raw.extend(b"\nafter\n");
        assert!(whole(&raw).ends_with("\nafter\n"));
        let mut raw = b"\x1b[".to_vec();
        raw.extend(std::iter::repeat_n(b'1', MAX_SEQUENCE_CHARS + 10));
        raw.extend(b"\nafter\n");
        assert!(whole(&raw).ends_with("\nafter\n"));
    }

    #[test]
    fn an_endless_line_is_handed_out_in_bounded_pieces() {
        let mut sanitizer = Sanitizer::default();
        let mut out = String::new();
        for _ in 0..100 {
            sanitizer.push(&[b'x'; 10_000], &mut out);
            assert!(sanitizer.line.len() < MAX_LINE_BYTES);
        }
        sanitizer.finish(&mut out);
        assert_eq!(out.len(), 1_000_000);
    }

    fn terminal_bytes() -> impl Strategy<Value = Vec<u8>> {
        let piece = prop_oneof![
            "[a-z ]{0,6}".prop_map(String::into_bytes),
            Just(b"\n".to_vec()),
            Just(b"\r".to_vec()),
            Just(b"\r\n".to_vec()),
            Just(b"\x1b".to_vec()),
            Just(b"\x1b[31m".to_vec()),
            Just(b"\x1b]0;t\x07".to_vec()),
            Just(b"\x1bPx\x1b\\".to_vec()),
            Just("ä\u{1f600}".as_bytes().to_vec()),
            any::<[u8; 2]>().prop_map(Vec::from),
        ];
        proptest::collection::vec(piece, 0..24).prop_map(|pieces| pieces.concat())
    }

    proptest! {
        #[test]
        fn any_split_gives_the_same_text(bytes in terminal_bytes(), cuts in proptest::collection::vec(any::<prop::sample::Index>(), 0..8)) {
            let mut cuts: Vec<_> = cuts.iter().map(|cut| cut.index(bytes.len() + 1)).collect();
            cuts.push(bytes.len());
            cuts.sort_unstable();
            let mut sanitizer = Sanitizer::default();
            let (mut out, mut from) = (String::new(), 0);
            for to in cuts {
                sanitizer.push(&bytes[from..to], &mut out);
                from = to;
            }
            sanitizer.finish(&mut out);
            prop_assert_eq!(out, whole(&bytes));
        }

        #[test]
        fn no_escape_and_no_return_comes_through(bytes in terminal_bytes()) {
            let out = whole(&bytes);
            prop_assert!(!out.contains('\x1b') && !out.contains('\r'), "{out:?}");
        }

        #[test]
        fn text_without_controls_is_untouched_however_it_is_flushed(parts in proptest::collection::vec("[ -~äß\n]{0,12}", 0..8)) {
            let mut sanitizer = Sanitizer::default();
            let mut out = String::new();
            for part in &parts {
                sanitizer.push(part.as_bytes(), &mut out);
                sanitizer.flush(&mut out);
            }
            sanitizer.finish(&mut out);
            prop_assert_eq!(out, parts.concat());
        }

        #[test]
        fn flushing_loses_nothing_that_one_push_shows(bytes in terminal_bytes(), cut in any::<prop::sample::Index>()) {
            // Shown earlier or later, every line of the undisturbed text ends a line of the disturbed one.
            let cut = cut.index(bytes.len() + 1);
            let mut sanitizer = Sanitizer::default();
            let mut out = String::new();
            sanitizer.push(&bytes[..cut], &mut out);
            sanitizer.flush(&mut out);
            sanitizer.push(&bytes[cut..], &mut out);
            sanitizer.finish(&mut out);
            let calm = whole(&bytes);
            prop_assert!(out.lines().count() >= calm.lines().count());
            let mut lines = out.lines();
            for line in calm.lines() {
                prop_assert!(lines.any(|shown| shown == line), "{line:?} of {calm:?} not in {out:?}");
            }
        }
    }
}
