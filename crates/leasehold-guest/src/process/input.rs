//! Input for a process: its stdin pipe or its terminal.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;

use crate::http::poll_fds;

/// Input that could not be given.
#[derive(Debug, thiserror::Error)]
pub enum InputError {
    /// The process has no stdin pipe, or it was closed.
    #[error("stdin is not a pipe or was closed")]
    NoStdin,
    /// The process has no terminal.
    #[error("the process has no terminal")]
    NoTerminal,
    /// The process has ended.
    #[error("the process has ended")]
    Ended,
    /// The pipe or terminal refused.
    #[error("{0}")]
    Io(#[from] io::Error),
}

/// Where a process's input goes.
#[derive(Debug)]
pub(super) enum Target {
    Null,
    Pipe(Mutex<Option<Arc<OwnedFd>>>),
    Terminal(Arc<OwnedFd>),
}

/// The writing side of a process's input.
#[derive(Debug)]
pub(super) struct Input {
    target: Target,
    /// Held while one piece is written, so that pieces never mix.
    order: Mutex<()>,
}

impl Input {
    pub(super) fn new(target: Target) -> Self {
        Self { target, order: Mutex::new(()) }
    }

    pub(super) fn terminal(&self) -> Option<&Arc<OwnedFd>> {
        match &self.target {
            Target::Terminal(fd) => Some(fd),
            Target::Null | Target::Pipe(_) => None,
        }
    }

    /// Writes all bytes to the pipe, waiting for the process to take them; `over` becomes readable when it never will.
    pub(super) fn write_stdin(&self, bytes: &[u8], over: &OwnedFd) -> Result<(), InputError> {
        let Target::Pipe(pipe) = &self.target else { return Err(InputError::NoStdin) };
        let _order = self.order.lock().unwrap_or_else(PoisonError::into_inner);
        // Cloned, so that closing need not wait for a write that waits.
        let pipe = pipe.lock().unwrap_or_else(PoisonError::into_inner).clone().ok_or(InputError::NoStdin)?;
        write_all(&pipe, bytes, over)
    }

    pub(super) fn write_terminal(&self, bytes: &[u8], over: &OwnedFd) -> Result<(), InputError> {
        let terminal = self.terminal().ok_or(InputError::NoTerminal)?;
        let _order = self.order.lock().unwrap_or_else(PoisonError::into_inner);
        write_all(terminal, bytes, over)
    }

    /// Closes the pipe; what is being written just now is still written.
    pub(super) fn close(&self) -> Result<(), InputError> {
        let Target::Pipe(pipe) = &self.target else { return Err(InputError::NoStdin) };
        match pipe.lock().unwrap_or_else(PoisonError::into_inner).take() {
            Some(_) => Ok(()),
            None => Err(InputError::NoStdin),
        }
    }
}

/// `fd` is non-blocking.
fn write_all(fd: &OwnedFd, mut bytes: &[u8], over: &OwnedFd) -> Result<(), InputError> {
    while !bytes.is_empty() {
        match rustix::io::write(fd, bytes) {
            Ok(count) => bytes = &bytes[count..],
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => {
                let mut fds = [PollFd::new(fd, PollFlags::OUT), PollFd::from_borrowed_fd(over.as_fd(), PollFlags::IN)];
                poll_fds(&mut fds, None)?;
                if !fds[1].revents().is_empty() {
                    return Err(InputError::Ended);
                }
            }
            Err(error) => return Err(InputError::Io(error.into())),
        }
    }
    Ok(())
}
