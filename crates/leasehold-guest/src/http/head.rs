//! The head of a request: request line and headers, parsed and checked.

use std::borrow::Cow;

use percent_encoding::percent_decode_str;

/// Largest request head in bytes, request line included.
pub const MAX_HEAD_BYTES: usize = 64 << 10;

/// Most header lines in a request.
const MAX_HEADERS: usize = 128;

/// A request line and its headers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Head {
    method: String,
    target: String,
    headers: Vec<(String, String)>,
    minor_version: u8,
}

/// How the length of a request body is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Framing {
    Length(u64),
    Chunked,
}

/// A head that cannot be served: the status to answer with and what is wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct BadHead {
    pub(crate) status: u16,
    pub(crate) message: &'static str,
}

const fn bad(status: u16, message: &'static str) -> BadHead {
    BadHead { status, message }
}

impl Head {
    /// Parses the head at the start of `bytes`. `None` when it is not complete yet; else the head and its length.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Option<(Self, usize)>, BadHead> {
        let mut storage = [httparse::EMPTY_HEADER; MAX_HEADERS];
        let mut request = httparse::Request::new(&mut storage);
        let length = match request.parse(bytes) {
            Ok(httparse::Status::Complete(length)) if length <= MAX_HEAD_BYTES => length,
            Ok(httparse::Status::Partial) if bytes.len() < MAX_HEAD_BYTES => return Ok(None),
            Ok(_) => return Err(bad(431, "request head exceeds 64 KiB")),
            Err(httparse::Error::TooManyHeaders) => return Err(bad(431, "more than 128 headers")),
            Err(httparse::Error::Version) => return Err(bad(505, "only HTTP/1.0 and HTTP/1.1 are spoken here")),
            Err(_) => return Err(bad(400, "malformed request")),
        };
        let (Some(method), Some(target), Some(minor_version)) = (request.method, request.path, request.version) else {
            return Err(bad(400, "malformed request"));
        };
        let target = match target.split_once("://") {
            // Absolute form, as sent to proxies: the path starts at the first slash after the authority.
            Some((scheme, rest)) if !scheme.contains('/') => rest.find('/').map_or("/", |slash| &rest[slash..]),
            _ => target,
        };
        let headers = request
            .headers
            .iter()
            .map(|header| {
                // Header values are bytes; those that are no UTF-8 are read as Latin-1, as browsers do.
                let value = std::str::from_utf8(header.value)
                    .map_or_else(|_| header.value.iter().map(|&byte| char::from(byte)).collect(), str::to_owned);
                (header.name.to_owned(), value)
            })
            .collect();
        Ok(Some((Self { method: method.to_owned(), target: target.to_owned(), headers, minor_version }, length)))
    }

    /// The method, as sent.
    #[must_use]
    pub fn method(&self) -> &str {
        &self.method
    }

    /// The path as sent, percent-encoding kept, without the query.
    #[must_use]
    pub fn path(&self) -> &str {
        self.target.split('?').next().unwrap_or_default()
    }

    /// The query as sent, without the question mark; empty when there is none.
    #[must_use]
    pub fn query(&self) -> &str {
        self.target.split_once('?').map_or("", |(_, query)| query)
    }

    /// The decoded pairs of the query, in order. Bytes that are no UTF-8 become U+FFFD.
    pub fn query_pairs(&self) -> impl Iterator<Item = (String, String)> + '_ {
        self.query().split('&').filter(|pair| !pair.is_empty()).map(|pair| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            (decode(name), decode(value))
        })
    }

    /// The decoded value of the first query parameter of that name.
    #[must_use]
    pub fn query_value(&self, name: &str) -> Option<String> {
        self.query_pairs().find_map(|(found, value)| (found == name).then_some(value))
    }

    /// The value of the first header of that name; case of the name does not matter.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find_map(|(found, value)| found.eq_ignore_ascii_case(name).then_some(value.as_str()))
    }

    /// All headers, in order.
    pub fn headers(&self) -> impl Iterator<Item = (&str, &str)> {
        self.headers.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// Whether it is HTTP/1.0, which knows no chunks.
    pub(crate) fn is_http10(&self) -> bool {
        self.minor_version == 0
    }

    /// Whether the client wants the connection to stay open.
    pub(crate) fn keep_alive(&self) -> bool {
        if self.has_token("connection", "close") {
            return false;
        }
        !self.is_http10() || self.has_token("connection", "keep-alive")
    }

    /// Whether the client waits for `100 Continue` before it sends the body.
    pub(crate) fn expects_continue(&self) -> bool {
        !self.is_http10() && self.header("expect").is_some_and(|value| value.eq_ignore_ascii_case("100-continue"))
    }

    /// How the body's length is told. Whatever two readers could understand differently is refused (request smuggling).
    pub(crate) fn framing(&self) -> Result<Framing, BadHead> {
        let mut length = None;
        let mut chunked = false;
        for (name, value) in self.headers() {
            if name.eq_ignore_ascii_case("content-length") {
                if value.is_empty() || !value.bytes().all(|byte| byte.is_ascii_digit()) {
                    return Err(bad(400, "content-length is no number"));
                }
                let value = value.parse::<u64>().map_err(|_| bad(413, "content-length is too large"))?;
                if length.is_some_and(|earlier| earlier != value) {
                    return Err(bad(400, "content-length is given twice"));
                }
                length = Some(value);
            } else if name.eq_ignore_ascii_case("transfer-encoding") {
                if chunked || !value.eq_ignore_ascii_case("chunked") {
                    return Err(bad(501, "only the transfer encoding chunked is known"));
                }
                chunked = true;
            }
        }
        match (length, chunked) {
            (Some(_), true) => Err(bad(400, "content-length and transfer-encoding exclude each other")),
            (None, true) if self.is_http10() => Err(bad(400, "HTTP/1.0 has no transfer encodings")),
            (None, true) => Ok(Framing::Chunked),
            (length, false) => Ok(Framing::Length(length.unwrap_or(0))),
        }
    }

    fn has_token(&self, name: &str, token: &str) -> bool {
        self.headers().any(|(found, value)| {
            found.eq_ignore_ascii_case(name) && value.split(',').any(|part| part.trim().eq_ignore_ascii_case(token))
        })
    }
}

fn decode(text: &str) -> String {
    let spaces: Cow<'_, str> = if text.contains('+') { text.replace('+', " ").into() } else { text.into() };
    percent_decode_str(&spaces).decode_utf8_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Head {
        Head::parse(text.as_bytes()).unwrap().unwrap().0
    }

    #[test]
    fn target_query_and_headers_are_taken_apart() {
        let head = parse("GET /files?path=%2Fa%20b+c&username=u%C3%A9&x HTTP/1.1\r\nX-Access-TOKEN: t\r\n\r\n");
        assert_eq!((head.method(), head.path()), ("GET", "/files"));
        assert_eq!(head.query_value("path").as_deref(), Some("/a b c"));
        assert_eq!(head.query_value("username").as_deref(), Some("ué"));
        assert_eq!(head.query_value("x").as_deref(), Some(""));
        assert_eq!(head.query_value("y"), None);
        assert_eq!(head.header("x-access-token"), Some("t"));
        assert_eq!(parse("GET http://host:1/a/b?c HTTP/1.1\r\n\r\n").path(), "/a/b");
    }

    #[test]
    fn ambiguous_lengths_are_refused() {
        let framing = |headers: &str| parse(&format!("POST / HTTP/1.1\r\n{headers}\r\n")).framing();
        assert_eq!(framing(""), Ok(Framing::Length(0)));
        assert_eq!(framing("Content-Length: 5\r\nContent-Length: 5\r\n"), Ok(Framing::Length(5)));
        assert_eq!(framing("Transfer-Encoding: chunked\r\n"), Ok(Framing::Chunked));
        for (headers, status) in [
            ("Content-Length: 5\r\nContent-Length: 6\r\n", 400),
            ("Content-Length: +5\r\n", 400),
            ("Content-Length: 99999999999999999999\r\n", 413),
            ("Content-Length: 5\r\nTransfer-Encoding: chunked\r\n", 400),
            ("Transfer-Encoding: gzip, chunked\r\n", 501),
            ("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n", 501),
        ] {
            assert_eq!(framing(headers).unwrap_err().status, status, "{headers}");
        }
    }

    #[test]
    fn connections_stay_open_unless_told_otherwise() {
        assert!(parse("GET / HTTP/1.1\r\n\r\n").keep_alive());
        assert!(!parse("GET / HTTP/1.1\r\nConnection: x, Close\r\n\r\n").keep_alive());
        assert!(!parse("GET / HTTP/1.0\r\n\r\n").keep_alive());
        assert!(parse("GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n").keep_alive());
    }
}
