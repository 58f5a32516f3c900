//! What a process is started from, and how it ends.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

pub use super::wire::Stage;
use crate::users::User;

/// What to run, as whom, and where its output goes.
#[derive(Debug)]
pub struct StartSpec {
    /// The program; looked up in the environment's `PATH` unless it holds a slash.
    pub program: OsString,
    /// Its arguments, without its own name.
    pub args: Vec<OsString>,
    /// Its whole environment, see [`crate::environment::build`].
    pub env: BTreeMap<OsString, OsString>,
    /// Its working directory; must be absolute.
    pub cwd: PathBuf,
    /// The user it runs as.
    pub user: User,
    /// Its stdin, stdout and stderr.
    pub stdio: Stdio,
    /// A name by which it can be found.
    pub tag: Option<String>,
    /// Who started it.
    pub face: Face,
    /// Takes all output, beside the subscribers.
    pub sink: Option<Box<dyn Sink>>,
    /// How long output is waited for after the leader's end, when something still holds its streams open.
    pub drain: Drain,
    /// How long the leader may run, counted while the sandbox runs; then the whole tree is killed.
    pub deadline: Option<Duration>,
}

/// The protocol through which a process was started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Face {
    /// E2B's in-sandbox API, which lists processes as they were asked for.
    Envd(envd::ProcessConfig),
    /// The job protocol.
    Shellctl,
}

/// Standard streams of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stdio {
    /// Stdout and stderr are pipes of their own.
    Pipes {
        /// Where stdin comes from.
        stdin: Stdin,
    },
    /// All three are a terminal of this size, which is the controlling one.
    Pty(PtySize),
}

/// Where a process's stdin comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stdin {
    /// `/dev/null`: reading gives the end at once.
    Null,
    /// A pipe, see [`Process::write_stdin`](super::Process::write_stdin).
    Pipe,
}

/// Size of a terminal in characters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PtySize {
    /// Width.
    pub cols: u16,
    /// Height.
    pub rows: u16,
}

impl Default for PtySize {
    /// 80 × 24, what programs assume themselves.
    fn default() -> Self {
        Self { cols: 80, rows: 24 }
    }
}

/// Where a piece of output comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
    /// The terminal.
    Pty,
}

/// Takes the output of a process on the thread that reads it: what it does slowly, the process feels.
pub trait Sink: Send + fmt::Debug {
    /// Takes output, in order per source. Called also after [`Sink::ended`] when background processes go on writing.
    fn output(&mut self, source: Source, bytes: &[u8]);

    /// The process ended and all output up to here was given. Called once, before anyone else learns of the end.
    fn ended(&mut self, exit: &ExitInfo);
}

/// How long output is waited for after the leader has ended while background processes hold its streams open. What the leader itself
/// wrote is always read whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Drain {
    /// The end is reported when nothing came for this long. Default 250 ms, chosen: a pipeline's last filter gets to finish, and
    /// `server &` returns at once for a person.
    pub quiet: Duration,
    /// It is reported after this long in any case. Default 1 s.
    pub total: Duration,
}

impl Default for Drain {
    fn default() -> Self {
        Self { quiet: Duration::from_millis(250), total: Duration::from_secs(1) }
    }
}

/// How the leader of a process tree ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// It left with this code.
    Code(i32),
    /// A signal ended it.
    Signal {
        /// The signal.
        signal: i32,
        /// Whether a core was written.
        core_dumped: bool,
    },
    /// Its supervisor was killed, so nobody knows.
    Lost,
}

/// Whether more output may come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OutputEnd {
    /// All streams were read to their end.
    Complete,
    /// Background processes hold a stream open: output may continue, and is not part of the result.
    MayContinue,
}

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExitInfo {
    /// How the leader ended.
    pub exit: Exit,
    /// Whether its output is complete.
    pub output: OutputEnd,
}

/// A process that could not be started.
#[derive(Debug, thiserror::Error)]
#[error("cannot start {program:?}: {}: {source}", stage_text(*stage))]
pub struct StartError {
    /// What was being done.
    pub stage: Stage,
    /// The program.
    pub program: OsString,
    /// Why it failed; has an error number wherever the kernel refused.
    pub source: io::Error,
}

fn stage_text(stage: Stage) -> &'static str {
    match stage {
        Stage::Supervisor => "preparing",
        Stage::Fork => "making the process",
        Stage::Stdio => "attaching its streams",
        Stage::User => "becoming the user",
        Stage::Cwd => "entering the working directory",
        Stage::Exec => "executing it",
    }
}
