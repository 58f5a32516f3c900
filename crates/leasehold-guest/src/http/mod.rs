//! A small blocking HTTP/1.1 server: one thread per connection, no event loop.
//!
//! Threads and blocking calls come through a gVisor restore, where event loops on epoll do not. The server knows no routes:
//! a [`Handler`] matches on method and path, reads the body (a [`std::io::Read`]) and sends one response.
//!
//! - Connections stay open and may be pipelined; an idle one is closed after [`Limits::idle`].
//! - A request's head must arrive within [`Limits::head`] and be at most [`MAX_HEAD_BYTES`] long, else 408 or 431.
//! - A handler that returns an error before it has answered: `FileTooLarge` becomes 413, `InvalidData` 400, another 500. After it
//!   has begun to answer, the connection closes, so that the client sees a cut response and not a complete one.
//! - A handler that panics is 500 (or a cut response), and its connection closes; the process lives on.
//! - Above [`Limits::connections`] a new connection gets 503 and is closed.
//! - A peer that takes nothing for [`STALL_LIMIT`] counts as gone.
//!
//! ```no_run
//! use std::io;
//! use std::sync::Arc;
//! use leasehold_guest::http::{Handler, Limits, Listener, Request, Response, Server};
//!
//! struct Hello;
//!
//! impl Handler for Hello {
//!     fn handle(&self, request: &mut Request<'_>, response: Response<'_>) -> io::Result<()> {
//!         match (request.method(), request.path()) {
//!             ("GET" | "HEAD", "/file") => {
//!                 let file = std::fs::File::open("/etc/hostname")?;
//!                 let length = file.metadata()?.len();
//!                 let mut body = response.header("Content-Type", "text/plain").fixed(length)?;
//!                 body.send_file(&file, 0, length)?; // sendfile(2); skipped for HEAD
//!                 body.finish()
//!             }
//!             ("POST", "/echo") => {
//!                 let body = request.body().read_to_limit(1 << 20)?; // longer: 413
//!                 response.send(&body)
//!             }
//!             ("GET", "/count") => {
//!                 let mut body = response.stream()?;
//!                 for number in 0..3 {
//!                     body.write(format!("{number}\n").as_bytes(), None)?; // one chunk, leaves at once
//!                 }
//!                 body.finish()
//!             }
//!             _ => response.status(404).send_text("no such route"),
//!         }
//!     }
//! }
//!
//! # fn main() -> io::Result<()> {
//! let listener = std::os::unix::net::UnixListener::bind("/tmp/hello.sock")?;
//! let server = Server::start(vec![Listener::http(listener, Arc::new(Hello))?], Limits::default())?;
//! # drop(server); Ok(())
//! # }
//! ```

mod body;
mod connection;
mod head;
mod response;
mod server;
mod socket;

pub use body::Body;
pub use connection::{Handler, Request};
pub use head::{Head, MAX_HEAD_BYTES};
pub use response::{FixedBody, Response, StreamBody};
pub use server::{Limits, Listener, Server};
pub(crate) use socket::poll_fds;
pub use socket::{STALL_LIMIT, Socket, Wait};
