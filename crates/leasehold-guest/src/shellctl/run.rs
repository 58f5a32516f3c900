//! Starting, ending and deleting jobs.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::{Access, AtFlags, CWD, Mode as FileMode, accessat};
use rustix::io::Errno;
use shellctl::{
    DeleteQuery, Deleted, ErrorCode, InputRequest, JobId, JobResult, JobStatusView, Mode, RunRequest, WaitRequest,
};

use super::job::{Job, JobSink, Patience};
use super::{Daemon, Refusal, store};
use crate::environment::{self, Terminal};
use crate::files::ActingAs;
use crate::process::{Drain, Face, InputError, PtySize, Stage, StartError, StartSpec, Stdin, Stdio};
use crate::users::User;

/// How long the end of a tree is waited for after it was killed. A process can be held by the kernel for that long only when storage hangs;
/// the answer then says that the job still runs.
const KILL_PATIENCE: Duration = Duration::from_secs(10);

/// Exit codes of jobs that did not get as far as their script, as shells have them.
const CANNOT_EXECUTE: i32 = 126;
const NOT_FOUND: i32 = 127;
/// As dify's runner has it.
const NO_DIRECTORY: i32 = 111;

impl Daemon {
    /// Starts a job and waits for its first output.
    pub(super) fn run(&self, request: &RunRequest) -> Result<JobResult, Refusal> {
        request.validate()?;
        let user = self.user()?;
        store::remove(&user, self.table.expire());
        let home = home(request, &user);
        let cwd = enter(request.cwd.as_deref(), &home, &user)?;
        let place = self.table.admit()?;
        let identity = self.guest.identity();
        let prepared = self.store.prepare(&user, &identity.sandbox_id, &request.script, &self.table)?;
        let job = Arc::new(Job::new(prepared.id, prepared.directory, user.clone(), request.mode, prepared.output));
        let start = match command(&request.script, &prepared.script) {
            Err(problem) => {
                job.did_not_start(Some(CANNOT_EXECUTE), problem);
                None
            }
            Ok((program, args)) => Some(StartSpec {
                program,
                args,
                env: self.environment(request, &user, &cwd),
                cwd,
                user,
                stdio: stdio(request),
                tag: None,
                face: Face::Shellctl,
                sink: Some(Box::new(JobSink::new(Arc::clone(&job), Arc::clone(&self.table)))),
                drain: Drain::default(),
                deadline: None,
            }),
        };
        match start.map(|spec| self.guest.processes.start(spec)) {
            None => {}
            Some(Ok((process, _))) => {
                // Its end gives the place back.
                place.taken();
                job.started(process);
            }
            Some(Err(error)) => job.did_not_start(exit_code(&error), &error.to_string()),
        }
        self.table.insert(Arc::clone(&job));
        let patience =
            Patience { timeout: request.wait(), idle_flush: request.idle_flush(), output_limit: request.output_limit };
        job.wait(0, patience)
    }

    fn user(&self) -> Result<User, Refusal> {
        let name = &self.guest.identity().default_user;
        self.guest.users.by_name(name).map_err(|error| Refusal::internal("find the sandbox's user", &error))
    }

    fn environment(&self, request: &RunRequest, user: &User, cwd: &Path) -> BTreeMap<OsString, OsString> {
        let terminal = if request.mode == Mode::Pty { Terminal::Yes } else { Terminal::No };
        let none = BTreeMap::new();
        let asked = request.env.as_ref().unwrap_or(&none);
        let mut env = environment::build(&self.guest.identity(), user, terminal, asked);
        for name in ["TMPDIR", "TMP", "TEMP"] {
            if !asked.contains_key(name) {
                env.insert(name.into(), cwd.into());
            }
        }
        env
    }

    /// Waits for output or the end.
    pub(super) fn wait(&self, id: &JobId, request: &WaitRequest) -> Result<JobResult, Refusal> {
        request.validate()?;
        let patience =
            Patience { timeout: request.wait(), idle_flush: request.idle_flush(), output_limit: request.output_limit };
        self.table.get(id)?.wait(request.offset, patience)
    }

    /// Types into the job's terminal, then waits.
    pub(super) fn input(&self, id: &JobId, request: &InputRequest) -> Result<JobResult, Refusal> {
        request.validate()?;
        let job = self.table.get(id)?;
        job.check_offset(request.offset)?;
        let over = || Refusal::new(ErrorCode::JobNotRunning, format!("job {id} has ended and takes no input"));
        let process = job.process().filter(|_| !job.is_done()).ok_or_else(over)?;
        process.write_terminal(request.text.as_bytes()).map_err(|error| match error {
            InputError::NoTerminal | InputError::NoStdin => Refusal::new(
                ErrorCode::InputUnsupported,
                format!("job {id} runs in mode stdio, where stdin is /dev/null: run it in mode pty to type into it"),
            ),
            InputError::Ended => over(),
            // The terminal's last program is gone, and the end is about to be known.
            InputError::Io(error) if Errno::from_io_error(&error) == Some(Errno::IO) => over(),
            InputError::Io(error) => Refusal::internal("type into the job's terminal", &error),
        })?;
        let patience =
            Patience { timeout: request.wait(), idle_flush: request.idle_flush(), output_limit: request.output_limit };
        job.wait(request.offset, patience)
    }

    /// Ends the job's whole tree. Repeating it is fine.
    pub(super) fn terminate(&self, id: &JobId, grace: Duration) -> Result<JobStatusView, Refusal> {
        let job = self.table.get(id)?;
        end(&job, grace);
        Ok(job.view())
    }

    /// Forgets the job and removes its files.
    pub(super) fn delete(&self, id: &JobId, query: &DeleteQuery) -> Result<Deleted, Refusal> {
        let job = self.table.get(id)?;
        if query.force {
            end(&job, query.grace());
        }
        if !job.is_done() {
            let hint = if query.force {
                "did not end although it was killed"
            } else {
                "runs: terminate it first, or delete with force"
            };
            return Err(Refusal::new(ErrorCode::JobRunning, format!("job {id} {hint}")));
        }
        let gone = || Refusal::new(ErrorCode::JobNotFound, format!("job {id} does not exist"));
        let job = self.table.remove(id).ok_or_else(gone)?;
        job.empty();
        store::remove(&self.user()?, [job.directory.clone()]);
        Ok(Deleted { job_id: id.clone(), deleted: true })
    }
}

/// Ends what is left of a job, also the background processes of one that is done.
fn end(job: &Job, grace: Duration) {
    let Some(process) = job.process() else { return };
    job.ask_to_end();
    process.terminate(grace);
    // Whether it worked is seen from the job's state afterwards.
    let _gone = process.wait_gone(Some(grace + KILL_PATIENCE));
}

fn stdio(request: &RunRequest) -> Stdio {
    match request.mode {
        Mode::Pty => {
            let terminal = request.terminal.unwrap_or_default();
            Stdio::Pty(PtySize { cols: terminal.cols, rows: terminal.rows })
        }
        Mode::Stdio => Stdio::Pipes { stdin: Stdin::Null },
    }
}

fn home(request: &RunRequest, user: &User) -> PathBuf {
    let asked = request.env.as_ref().and_then(|env| env.get("HOME")).filter(|home| home.starts_with('/'));
    asked.map_or_else(|| user.home.clone(), PathBuf::from)
}

/// Finds the working directory and checks, as the user, that it can be entered. Makes a missing home.
fn enter(cwd: Option<&str>, home: &Path, user: &User) -> Result<PathBuf, Refusal> {
    let directory = match cwd.unwrap_or_default() {
        "" | "~" => home.to_owned(),
        below if below.starts_with("~/") => home.join(below[2..].trim_start_matches('/')),
        // Relative to the home; an absolute path replaces it.
        given => home.join(given),
    };
    let shown = directory.display();
    let refuse = |problem: &str| Err(Refusal::new(ErrorCode::InvalidCwd, format!("cwd '{shown}' {problem}")));
    let _acting = ActingAs::user(user).map_err(|error| Refusal::internal("act for the job's user", &error))?;
    // Where it cannot be made, the check below or the job itself says so.
    rustix::fs::mkdir(home, FileMode::from_raw_mode(0o755)).ok();
    match std::fs::metadata(&directory) {
        Ok(found) if !found.is_dir() => refuse("is not a directory"),
        Ok(_) => match accessat(CWD, &directory, Access::EXEC_OK, AtFlags::EACCESS) {
            // A kernel without the call: entering it will tell.
            Ok(()) | Err(Errno::NOSYS) => Ok(directory),
            Err(_) => refuse(&format!("cannot be entered by user '{}'", user.name)),
        },
        Err(error) if error.kind() == io::ErrorKind::NotFound => refuse("does not exist"),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            refuse(&format!("cannot be reached by user '{}'", user.name))
        }
        Err(error) => refuse(&format!("cannot be used: {error}")),
    }
}

/// How a script is executed. A line `#!` is read here as the kernel would, instead of executing the file: while another job is being
/// started its process may for a moment hold the freshly written file open, and executing it would fail with ETXTBSY.
fn command(script: &str, path: &Path) -> Result<(OsString, Vec<OsString>), &'static str> {
    let Some(line) = script.strip_prefix("#!") else { return Ok(("/bin/sh".into(), vec![path.into()])) };
    let line = line.split(['\n', '\0']).next().unwrap_or_default();
    let line = line.trim_matches([' ', '\t', '\r']);
    let (interpreter, argument) = line.split_once([' ', '\t']).unwrap_or((line, ""));
    if interpreter.is_empty() {
        return Err("the script's first line names no interpreter");
    }
    // Without a slash the kernel would look in the working directory, not in PATH.
    let interpreter = if interpreter.contains('/') { interpreter.to_owned() } else { format!("./{interpreter}") };
    let argument = argument.trim_matches([' ', '\t']);
    let mut args = Vec::new();
    if !argument.is_empty() {
        args.push(OsString::from_vec(argument.as_bytes().to_vec()));
    }
    args.push(path.into());
    Ok((interpreter.into(), args))
}

/// The exit code of a job that did not start, if a shell would have given one.
fn exit_code(error: &StartError) -> Option<i32> {
    match (error.stage, Errno::from_io_error(&error.source)) {
        (Stage::Exec, Some(Errno::NOENT)) => Some(NOT_FOUND),
        (Stage::Exec, _) => Some(CANNOT_EXECUTE),
        (Stage::Cwd, _) => Some(NO_DIRECTORY),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(script: &str) -> Result<Vec<String>, &'static str> {
        let (program, args) = command(script, Path::new("/job/script"))?;
        Ok(std::iter::once(program).chain(args).map(|text| text.into_string().unwrap()).collect())
    }

    #[test]
    fn scripts_run_by_their_first_line_or_by_sh() {
        assert_eq!(parse("echo hi").unwrap(), ["/bin/sh", "/job/script"]);
        assert_eq!(parse("").unwrap(), ["/bin/sh", "/job/script"]);
        assert_eq!(parse("#!/bin/bash\nx").unwrap(), ["/bin/bash", "/job/script"]);
        assert_eq!(parse("#! /usr/bin/env  python3 -u \r\n").unwrap(), ["/usr/bin/env", "python3 -u", "/job/script"]);
        assert_eq!(parse("#!own").unwrap(), ["./own", "/job/script"]);
        assert!(parse("#!\necho").is_err());
        assert!(parse("#!  \t\n").is_err());
    }

    #[test]
    fn failed_starts_have_the_codes_of_shells() {
        let error = |stage, errno: Errno| StartError { stage, program: "x".into(), source: errno.into() };
        assert_eq!(exit_code(&error(Stage::Exec, Errno::NOENT)), Some(127));
        assert_eq!(exit_code(&error(Stage::Exec, Errno::ACCESS)), Some(126));
        assert_eq!(exit_code(&error(Stage::Exec, Errno::NOEXEC)), Some(126));
        assert_eq!(exit_code(&error(Stage::Cwd, Errno::NOENT)), Some(111));
        assert_eq!(exit_code(&error(Stage::Fork, Errno::AGAIN)), None);
    }
}
