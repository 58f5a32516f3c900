//! `process.Process`: E2B's service for commands and terminals, as envd 0.6.13 behaves.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use envd::{
    Code, Empty, Input, ListResponse, ProcessConfig, ProcessInfo, ProcessRequest, RpcError, Selector, SendInputRequest,
    SendSignalRequest, Signal, StartRequest, StreamInputRequest, UpdateRequest,
};

use super::follow::{Role, follow};
use super::{Incoming, Outgoing, client_stream, invalid, server_stream, timeout, unary};
use crate::environment::{self, Terminal};
use crate::guest::Guest;
use crate::http::{Request, Response};
use crate::process::{Drain, Face, InputError, Process, PtySize, Stage, StartError, StartSpec, Stdin, Stdio};
use crate::users::User;

/// How long the answer to a kill waits for the end. Chosen: an end takes milliseconds, and clients wait longer for an answer.
const KILL_PATIENCE: Duration = Duration::from_secs(2);

/// Serves the calls of `process.Process`.
#[derive(Debug, Clone)]
pub struct ProcessService {
    guest: Arc<Guest>,
}

impl ProcessService {
    /// Serves the processes of this guest.
    pub fn new(guest: Arc<Guest>) -> Self {
        Self { guest }
    }

    /// Answers a call. `user` is who the caller may act as, or why not.
    ///
    /// # Errors
    /// When the connection fails.
    pub fn serve(
        &self,
        method: &str,
        user: Result<User, RpcError>,
        request: &mut Request<'_>,
        response: Response<'_>,
    ) -> io::Result<()> {
        match method {
            "List" => unary(request, response, |Empty {}| {
                user?;
                Ok(self.list())
            }),
            "Start" => {
                let timeout = timeout(request);
                server_stream(request, response, |start: StartRequest, stream| match (user, timeout) {
                    (Ok(user), Ok(timeout)) => self.start(start, user, timeout, stream),
                    (Err(error), _) | (_, Err(error)) => Ok(Err(error)),
                })
            }
            "Connect" => {
                let timeout = timeout(request);
                server_stream(request, response, |connect: ProcessRequest, stream| {
                    let found = user.and_then(|_| self.find_remembered(connect.process.as_ref()));
                    match (found, timeout) {
                        (Ok(process), Ok(timeout)) => {
                            follow(&process, process.subscribe()?, Role::Visitor(timeout), stream)
                        }
                        (Err(error), _) | (_, Err(error)) => Ok(Err(error)),
                    }
                })
            }
            "Update" => unary(request, response, |update: UpdateRequest| {
                user?;
                self.update(&update)
            }),
            "SendInput" => unary(request, response, |send: SendInputRequest| {
                user?;
                give(&*self.find(send.process.as_ref())?, send.input)
            }),
            "StreamInput" => client_stream(request, response, |messages| {
                user?;
                self.stream_input(messages)
            }),
            "SendSignal" => unary(request, response, |send: SendSignalRequest| {
                user?;
                self.send_signal(&send)
            }),
            "CloseStdin" => unary(request, response, |close: ProcessRequest| {
                user?;
                let process = self.find(close.process.as_ref())?;
                let closed = process.close_stdin().map_err(|error| error.to_string());
                closed.map_err(|text| RpcError::new(Code::Unknown, format!("error closing stdin: {text}")))?;
                Ok(Empty {})
            }),
            _ => unary(request, response, |Empty {}| -> Result<Empty, _> {
                Err(RpcError::new(Code::Unimplemented, format!("process.Process has no method {method:?}")))
            }),
        }
    }

    fn list(&self) -> ListResponse {
        let info = |process: Arc<Process>| match process.face() {
            Face::Envd(config) => {
                Some(ProcessInfo { config: config.clone(), pid: process.pid(), tag: process.tag().map(str::to_owned) })
            }
            Face::Shellctl => None,
        };
        ListResponse { processes: self.guest.processes.running().into_iter().filter_map(info).collect() }
    }

    fn start(
        &self,
        start: StartRequest,
        user: User,
        deadline: Option<Duration>,
        stream: &mut Outgoing<'_>,
    ) -> io::Result<Result<(), RpcError>> {
        let started = self.spec(start, user).and_then(|mut spec| {
            spec.deadline = deadline;
            let cwd = spec.cwd.clone();
            self.guest.processes.start(spec).map_err(|error| start_error(&error, &cwd))
        });
        match started {
            Ok((process, subscription)) => follow(&process, subscription, Role::Starter, stream),
            Err(error) => Ok(Err(error)),
        }
    }

    fn spec(&self, start: StartRequest, user: User) -> Result<StartSpec, RpcError> {
        let config = start.process;
        let has_nul = |text: &String| text.contains('\0');
        if has_nul(&config.cmd) || config.args.iter().any(has_nul) || config.cwd.as_ref().is_some_and(has_nul) {
            return Err(invalid("command, arguments and cwd cannot hold NUL"));
        }
        if let Some(problem) = environment::first_unusable(&config.envs) {
            return Err(invalid(problem));
        }
        let identity = self.guest.identity();
        let (stdio, terminal) = match &start.pty {
            Some(pty) => (Stdio::Pty(pty_size(pty.size)?.unwrap_or_default()), Terminal::Yes),
            None => {
                let stdin = if start.stdin.unwrap_or(true) { Stdin::Pipe } else { Stdin::Null };
                (Stdio::Pipes { stdin }, Terminal::No)
            }
        };
        Ok(StartSpec {
            program: config.cmd.clone().into(),
            args: config.args.iter().map(Into::into).collect(),
            env: environment::build(&identity, &user, terminal, &config.envs),
            cwd: working_dir(&config, identity.default_workdir.as_deref(), &user),
            user,
            stdio,
            tag: start.tag.filter(|tag| !tag.is_empty()),
            face: Face::Envd(config),
            sink: None,
            drain: Drain::default(),
            deadline: None,
        })
    }

    fn update(&self, update: &UpdateRequest) -> Result<Empty, RpcError> {
        let process = self.find(update.process.as_ref())?;
        if let Some(size) = pty_size(update.pty.and_then(|pty| pty.size))? {
            process
                .resize(size)
                .map_err(|error| RpcError::new(Code::Internal, format!("error resizing tty: {error}")))?;
        }
        Ok(Empty {})
    }

    fn send_signal(&self, send: &SendSignalRequest) -> Result<Empty, RpcError> {
        let process = self.find(send.process.as_ref())?;
        match send.signal {
            Signal::Sigterm => process.signal(libc::SIGTERM),
            // A kill means everything that the command started, also what has left its group. The answer waits for the end, so
            // that a client which lists or kills again sees it.
            Signal::Sigkill => {
                process.terminate(Duration::ZERO);
                // Still there after that: in the kernel, where it cannot be helped; the kill stands.
                let _ended = process.wait(Some(KILL_PATIENCE));
            }
            Signal::Unspecified => {
                return Err(RpcError::new(Code::Unimplemented, "invalid signal: SIGNAL_UNSPECIFIED"));
            }
        }
        Ok(Empty {})
    }

    fn stream_input(&self, messages: &mut Incoming<'_, '_>) -> Result<Empty, RpcError> {
        let Some(StreamInputRequest::Start(start)) = messages.next()? else {
            return Err(invalid("the first message of the stream must be a start event"));
        };
        let process = self.find(start.process.as_ref())?;
        while let Some(message) = messages.next()? {
            match message {
                StreamInputRequest::Data(data) => {
                    give(&process, data.input)?;
                }
                StreamInputRequest::Keepalive(_) => {}
                StreamInputRequest::Start(_) => return Err(invalid("the stream has a second start event")),
            }
        }
        Ok(Empty {})
    }

    /// The process, if it runs.
    fn find(&self, selector: Option<&Selector>) -> Result<Arc<Process>, RpcError> {
        let process = self.find_remembered(selector)?;
        if process.exit().is_some() { Err(not_found(selector)) } else { Ok(process) }
    }

    /// The process, if it runs or ended a short while ago.
    fn find_remembered(&self, selector: Option<&Selector>) -> Result<Arc<Process>, RpcError> {
        let found = match selector {
            Some(Selector::Pid(pid)) => self.guest.processes.by_pid(*pid),
            Some(Selector::Tag(tag)) => self.guest.processes.by_tag(tag),
            None => return Err(RpcError::new(Code::Unimplemented, "the request selects no process")),
        };
        found.filter(|process| matches!(process.face(), Face::Envd(_))).ok_or_else(|| not_found(selector))
    }
}

fn not_found(selector: Option<&Selector>) -> RpcError {
    let message = match selector {
        Some(Selector::Pid(pid)) => format!("process with pid {pid} not found"),
        Some(Selector::Tag(tag)) => format!("process with tag {tag} not found"),
        None => "process not found".to_owned(),
    };
    RpcError::new(Code::NotFound, message)
}

fn give(process: &Process, input: Option<Input>) -> Result<Empty, RpcError> {
    let refuse =
        |what: &str, error: InputError| RpcError::new(Code::Internal, format!("error writing to {what}: {error}"));
    match input {
        Some(Input::Stdin(bytes)) => process.write_stdin(&bytes).map_err(|error| refuse("stdin", error))?,
        Some(Input::Pty(bytes)) => process.write_terminal(&bytes).map_err(|error| refuse("tty", error))?,
        None => return Err(RpcError::new(Code::Unimplemented, "the request has no input")),
    }
    Ok(Empty {})
}

/// `None` leaves a terminal as it is.
fn pty_size(size: Option<envd::PtySize>) -> Result<Option<PtySize>, RpcError> {
    let Some(size) = size else { return Ok(None) };
    match (u16::try_from(size.cols), u16::try_from(size.rows)) {
        (Ok(cols), Ok(rows)) => Ok(Some(PtySize { cols, rows })),
        _ => Err(invalid(format!("a terminal of {} by {} is too large", size.cols, size.rows))),
    }
}

/// `~` is the home, and relative paths start there, as envd resolves them.
fn working_dir(config: &ProcessConfig, default: Option<&str>, user: &User) -> PathBuf {
    let asked = config.cwd.as_deref().filter(|cwd| !cwd.is_empty()).or(default);
    match asked {
        None | Some("~") => user.home.clone(),
        Some(cwd) => user.home.join(cwd.strip_prefix("~/").unwrap_or(cwd)),
    }
}

fn start_error(error: &StartError, cwd: &std::path::Path) -> RpcError {
    use io::ErrorKind::{ArgumentListTooLong, NotADirectory, NotFound, PermissionDenied};
    let (program, cause) = (error.program.display(), &error.source);
    let (code, message) = match (error.stage, cause.kind()) {
        (Stage::Cwd, NotFound | NotADirectory) => {
            (Code::InvalidArgument, format!("cwd '{}' does not exist", cwd.display()))
        }
        (Stage::Cwd, _) => (Code::InvalidArgument, format!("cwd '{}' cannot be entered: {cause}", cwd.display())),
        (Stage::Exec, NotFound) => (Code::NotFound, format!("command not found: '{program}'")),
        (Stage::Exec, PermissionDenied) => {
            (Code::PermissionDenied, format!("command '{program}' cannot be executed: {cause}"))
        }
        (Stage::Exec, ArgumentListTooLong) => {
            (Code::InvalidArgument, "arguments and environment are too long for the kernel".to_owned())
        }
        (Stage::User, _) => (Code::PermissionDenied, error.to_string()),
        (Stage::Supervisor | Stage::Fork, _) => (Code::ResourceExhausted, error.to_string()),
        (Stage::Stdio | Stage::Exec, _) => (Code::Internal, error.to_string()),
    };
    RpcError::new(code, message)
}
