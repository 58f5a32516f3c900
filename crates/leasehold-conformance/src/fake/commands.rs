//! The fake's commands: real `sh` processes, output in memory, read in windows by offset.

use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use leasehold::{
    CommandMode, Commands, DeleteJob, ErrorKind, JobId, JobOutput, JobState, RunCommand, RuntimeError, RuntimeLayout,
};
use tokio::io::AsyncWriteExt as _;
use tokio::process::Command;

use super::Fault;
use super::backend::failure;
use super::job::{Habits, Job, View};
use super::processes::VARIABLE;
use super::room::Room;
use super::world::World;

/// The most bytes of one window, the daemon's own default.
const WINDOW: usize = 8192;
/// How long a job must be quiet before a wait answers with what it has said (chosen: far below the daemon's 0.5 s, to keep runs short).
const QUIET: Duration = Duration::from_millis(5);
/// The grace of a forced delete that doesn't say one.
const GRACE: Duration = Duration::from_secs(1);

pub(super) struct FakeCommands {
    pub(super) world: Arc<World>,
    pub(super) room: Arc<Room>,
    pub(super) layout: RuntimeLayout,
    pub(super) closed: Arc<AtomicBool>,
}

#[async_trait]
impl Commands for FakeCommands {
    async fn run(&self, command: RunCommand) -> Result<JobOutput, RuntimeError> {
        self.open("run")?;
        let job = self.start(&command)?;
        self.room.add_job(job.clone());
        let seen = self.window_of(&job, 0, command.timeout).await?;
        if self.world.breaks(Fault::RunTimeoutEndsTheJob) && !seen.done {
            job.interrupt(Duration::ZERO, false).await;
        }
        Ok(seen)
    }

    async fn wait(&self, job: &JobId, offset: u64, timeout: Duration) -> Result<JobOutput, RuntimeError> {
        self.open("wait")?;
        let job = self.find("wait", job)?;
        self.window_of(&job, offset, timeout).await
    }

    async fn read_output(&self, job: &JobId, offset: u64) -> Result<JobOutput, RuntimeError> {
        self.wait(job, offset, Duration::ZERO).await
    }

    async fn input(&self, job: &JobId, text: &str, offset: u64, timeout: Duration) -> Result<JobOutput, RuntimeError> {
        self.open("input")?;
        let job = self.find("input", job)?;
        if !self.world.breaks(Fault::InputIsDropped) {
            let mut input = job.input().lock().await;
            let Some(input) = input.as_mut() else {
                return Err(failure(ErrorKind::Conflict, "input", "the job has no terminal"));
            };
            let written = input.write_all(text.as_bytes()).await;
            written.map_err(|error| failure(ErrorKind::Conflict, "input", error.to_string()))?;
        }
        self.window_of(&job, offset, timeout).await
    }

    async fn interrupt(&self, job: &JobId, grace: Duration) -> Result<JobState, RuntimeError> {
        self.open("interrupt")?;
        let job = self.find("interrupt", job)?;
        if self.world.breaks(Fault::InterruptEndsTheLeaderOnly) {
            job.kill_leader();
        } else {
            job.interrupt(grace, !self.world.breaks(Fault::InterruptDoesNotAsk)).await;
        }
        let view = job.now();
        let status = self.status(&view);
        Ok(JobState {
            job_id: JobId::new(job.id()),
            status,
            done: view.ended,
            exit_code: view.exit_code,
            offset: view.output.len() as u64,
        })
    }

    async fn tail(&self, job: &JobId) -> Result<JobOutput, RuntimeError> {
        self.open("tail")?;
        let job = self.find("tail", job)?;
        let view = job.now();
        let start = view.output.len().saturating_sub(WINDOW);
        Ok(JobOutput { truncated: false, ..self.output(&job, &view, start)? })
    }

    async fn delete(&self, job: &JobId, how: DeleteJob) -> Result<(), RuntimeError> {
        self.open("delete")?;
        let Some(found) = self.room.job(job.as_str()) else {
            if self.world.breaks(Fault::JobDeleteIsNotRepeatable) {
                return Err(failure(ErrorKind::NotFound, "delete", format!("job {job} is not there")));
            }
            return Ok(());
        };
        if !found.now().ended {
            match how {
                DeleteJob::IfDone if self.world.breaks(Fault::RunningJobIsDeleted) => {}
                DeleteJob::IfDone => {
                    return Err(failure(ErrorKind::Conflict, "delete", format!("job {job} is running")));
                }
                DeleteJob::Force { grace } => found.interrupt(grace.unwrap_or(GRACE), true).await,
            }
        }
        self.room.take_job(job.as_str());
        Ok(())
    }
}

impl FakeCommands {
    fn open(&self, operation: &'static str) -> Result<(), RuntimeError> {
        if self.closed.load(Ordering::SeqCst) {
            return Err(failure(ErrorKind::Closed, operation, "the lease was released").without_effect());
        }
        Ok(())
    }

    fn find(&self, operation: &'static str, job: &JobId) -> Result<Arc<Job>, RuntimeError> {
        let kind =
            if self.world.breaks(Fault::UnknownJobIsInternal) { ErrorKind::Internal } else { ErrorKind::NotFound };
        self.room.job(job.as_str()).ok_or_else(|| failure(kind, operation, format!("job {job} is not there")))
    }

    fn start(&self, command: &RunCommand) -> Result<Arc<Job>, RuntimeError> {
        let internal = |error: std::io::Error| failure(ErrorKind::Internal, "run", error.to_string());
        let cwd = self.resolve_cwd(command.cwd.as_deref())?;
        let id = if self.world.breaks(Fault::JobIdsCollide) { "job-0".to_owned() } else { self.room.next_job() };
        let mark = format!("{}{id};", self.room.mark());
        let script = self.room.directory().join("jobs").join(&id);
        std::fs::write(&script, &command.script).map_err(internal)?;

        let mut process = self.enter()?;
        match self.interpreter(&command.script) {
            Some(words) => process.args(words),
            None => process.arg("sh"),
        };
        if command.mode == CommandMode::Pty {
            // As a terminal does: both streams in one.
            process.arg("-c").arg("exec sh \"$0\" 2>&1");
        }
        process.arg(&script).current_dir(&cwd).env("HOME", self.room.home()).env(VARIABLE, &mark);
        if !self.world.breaks(Fault::VariablesAreDropped) {
            let own_home = self.world.breaks(Fault::CallersHomeWins);
            process.envs(command.env.iter().filter(|(name, _)| own_home || *name != "HOME"));
        }
        if self.world.breaks(Fault::HomeIsTheDaemons) {
            process.env("HOME", "/root");
        }
        let open_input = command.mode == CommandMode::Pty || self.world.breaks(Fault::StandardInputStaysOpen);
        process
            .stdin(if open_input { Stdio::piped() } else { Stdio::null() })
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        let child = process.spawn().map_err(internal)?;
        let habits = Habits {
            exit_before_output: self.world.breaks(Fault::ExitPrecedesOutput),
            output_limit: self.world.breaks(Fault::OutputIsCutSilently).then_some(WINDOW),
        };
        Ok(Job::adopt(id, mark, child, habits))
    }

    fn resolve_cwd(&self, cwd: Option<&str>) -> Result<String, RuntimeError> {
        if cwd.is_none_or(str::is_empty) && self.world.breaks(Fault::CommandsStartInHome) {
            return Ok(self.layout.home_dir().to_owned());
        }
        let resolved = match self.layout.resolve_cwd(cwd) {
            Err(_) if self.world.breaks(Fault::WorkingDirectoryIsNotChecked) => {
                Path::new(self.layout.workspace_dir()).join(cwd.unwrap_or_default()).to_string_lossy().into_owned()
            }
            other => other?,
        };
        if Path::new(&resolved).is_dir() {
            return Ok(resolved);
        }
        if self.world.breaks(Fault::MissingWorkingDirectoryFallsBack) {
            return Ok(self.layout.workspace_dir().to_owned());
        }
        let message = format!("cwd {resolved:?} is not a directory");
        Err(failure(ErrorKind::InvalidInput, "run", message).with_code("invalid_cwd").without_effect())
    }

    /// The words of a script's interpreter line.
    fn interpreter<'a>(&self, script: &'a str) -> Option<std::str::SplitWhitespace<'a>> {
        if self.world.breaks(Fault::InterpreterLineIsIgnored) {
            return None;
        }
        Some(script.strip_prefix("#!")?.lines().next()?.split_whitespace())
    }

    /// The start of a command line that runs in the room.
    fn enter(&self) -> Result<Command, RuntimeError> {
        if !self.world.options().own_processes || self.world.breaks(Fault::ProcessTableIsShared) {
            return Ok(Command::new("env"));
        }
        let init = self.room.init(!self.world.breaks(Fault::OrphansAreNotReaped));
        let init = init.map_err(|error| failure(ErrorKind::Internal, "run", error.to_string()))?;
        let mut enter = Command::new("nsenter");
        enter.arg("-t").arg(init.to_string()).args(["--pid", "--mount", "--wdns=.", "--"]);
        Ok(enter)
    }

    /// Waits as the daemon does: for the end, a full window, or quiet after output; then reads the window.
    async fn window_of(&self, job: &Job, offset: u64, timeout: Duration) -> Result<JobOutput, RuntimeError> {
        let mut start = usize::try_from(offset).unwrap_or(usize::MAX);
        if self.world.breaks(Fault::OffsetIsIgnored) {
            start = 0;
        }
        let mut watch = job.watch();
        let deadline = tokio::time::Instant::now() + timeout;
        loop {
            let (ended, available) = {
                let view = watch.borrow_and_update();
                (view.ended, view.output.len().saturating_sub(start))
            };
            let quiet = tokio::time::Instant::now() + QUIET;
            let until = if available > 0 { quiet.min(deadline) } else { deadline };
            if ended || available >= WINDOW || tokio::time::timeout_at(until, watch.changed()).await.is_err() {
                return self.output(job, &job.now(), start);
            }
        }
    }

    fn output(&self, job: &Job, view: &View, start: usize) -> Result<JobOutput, RuntimeError> {
        let Some(rest) = view.output.get(start..) else {
            let message = format!("offset {start} is beyond the output's {} bytes", view.output.len());
            return Err(failure(ErrorKind::InvalidInput, "wait", message).with_code("invalid_offset"));
        };
        let mut length = rest.len().min(WINDOW);
        let mut output = String::from_utf8_lossy(&rest[..length]).into_owned();
        if !self.world.breaks(Fault::WindowsCutCharacters) {
            // A character that is cut by the window, or is not written to its end yet, comes with the next one.
            if let Err(error) = std::str::from_utf8(&rest[..length])
                && error.error_len().is_none()
                && !(view.ended && length == rest.len())
            {
                length = error.valid_up_to();
                output = String::from_utf8_lossy(&rest[..length]).into_owned();
            }
        }
        if self.world.breaks(Fault::BlankLinesAreDropped) {
            output = output.lines().filter(|line| !line.is_empty()).map(|line| format!("{line}\n")).collect();
        }
        let exit_code = if self.world.breaks(Fault::ExitCodeIsLost) { view.ended.then_some(0) } else { view.exit_code };
        Ok(JobOutput {
            job_id: JobId::new(job.id()),
            status: self.status(view),
            done: view.ended,
            exit_code,
            output,
            offset: (start + length) as u64,
            truncated: length < rest.len() && !self.world.breaks(Fault::TruncationIsNotTold),
            output_path: None,
        })
    }

    fn status(&self, view: &View) -> leasehold::JobStatus {
        let interrupted = view.interrupted && !self.world.breaks(Fault::InterruptedJobIsExited);
        View { interrupted, output: Vec::new(), ..*view }.status()
    }
}
