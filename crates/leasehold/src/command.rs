//! Commands in a leased sandbox: jobs with an id, a state, and output that is read by offset.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use crate::RuntimeError;

/// How a job's standard streams are connected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CommandMode {
    /// A terminal: input is possible, both output streams are one.
    #[default]
    Pty,
    /// Pipes: standard input is empty, output is raw.
    Stdio,
}

/// A script to run.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct RunCommand {
    /// The script; starts with `#!` or is given to `sh`.
    pub script: String,
    /// The working directory, by the rules of [`crate::RuntimeLayout::resolve_cwd`].
    pub cwd: Option<String>,
    /// Variables on top of the sandbox's own. `HOME` is always the lease's Home.
    pub env: BTreeMap<String, String>,
    /// How long to wait for the end before answering with a running job. Does not end the job. Default 30 s, the daemon's own.
    pub timeout: Duration,
    /// How the streams are connected.
    pub mode: CommandMode,
}

impl RunCommand {
    /// A script in the Workspace, in a terminal, waited for at most 30 s.
    pub fn new(script: impl Into<String>) -> Self {
        Self {
            script: script.into(),
            cwd: None,
            env: BTreeMap::new(),
            timeout: Duration::from_secs(30),
            mode: CommandMode::default(),
        }
    }

    /// Sets the working directory.
    #[must_use]
    pub fn cwd(mut self, cwd: impl Into<String>) -> Self {
        self.cwd = Some(cwd.into());
        self
    }

    /// Adds a variable.
    #[must_use]
    pub fn env(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.env.insert(name.into(), value.into());
        self
    }

    /// Sets how long to wait for the end.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Sets how the streams are connected.
    #[must_use]
    pub fn mode(mut self, mode: CommandMode) -> Self {
        self.mode = mode;
        self
    }
}

/// A job's name, given by the daemon that runs it. Opaque.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct JobId(String);

impl JobId {
    /// Takes the daemon's name for a job.
    pub fn new(id: impl Into<String>) -> Self {
        Self(id.into())
    }

    /// The daemon's name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Where a job is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum JobStatus {
    /// Known, not started.
    Created,
    /// Being started.
    Starting,
    /// Running.
    Running,
    /// Ended by itself; has an exit code.
    Exited,
    /// Ended by [`Commands::interrupt`] or a forced delete.
    Terminated,
    /// Never started, or its output could not be captured.
    Failed,
    /// Its process is gone and nobody saw how.
    Lost,
}

impl JobStatus {
    /// Whether the job will never run again.
    #[must_use]
    pub const fn is_terminal(self) -> bool {
        matches!(self, Self::Exited | Self::Terminated | Self::Failed | Self::Lost)
    }
}

/// A job's state with a window of its output.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobOutput {
    /// The job.
    pub job_id: JobId,
    /// Where it is in its life.
    pub status: JobStatus,
    /// Whether it has ended.
    pub done: bool,
    /// Its exit code, once it has one.
    pub exit_code: Option<i32>,
    /// The window's text: whole characters, the window's size is bounded by the daemon.
    pub output: String,
    /// The byte offset where the next read starts.
    pub offset: u64,
    /// More output is there already. Nothing is lost.
    pub truncated: bool,
    /// The output file inside the sandbox.
    pub output_path: Option<String>,
}

/// A job's state without output.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobState {
    /// The job.
    pub job_id: JobId,
    /// Where it is in its life.
    pub status: JobStatus,
    /// Whether it has ended.
    pub done: bool,
    /// Its exit code, once it has one.
    pub exit_code: Option<i32>,
    /// The output's present size in bytes.
    pub offset: u64,
}

/// How a job is deleted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeleteJob {
    /// Only when it has ended; [`crate::ErrorKind::Conflict`] otherwise.
    IfDone,
    /// Ends it first. None = the daemon's own grace.
    Force {
        /// How long the job may take to end by itself after it was asked.
        grace: Option<Duration>,
    },
}

/// Commands in one leased sandbox.
///
/// # Errors
/// Every method gives [`RuntimeError`]s with the daemon's own [`code`](RuntimeError::code) and [`status`](RuntimeError::status) where it
/// answered, code `timeout` when no answer came in time, and code `request_error` for another failure of the transport.
///
/// # Cancel safety
/// Dropping a call stops waiting; it does not undo. A job that was started goes on.
#[async_trait]
pub trait Commands: Send + Sync {
    /// Starts a script and waits for its end up to its time-out.
    async fn run(&self, command: RunCommand) -> Result<JobOutput, RuntimeError>;

    /// Waits for the end or for more output after `offset`.
    async fn wait(&self, job: &JobId, offset: u64, timeout: Duration) -> Result<JobOutput, RuntimeError>;

    /// Reads what is there after `offset` without waiting: a [`Commands::wait`] of zero.
    async fn read_output(&self, job: &JobId, offset: u64) -> Result<JobOutput, RuntimeError>;

    /// Types text into a job's terminal, then waits as [`Commands::wait`] does.
    async fn input(&self, job: &JobId, text: &str, offset: u64, timeout: Duration) -> Result<JobOutput, RuntimeError>;

    /// Ends a job and everything it started: asks, waits for the grace, then kills.
    async fn interrupt(&self, job: &JobId, grace: Duration) -> Result<JobState, RuntimeError>;

    /// The last window of a job's output.
    async fn tail(&self, job: &JobId) -> Result<JobOutput, RuntimeError>;

    /// Forgets a job and its output. Repeating is fine: a job that is not there counts as deleted.
    async fn delete(&self, job: &JobId, how: DeleteJob) -> Result<(), RuntimeError>;
}
