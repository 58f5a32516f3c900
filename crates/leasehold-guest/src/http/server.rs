//! Accepting connections: one thread for all listeners, one per connection.

use std::io;
use std::net::TcpListener;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd};
use rustix::io::Errno;
use rustix::net::{SocketFlags, accept_with};

use super::connection::{Handler, refuse, serve};
use super::head::BadHead;
use super::socket::{Socket, poll_fds};

/// Stack of a connection's thread in bytes. Only touched pages count; nesting of JSON is limited to 128 levels.
const STACK_BYTES: usize = 256 << 10;

/// Bounds of the server. The defaults are chosen.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Most connections at once, over all listeners; above it 503. Default 256: each may hold a process's output queue.
    pub connections: usize,
    /// How long a connection may be idle between requests. Default 10 minutes: longer than the idle time of client pools, so that
    /// the client closes first and no request meets a closing connection.
    pub idle: Duration,
    /// How long the head of a request may take from its first byte on. Default 10 seconds.
    pub head: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self { connections: 256, idle: Duration::from_secs(600), head: Duration::from_secs(10) }
    }
}

/// What is done with a connection.
type Serve = Arc<dyn Fn(Socket, &Limits) + Send + Sync>;

/// A listening socket and what serves its connections.
pub struct Listener {
    fd: OwnedFd,
    serve: Serve,
    /// Whether a refused connection is told 503.
    speaks_http: bool,
    is_tcp: bool,
}

impl std::fmt::Debug for Listener {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Listener").field("fd", &self.fd).finish_non_exhaustive()
    }
}

impl Listener {
    /// HTTP on a Unix socket.
    ///
    /// # Errors
    /// When the socket cannot be made non-blocking.
    pub fn http(listener: UnixListener, handler: Arc<dyn Handler>) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        let serve: Serve = Arc::new(move |socket, limits| serve(socket, &*handler, limits));
        Ok(Self { fd: listener.into(), serve, speaks_http: true, is_tcp: false })
    }

    /// HTTP on a TCP socket.
    ///
    /// # Errors
    /// When the socket cannot be made non-blocking.
    pub fn http_tcp(listener: TcpListener, handler: Arc<dyn Handler>) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        let serve: Serve = Arc::new(move |socket, limits| serve(socket, &*handler, limits));
        Ok(Self { fd: listener.into(), serve, speaks_http: true, is_tcp: true })
    }

    /// Another protocol on a Unix socket: `serve` runs on the connection's own thread.
    ///
    /// # Errors
    /// When the socket cannot be made non-blocking.
    pub fn raw(listener: UnixListener, serve: impl Fn(Socket) + Send + Sync + 'static) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        let serve: Serve = Arc::new(move |socket, _| serve(socket));
        Ok(Self { fd: listener.into(), serve, speaks_http: false, is_tcp: false })
    }

    fn accept(&self) -> Result<Socket, Errno> {
        let fd = accept_with(&self.fd, SocketFlags::CLOEXEC)?;
        if self.is_tcp {
            // Small chunks leave at once. A socket without the option is only slower.
            rustix::net::sockopt::set_tcp_nodelay(&fd, true).ok();
        }
        Ok(fd.into())
    }
}

/// Counts connections.
#[derive(Debug, Default)]
struct Gate {
    open: Mutex<usize>,
    closed: Condvar,
}

/// One counted connection.
struct Ticket(Arc<Gate>);

impl Gate {
    fn enter(self: &Arc<Self>, limit: usize) -> Option<Ticket> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if *open >= limit {
            return None;
        }
        *open += 1;
        Some(Ticket(Arc::clone(self)))
    }

    /// Waits until a connection ends, or for a moment if none does.
    fn wait_for_a_close(&self) {
        let open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        drop(self.closed.wait_timeout(open, Duration::from_millis(100)));
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        *self.0.open.lock().unwrap_or_else(PoisonError::into_inner) -= 1;
        self.0.closed.notify_all();
    }
}

/// A running server. Dropping it stops accepting; connections that exist go on until they end.
#[derive(Debug)]
pub struct Server {
    stop: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Starts accepting on `listeners`, which are already bound.
    ///
    /// # Errors
    /// When the thread or its stop event cannot be made.
    pub fn start(listeners: Vec<Listener>, limits: Limits) -> io::Result<Self> {
        let stop = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let stopped = Arc::clone(&stop);
        let thread = thread::Builder::new()
            .name("accept".into())
            .stack_size(STACK_BYTES)
            .spawn(move || accept_all(&listeners, &stopped, &Arc::new(limits)))?;
        Ok(Self { stop, thread: Some(thread) })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if rustix::io::write(&*self.stop, &1u64.to_ne_bytes()).is_ok()
            && let Some(thread) = self.thread.take()
        {
            drop(thread.join());
        }
    }
}

fn accept_all(listeners: &[Listener], stop: &OwnedFd, limits: &Arc<Limits>) {
    let gate = Arc::new(Gate::default());
    let mut fds: Vec<_> = listeners.iter().map(|listener| PollFd::new(&listener.fd, PollFlags::IN)).collect();
    fds.push(PollFd::from_borrowed_fd(stop.as_fd(), PollFlags::IN));
    loop {
        if let Err(error) = poll_fds(&mut fds, None) {
            eprintln!("cannot wait for connections: {error}");
            return;
        }
        if !fds[listeners.len()].revents().is_empty() {
            return;
        }
        for (listener, _) in listeners.iter().zip(&fds).filter(|(_, fd)| !fd.revents().is_empty()) {
            match listener.accept() {
                Ok(socket) => dispatch(listener, socket, &gate, limits),
                // Out of descriptors or memory: the listener stays readable, so wait for a connection to end.
                Err(Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::NOBUFS) => gate.wait_for_a_close(),
                // The peer left before it was accepted, or another such passing error.
                Err(_) => {}
            }
        }
    }
}

fn dispatch(listener: &Listener, socket: Socket, gate: &Arc<Gate>, limits: &Arc<Limits>) {
    let Some(ticket) = gate.enter(limits.connections) else {
        if listener.speaks_http {
            // The fresh socket's buffer takes these few bytes without waiting; a peer that has left needs no answer.
            drop(refuse(&socket, &BadHead { status: 503, message: "too many connections" }));
        }
        return;
    };
    let (serve, limits) = (Arc::clone(&listener.serve), Arc::clone(limits));
    let spawned = thread::Builder::new().name("connection".into()).stack_size(STACK_BYTES).spawn(move || {
        let _ticket = ticket;
        serve(socket, &limits);
    });
    if let Err(error) = spawned {
        eprintln!("cannot start a thread for a connection: {error}");
    }
}
