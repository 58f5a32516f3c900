//! A process and what can be asked of it.

use std::ffi::OsString;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, eventfd};
use rustix::termios::Winsize;

use super::feed::{Feed, Subscription};
use super::input::{Input, InputError, Target};
use super::spec::{ExitInfo, Face, PtySize};
use super::wire::Order;
use crate::clock::Countdown;

/// A process that was started, running or ended.
#[derive(Debug)]
pub struct Process {
    pid: u32,
    about: About,
    pub(super) feed: Feed,
    input: Input,
    /// The supervisor's socket.
    pub(super) control: UnixStream,
    state: Mutex<State>,
    changed: Condvar,
    /// Readable once the process has ended.
    over: OwnedFd,
}

/// What a process was started as.
#[derive(Debug)]
pub(super) struct About {
    pub(super) program: OsString,
    pub(super) args: Vec<OsString>,
    pub(super) cwd: PathBuf,
    pub(super) tag: Option<String>,
    pub(super) face: Face,
}

#[derive(Debug, Default)]
struct State {
    exit: Option<(ExitInfo, Instant)>,
    gone: bool,
    timed_out: bool,
}

impl Process {
    pub(super) fn new(pid: u32, about: About, control: UnixStream, input: Target) -> io::Result<Self> {
        Ok(Self {
            pid,
            about,
            feed: Feed::default(),
            input: Input::new(input),
            control,
            state: Mutex::default(),
            changed: Condvar::new(),
            over: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
        })
    }

    /// Its number inside the sandbox.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// The program, as asked for.
    #[must_use]
    pub fn program(&self) -> &OsString {
        &self.about.program
    }

    /// Its arguments, as asked for.
    #[must_use]
    pub fn args(&self) -> &[OsString] {
        &self.about.args
    }

    /// The working directory it was started in.
    #[must_use]
    pub fn cwd(&self) -> &PathBuf {
        &self.about.cwd
    }

    /// Its tag.
    #[must_use]
    pub fn tag(&self) -> Option<&str> {
        self.about.tag.as_deref()
    }

    /// Who started it.
    #[must_use]
    pub fn face(&self) -> &Face {
        &self.about.face
    }

    /// Follows its output from now on.
    ///
    /// # Errors
    /// When no more descriptors can be made.
    pub fn subscribe(&self) -> io::Result<Subscription> {
        self.feed.subscribe()
    }

    /// Writes to its stdin, in the order of the calls; blocks while the pipe is full and the process lives.
    ///
    /// # Errors
    /// When it has no stdin pipe (any more), or it ended.
    pub fn write_stdin(&self, bytes: &[u8]) -> Result<(), InputError> {
        self.input.write_stdin(bytes, &self.over)
    }

    /// Types into its terminal; else as [`Process::write_stdin`].
    ///
    /// # Errors
    /// When it has no terminal, or it ended.
    pub fn write_terminal(&self, bytes: &[u8]) -> Result<(), InputError> {
        self.input.write_terminal(bytes, &self.over)
    }

    /// Closes its stdin, so that it reads the end.
    ///
    /// # Errors
    /// When it has no stdin pipe, or it is closed already.
    pub fn close_stdin(&self) -> Result<(), InputError> {
        self.input.close()
    }

    /// Whether it runs on a terminal.
    #[must_use]
    pub fn has_terminal(&self) -> bool {
        self.input.terminal().is_some()
    }

    /// Resizes its terminal, whose foreground programs get SIGWINCH.
    ///
    /// # Errors
    /// When it has none.
    pub fn resize(&self, size: PtySize) -> Result<(), InputError> {
        let terminal = self.input.terminal().ok_or(InputError::NoTerminal)?;
        Ok(rustix::termios::tcsetwinsize(terminal, winsize(size)).map_err(io::Error::from)?)
    }

    /// Sends a signal to its leader and the leader's process group. Without effect when the leader has ended.
    pub fn signal(&self, signal: i32) {
        self.order(Order::Signal(signal));
    }

    /// Asks for the end of the whole tree, also of what has detached itself: SIGTERM, and after the grace SIGKILL until nothing
    /// is left; a grace of zero kills at once. Does not wait: see [`Process::wait_gone`]. Asking again can only shorten the grace.
    pub fn terminate(&self, grace: Duration) {
        let grace_ms = i32::try_from(grace.as_millis()).unwrap_or(i32::MAX);
        self.order(Order::Terminate { grace_ms });
    }

    fn order(&self, order: Order) {
        // A supervisor that is gone has nothing left to end.
        (&self.control).write_all(&order.encode()).ok();
    }

    /// How it ended, if it has.
    #[must_use]
    pub fn exit(&self) -> Option<ExitInfo> {
        self.state().exit.map(|(exit, _)| exit)
    }

    /// Whether its deadline was over before its leader ended. Known before its end is.
    #[must_use]
    pub fn timed_out(&self) -> bool {
        self.state().timed_out
    }

    /// Waits for its end and for that of its output, at most for `timeout`.
    #[must_use]
    pub fn wait(&self, timeout: Option<Duration>) -> Option<ExitInfo> {
        self.wait_until(timeout, |state| state.exit.map(|(exit, _)| exit))
    }

    /// Waits until nothing of its tree is left, at most for `timeout`. Whether that is so.
    #[must_use]
    pub fn wait_gone(&self, timeout: Option<Duration>) -> bool {
        self.wait_until(timeout, |state| state.gone.then_some(())).is_some()
    }

    /// How long ago it ended; `None` while it runs.
    pub(super) fn ended_for(&self) -> Option<Duration> {
        self.state().exit.map(|(_, at)| at.elapsed())
    }

    fn wait_until<T>(&self, timeout: Option<Duration>, reached: impl Fn(&State) -> Option<T>) -> Option<T> {
        let mut countdown = timeout.map(Countdown::new);
        let mut state = self.state();
        loop {
            if let Some(value) = reached(&state) {
                return Some(value);
            }
            state = match &mut countdown {
                None => self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
                Some(countdown) => {
                    let slice = countdown.slice();
                    if slice.is_zero() {
                        return None;
                    }
                    self.changed.wait_timeout(state, slice).unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes the end and tells everyone who waits for it.
    pub(super) fn set_ended(&self, exit: ExitInfo) {
        self.state().exit = Some((exit, Instant::now()));
        self.changed.notify_all();
        // Wakes whoever writes input; cannot block, the counter is 0.
        rustix::io::write(&self.over, &1u64.to_ne_bytes()).ok();
        // Background processes that share stdin read its end. There may be no pipe, or none any more.
        self.input.close().ok();
        self.feed.end(exit);
    }

    pub(super) fn set_timed_out(&self) {
        self.state().timed_out = true;
    }

    pub(super) fn set_gone(&self) {
        self.state().gone = true;
        self.changed.notify_all();
    }
}

pub(super) fn winsize(size: PtySize) -> Winsize {
    Winsize { ws_row: size.rows, ws_col: size.cols, ws_xpixel: 0, ws_ypixel: 0 }
}
