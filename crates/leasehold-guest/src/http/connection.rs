//! One connection: requests one after another, each answered by the handler.

use std::cell::Cell;
use std::io;
use std::ops::Deref;
use std::panic::{AssertUnwindSafe, catch_unwind};

use super::body::{Body, Buffer, Input};
use super::head::{BadHead, Head};
use super::response::{Exchange, Progress, Response};
use super::server::Limits;
use super::socket::Socket;
use crate::clock::Countdown;

/// Answers requests. One value serves all connections, from many threads at once.
pub trait Handler: Send + Sync + 'static {
    /// Answers one request.
    ///
    /// # Errors
    /// Before the response has begun: becomes a status (see the [module](super)). Later: the connection closes.
    fn handle(&self, request: &mut Request<'_>, response: Response<'_>) -> io::Result<()>;
}

/// A request: its [`Head`] (by dereferencing) and its body.
#[derive(Debug)]
pub struct Request<'c> {
    head: Head,
    body: Body<'c>,
}

impl<'c> Request<'c> {
    /// The body.
    pub fn body(&mut self) -> &mut Body<'c> {
        &mut self.body
    }

    /// The head and the body, borrowed apart.
    pub fn parts(&mut self) -> (&Head, &mut Body<'c>) {
        (&self.head, &mut self.body)
    }
}

impl Deref for Request<'_> {
    type Target = Head;

    fn deref(&self) -> &Head {
        &self.head
    }
}

/// Whether the connection can take another request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Next {
    Continue,
    Close,
}

/// Serves a connection until either side ends it.
pub(crate) fn serve(socket: Socket, handler: &dyn Handler, limits: &Limits) {
    let mut buffer = Buffer::default();
    loop {
        match read_head(&mut Input { socket: &socket, buffer: &mut buffer }, limits) {
            Ok(Some(head)) => match exchange(&socket, &mut buffer, head, handler) {
                Ok(Next::Continue) => {}
                Ok(Next::Close) => break,
                Err(_) => return,
            },
            Ok(None) | Err(HeadError::Io) => return,
            Err(HeadError::Bad(bad)) => {
                if refuse(&socket, &bad).is_err() {
                    return;
                }
                break;
            }
        }
    }
    socket.linger_close();
}

enum HeadError {
    /// The connection broke.
    Io,
    Bad(BadHead),
}

impl From<io::Error> for HeadError {
    fn from(_: io::Error) -> Self {
        Self::Io
    }
}

/// Waits for the next request's head. `None` when the client leaves, or stays idle, between requests.
fn read_head(input: &mut Input<'_>, limits: &Limits) -> Result<Option<Head>, HeadError> {
    let mut idle = Countdown::new(limits.idle);
    while input.buffered().is_empty() {
        let slice = idle.slice();
        if slice.is_zero() {
            return Ok(None);
        }
        if input.socket.wait_readable(Some(slice))? && !input.fill()? {
            return Ok(None);
        }
    }
    let mut patience = Countdown::new(limits.head);
    loop {
        // Empty lines between requests are allowed (RFC 9112 §2.2); httparse skips them.
        if let Some((head, length)) = Head::parse(input.buffered()).map_err(HeadError::Bad)? {
            input.consume(length);
            return Ok(Some(head));
        }
        loop {
            let slice = patience.slice();
            if slice.is_zero() {
                return Err(HeadError::Bad(BadHead { status: 408, message: "request head took too long" }));
            }
            if input.socket.wait_readable(Some(slice))? {
                break;
            }
        }
        if !input.fill()? {
            return Err(HeadError::Io);
        }
    }
}

fn exchange(socket: &Socket, buffer: &mut Buffer, head: Head, handler: &dyn Handler) -> io::Result<Next> {
    let framing = match head.framing() {
        Ok(framing) => framing,
        Err(bad) => return refuse(socket, &bad).map(|()| Next::Close),
    };
    let state = Exchange {
        is_head: head.method() == "HEAD",
        is_http10: head.is_http10(),
        keep_alive: Cell::new(head.keep_alive()),
        continue_due: Cell::new(head.expects_continue()),
        progress: Cell::new(Progress::None),
    };
    let mut request = Request { head, body: Body::new(Input { socket, buffer }, framing, &state.continue_due) };
    let response = Response::new(socket, &state);
    // The handler's state is shared by reference and guarded by locks, which a panic poisons; what it left half done on
    // this connection ends with the connection.
    let result = catch_unwind(AssertUnwindSafe(|| handler.handle(&mut request, response)));
    match (result, state.progress.get()) {
        (Ok(Ok(())), Progress::Complete) => {
            let reusable = state.keep_alive.get() && request.body.skip_rest();
            Ok(if reusable { Next::Continue } else { Next::Close })
        }
        (Err(_), Progress::None) => fail(socket, &state, 500, "the request's handler failed"),
        (Ok(Err(error)), Progress::None) => {
            let status = match error.kind() {
                io::ErrorKind::FileTooLarge => 413,
                io::ErrorKind::InvalidData => 400,
                io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => {
                    return Err(error);
                }
                _ => 500,
            };
            fail(socket, &state, status, &error.to_string())
        }
        (Ok(Ok(())), Progress::None) => fail(socket, &state, 500, "the request's handler did not answer"),
        (_, Progress::Started | Progress::Complete) => Err(io::ErrorKind::ConnectionAborted.into()),
    }
}

fn fail(socket: &Socket, state: &Exchange, status: u16, message: &str) -> io::Result<Next> {
    state.keep_alive.set(false);
    let response = Response::new(socket, state).status(status);
    response.send_json(&serde_json::json!({ "code": status, "message": message }))?;
    Ok(Next::Close)
}

pub(crate) fn refuse(socket: &Socket, bad: &BadHead) -> io::Result<()> {
    let state = Exchange {
        is_head: false,
        is_http10: false,
        keep_alive: Cell::new(false),
        continue_due: Cell::new(false),
        progress: Cell::new(Progress::None),
    };
    fail(socket, &state, bad.status, bad.message).map(|_| ())
}
