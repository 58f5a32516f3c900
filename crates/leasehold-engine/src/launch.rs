//! Runs the launcher and listens until the guest is ready.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use leasehold_guest::boot::plan::{BootPlan, Report};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;

use crate::error::{During, EngineError, ErrorKind, kind_of_errno};
use crate::process;
use crate::spec::ProcessId;

/// The longest line that is taken from the other side. Chosen: a message for people.
const LONGEST_LINE: usize = 16 << 10;

/// How much of the guest's log is shown when it dies. Chosen: the end of a panic message.
const LOG_TAIL: u64 = 2 << 10;

/// A boot that is under way.
pub(crate) struct Launch {
    launcher: Child,
    reports: Reports,
    deadline: Instant,
    process: Option<(ProcessId, OwnedFd)>,
}

impl Launch {
    /// Starts the launcher and gives it the plan.
    pub(crate) fn begin(guest: &Path, plan: &BootPlan, log: &Path, limit: Duration) -> Result<Self, EngineError> {
        const STAGE: &str = "launch";
        let log = File::create(log).during(STAGE, format_args!("cannot make {}", log.display()))?;
        let text = serde_json::to_vec(plan).map_err(|error| {
            EngineError::new(ErrorKind::InvalidInput, STAGE, format!("cannot write the plan: {error}"))
        })?;
        let mut launcher = Command::new(guest)
            .arg("launch")
            // Without a directory: with one, a static binary's spawn is a fork, and copies this process's page tables.
            .env_clear()
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .during(STAGE, format_args!("cannot execute {}", guest.display()))?;
        let (stdin, stdout) = (launcher.stdin.take(), launcher.stdout.take());
        let (mut stdin, stdout) = stdin.zip(stdout).expect("both were asked for");
        let launch = Self {
            launcher,
            reports: Reports { pipe: stdout, pending: Vec::new() },
            deadline: Instant::now() + limit,
            process: None,
        };
        // A launcher that dies early closes its end; what it has to say is in its report then.
        match stdin.write_all(&text) {
            Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
                Err(error).during(STAGE, "cannot hand over the plan")
            }
            _ => Ok(launch),
        }
    }

    /// The sandbox's first process, as soon as it is known.
    ///
    /// Its number cannot have been given to another: it is our child and nobody has reaped it.
    pub(crate) fn await_process(&mut self, log: &Path) -> Result<ProcessId, EngineError> {
        let report = self.next(log)?;
        let Report::Launched { pid } = report else { return Err(unexpected(report)) };
        let pidfd = process::open_pid(pid).during("launch", format_args!("cannot open process {pid}"))?;
        let start_time = process::start_time(pid);
        let (Some(pidfd), Some(start_time)) = (pidfd, start_time) else {
            return Err(EngineError::new(ErrorKind::Guest, "launch", format!("process {pid} was gone at once")));
        };
        let id = ProcessId { pid, start_time };
        self.process = Some((id, pidfd));
        Ok(id)
    }

    /// Waits until the guest says that it is ready.
    pub(crate) fn await_ready(&mut self, log: &Path) -> Result<(), EngineError> {
        match self.next(log)? {
            Report::Ready { ready: true } => Ok(()),
            other => Err(unexpected(other)),
        }
    }

    fn next(&mut self, log: &Path) -> Result<Report, EngineError> {
        match self.reports.next(self.deadline)? {
            Some(Report::Failed { error, stage, errno }) => Err(failed(&error, stage.as_deref(), errno)),
            Some(report) => Ok(report),
            None => {
                let message = format!("the guest died before it was ready{}", tail(log));
                Err(EngineError::new(ErrorKind::Guest, "launch", message))
            }
        }
    }

    /// Waits for the launcher, which has done its part, and hands out the process.
    pub(crate) fn finish(mut self) -> Result<OwnedFd, EngineError> {
        self.launcher.wait().during("launch", "cannot wait for the launcher")?;
        let (_, pidfd) =
            self.process.ok_or_else(|| EngineError::new(ErrorKind::Guest, "launch", "no process was reported"))?;
        Ok(pidfd)
    }

    /// Ends the launcher and the process. What else is in the sandbox dies with its first process.
    pub(crate) fn abort(mut self, limit: Duration) -> Result<(), EngineError> {
        const STAGE: &str = "abort";
        self.launcher.kill().during(STAGE, "cannot kill the launcher")?;
        self.launcher.wait().during(STAGE, "cannot wait for the launcher")?;
        // The launcher's line may still be unread, when something went wrong before we came to read it.
        if self.process.is_none()
            && let Ok(Some(Report::Launched { pid })) = self.reports.next(Instant::now())
            && let Ok(Some(pidfd)) = process::open_pid(pid)
        {
            self.process = Some((ProcessId { pid, start_time: 0 }, pidfd));
        }
        let Some((id, pidfd)) = self.process else { return Ok(()) };
        process::kill_opened(pidfd.as_fd()).during(STAGE, format_args!("cannot kill process {}", id.pid))?;
        if !process::await_end(pidfd.as_fd(), limit)
            .during(STAGE, format_args!("cannot wait for process {}", id.pid))?
        {
            return Err(EngineError::new(ErrorKind::Timeout, STAGE, format!("process {} does not end", id.pid)));
        }
        process::reap(pidfd.as_fd()).during(STAGE, format_args!("cannot reap process {}", id.pid))
    }
}

fn failed(error: &str, stage: Option<&str>, errno: Option<i32>) -> EngineError {
    // `clone` with EPERM or ENOSPC means that user namespaces are not to be had (sysctl, a container's filter, a limit).
    let kind = match (stage, errno) {
        (None, _) => ErrorKind::Guest,
        (Some("clone"), Some(libc::EPERM | libc::ENOSPC | libc::EINVAL)) => ErrorKind::Unsupported,
        (Some("overlay" | "mount"), Some(libc::EPERM | libc::EINVAL)) => ErrorKind::Unsupported,
        (_, Some(errno)) if errno != libc::ENOENT => kind_of_errno(errno),
        _ => ErrorKind::Io,
    };
    let message = match stage {
        Some(stage) => format!("{stage}: {error}"),
        None => error.to_owned(),
    };
    EngineError::new(kind, if stage.is_some() { "launch" } else { "guest" }, message)
}

fn unexpected(report: Report) -> EngineError {
    EngineError::new(ErrorKind::Guest, "launch", format!("unexpected report {report:?}"))
}

fn tail(log: &Path) -> String {
    let read = || {
        let mut file = File::open(log)?;
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(LOG_TAIL)))?;
        let mut bytes = Vec::new();
        file.take(LOG_TAIL).read_to_end(&mut bytes)?;
        Ok::<_, std::io::Error>(bytes)
    };
    match read() {
        Ok(bytes) if !bytes.is_empty() => format!("; its log ends with {:?}", String::from_utf8_lossy(&bytes).trim()),
        _ => String::new(),
    }
}

/// Lines from the pipe that launcher, first process and guest share one after the other.
struct Reports {
    pipe: ChildStdout,
    pending: Vec<u8>,
}

impl Reports {
    /// The next line; none at the end of the pipe.
    fn next(&mut self, deadline: Instant) -> Result<Option<Report>, EngineError> {
        const STAGE: &str = "launch";
        loop {
            if let Some(end) = self.pending.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.pending.drain(..=end).collect();
                return serde_json::from_slice(&line).map(Some).map_err(|error| {
                    let shown = String::from_utf8_lossy(&line[..line.len().min(200)]).into_owned();
                    EngineError::new(ErrorKind::Guest, STAGE, format!("{shown:?} is not a report: {error}"))
                });
            }
            if self.pending.len() > LONGEST_LINE {
                return Err(EngineError::new(ErrorKind::Guest, STAGE, "the report has no end"));
            }
            let left =
                Timespec::try_from(deadline.saturating_duration_since(Instant::now())).expect("a time limit fits");
            match rustix::event::poll(&mut [PollFd::new(&self.pipe, PollFlags::IN)], Some(&left)) {
                Ok(0) => return Err(EngineError::new(ErrorKind::Timeout, STAGE, "the guest was not ready in time")),
                Ok(_) => {}
                Err(Errno::INTR) => continue,
                Err(errno) => return Err(errno).during(STAGE, "cannot wait for the guest"),
            }
            let mut buffer = [0u8; 4096];
            match rustix::io::read(&self.pipe, &mut buffer) {
                Ok(0) => return Ok(None),
                Ok(length) => self.pending.extend_from_slice(&buffer[..length]),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno).during(STAGE, "cannot read the guest's report"),
            }
        }
    }
}
