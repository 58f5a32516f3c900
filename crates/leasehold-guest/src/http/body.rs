//! The body of a request, read as it arrives.

use std::cell::Cell;
use std::io::{self, Read};

use super::head::Framing;
use super::socket::Socket;

/// Longest line between chunks: size, extensions, or a trailer.
const MAX_LINE_BYTES: usize = 8 << 10;

/// Most trailer lines after the last chunk.
const MAX_TRAILERS: usize = 64;

/// Bytes received and not yet taken.
#[derive(Debug, Default)]
pub(crate) struct Buffer {
    bytes: Vec<u8>,
    start: usize,
}

/// A connection's buffer in front of the socket that fills it.
#[derive(Debug)]
pub(crate) struct Input<'c> {
    pub(crate) socket: &'c Socket,
    pub(crate) buffer: &'c mut Buffer,
}

impl Input<'_> {
    pub(crate) fn buffered(&self) -> &[u8] {
        &self.buffer.bytes[self.buffer.start..]
    }

    pub(crate) fn consume(&mut self, count: usize) {
        self.buffer.start += count;
        if self.buffer.start == self.buffer.bytes.len() {
            self.buffer.bytes.clear();
            self.buffer.start = 0;
        }
    }

    /// Receives more bytes; false at the end.
    pub(crate) fn fill(&mut self) -> io::Result<bool> {
        let Buffer { bytes, start } = &mut *self.buffer;
        bytes.drain(..*start);
        *start = 0;
        let filled = bytes.len();
        bytes.resize(filled + 8192, 0);
        let count = self.socket.read(&mut bytes[filled..]);
        bytes.truncate(filled + *count.as_ref().unwrap_or(&0));
        Ok(count? > 0)
    }

    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let buffered = self.buffered();
        if buffered.is_empty() {
            return self.socket.read(out);
        }
        let count = buffered.len().min(out.len());
        out[..count].copy_from_slice(&buffered[..count]);
        self.consume(count);
        Ok(count)
    }

    /// Takes a line, its end removed.
    fn line(&mut self) -> io::Result<Vec<u8>> {
        loop {
            if let Some(end) = self.buffered().iter().position(|&byte| byte == b'\n') {
                let line = self.buffered()[..end].strip_suffix(b"\r").map(<[u8]>::to_vec);
                self.consume(end + 1);
                return line.ok_or_else(|| malformed("line of a chunked body ends without CR"));
            }
            if self.buffered().len() > MAX_LINE_BYTES {
                return Err(malformed("line of a chunked body is too long"));
            }
            if !self.fill()? {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
    }
}

fn malformed(message: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, message)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// That many bytes of a body of known length are left.
    Length(u64),
    /// The next chunk's size line comes; `first` when no chunk's line end is due before it.
    ChunkSize {
        first: bool,
    },
    /// That many bytes of a chunk are left.
    Chunk(u64),
    Done,
    /// The bytes made no sense, or ended early.
    Broken,
}

/// The body of a request. Reading it blocks until bytes arrive; there is no limit on the time between them, since a body
/// may be a stream that lives as long as its client. What a handler leaves unread is skipped, or the connection closes.
#[derive(Debug)]
pub struct Body<'c> {
    input: Input<'c>,
    state: State,
    continue_due: &'c Cell<bool>,
}

impl<'c> Body<'c> {
    pub(crate) fn new(input: Input<'c>, framing: Framing, continue_due: &'c Cell<bool>) -> Self {
        let state = match framing {
            Framing::Length(0) => State::Done,
            Framing::Length(length) => State::Length(length),
            Framing::Chunked => State::ChunkSize { first: true },
        };
        Self { input, state, continue_due }
    }

    /// The length that the client stated and that is still to come; `None` for a chunked body.
    #[must_use]
    pub fn remaining(&self) -> Option<u64> {
        match self.state {
            State::Length(left) => Some(left),
            State::Done => Some(0),
            State::ChunkSize { .. } | State::Chunk(_) | State::Broken => None,
        }
    }

    /// Reads the whole body into memory.
    ///
    /// # Errors
    /// `FileTooLarge` when it is longer than `limit` (answered with 413 if the handler returns it); else as reading.
    pub fn read_to_limit(&mut self, limit: usize) -> io::Result<Vec<u8>> {
        let too_large = || io::Error::new(io::ErrorKind::FileTooLarge, format!("request body exceeds {limit} bytes"));
        let stated = self.remaining().unwrap_or(0);
        if stated > limit as u64 {
            return Err(too_large());
        }
        let mut bytes = Vec::with_capacity(usize::try_from(stated.min(1 << 20)).expect("at most 1 MiB"));
        self.by_ref().take(limit as u64 + 1).read_to_end(&mut bytes)?;
        if bytes.len() > limit { Err(too_large()) } else { Ok(bytes) }
    }

    /// Skips what is left if it is small or already there; false when the connection cannot be used further.
    pub(crate) fn skip_rest(&mut self) -> bool {
        const SKIP_BYTES: usize = 256 << 10;
        if self.state == State::Done {
            return true;
        }
        if self.continue_due.get() || self.remaining().is_some_and(|left| left > SKIP_BYTES as u64) {
            return false;
        }
        let mut buffer = [0; 8192];
        let mut skipped = 0;
        while skipped < SKIP_BYTES {
            let soon = std::time::Duration::from_secs(1);
            let there =
                !self.input.buffered().is_empty() || self.input.socket.wait_readable(Some(soon)).unwrap_or(false);
            if !there {
                return false;
            }
            match self.read(&mut buffer) {
                Ok(0) => return self.state == State::Done,
                Ok(count) => skipped += count,
                Err(_) => return false,
            }
        }
        false
    }

    fn advance(&mut self, out: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.state {
                State::Done => return Ok(0),
                State::Broken => return Err(malformed("request body is broken")),
                State::Length(left) | State::Chunk(left) => {
                    let want = out.len().min(usize::try_from(left).unwrap_or(usize::MAX));
                    let count = self.input.read(&mut out[..want])?;
                    if count == 0 {
                        return Err(io::ErrorKind::UnexpectedEof.into());
                    }
                    let left = left - count as u64;
                    self.state = match self.state {
                        State::Chunk(_) if left == 0 => State::ChunkSize { first: false },
                        State::Chunk(_) => State::Chunk(left),
                        _ if left == 0 => State::Done,
                        _ => State::Length(left),
                    };
                    return Ok(count);
                }
                State::ChunkSize { first } => {
                    if !first && !self.input.line()?.is_empty() {
                        return Err(malformed("chunk is longer than its size says"));
                    }
                    self.state = match chunk_size(&self.input.line()?)? {
                        0 => {
                            self.skip_trailers()?;
                            State::Done
                        }
                        size => State::Chunk(size),
                    };
                }
            }
        }
    }

    fn skip_trailers(&mut self) -> io::Result<()> {
        for _ in 0..=MAX_TRAILERS {
            if self.input.line()?.is_empty() {
                return Ok(());
            }
        }
        Err(malformed("too many trailers"))
    }
}

fn chunk_size(line: &[u8]) -> io::Result<u64> {
    let digits = line.split(|&byte| byte == b';').next().unwrap_or_default().trim_ascii_end();
    if digits.is_empty() || digits.len() > 15 || !digits.iter().all(u8::is_ascii_hexdigit) {
        return Err(malformed("chunk size is no hexadecimal number"));
    }
    let text = std::str::from_utf8(digits).expect("hexadecimal digits are ASCII");
    Ok(u64::from_str_radix(text, 16).expect("15 hexadecimal digits fit 64 bits"))
}

impl Read for Body<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if out.is_empty() || self.state == State::Done {
            return Ok(0);
        }
        if self.continue_due.replace(false) {
            self.input.socket.write_all(b"HTTP/1.1 100 Continue\r\n\r\n", None)?;
        }
        let result = self.advance(out);
        if result.is_err() {
            self.state = State::Broken;
        }
        result
    }
}
