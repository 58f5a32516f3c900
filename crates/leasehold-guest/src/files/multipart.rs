//! Reads `multipart/form-data` (RFC 7578) part by part, with a bounded buffer and however the bytes are split.

use std::io::{self, Read};

use percent_encoding::percent_decode_str;

/// Longest boundary (RFC 2046 §5.1.1).
const MAX_BOUNDARY_BYTES: usize = 70;
/// Longest header block of one part. Chosen: a path of 4 KiB, percent-encoded, fits twice.
const MAX_HEADER_BYTES: usize = 32 << 10;
/// How much is read at once.
const READ_BYTES: usize = 64 << 10;

/// Takes the boundary out of a `Content-Type`; `None` when that is no form with a usable one.
pub(super) fn boundary(content_type: &str) -> Option<String> {
    let mut parts = content_type.split(';');
    if !parts.next()?.trim().eq_ignore_ascii_case("multipart/form-data") {
        return None;
    }
    let value = parts.find_map(|part| {
        let (name, value) = part.split_once('=')?;
        name.trim().eq_ignore_ascii_case("boundary").then_some(value.trim())
    })?;
    let value = value.strip_prefix('"').and_then(|value| value.strip_suffix('"')).unwrap_or(value);
    let usable = !value.is_empty()
        && value.len() <= MAX_BOUNDARY_BYTES
        && value.bytes().all(|byte| (b' '..=b'~').contains(&byte));
    usable.then(|| value.to_owned())
}

/// What a part's headers say.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct PartHead {
    /// The form field.
    pub(super) name: String,
    /// The file's name, which may be a path.
    pub(super) file_name: Option<String>,
}

/// A form, in the course of being read.
#[derive(Debug)]
pub(super) struct Form<R> {
    source: R,
    /// CR LF, two dashes, the boundary.
    delimiter: Vec<u8>,
    buffer: Vec<u8>,
    start: usize,
    ended: bool,
    state: State,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Preamble,
    Content,
    /// A delimiter was taken; its line end or the closing dashes come.
    AfterDelimiter,
    Done,
}

fn malformed(message: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, message)
}

impl<R: Read> Form<R> {
    /// Reads a form from `source`.
    pub(super) fn new(source: R, boundary: &str) -> Self {
        // The first delimiter may stand at the very start: a line end put before it makes it like the others.
        Self {
            source,
            delimiter: format!("\r\n--{boundary}").into_bytes(),
            buffer: b"\r\n".to_vec(),
            start: 0,
            ended: false,
            state: State::Preamble,
        }
    }

    /// Goes to the next part, skipping what is left of the current one. `None` after the last.
    ///
    /// # Errors
    /// `InvalidData` when the bytes are no form, `UnexpectedEof` when they end early; those of the source.
    pub(super) fn next_part(&mut self) -> io::Result<Option<PartHead>> {
        let mut skipped = [0; 4096];
        while matches!(self.state, State::Preamble | State::Content) {
            self.read_content(&mut skipped)?;
        }
        if self.state == State::Done || self.closes()? {
            self.state = State::Done;
            return Ok(None);
        }
        let head = self.header_block()?;
        self.state = State::Content;
        parse_head(&head).map(Some)
    }

    fn pending(&self) -> &[u8] {
        &self.buffer[self.start..]
    }

    /// Reads more; false at the end of the source.
    fn fill(&mut self) -> io::Result<bool> {
        if self.ended {
            return Ok(false);
        }
        self.buffer.drain(..self.start);
        self.start = 0;
        let filled = self.buffer.len();
        self.buffer.resize(filled + READ_BYTES, 0);
        let result = loop {
            match self.source.read(&mut self.buffer[filled..]) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                result => break result,
            }
        };
        self.buffer.truncate(filled + *result.as_ref().unwrap_or(&0));
        self.ended = result? == 0;
        Ok(!self.ended)
    }

    fn need(&mut self, count: usize) -> io::Result<()> {
        while self.pending().len() < count {
            if !self.fill()? {
                return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "form ends before its closing boundary"));
            }
        }
        Ok(())
    }

    /// Takes what follows a delimiter on its line: true for the closing dashes.
    fn closes(&mut self) -> io::Result<bool> {
        self.need(2)?;
        if self.pending().starts_with(b"--") {
            self.start += 2;
            return Ok(true);
        }
        // Blanks may pad the line (RFC 2046 §5.1.1).
        loop {
            self.need(2)?;
            match self.pending() {
                [b' ' | b'\t', ..] => self.start += 1,
                [b'\r', b'\n', ..] => {
                    // Stays: it ends the line before the headers and makes an empty header block look like any other.
                    return Ok(false);
                }
                _ => return Err(malformed("boundary of the form is followed by other bytes")),
            }
        }
    }

    fn header_block(&mut self) -> io::Result<Vec<u8>> {
        let mut searched = 0;
        loop {
            let pending = self.pending();
            if let Some(at) = find(&pending[searched..], b"\r\n\r\n") {
                let block = pending[..searched + at].to_vec();
                self.start += block.len() + 4;
                return Ok(block);
            }
            searched = pending.len().saturating_sub(3);
            if pending.len() > MAX_HEADER_BYTES {
                return Err(malformed("headers of a part exceed 32 KiB"));
            }
            self.need(pending.len() + 1)?;
        }
    }

    /// Reads content of the current part; 0 at its end.
    fn read_content(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if !matches!(self.state, State::Preamble | State::Content) || out.is_empty() {
            return Ok(0);
        }
        loop {
            let pending = self.pending();
            let found = find(pending, &self.delimiter);
            // Without a delimiter in sight, its start may be among the last bytes.
            let safe = found.unwrap_or_else(|| (pending.len() + 1).saturating_sub(self.delimiter.len()));
            if safe > 0 {
                let count = safe.min(out.len());
                out[..count].copy_from_slice(&pending[..count]);
                self.start += count;
                return Ok(count);
            }
            if found.is_some() {
                self.start += self.delimiter.len();
                self.state = State::AfterDelimiter;
                return Ok(0);
            }
            self.need(self.pending().len() + 1)?;
        }
    }
}

/// Reads the content of the current part; its end is the end of the part.
impl<R: Read> Read for Form<R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        self.read_content(out)
    }
}

fn find(haystack: &[u8], needle: &[u8]) -> Option<usize> {
    let first = *needle.first()?;
    let mut from = 0;
    while haystack.len() - from >= needle.len() {
        let last_start = haystack.len() - needle.len();
        let at = from + haystack[from..=last_start].iter().position(|&byte| byte == first)?;
        if haystack[at..].starts_with(needle) {
            return Some(at);
        }
        from = at + 1;
    }
    None
}

fn parse_head(block: &[u8]) -> io::Result<PartHead> {
    let text = std::str::from_utf8(block).map_err(|_| malformed("headers of a part are no UTF-8"))?;
    let mut head = PartHead::default();
    for line in text.split("\r\n").filter(|line| !line.is_empty()) {
        let (name, value) = line.split_once(':').ok_or_else(|| malformed("header of a part has no colon"))?;
        if name.trim().eq_ignore_ascii_case("content-disposition") {
            parse_disposition(value, &mut head)?;
        }
    }
    Ok(head)
}

fn parse_disposition(value: &str, head: &mut PartHead) -> io::Result<()> {
    let mut rest = value.split_once(';').map_or("", |(_, parameters)| parameters);
    let mut extended = None;
    while let Some((name, after)) = rest.split_once('=') {
        let name = name.trim().trim_start_matches(';').trim().to_ascii_lowercase();
        let (value, after) = parameter_value(after.trim_start())?;
        rest = after.trim_start().trim_start_matches(';');
        match name.as_str() {
            "name" => head.name = value,
            "filename" => head.file_name = Some(value),
            "filename*" => {
                // charset'language'percent-encoded; only UTF-8 is in use.
                let mut parts = value.splitn(3, '\'');
                let charset = parts.next().unwrap_or_default();
                let encoded = parts
                    .nth(1)
                    .ok_or_else(|| malformed("filename* of a part is not of the form charset'lang'text"))?;
                if !charset.eq_ignore_ascii_case("utf-8") {
                    return Err(malformed("filename* of a part is not in UTF-8"));
                }
                let decoded = percent_decode_str(encoded)
                    .decode_utf8()
                    .map_err(|_| malformed("filename* of a part is no UTF-8"))?;
                extended = Some(decoded.into_owned());
            }
            _ => {}
        }
    }
    if extended.is_some() {
        head.file_name = extended;
    }
    Ok(())
}

/// Takes a token or a quoted string; returns its text and what follows. In quotes, browsers and httpx write a quote as `%22` and line ends
/// as `%0D` and `%0A`, others escape it by a backslash; a backslash before anything else is itself, as in paths of Windows.
fn parameter_value(text: &str) -> io::Result<(String, &str)> {
    let Some(quoted) = text.strip_prefix('"') else {
        let end = text.find(';').unwrap_or(text.len());
        return Ok((text[..end].trim().to_owned(), &text[end..]));
    };
    let mut value = String::new();
    let mut characters = quoted.char_indices().peekable();
    while let Some((at, character)) = characters.next() {
        match character {
            '"' => {
                let value = value.replace("%22", "\"").replace("%0D", "\r").replace("%0A", "\n");
                return Ok((value, &quoted[at + 1..]));
            }
            '\\' => match characters.peek() {
                Some((_, escaped @ ('"' | '\\'))) => {
                    value.push(*escaped);
                    characters.next();
                }
                _ => value.push('\\'),
            },
            character => value.push(character),
        }
    }
    Err(malformed("quoted value of a part is not closed"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Hands out its bytes in portions of the given sizes, over and over.
    struct Portions<'a> {
        bytes: &'a [u8],
        sizes: &'a [usize],
        turn: usize,
    }

    impl Read for Portions<'_> {
        fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
            let size = self.sizes[self.turn % self.sizes.len()].clamp(1, out.len()).min(self.bytes.len());
            self.turn += 1;
            let (now, later) = self.bytes.split_at(size);
            out[..size].copy_from_slice(now);
            self.bytes = later;
            Ok(size)
        }
    }

    type Parts = Vec<(PartHead, Vec<u8>)>;

    fn read_all(bytes: &[u8], boundary: &str, sizes: &[usize]) -> io::Result<Parts> {
        let mut form = Form::new(Portions { bytes, sizes, turn: 0 }, boundary);
        let mut parts = Vec::new();
        while let Some(head) = form.next_part()? {
            let mut content = Vec::new();
            form.read_to_end(&mut content)?;
            parts.push((head, content));
        }
        Ok(parts)
    }

    fn write_form(parts: &[(String, Vec<u8>)], boundary: &str) -> Vec<u8> {
        let mut out = Vec::new();
        for (name, content) in parts {
            out.extend(format!("--{boundary}\r\nContent-Disposition: form-data; name=\"file\"; filename=\"{name}\"\r\nContent-Type: application/octet-stream\r\n\r\n").bytes());
            out.extend(content);
            out.extend(b"\r\n");
        }
        out.extend(format!("--{boundary}--\r\n").bytes());
        out
    }

    #[test]
    fn every_split_of_a_form_reads_the_same() {
        let parts = vec![
            ("/home/user/a".to_owned(), b"one\r\n--x\r\n-- two".to_vec()),
            ("b".to_owned(), Vec::new()),
            ("c".to_owned(), b"\r\n--xY\r\n".to_vec()),
        ];
        let raw = write_form(&parts, "xYz");
        for size in 1..raw.len() {
            let read = read_all(&raw, "xYz", &[size]).unwrap();
            let read: Vec<_> = read.into_iter().map(|(head, content)| (head.file_name.unwrap(), content)).collect();
            assert_eq!(read, parts, "portions of {size}");
        }
    }

    #[test]
    fn a_preamble_padding_and_an_epilogue_are_skipped() {
        let raw = b"pre\r\namble\r\n--b \t\r\nContent-Disposition: form-data; name=file\r\n\r\nx\r\n--b--\r\nepilogue";
        let parts = read_all(raw, "b", &[3]).unwrap();
        assert_eq!(parts, vec![(PartHead { name: "file".into(), file_name: None }, b"x".to_vec())]);
        assert_eq!(read_all(b"--b--", "b", &[1]).unwrap(), vec![]);
        assert_eq!(read_all(b"--b\r\n\r\nx\r\n--b--", "b", &[1]).unwrap()[0].1, b"x");
    }

    #[test]
    fn skipping_a_part_leads_to_the_next() {
        let raw = write_form(&[("a".into(), vec![b'x'; 10_000]), ("b".into(), b"y".to_vec())], "b");
        let mut form = Form::new(&raw[..], "b");
        form.next_part().unwrap().unwrap();
        assert_eq!(form.next_part().unwrap().unwrap().file_name.as_deref(), Some("b"));
    }

    #[test]
    fn cut_and_senseless_forms_are_errors_and_never_a_shorter_file() {
        let raw = write_form(&[("a".into(), b"content".to_vec())], "b");
        let closing = raw.len() - 4;
        for cut in 0..=closing {
            let error = read_all(&raw[..cut], "b", &[64]).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof, "cut at {cut}");
        }
        for bad in [
            "--b\r\nno colon\r\n\r\nx\r\n--b--",
            "--bx\r\n",
            "--b\r\nContent-Disposition: form-data; name=\"open\r\n\r\n",
        ] {
            assert_eq!(read_all(bad.as_bytes(), "b", &[5]).unwrap_err().kind(), io::ErrorKind::InvalidData, "{bad}");
        }
        let endless = [b"--b\r\n".to_vec(), vec![b'h'; 2 * MAX_HEADER_BYTES]].concat();
        assert_eq!(read_all(&endless, "b", &[4096]).unwrap_err().kind(), io::ErrorKind::InvalidData);
    }

    #[test]
    fn file_names_are_read_in_every_common_spelling() {
        for (header, expected) in [
            (r#"form-data; name="file"; filename="/a/b c.txt""#, "/a/b c.txt"),
            (r#"form-data; filename="a\"b"; name=file"#, "a\"b"),
            (r#"form-data; name="file"; filename="a%22b""#, "a\"b"),
            (r#"form-data; name="file"; filename="C:\dir\x""#, r"C:\dir\x"),
            (r#"form-data; name="file"; filename="ä;=.txt""#, "ä;=.txt"),
            (r#"form-data; name="file"; filename=plain.txt"#, "plain.txt"),
            (r#"form-data; name="file"; filename="fallback"; filename*=utf-8''%C3%A4%20b"#, "ä b"),
            (r#"form-data; name="file"; filename*=UTF-8'en'x; filename="fallback""#, "x"),
        ] {
            let head = parse_head(format!("\r\nContent-Disposition: {header}").as_bytes()).unwrap();
            assert_eq!((head.name.as_str(), head.file_name.as_deref()), ("file", Some(expected)), "{header}");
        }
    }

    #[test]
    fn boundaries_are_taken_from_the_content_type() {
        assert_eq!(boundary("multipart/form-data; boundary=abc").as_deref(), Some("abc"));
        assert_eq!(boundary("Multipart/Form-Data; charset=x; Boundary=\"a b\"").as_deref(), Some("a b"));
        for none in
            ["multipart/form-data", "multipart/mixed; boundary=a", "text/plain", "multipart/form-data; boundary="]
        {
            assert_eq!(boundary(none), None, "{none}");
        }
        assert_eq!(boundary(&format!("multipart/form-data; boundary={}", "a".repeat(71))), None);
    }

    proptest! {
        #[test]
        fn forms_survive_any_content_and_any_portions(
            contents in proptest::collection::vec(proptest::collection::vec(prop_oneof![Just(b'\r'), Just(b'\n'), Just(b'-'), Just(b'b'), any::<u8>()], 0..40), 0..4),
            sizes in proptest::collection::vec(1usize..12, 1..5),
        ) {
            let parts: Vec<_> = contents.into_iter().enumerate().map(|(index, content)| (format!("f{index}"), content)).collect();
            prop_assume!(parts.iter().all(|(_, content)| find(content, b"--bound").is_none()));
            let raw = write_form(&parts, "bound");
            let read: Vec<_> = read_all(&raw, "bound", &sizes).unwrap().into_iter().map(|(head, content)| (head.file_name.unwrap(), content)).collect();
            prop_assert_eq!(read, parts);
        }

        #[test]
        fn no_bytes_make_the_reader_panic_or_hang(bytes in proptest::collection::vec(prop_oneof![Just(b'\r'), Just(b'\n'), Just(b'-'), Just(b'b'), Just(b':'), any::<u8>()], 0..80)) {
            drop(read_all(&bytes, "b", &[7]));
        }
    }
}
