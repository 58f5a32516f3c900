//! Runs one command in a leased sandbox and carries its streams, its signals and its end.

use std::io::{self, IsTerminal as _, Read as _};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::time::Duration;

use anyhow::Context as _;
use bytes::Bytes;
use leasehold_e2b::{ClientError, ClientErrorKind, Code, Output, Process, ProcessInput, ProcessSpec, Sandbox, Signal};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tokio::time::timeout;

use crate::args::ProcessArgs;
use crate::exit;
use crate::report::{Report, Stream};

/// How long a command may take to end by itself after Ctrl-C, before it is killed. Chosen: the daemon's own grace.
const GRACE: Duration = Duration::from_secs(10);

/// Size of one piece of our stdin, and how many wait for a slow command: at most 256 KiB are held.
const STDIN_PIECE: usize = 64 << 10;
const STDIN_PIECES: usize = 4;

/// Why a command is being ended before its own end.
#[derive(Debug, Clone, Copy)]
enum Ending {
    Interrupted,
    Terminated,
    ReaderGone,
}

impl Ending {
    fn code(self) -> u8 {
        match self {
            Self::Interrupted => exit::INTERRUPTED,
            Self::Terminated => exit::TERMINATED,
            Self::ReaderGone => exit::BROKEN_PIPE,
        }
    }
}

/// Runs the command and returns the exit code for our own process.
pub(crate) async fn run(sandbox: &Sandbox, args: &ProcessArgs, home: &str, workspace: &str) -> anyhow::Result<u8> {
    let stdin = wants_stdin();
    let spec = spec(args, home, workspace, stdin);
    let mut report = Report::new(args.json);
    // Asked for before the start, so that no Ctrl-C falls between.
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot listen for SIGINT")?;
    let mut terminate = signal(SignalKind::terminate()).context("cannot listen for SIGTERM")?;
    let mut process = match sandbox.start(&spec).await {
        Ok(process) => process,
        Err(error) => return not_started(error),
    };
    let input = process.input();
    report.start(sandbox.id(), process.pid()).await.ok();
    let feeder = stdin.then(|| tokio::spawn(feed(input.clone())));
    let ended = tokio::select! {
        ended = pump(&mut process, &mut report) => ended,
        _ = interrupt.recv() => Ok(Err(Ending::Interrupted)),
        _ = terminate.recv() => Ok(Err(Ending::Terminated)),
    };
    if let Some(feeder) = feeder {
        feeder.abort();
    }
    match ended? {
        Ok(code) => Ok(code),
        Err(ending) => {
            tokio::select! {
                () = end(&mut process, &input, &mut report) => {}
                // A second Ctrl-C does not wait; the sandbox is cleaned up as after any other end.
                _ = interrupt.recv() => {}
            }
            Ok(ending.code())
        }
    }
}

fn spec(args: &ProcessArgs, home: &str, workspace: &str, stdin: bool) -> ProcessSpec {
    let (program, arguments) = args.command.split_first().expect("clap demands a command");
    let mut spec = ProcessSpec::new(program.clone())
        .arguments(arguments.iter().cloned())
        .cwd(args.cwd.as_deref().unwrap_or(workspace))
        .user(&args.user)
        .stdin(stdin);
    if args.user == "user" {
        spec = spec.env("HOME", home);
    }
    for (name, value) in &args.env {
        spec = spec.env(name, value);
    }
    match args.timeout {
        Some(seconds) => spec.timeout(Duration::from_secs(seconds)),
        None => spec,
    }
}

/// A command that never ran has the code a shell gives, where it is the command's own fault.
fn not_started(error: ClientError) -> anyhow::Result<u8> {
    let text = error.message().to_ascii_lowercase();
    let code = match error.kind() {
        ClientErrorKind::Rpc(Code::NotFound) => exit::NOT_FOUND,
        ClientErrorKind::Rpc(Code::PermissionDenied) => exit::NOT_EXECUTABLE,
        ClientErrorKind::Rpc(_) if text.contains("not found") || text.contains("no such file") => exit::NOT_FOUND,
        ClientErrorKind::Rpc(_) if text.contains("permission denied") || text.contains("exec format") => {
            exit::NOT_EXECUTABLE
        }
        _ => return Err(error.into()),
    };
    crate::complain(&error);
    Ok(code)
}

/// Forwards output until the end. The inner error says that our own reader is gone.
async fn pump(process: &mut Process, report: &mut Report) -> anyhow::Result<Result<u8, Ending>> {
    loop {
        let output = match process.next().await {
            Ok(Some(output)) => output,
            Ok(None) => anyhow::bail!("the command's end was not reported"),
            Err(error) if error.kind() == ClientErrorKind::Rpc(Code::DeadlineExceeded) => {
                crate::complain(&"the command ran out of time and was killed");
                return Ok(Ok(exit::TIMED_OUT));
            }
            Err(error) => {
                return Err(error).context("lost the command's output; the command may have been running still");
            }
        };
        let written = match &output {
            Output::Stdout(bytes) | Output::Pty(bytes) => report.output(Stream::Stdout, bytes).await,
            Output::Stderr(bytes) => report.output(Stream::Stderr, bytes).await,
            Output::End(end) => {
                report.end(end).await.ok();
                return Ok(Ok(exit::of_command(end)));
            }
        };
        match written {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(Err(Ending::ReaderGone)),
            Err(error) => return Err(error).context("cannot write the command's output"),
        }
    }
}

/// Asks the command to end, shows what it says, and kills it after the grace.
async fn end(process: &mut Process, input: &ProcessInput, report: &mut Report) {
    for (signal, patience) in [(Signal::Sigterm, GRACE), (Signal::Sigkill, GRACE)] {
        if input.signal(signal).await.is_err() {
            return;
        }
        if timeout(patience, pump(process, report)).await.is_ok() {
            return;
        }
    }
}

/// Whether our stdin can hold anything. `/dev/null` cannot, and the command then reads its own.
fn wants_stdin() -> bool {
    let stdin = io::stdin();
    if stdin.is_terminal() {
        return true;
    }
    let Ok(meta) = std::fs::metadata("/proc/self/fd/0") else { return false };
    let null = std::fs::metadata("/dev/null").map(|null| null.rdev()).ok();
    !(meta.file_type().is_char_device() && Some(meta.rdev()) == null)
}

/// Sends our stdin to the command, and its end.
async fn feed(input: ProcessInput) {
    let (sender, mut pieces) = mpsc::channel::<Bytes>(STDIN_PIECES);
    // A thread of its own: a read of a terminal cannot be cancelled, and must not hold up our exit.
    let reader = std::thread::Builder::new().name("stdin".into()).spawn(move || {
        let mut stdin = io::stdin().lock();
        let mut buffer = vec![0; STDIN_PIECE];
        while let Ok(length @ 1..) = stdin.read(&mut buffer) {
            if sender.blocking_send(Bytes::copy_from_slice(&buffer[..length])).is_err() {
                return;
            }
        }
    });
    if reader.is_err() {
        return;
    }
    while let Some(piece) = pieces.recv().await {
        // A command that closed its stdin or ended needs no more input.
        if input.send_stdin(&piece).await.is_err() {
            return;
        }
    }
    input.close_stdin().await.ok();
}
