//! Texts from the other side, made fit for an error message.

use crate::Secret;

/// Most bytes that a text from outside may add to a message. Chosen: enough for any message of E2B's API, too little for a
/// hostile server to fill a log.
pub const MESSAGE_BYTES: usize = 1024;

/// What stands where the text was cut.
const CUT: &str = "…";

/// What stands where a secret was.
const REDACTED: &str = "[redacted]";

/// Secrets shorter than this are not searched for: a two-letter token would blank out ordinary words.
const SHORTEST_SECRET: usize = 4;

/// Caps `text` at [`MESSAGE_BYTES`] and escapes its control characters, so that it can neither fill a log nor forge a line of it.
#[must_use]
pub fn clean(text: &str) -> String {
    let mut out = String::with_capacity(text.len().min(MESSAGE_BYTES));
    for character in text.chars() {
        let hidden = character.is_control() || is_invisible(character);
        let length = if hidden { character.escape_default().len() } else { character.len_utf8() };
        if out.len() + length > MESSAGE_BYTES - CUT.len() {
            out.push_str(CUT);
            break;
        }
        if hidden {
            out.extend(character.escape_default());
        } else {
            out.push(character);
        }
    }
    out
}

/// Line separators and bidirectional controls: not `is_control`, yet able to make a terminal show another text.
fn is_invisible(character: char) -> bool {
    matches!(character, '\u{2028}' | '\u{2029}' | '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}')
}

/// Replaces every occurrence of the secrets.
#[must_use]
pub fn redact<'a>(text: &str, secrets: impl IntoIterator<Item = &'a Secret>) -> String {
    let mut out = text.to_owned();
    for secret in secrets {
        if secret.expose().len() >= SHORTEST_SECRET && out.contains(secret.expose()) {
            out = out.replace(secret.expose(), REDACTED);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_escaped() {
        assert_eq!(clean("a\nb\x1b[31m\u{202e}c"), "a\\nb\\u{1b}[31m\\u{202e}c");
        assert_eq!(clean("größe \"x\""), "größe \"x\"");
    }

    #[test]
    fn long_texts_are_cut_at_a_character_within_the_cap() {
        for text in ["x".repeat(5000), "ß".repeat(5000), "\0".repeat(5000)] {
            let cut = clean(&text);
            assert!(cut.len() <= MESSAGE_BYTES, "{}", cut.len());
            assert!(cut.len() > MESSAGE_BYTES - 12);
            assert!(cut.ends_with(CUT));
        }
        let whole = "x".repeat(MESSAGE_BYTES - CUT.len());
        assert_eq!(clean(&whole), whole);
    }

    #[test]
    fn secrets_are_replaced_and_short_ones_left() {
        let secrets = [Secret::new("e2b_00ff"), Secret::new("a")];
        assert_eq!(redact("bad key e2b_00ff, again e2b_00ff", &secrets), "bad key [redacted], again [redacted]");
    }
}
