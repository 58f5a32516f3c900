//! One job: its state, its output, and waiting for either.

use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use shellctl::{ErrorCode, JobId, JobInfo, JobResult, JobStatus, JobStatusView, Mode, Timestamp};

use super::log::Log;
use super::sanitize::Sanitizer;
use super::store::{self, Record};
use super::table::Table;
use super::window::{self, Extent};
use super::{LINGER, Refusal};
use crate::clock::Countdown;
use crate::process::{Exit, ExitInfo, OutputEnd, Process, Sink, Source};
use crate::users::User;

/// A job, running or done.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) id: JobId,
    pub(super) directory: PathBuf,
    pub(super) created_at: Timestamp,
    /// Whose files its files are.
    owner: User,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug)]
struct State {
    status: JobStatus,
    exit_code: Option<i32>,
    started_at: Option<Timestamp>,
    ended_at: Option<Timestamp>,
    reason: Option<String>,
    /// Somebody asked for the end.
    terminating: bool,
    /// It was deleted: what still comes is not kept.
    deleted: bool,
    /// From the start until nothing of its tree is left.
    process: Option<Arc<Process>>,
    /// Nothing of its tree is left, and no output comes any more.
    gone: bool,
    output: Log,
    /// Made when the first byte for it comes; mode `stdio` only.
    errors: Option<Log>,
    /// Bytes for stderr that came when its file could not be made.
    errors_lost: u64,
    /// Mode `pty` only.
    sanitizer: Option<Sanitizer>,
    /// When the last output came.
    last_output: Instant,
}

/// How long and for how much a caller waits.
#[derive(Debug, Clone, Copy)]
pub(super) struct Patience {
    pub(super) timeout: Duration,
    pub(super) idle_flush: Duration,
    pub(super) output_limit: u64,
}

impl Job {
    /// A job that is being started, with its directory and output file.
    pub(super) fn new(id: JobId, directory: PathBuf, owner: User, mode: Mode, output: Log) -> Self {
        let record = Record {
            status: JobStatus::Starting,
            exit_code: None,
            created_at: Timestamp::from(SystemTime::now()),
            started_at: None,
            ended_at: None,
            reason: None,
        };
        let sanitizer = (mode == Mode::Pty).then(Sanitizer::default);
        Self::with(id, directory, owner, output, record, sanitizer)
    }

    /// A job of an earlier boot, which is over.
    pub(super) fn recovered(id: JobId, directory: PathBuf, owner: User, output: Log, record: Record) -> Self {
        let job = Self::with(id, directory, owner, output, record, None);
        job.let_go();
        job
    }

    fn with(
        id: JobId,
        directory: PathBuf,
        owner: User,
        output: Log,
        record: Record,
        sanitizer: Option<Sanitizer>,
    ) -> Self {
        let state = State {
            status: record.status,
            exit_code: record.exit_code,
            started_at: record.started_at,
            ended_at: record.ended_at,
            reason: record.reason,
            terminating: false,
            deleted: false,
            process: None,
            gone: false,
            output,
            errors: None,
            errors_lost: 0,
            sanitizer,
            last_output: Instant::now(),
        };
        Self { id, directory, created_at: record.created_at, owner, state: Mutex::new(state), changed: Condvar::new() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The process runs. It may have ended already.
    pub(super) fn started(&self, process: Arc<Process>) {
        let mut state = self.state();
        // A short job may be over before its start is noted.
        if !state.gone {
            state.process = Some(process);
        }
        state.started_at.get_or_insert_with(|| Timestamp::from(SystemTime::now()));
        if !state.status.is_done() {
            state.status = JobStatus::Running;
        }
    }

    /// The process could not be started. With an exit code this is how a shell would have ended, and `message` is put where the
    /// shell would have complained.
    pub(super) fn did_not_start(&self, exit_code: Option<i32>, message: &str) {
        let line = format!("leasehold: {message}\n");
        let stdio = self.state().sanitizer.is_none();
        let errors = (stdio && exit_code.is_some()).then(|| self.open_errors()).flatten();
        let mut state = self.state();
        if exit_code.is_some() {
            match errors {
                Some(errors) => state.errors.insert(errors).append(line.as_bytes()),
                None => state.output.append(line.as_bytes()),
            }
        }
        state.exit_code = exit_code;
        state.reason = Some(message.to_owned());
        let status = if exit_code.is_some() { JobStatus::Exited } else { JobStatus::Failed };
        self.end(state, status);
        self.let_go();
    }

    /// Makes the file for stderr. Without it (the disk is full, the user removed the directory) such output counts as discarded.
    fn open_errors(&self) -> Option<Log> {
        let file = store::create_errors(&self.owner, &self.directory).ok()?;
        let state = self.state();
        Some(state.output.sibling(file))
    }

    /// Writes down how it ended, for a cold start, and then says so. If that cannot be written, it will be `lost` after a cold start.
    fn end(&self, mut state: MutexGuard<'_, State>, status: JobStatus) {
        state.ended_at = Some(Timestamp::from(SystemTime::now()));
        let record = Record {
            status,
            exit_code: state.exit_code,
            created_at: self.created_at,
            started_at: state.started_at,
            ended_at: state.ended_at,
            reason: state.reason.clone(),
        };
        if let (false, Some(output)) = (state.deleted, state.output.file()) {
            store::keep(&self.owner, &self.directory, &output, &record).ok();
        }
        state.status = status;
        drop(state);
        self.changed.notify_all();
    }

    /// Notes that its end was asked for. False when it is over anyway.
    pub(super) fn ask_to_end(&self) -> bool {
        let mut state = self.state();
        if state.status.is_done() {
            return false;
        }
        state.terminating = true;
        true
    }

    /// Notes that it is deleted: nothing more is written.
    pub(super) fn forget(&self) {
        self.state().deleted = true;
    }

    /// Its process, from the start until nothing of its tree is left.
    pub(super) fn process(&self) -> Option<Arc<Process>> {
        self.state().process.clone()
    }

    /// Nothing of it is left: no more output comes, and nothing is there to be ended.
    fn let_go(&self) {
        let mut state = self.state();
        state.gone = true;
        state.process = None;
        state.output.close();
        if let Some(errors) = &mut state.errors {
            errors.close();
        }
    }

    /// Forgets it and gives the space of its output back.
    pub(super) fn empty(&self) {
        self.forget();
        let mut state = self.state();
        state.output.empty();
        if let Some(errors) = &mut state.errors {
            errors.empty();
        }
    }

    pub(super) fn is_done(&self) -> bool {
        self.state().status.is_done()
    }

    /// When it ended; `None` while it runs.
    pub(super) fn ended_at(&self) -> Option<Timestamp> {
        let state = self.state();
        if state.status.is_done() { Some(state.ended_at.unwrap_or(self.created_at)) } else { None }
    }

    pub(super) fn info(&self) -> JobInfo {
        let state = self.state();
        JobInfo {
            job_id: self.id.clone(),
            status: state.status,
            created_at: self.created_at,
            started_at: state.started_at,
            ended_at: state.ended_at,
        }
    }

    pub(super) fn view(&self) -> JobStatusView {
        let mut state = self.state();
        state.show_quiet_text();
        JobStatusView {
            job_id: self.id.clone(),
            status: state.status,
            done: state.status.is_done(),
            exit_code: state.exit_code,
            created_at: self.created_at,
            started_at: state.started_at,
            ended_at: state.ended_at,
            offset: state.output.size(),
            discarded_bytes: state.discarded(),
            reason: state.reason.clone(),
        }
    }

    /// Refuses an offset that lies beyond the output.
    pub(super) fn check_offset(&self, offset: u64) -> Result<(), Refusal> {
        let size = self.state().output.size();
        if offset <= size {
            return Ok(());
        }
        Err(Refusal::new(
            ErrorCode::InvalidOffset,
            format!("offset {offset} lies beyond the output, which has {size} bytes"),
        ))
    }

    /// Waits until there is something to say about the output from `offset` on, and says it. Returns at the first of: the job is
    /// done; more output is there than one answer holds; output is there and none came for `idle_flush` (counted from this call on
    /// for what was there before); `timeout` is over.
    pub(super) fn wait(&self, offset: u64, patience: Patience) -> Result<JobResult, Refusal> {
        self.check_offset(offset)?;
        let called = Instant::now();
        let mut countdown = Countdown::new(patience.timeout);
        let mut state = self.state();
        loop {
            state.show_quiet_text();
            let unread = state.output.size().saturating_sub(offset);
            let mut pause = countdown.slice();
            if state.status.is_done() || unread > patience.output_limit || pause.is_zero() {
                break;
            }
            if unread > 0 {
                let quiet = called.max(state.last_output).elapsed();
                match patience.idle_flush.checked_sub(quiet) {
                    None | Some(Duration::ZERO) => break,
                    Some(left) => pause = pause.min(left),
                }
            }
            if let Some(left) = state.until_shown() {
                pause = pause.min(left);
            }
            state = self.changed.wait_timeout(state, pause).unwrap_or_else(PoisonError::into_inner).0;
        }
        self.result(state, |file, extent| window::read(file, extent, offset.min(extent.size), patience.output_limit))
    }

    /// The last `limit` bytes of the output.
    pub(super) fn tail(&self, limit: u64) -> Result<JobResult, Refusal> {
        let mut state = self.state();
        state.show_quiet_text();
        self.result(state, |file, extent| window::tail(file, extent, limit))
    }

    /// Reads the output outside of the lock: what the state said when the lock was left stays true for the bytes up to then.
    fn result(
        &self,
        state: MutexGuard<'_, State>,
        read: impl FnOnce(&File, Extent) -> io::Result<window::Window>,
    ) -> Result<JobResult, Refusal> {
        let file = state.output.file();
        let extent = Extent { size: state.output.size(), complete: state.status.is_done() };
        let mut result = JobResult {
            job_id: self.id.clone(),
            done: state.status.is_done(),
            status: state.status,
            exit_code: state.exit_code,
            output_path: self.directory.join("output.log").to_string_lossy().into_owned(),
            output: String::new(),
            offset: 0,
            truncated: false,
            discarded_bytes: state.discarded(),
        };
        drop(state);
        let open = || store::open_output(&self.owner, &self.directory).map(Arc::new);
        let window = file.map_or_else(open, Ok).and_then(|file| read(&file, extent));
        let window = window.map_err(|error| Refusal::internal("read the job's output file", &error))?;
        (result.output, result.offset, result.truncated) = (window.text, window.next, window.more);
        Ok(result)
    }
}

impl State {
    fn discarded(&self) -> u64 {
        self.output.discarded() + self.errors.as_ref().map_or(0, Log::discarded) + self.errors_lost
    }

    fn take(&mut self, source: Source, bytes: &[u8]) {
        if self.deleted {
            return;
        }
        self.last_output = Instant::now();
        match (source, &mut self.sanitizer, &mut self.errors) {
            (Source::Stderr, _, Some(errors)) => errors.append(bytes),
            (Source::Stderr, _, None) => self.errors_lost += bytes.len() as u64,
            (Source::Pty, Some(sanitizer), _) => {
                let mut clean = String::new();
                sanitizer.push(bytes, &mut clean);
                if self.status.is_done() {
                    // Background processes go on writing: there is no end at which a last line would be shown.
                    sanitizer.flush(&mut clean);
                }
                self.output.append(clean.as_bytes());
            }
            _ => self.output.append(bytes),
        }
    }

    /// How long text without a line end stays hidden; `None` when there is none.
    fn until_shown(&self) -> Option<Duration> {
        let holds = self.sanitizer.as_ref().is_some_and(Sanitizer::holds_text);
        holds.then(|| LINGER.saturating_sub(self.last_output.elapsed()))
    }

    /// Shows text without a line end if the terminal has been quiet.
    fn show_quiet_text(&mut self) {
        if self.until_shown().is_some_and(|left| left.is_zero())
            && let Some(sanitizer) = &mut self.sanitizer
        {
            let mut text = String::new();
            sanitizer.flush(&mut text);
            self.output.append(text.as_bytes());
        }
    }
}

/// Puts a process's output and end into its job.
#[derive(Debug)]
pub(super) struct JobSink {
    job: Arc<Job>,
    table: Arc<Table>,
    errors_tried: bool,
    ended: bool,
}

impl JobSink {
    pub(super) fn new(job: Arc<Job>, table: Arc<Table>) -> Self {
        Self { job, table, errors_tried: false, ended: false }
    }
}

impl Sink for JobSink {
    fn output(&mut self, source: Source, bytes: &[u8]) {
        // Invalid bytes become characters of three. Before the job's lock is taken: other jobs' locks may be needed.
        let evicted = self.table.make_room(3 * bytes.len() as u64);
        store::remove(&self.job.owner, evicted);
        if source == Source::Stderr
            && !std::mem::replace(&mut self.errors_tried, true)
            && let Some(errors) = self.job.open_errors()
        {
            self.job.state().errors = Some(errors);
        }
        self.job.state().take(source, bytes);
        self.job.changed.notify_all();
    }

    fn ended(&mut self, exit: &ExitInfo) {
        self.ended = true;
        // Before the job's own lock: who holds the table's takes jobs' after it, so the other order would lock both up.
        self.table.note_end();
        let mut state = self.job.state();
        if let Some(sanitizer) = &mut state.sanitizer {
            let mut rest = String::new();
            sanitizer.finish(&mut rest);
            if !state.deleted {
                state.output.append(rest.as_bytes());
            }
        }
        let (status, exit_code) = match exit.exit {
            Exit::Code(code) => (JobStatus::Exited, Some(code)),
            Exit::Signal { signal, .. } => (JobStatus::Exited, Some(128 + signal)),
            Exit::Lost => (JobStatus::Lost, None),
        };
        state.exit_code = exit_code;
        if exit.exit == Exit::Lost {
            state.reason = Some("its supervisor was killed".to_owned());
        } else if exit.output == OutputEnd::MayContinue {
            state.reason = Some("background processes go on: output may continue".to_owned());
        }
        let status = if state.terminating { JobStatus::Terminated } else { status };
        state.started_at.get_or_insert_with(|| Timestamp::from(SystemTime::now()));
        self.job.end(state, status);
    }
}

/// The process's thread lets go of its sink when nothing of the tree is left and all streams are closed. A sink whose process did not start is
/// dropped too, but its job goes on to say why.
impl Drop for JobSink {
    fn drop(&mut self) {
        if self.ended {
            self.job.let_go();
        }
    }
}
