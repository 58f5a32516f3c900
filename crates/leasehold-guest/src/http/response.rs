//! Answering a request: whole, from a file, or piece by piece.

use std::cell::Cell;
use std::fmt::Write as _;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use super::socket::{Socket, Wait};
use crate::clock::Countdown;

/// How far the answer to a request has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Progress {
    None,
    Started,
    Complete,
}

/// What a response needs to know of its request, and where it notes how far it has come.
#[derive(Debug)]
pub(crate) struct Exchange {
    pub(crate) is_head: bool,
    pub(crate) is_http10: bool,
    pub(crate) keep_alive: Cell<bool>,
    pub(crate) continue_due: Cell<bool>,
    pub(crate) progress: Cell<Progress>,
}

/// A response that is not sent yet: set status and headers, then choose how to send it.
#[derive(Debug)]
#[must_use = "a response that is not sent becomes status 500"]
pub struct Response<'c> {
    socket: &'c Socket,
    exchange: &'c Exchange,
    status: u16,
    headers: String,
}

impl<'c> Response<'c> {
    pub(crate) fn new(socket: &'c Socket, exchange: &'c Exchange) -> Self {
        Self { socket, exchange, status: 200, headers: String::new() }
    }

    /// Sets the status; 200 at first.
    pub fn status(mut self, status: u16) -> Self {
        self.status = status;
        self
    }

    /// Adds a header. Control characters in the value become spaces, so that no value can add headers of its own.
    /// `Content-Length`, `Transfer-Encoding` and `Connection` are the server's.
    pub fn header(mut self, name: &str, value: &str) -> Self {
        debug_assert!(name.bytes().all(|byte| byte.is_ascii_graphic() && byte != b':'), "bad header name {name:?}");
        self.headers.push_str(name);
        self.headers.push_str(": ");
        self.headers.extend(value.chars().map(|char| if char.is_control() { ' ' } else { char }));
        self.headers.push_str("\r\n");
        self
    }

    /// Sends the response with this body.
    ///
    /// # Errors
    /// When the peer is gone or stalled; nothing is left to do then.
    pub fn send(self, body: &[u8]) -> io::Result<()> {
        let (socket, exchange) = (self.socket, self.exchange);
        let mut bytes = self.head_with_length(body.len() as u64);
        if !exchange.is_head {
            bytes.extend_from_slice(body);
        }
        socket.write_all(&bytes, None)?;
        exchange.progress.set(Progress::Complete);
        Ok(())
    }

    /// Sends the response with a text body.
    ///
    /// # Errors
    /// As [`Response::send`].
    pub fn send_text(self, text: &str) -> io::Result<()> {
        self.header("Content-Type", "text/plain; charset=utf-8").send(text.as_bytes())
    }

    /// Sends the response with a JSON body.
    ///
    /// # Errors
    /// As [`Response::send`], and when `value` cannot be written as JSON.
    pub fn send_json(self, value: &impl serde::Serialize) -> io::Result<()> {
        let body = serde_json::to_vec(value)?;
        self.header("Content-Type", "application/json").send(&body)
    }

    /// Sends the head of a response of known length, whose body is then written in pieces.
    ///
    /// # Errors
    /// As [`Response::send`].
    pub fn fixed(self, length: u64) -> io::Result<FixedBody<'c>> {
        let (socket, exchange) = (self.socket, self.exchange);
        let head = self.head_with_length(length);
        exchange.progress.set(Progress::Started);
        socket.write_all(&head, None)?;
        Ok(FixedBody { socket, exchange, remaining: length })
    }

    /// Sends the head of a response of unknown length: each write becomes one chunk and leaves at once. A client of
    /// HTTP/1.0 gets the bare bytes and the end of the connection.
    ///
    /// # Errors
    /// As [`Response::send`].
    pub fn stream(self) -> io::Result<StreamBody<'c>> {
        let (socket, exchange) = (self.socket, self.exchange);
        let chunked = !exchange.is_http10;
        let head = if chunked {
            self.head("Transfer-Encoding: chunked\r\n")
        } else {
            exchange.keep_alive.set(false);
            self.head("")
        };
        exchange.progress.set(Progress::Started);
        // The head waits for the first chunk: one packet instead of two.
        Ok(StreamBody { socket, exchange, chunked, buffer: head })
    }

    fn head_with_length(self, length: u64) -> Vec<u8> {
        // A 204 and a 304 have no body and must not state a length (RFC 9110 §8.6).
        if matches!(self.status, 204 | 304) {
            return self.head("");
        }
        self.head(&format!("Content-Length: {length}\r\n"))
    }

    fn head(self, framing: &str) -> Vec<u8> {
        if self.exchange.continue_due.get() {
            // The client was not told to go on, so it may or may not send its body: the connection cannot be reused.
            self.exchange.keep_alive.set(false);
        }
        let mut head = String::with_capacity(128 + self.headers.len());
        write!(head, "HTTP/1.1 {} {}\r\n", self.status, reason(self.status)).expect("writing to a string succeeds");
        head.push_str(&self.headers);
        head.push_str(framing);
        match (self.exchange.keep_alive.get(), self.exchange.is_http10) {
            (false, _) => head.push_str("Connection: close\r\n"),
            (true, true) => head.push_str("Connection: keep-alive\r\n"),
            (true, false) => {}
        }
        head.push_str("\r\n");
        head.into_bytes()
    }
}

/// A body of known length, in the course of being sent. Ending short of the length closes the connection.
#[derive(Debug)]
#[must_use]
pub struct FixedBody<'c> {
    socket: &'c Socket,
    exchange: &'c Exchange,
    remaining: u64,
}

impl FixedBody<'_> {
    /// Bytes still to be sent.
    #[must_use]
    pub fn remaining(&self) -> u64 {
        self.remaining
    }

    /// Sends `length` bytes of `file` from `offset` on by sendfile(2).
    ///
    /// # Errors
    /// `InvalidInput` when that exceeds the stated length; `UnexpectedEof` when the file ends early; or the peer is gone.
    pub fn send_file(&mut self, file: impl AsFd, offset: u64, length: u64) -> io::Result<()> {
        self.take(length)?;
        if !self.exchange.is_head {
            self.socket.send_file(file.as_fd(), offset, length)?;
        }
        self.note(length);
        Ok(())
    }

    fn take(&self, length: u64) -> io::Result<()> {
        if length > self.remaining {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "body is longer than its stated length"));
        }
        Ok(())
    }

    fn note(&mut self, length: u64) {
        self.remaining -= length;
        if self.remaining == 0 {
            self.exchange.progress.set(Progress::Complete);
        }
    }

    /// Ends the body.
    ///
    /// # Errors
    /// `UnexpectedEof` when bytes are missing; the connection then closes, which tells the client.
    pub fn finish(mut self) -> io::Result<()> {
        if self.remaining > 0 && !self.exchange.is_head {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.remaining = 0;
        self.exchange.progress.set(Progress::Complete);
        Ok(())
    }
}

impl io::Write for FixedBody<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.take(bytes.len() as u64)?;
        if !self.exchange.is_head {
            self.socket.write_all(bytes, None)?;
        }
        self.note(bytes.len() as u64);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A body of unknown length, in the course of being sent. Dropping it unfinished closes the connection, which tells the
/// client that something is missing.
#[derive(Debug)]
#[must_use]
pub struct StreamBody<'c> {
    socket: &'c Socket,
    exchange: &'c Exchange,
    chunked: bool,
    /// Reused for every chunk; holds the response's head until the first one.
    buffer: Vec<u8>,
}

impl StreamBody<'_> {
    /// Sends `bytes` as one chunk, at once.
    ///
    /// # Errors
    /// `TimedOut` when `deadline` runs out or the peer takes nothing for
    /// [`STALL_LIMIT`](super::STALL_LIMIT); else when the peer is gone.
    pub fn write(&mut self, bytes: &[u8], deadline: Option<&mut Countdown>) -> io::Result<()> {
        self.push(bytes);
        self.flush(deadline)
    }

    /// Adds a chunk without sending it yet, for callers that have the next one at hand.
    pub fn push(&mut self, bytes: &[u8]) {
        if bytes.is_empty() || self.exchange.is_head {
            return;
        }
        if self.chunked {
            self.buffer.extend_from_slice(format!("{:x}\r\n", bytes.len()).as_bytes());
        }
        self.buffer.extend_from_slice(bytes);
        if self.chunked {
            self.buffer.extend_from_slice(b"\r\n");
        }
    }

    /// Sends what was pushed.
    ///
    /// # Errors
    /// As [`StreamBody::write`].
    pub fn flush(&mut self, deadline: Option<&mut Countdown>) -> io::Result<()> {
        if self.buffer.is_empty() {
            return Ok(());
        }
        self.socket.write_all(&self.buffer, deadline)?;
        self.buffer.clear();
        Ok(())
    }

    /// Bytes pushed and not sent yet.
    #[must_use]
    pub fn pending(&self) -> usize {
        self.buffer.len()
    }

    /// Waits until `other` is readable, the client is gone, or `timeout` is over.
    ///
    /// # Errors
    /// Those of poll(2).
    pub fn wait_beside(&self, other: BorrowedFd<'_>, timeout: Option<Duration>) -> io::Result<Wait> {
        self.socket.wait_beside(other, timeout)
    }

    /// Ends the body.
    ///
    /// # Errors
    /// As [`StreamBody::write`].
    pub fn finish(mut self) -> io::Result<()> {
        if self.chunked && !self.exchange.is_head {
            self.buffer.extend_from_slice(b"0\r\n\r\n");
        }
        self.flush(None)?;
        self.exchange.progress.set(Progress::Complete);
        Ok(())
    }
}

fn reason(status: u16) -> &'static str {
    match status {
        200 => "OK",
        201 => "Created",
        204 => "No Content",
        206 => "Partial Content",
        304 => "Not Modified",
        400 => "Bad Request",
        401 => "Unauthorized",
        403 => "Forbidden",
        404 => "Not Found",
        405 => "Method Not Allowed",
        406 => "Not Acceptable",
        408 => "Request Timeout",
        409 => "Conflict",
        411 => "Length Required",
        412 => "Precondition Failed",
        413 => "Content Too Large",
        415 => "Unsupported Media Type",
        416 => "Range Not Satisfiable",
        422 => "Unprocessable Content",
        429 => "Too Many Requests",
        431 => "Request Header Fields Too Large",
        499 => "Client Closed Request",
        500 => "Internal Server Error",
        501 => "Not Implemented",
        503 => "Service Unavailable",
        504 => "Gateway Timeout",
        505 => "HTTP Version Not Supported",
        507 => "Insufficient Storage",
        _ => "Status",
    }
}
