//! The supervisor of one job: a small single-threaded process that owns everything the job starts.
//!
//! It is a child subreaper, so whatever loses its parent (double forks, `setsid`) becomes its child and nothing escapes. It starts
//! the job's leader, reports how the leader ends, ends the whole tree when told to, and leaves when its last child is reaped. All
//! supervisors are forked from one process of this mode, see `crate::process`.

mod child;
mod tree;

use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::process::ExitCode;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags};
use rustix::fs::{Mode, OFlags};
use rustix::process::{Pid, Signal, WaitOptions, WaitStatus};

use crate::clock::Countdown;
use crate::http::poll_fds;
use crate::process::wire::{Order, Plan, RECORD_BYTES, Report, Stage, receive_socket};
use crate::sys::{self, Fork};

/// Runs the mode `supervise`: for each socket that comes over this process's stdin, a supervisor is forked. Ends with its stdin;
/// supervisors go on until their own sockets close.
#[must_use]
pub fn main() -> ExitCode {
    match fork_supervisors() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // The guest sees the sockets close; the reason is in its log.
            eprintln!("supervisor: {error}");
            ExitCode::FAILURE
        }
    }
}

fn fork_supervisors() -> io::Result<()> {
    let orders = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    let null = rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    rustix::stdio::dup2_stdin(null)?;
    // Supervisors that end need no reaping: nobody asks for their status.
    sys::ignore_sigchld();
    while let Some(socket) = receive_socket(&orders)? {
        match sys::fork() {
            Ok(Fork::Child) => {
                drop(orders);
                return supervise(socket.into());
            }
            Ok(Fork::Parent(_)) => {}
            // The closed socket tells the guest.
            Err(error) => eprintln!("supervisor: cannot fork: {error}"),
        }
    }
    Ok(())
}

fn supervise(socket: UnixStream) -> io::Result<()> {
    sys::reset_signals();
    sys::block_sigchld();
    let sigchld = sys::sigchld_fd()?;
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
    let (plan, fds) = Plan::receive(&socket)?;
    let started = child::start(&plan, fds);
    let deadline = (plan.deadline_ms > 0).then(|| Countdown::new(Duration::from_millis(plan.deadline_ms)));
    drop(plan);
    let report = match started {
        Ok(pid) => Report::Started { pid: pid.as_raw_pid() },
        Err(failure) => Report::Failed { stage: failure.stage, errno: failure.errno },
    };
    (&socket).write_all(&report.encode())?;
    match started {
        Ok(leader) => Supervisor { socket, leader: Some(leader), deadline, ending: Ending::No }.run(&sigchld),
        Err(_) => Ok(()),
    }
}

/// A start that failed.
#[derive(Debug, Clone, Copy)]
struct Failure {
    stage: Stage,
    errno: i32,
}

impl Failure {
    fn new(stage: Stage, error: impl Into<io::Error>) -> Self {
        Self { stage, errno: error.into().raw_os_error().unwrap_or(libc::EIO) }
    }
}

/// How far the end of the tree has been asked for.
#[derive(Debug)]
enum Ending {
    No,
    /// SIGTERM was sent; SIGKILL follows when the grace is over.
    Asked(Countdown),
    /// Everything that appears is killed.
    Now,
}

struct Supervisor {
    socket: UnixStream,
    /// Until it is reaped.
    leader: Option<Pid>,
    /// Until the leader is reaped.
    deadline: Option<Countdown>,
    ending: Ending,
}

impl Supervisor {
    fn run(mut self, sigchld: &impl AsFd) -> io::Result<()> {
        loop {
            // Reap before the first wait too: the leader may have ended before SIGCHLD could be waited for.
            if !self.reap()? {
                return Ok(());
            }
            let grace = match &mut self.ending {
                Ending::Asked(grace) => Some(grace.slice()),
                Ending::No | Ending::Now => None,
            };
            let deadline = self.deadline.as_mut().map(Countdown::slice);
            let timeout = [grace, deadline].into_iter().flatten().min();
            let mut fds = [PollFd::new(&self.socket, PollFlags::IN), PollFd::new(sigchld, PollFlags::IN)];
            poll_fds(&mut fds, timeout)?;
            let [told, _] = fds.map(|fd| !fd.revents().is_empty());
            // Pending signals collapse into one, so reading it once is enough; `reap` takes all children.
            rustix::io::read(sigchld, &mut [0; 128]).ok();
            if told {
                self.obey()?;
            }
            if let Ending::Asked(grace) = &mut self.ending
                && grace.expired()
            {
                self.ending = Ending::Now;
            }
            if self.deadline.as_mut().is_some_and(Countdown::expired) {
                self.deadline = None;
                // As in `reap`: a guest that is gone is noticed elsewhere.
                self.socket.write_all(&Report::TimedOut.encode()).ok();
                self.ending = Ending::Now;
            }
            if matches!(self.ending, Ending::Now) {
                tree::kill();
            }
        }
    }

    /// Takes all children that have ended. False when none is left.
    fn reap(&mut self) -> io::Result<bool> {
        loop {
            match rustix::process::wait(WaitOptions::NOHANG) {
                Ok(Some((pid, status))) if Some(pid) == self.leader => {
                    self.leader = None;
                    self.deadline = None;
                    // A guest that is gone does not need to know; its end is seen by `obey`.
                    self.socket.write_all(&leader_report(status).encode()).ok();
                }
                Ok(Some(_)) | Err(rustix::io::Errno::INTR) => {}
                Ok(None) => return Ok(true),
                Err(rustix::io::Errno::CHILD) => return Ok(false),
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn obey(&mut self) -> io::Result<()> {
        let mut bytes = [0; RECORD_BYTES];
        let order = match self.socket.read_exact(&mut bytes) {
            Ok(()) => Order::decode(&bytes),
            // Without a guest nobody could ever end the job.
            Err(_) => Some(Order::Terminate { grace_ms: 0 }),
        };
        match order {
            Some(Order::Signal(signal)) => {
                if let (Some(leader), Some(signal)) = (self.leader, Signal::from_named_raw(signal)) {
                    // The leader is not reaped, so its number still means it. It leads a group of its own; a leader that has
                    // just ended takes no signal.
                    rustix::process::kill_process_group(leader, signal).ok();
                }
            }
            Some(Order::Terminate { grace_ms }) => match u64::try_from(grace_ms) {
                Ok(grace_ms @ 1..) => {
                    tree::terminate();
                    self.ending = Ending::Asked(Countdown::new(Duration::from_millis(grace_ms)));
                }
                _ => self.ending = Ending::Now,
            },
            None => return Err(io::Error::new(io::ErrorKind::InvalidData, "unknown order from the guest")),
        }
        Ok(())
    }
}

fn leader_report(status: WaitStatus) -> Report {
    match status.terminating_signal() {
        Some(signal) => Report::Killed { signal, core_dumped: status.as_raw() & 0x80 != 0 },
        None => Report::Exited { code: status.exit_status().unwrap_or(-1) },
    }
}
