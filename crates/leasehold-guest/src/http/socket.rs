//! A connected stream socket, Unix or TCP, with the waits that the server needs.

use std::io;
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, Shutdown, recv, send, shutdown};

use crate::clock::Countdown;

/// How long a peer may take nothing of what is sent to it before it counts as gone. Chosen: longer than a network
/// hiccup, far shorter than the quarter of an hour the kernel retries (e2b-dev/infra#3292).
pub const STALL_LIMIT: Duration = Duration::from_secs(60);

/// A connected stream socket.
#[derive(Debug)]
pub struct Socket {
    fd: OwnedFd,
}

/// What ended a wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wait {
    /// The other descriptor is readable.
    Ready,
    /// The peer closed the connection, or its sending half.
    PeerGone,
    /// The time is over.
    Timeout,
}

impl From<UnixStream> for Socket {
    fn from(stream: UnixStream) -> Self {
        Self { fd: stream.into() }
    }
}

impl From<TcpStream> for Socket {
    fn from(stream: TcpStream) -> Self {
        Self { fd: stream.into() }
    }
}

impl From<OwnedFd> for Socket {
    fn from(fd: OwnedFd) -> Self {
        Self { fd }
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl From<Socket> for OwnedFd {
    fn from(socket: Socket) -> Self {
        socket.fd
    }
}

/// Waits for events on several descriptors; `None` waits for ever. Returns how many have events. Interruptions by
/// signals restart the wait with the full time, which signals blocked in all threads make rare.
pub(crate) fn poll_fds(fds: &mut [PollFd<'_>], timeout: Option<Duration>) -> io::Result<usize> {
    let timeout = timeout.map(|time| Timespec {
        tv_sec: i64::try_from(time.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(time.subsec_nanos()),
    });
    loop {
        match poll(fds, timeout.as_ref()) {
            Err(Errno::INTR) => {}
            result => return Ok(result?),
        }
    }
}

impl Socket {
    /// Reads what has arrived, waiting for at least one byte; 0 at the end.
    ///
    /// # Errors
    /// Those of the socket.
    pub fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            match recv(&self.fd, &mut *buffer, RecvFlags::empty()) {
                Err(Errno::INTR) => {}
                result => return Ok(result?.0),
            }
        }
    }

    /// Whether bytes (or the end) arrive within `timeout`; `None` waits for ever.
    ///
    /// # Errors
    /// Those of poll(2).
    pub fn wait_readable(&self, timeout: Option<Duration>) -> io::Result<bool> {
        let mut fds = [PollFd::new(&self.fd, PollFlags::IN)];
        Ok(poll_fds(&mut fds, timeout)? > 0)
    }

    /// Waits until `other` is readable, the peer is gone, or `timeout` is over. The peer's absence wins.
    ///
    /// # Errors
    /// Those of poll(2).
    pub fn wait_beside(&self, other: BorrowedFd<'_>, timeout: Option<Duration>) -> io::Result<Wait> {
        let mut fds = [PollFd::from_borrowed_fd(other, PollFlags::IN), PollFd::new(&self.fd, PollFlags::RDHUP)];
        if poll_fds(&mut fds, timeout)? == 0 {
            return Ok(Wait::Timeout);
        }
        let gone = PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL;
        Ok(if fds[1].revents().intersects(gone) { Wait::PeerGone } else { Wait::Ready })
    }

    /// Writes all of `bytes`.
    ///
    /// # Errors
    /// `TimedOut` when the peer takes nothing for [`STALL_LIMIT`] or when `deadline` runs out; else those of the socket.
    pub fn write_all(&self, mut bytes: &[u8], mut deadline: Option<&mut Countdown>) -> io::Result<()> {
        while !bytes.is_empty() {
            match send(&self.fd, bytes, SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
                Ok(sent) => bytes = &bytes[sent..],
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => self.wait_writable(deadline.as_deref_mut())?,
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Sends `length` bytes of `file` from `offset` on with sendfile(2), so that they never enter this process.
    ///
    /// # Errors
    /// `UnexpectedEof` when the file ends early; else as [`Socket::write_all`].
    pub fn send_file(&self, file: BorrowedFd<'_>, mut offset: u64, length: u64) -> io::Result<()> {
        let end = offset.checked_add(length).ok_or(io::ErrorKind::InvalidInput)?;
        while offset < end {
            // sendfile has no flag for "don't wait": it is called when there is room and with bounded portions, so that a
            // stalled peer is noticed between them.
            self.wait_writable(None)?;
            let portion = usize::try_from((end - offset).min(1 << 20)).expect("at most 1 MiB");
            match rustix::fs::sendfile(&self.fd, file, Some(&mut offset), portion) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(_) | Err(Errno::INTR | Errno::AGAIN) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    fn wait_writable(&self, mut deadline: Option<&mut Countdown>) -> io::Result<()> {
        let mut stall = Countdown::new(STALL_LIMIT);
        loop {
            let mut slice = stall.slice();
            if let Some(deadline) = deadline.as_deref_mut() {
                slice = slice.min(deadline.slice());
            }
            if slice.is_zero() {
                return Err(io::ErrorKind::TimedOut.into());
            }
            let mut fds = [PollFd::new(&self.fd, PollFlags::OUT)];
            if poll_fds(&mut fds, Some(slice))? > 0 {
                return Ok(());
            }
        }
    }

    /// Tells the peer that nothing more comes, then takes what it still sends for a short while (at most 1 MiB, 1 s), so
    /// that closing with unread input does not reset the connection before the peer has read the answer.
    pub(crate) fn linger_close(self) {
        if shutdown(&self.fd, Shutdown::Write).is_err() {
            return;
        }
        let mut countdown = Countdown::new(Duration::from_secs(1));
        let mut buffer = [0; 8192];
        for _ in 0..128 {
            let slice = countdown.slice();
            match self.wait_readable(Some(slice)) {
                Ok(true) if !slice.is_zero() => {}
                _ => return,
            }
            if !matches!(self.read(&mut buffer), Ok(1..)) {
                return;
            }
        }
    }
}
