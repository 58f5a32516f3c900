//! Starting a process: streams, supervisor, plan, and the first report.

use std::ffi::OsString;
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread;

use rustix::fs::{Gid, Mode, OFlags, Uid};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::pty::{OpenptFlags, grantpt, ioctl_tiocgptpeer, openpt, ptsname, unlockpt};

use super::feed::Subscription;
use super::input::Target;
use super::pump::{Pump, Stream};
use super::running::{About, Process, winsize};
use super::spawner::Spawner;
use super::spec::{PtySize, Source, Stage, StartError, StartSpec, Stdin, Stdio};
use super::wire::{Plan, RECORD_BYTES, Report};

/// Stack of a process's thread in bytes. Only touched pages count.
const STACK_BYTES: usize = 128 << 10;

/// Our ends of a process's streams, and those that it gets.
struct Streams {
    input: Target,
    output: Vec<Stream>,
    theirs: Vec<OwnedFd>,
}

pub(super) fn start(
    spawner: &Spawner,
    open_files: u64,
    spec: StartSpec,
) -> Result<(Arc<Process>, Subscription), StartError> {
    let program = spec.program.clone();
    try_start(spawner, open_files, spec).map_err(|(stage, source)| StartError { stage, program, source })
}

fn try_start(
    spawner: &Spawner,
    open_files: u64,
    spec: StartSpec,
) -> Result<(Arc<Process>, Subscription), (Stage, io::Error)> {
    let preparing = |error: io::Error| (Stage::Supervisor, error);
    let streams = match spec.stdio {
        Stdio::Pipes { stdin } => make_pipes(stdin, &spec),
        Stdio::Pty(size) => make_terminal(size, &spec),
    };
    let streams = streams.map_err(|error| (Stage::Stdio, error.into()))?;
    let control = spawner.supervisor().map_err(preparing)?;
    let stdin = matches!(streams.input, Target::Pipe(_));
    let fds: Vec<BorrowedFd<'_>> = streams.theirs.iter().map(AsFd::as_fd).collect();
    plan(&spec, stdin, open_files).send(&control, &fds).map_err(preparing)?;
    drop(streams.theirs);
    let pid = first_report(&control)?;

    let about = About { program: spec.program, args: spec.args, cwd: spec.cwd, tag: spec.tag, face: spec.face };
    let process = Process::new(pid, about, control, streams.input).map_err(preparing)?;
    let subscription = process.subscribe().map_err(preparing)?;
    let process = Arc::new(process);
    let pump = Pump::new(Arc::clone(&process), streams.output, spec.sink, spec.drain);
    thread::Builder::new()
        .name("process".into())
        .stack_size(STACK_BYTES)
        .spawn(move || pump.run())
        // Dropping the process closes the supervisor's socket, upon which it ends the job.
        .map_err(preparing)?;
    Ok((process, subscription))
}

fn plan(spec: &StartSpec, stdin: bool, open_files: u64) -> Plan {
    let bytes = |text: &OsString| text.as_bytes().to_vec();
    Plan {
        program: bytes(&spec.program),
        args: std::iter::once(&spec.program).chain(&spec.args).map(bytes).collect(),
        env: spec.env.iter().map(|(name, value)| [name.as_bytes(), value.as_bytes()].join(&b'=')).collect(),
        cwd: spec.cwd.as_os_str().as_bytes().to_vec(),
        uid: spec.user.uid,
        gid: spec.user.gid,
        groups: spec.user.groups.clone(),
        pty: matches!(spec.stdio, Stdio::Pty(_)),
        stdin,
        open_files,
        // A deadline that has no time left is over at the first look, which 0 would not be.
        deadline_ms: spec.deadline.map_or(0, |time| u64::try_from(time.as_millis()).unwrap_or(u64::MAX).max(1)),
    }
}

fn first_report(mut control: &UnixStream) -> Result<u32, (Stage, io::Error)> {
    let mut bytes = [0; RECORD_BYTES];
    control.read_exact(&mut bytes).map_err(|error| (Stage::Supervisor, error))?;
    match Report::decode(&bytes) {
        Some(Report::Started { pid }) => {
            u32::try_from(pid).map_err(|_| (Stage::Supervisor, io::ErrorKind::InvalidData.into()))
        }
        Some(Report::Failed { stage, errno }) => Err((stage, io::Error::from_raw_os_error(errno))),
        _ => Err((Stage::Supervisor, io::ErrorKind::InvalidData.into())),
    }
}

/// Makes reading and writing on our side of a stream never block.
fn nonblocking(fd: OwnedFd) -> Result<OwnedFd, Errno> {
    let flags = rustix::fs::fcntl_getfl(&fd)?;
    rustix::fs::fcntl_setfl(&fd, flags | OFlags::NONBLOCK)?;
    Ok(fd)
}

/// Gives our program's end of a stream to its user. Programs open their streams by name too: a terminal (tmux, ssh), `/dev/stdin`, `/dev/stderr`;
/// without the right to give it away they cannot, that is all.
fn own(theirs: &OwnedFd, spec: &StartSpec) {
    let (uid, gid) = (Uid::from_raw(spec.user.uid), Gid::from_raw(spec.user.gid));
    rustix::fs::fchown(theirs, Some(uid), Some(gid)).ok();
}

fn make_pipes(stdin: Stdin, spec: &StartSpec) -> Result<Streams, Errno> {
    let mut theirs = Vec::with_capacity(3);
    let input = match stdin {
        Stdin::Null => Target::Null,
        Stdin::Pipe => {
            let (read, write) = pipe_with(PipeFlags::CLOEXEC)?;
            theirs.push(read);
            Target::Pipe(std::sync::Mutex::new(Some(Arc::new(nonblocking(write)?))))
        }
    };
    let mut output = Vec::with_capacity(2);
    for source in [Source::Stdout, Source::Stderr] {
        let (read, write) = pipe_with(PipeFlags::CLOEXEC)?;
        theirs.push(write);
        output.push(Stream { source, fd: Arc::new(nonblocking(read)?) });
    }
    for end in &theirs {
        own(end, spec);
    }
    Ok(Streams { input, output, theirs })
}

fn make_terminal(size: PtySize, spec: &StartSpec) -> Result<Streams, Errno> {
    let ours = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?;
    grantpt(&ours)?;
    unlockpt(&ours)?;
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let theirs = match ioctl_tiocgptpeer(&ours, flags) {
        Ok(theirs) => theirs,
        // Kernels without TIOCGPTPEER: by name, which means the same as long as one devpts is mounted.
        Err(Errno::NOTTY | Errno::INVAL | Errno::NOSYS) => {
            let name = ptsname(&ours, Vec::new())?;
            rustix::fs::open(name, OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC, Mode::empty())?
        }
        Err(error) => return Err(error),
    };
    own(&theirs, spec);
    rustix::termios::tcsetwinsize(&ours, winsize(size))?;
    let ours = Arc::new(nonblocking(ours)?);
    let output = vec![Stream { source: Source::Pty, fd: Arc::clone(&ours) }];
    Ok(Streams { input: Target::Terminal(ours), output, theirs: vec![theirs] })
}
