//! Content types and file names for browsers that open a signed URL.

use std::fmt::Write as _;

/// By the name's extension if it is a common one, else by the first bytes. Text is declared as UTF-8 only when it is.
pub(super) fn of(name: &str, start: &[u8]) -> &'static str {
    let extension = name.rsplit_once('.').map_or("", |(_, extension)| extension).to_ascii_lowercase();
    match extension.as_str() {
        "css" => "text/css; charset=utf-8",
        "csv" => "text/csv; charset=utf-8",
        "gif" => "image/gif",
        "htm" | "html" => "text/html; charset=utf-8",
        "jpeg" | "jpg" => "image/jpeg",
        "js" | "mjs" => "text/javascript; charset=utf-8",
        "json" => "application/json",
        "md" => "text/markdown; charset=utf-8",
        "mp3" => "audio/mpeg",
        "mp4" => "video/mp4",
        "pdf" => "application/pdf",
        "png" => "image/png",
        "svg" => "image/svg+xml",
        "txt" => "text/plain; charset=utf-8",
        "wasm" => "application/wasm",
        "wav" => "audio/wav",
        "webm" => "video/webm",
        "webp" => "image/webp",
        "xml" => "text/xml; charset=utf-8",
        "zip" => "application/zip",
        _ => sniff(start),
    }
}

fn sniff(start: &[u8]) -> &'static str {
    const MAGIC: &[(&[u8], &str)] = &[
        (b"%PDF-", "application/pdf"),
        (b"\x89PNG\r\n\x1a\n", "image/png"),
        (b"\xff\xd8\xff", "image/jpeg"),
        (b"GIF8", "image/gif"),
        (b"PK\x03\x04", "application/zip"),
        (b"\x1f\x8b\x08", "application/x-gzip"),
    ];
    if let Some((_, kind)) = MAGIC.iter().find(|(magic, _)| start.starts_with(magic)) {
        return kind;
    }
    let is_text = |text: &str| {
        !text.chars().any(|char| char.is_control() && !matches!(char, '\t' | '\n' | '\r' | '\u{c}' | '\u{1b}'))
    };
    let text = match std::str::from_utf8(start) {
        Ok(text) => Some(text),
        // The sample may end inside a character.
        Err(error) if error.error_len().is_none() => std::str::from_utf8(&start[..error.valid_up_to()]).ok(),
        Err(_) => None,
    };
    if text.is_some_and(is_text) { "text/plain; charset=utf-8" } else { "application/octet-stream" }
}

/// `inline; filename=…`; names outside ASCII in the form of RFC 8187.
pub(super) fn disposition(name: &str) -> String {
    let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$&+-.^_`|~".contains(&byte);
    if !name.is_empty() && name.bytes().all(is_token) {
        return format!("inline; filename={name}");
    }
    if name.bytes().all(|byte| (b' '..=b'~').contains(&byte)) {
        return format!("inline; filename=\"{}\"", name.replace('\\', "\\\\").replace('"', "\\\""));
    }
    let mut out = "inline; filename*=utf-8''".to_owned();
    for byte in name.bytes() {
        if is_token(byte) {
            out.push(char::from(byte));
        } else {
            write!(out, "%{byte:02X}").expect("writing to a string succeeds");
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_extension_comes_before_the_content() {
        assert_eq!(of("a.JSON", b"\0"), "application/json");
        assert_eq!(of("a", b"hello \xc3"), "text/plain; charset=utf-8");
        assert_eq!(of("a", b"hello \xc3 x"), "application/octet-stream");
        assert_eq!(of("a.bin", b"\0\x01"), "application/octet-stream");
        assert_eq!(of("a", b"\x89PNG\r\n\x1a\n..."), "image/png");
        assert_eq!(of("a", b""), "text/plain; charset=utf-8");
    }

    #[test]
    fn names_cannot_leave_their_quotes() {
        assert_eq!(disposition("a.txt"), "inline; filename=a.txt");
        assert_eq!(disposition("a b\".txt"), "inline; filename=\"a b\\\".txt\"");
        assert_eq!(disposition("ä\n.txt"), "inline; filename*=utf-8''%C3%A4%0A.txt");
        assert_eq!(disposition(""), "inline; filename=\"\"");
    }
}
