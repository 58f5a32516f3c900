//! The spawner: one small process from which all supervisors are forked.
//!
//! This process has threads, so it may not fork; executing the binary anew for each supervisor would double the cost of a start (and
//! under gVisor every exec makes later checkpoints slower: measured with 20240729, 1000 of them add 2 s). The spawner is
//! executed once, has one thread, knows nothing, and forks a supervisor for each socket that it is sent.

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};

use super::Reaping;
use super::wire::send_with_fds;

/// Our side of the spawner, which is started when it is first needed and again if it was killed.
#[derive(Debug)]
pub(super) struct Spawner {
    guest: PathBuf,
    reaping: Reaping,
    running: Mutex<Option<Running>>,
}

#[derive(Debug)]
struct Running {
    /// Dropped first: the spawner ends when it is closed.
    socket: UnixStream,
    _process: Option<Reaped>,
}

/// Takes the exit status when dropped.
#[derive(Debug)]
struct Reaped(Child);

impl Drop for Reaped {
    fn drop(&mut self) {
        self.0.wait().ok();
    }
}

impl Spawner {
    pub(super) fn new(guest: PathBuf, reaping: Reaping) -> Self {
        Self { guest, reaping, running: Mutex::default() }
    }

    /// Starts the spawner if it does not run, so that the first process need not wait for it.
    pub(super) fn warm_up(&self) -> io::Result<()> {
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        if running.is_none() {
            *running = Some(self.start()?);
        }
        Ok(())
    }

    /// Forks a supervisor; returns the socket to it.
    pub(super) fn supervisor(&self) -> io::Result<UnixStream> {
        let (ours, theirs) = UnixStream::pair()?;
        let theirs = OwnedFd::from(theirs);
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        let spawner = match running.take() {
            Some(spawner) => spawner,
            None => self.start()?,
        };
        let spawner = match send_with_fds(&spawner.socket, &[0], &[theirs.as_fd()]) {
            Ok(_) => spawner,
            // It was killed, by the kernel for want of memory or by the sandbox's root. Its supervisors live on.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {
                drop(spawner);
                let spawner = self.start()?;
                send_with_fds(&spawner.socket, &[0], &[theirs.as_fd()])?;
                spawner
            }
            Err(error) => return Err(error),
        };
        *running = Some(spawner);
        Ok(ours)
    }

    fn start(&self) -> io::Result<Running> {
        let (socket, theirs) = UnixStream::pair()?;
        let child = Command::new(&self.guest)
            .arg("supervise")
            .env_clear()
            .stdin(OwnedFd::from(theirs))
            // What supervisors complain of goes where the guest's complaints go.
            .stdout(Stdio::inherit())
            .stderr(Stdio::inherit())
            .spawn()?;
        let process = (self.reaping == Reaping::ByProcess).then(|| Reaped(child));
        Ok(Running { socket, _process: process })
    }
}
