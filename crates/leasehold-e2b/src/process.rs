//! Processes of a sandbox.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::time::Duration;

use bytes::Bytes;
use envd::{
    DataEvent, Empty, Input, ListResponse, ProcessConfig, ProcessEvent, ProcessRequest, Pty, SendInputRequest,
    SendSignalRequest, StartRequest, StreamEvent, UpdateRequest,
};
pub use envd::{EndEvent, ProcessInfo, PtySize, Selector, Signal};

use crate::ClientError;
use crate::rpc::{MessageStream, Rpc};

/// Largest piece of input sent in one message. Chosen: far below envd's limits, and a slow reader inside blocks for little.
const INPUT_BYTES: usize = 64 << 10;

/// What to run.
#[derive(Debug, Clone)]
#[must_use]
pub struct ProcessSpec {
    program: OsString,
    arguments: Vec<OsString>,
    envs: BTreeMap<String, String>,
    cwd: Option<String>,
    user: Option<String>,
    tag: Option<String>,
    stdin: bool,
    terminal: Option<PtySize>,
    timeout: Option<Duration>,
}

impl ProcessSpec {
    /// A program, looked up in the sandbox's `PATH` unless it holds a slash. Without anything set it gets no input, runs as the
    /// template's default user in its home, and has no time limit.
    pub fn new(program: impl Into<OsString>) -> Self {
        Self {
            program: program.into(),
            arguments: Vec::new(),
            envs: BTreeMap::new(),
            cwd: None,
            user: None,
            tag: None,
            stdin: false,
            terminal: None,
            timeout: None,
        }
    }

    /// A command line for a login shell, as `commands.run` of E2B's SDKs starts it.
    pub fn shell(line: impl Into<OsString>) -> Self {
        Self::new("/bin/bash").arguments(["-l", "-c"]).argument(line)
    }

    /// A further argument.
    pub fn argument(mut self, argument: impl Into<OsString>) -> Self {
        self.arguments.push(argument.into());
        self
    }

    /// Further arguments.
    pub fn arguments(mut self, arguments: impl IntoIterator<Item = impl Into<OsString>>) -> Self {
        self.arguments.extend(arguments.into_iter().map(Into::into));
        self
    }

    /// A variable laid over the sandbox's environment.
    pub fn env(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.envs.insert(name.into(), value.into());
        self
    }

    /// The working directory; the user's home unless set.
    pub fn cwd(mut self, directory: impl Into<String>) -> Self {
        self.cwd = Some(directory.into());
        self
    }

    /// The user; the template's default user unless set.
    pub fn user(mut self, user: impl Into<String>) -> Self {
        self.user = Some(user.into());
        self
    }

    /// A name by which it can be found.
    pub fn tag(mut self, tag: impl Into<String>) -> Self {
        self.tag = Some(tag.into());
        self
    }

    /// Whether it can be sent input; else it reads from `/dev/null`.
    pub fn stdin(mut self, open: bool) -> Self {
        self.stdin = open;
        self
    }

    /// Run it on a terminal of this size; stdout and stderr then come as one.
    pub fn terminal(mut self, size: PtySize) -> Self {
        self.terminal = Some(size);
        self
    }

    /// Kill the process and all it started after this time; its stream then ends with `Rpc(DeadlineExceeded)`.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    fn request(&self) -> Result<StartRequest, ClientError> {
        let mut args = Vec::with_capacity(self.arguments.len());
        for (index, argument) in self.arguments.iter().enumerate() {
            args.push(text(&format!("argument {}", index + 1), argument)?);
        }
        if let Some(name) = self.envs.keys().find(|name| name.is_empty() || name.contains(['=', '\0'])) {
            let why = format!("variable {name:?}: a name is not empty and holds neither '=' nor NUL");
            return Err(ClientError::invalid("start process", why));
        }
        Ok(StartRequest {
            process: ProcessConfig {
                cmd: text("program", &self.program)?,
                args,
                envs: self.envs.clone(),
                cwd: self.cwd.clone(),
            },
            pty: self.terminal.map(|size| Pty { size: Some(size) }),
            tag: self.tag.clone(),
            stdin: Some(self.stdin),
        })
    }
}

/// envd speaks JSON, whose strings are Unicode.
fn text(what: &str, value: &OsStr) -> Result<String, ClientError> {
    value.to_str().map(str::to_owned).ok_or_else(|| {
        let why = format!("{what} {value:?} is not valid UTF-8, which envd's JSON protocol cannot carry");
        ClientError::invalid("start process", why)
    })
}

/// The processes of a sandbox.
#[derive(Debug, Clone)]
pub struct Processes {
    rpc: Rpc,
}

impl Processes {
    pub(crate) fn new(rpc: Rpc) -> Self {
        Self { rpc }
    }

    /// As [`Sandbox::start`](crate::Sandbox::start).
    ///
    /// # Errors
    /// As [`Sandbox::start`](crate::Sandbox::start).
    pub async fn start(&self, spec: &ProcessSpec) -> Result<Process, ClientError> {
        let request = spec.request()?;
        let rpc = Rpc { user: spec.user.clone(), ..self.rpc.clone() };
        let stream = rpc.stream("start process", "/process.Process/Start", &request, spec.timeout).await?;
        self.opened("start process", stream).await
    }

    /// Attaches to a running process: its output from now on, and its end. The end stays known for 30 s after it.
    ///
    /// # Errors
    /// `Rpc(NotFound)` when there is no such process.
    pub async fn connect(&self, process: Selector) -> Result<Process, ClientError> {
        let request = ProcessRequest { process: Some(process) };
        let stream = self.rpc.stream("connect process", "/process.Process/Connect", &request, None).await?;
        self.opened("connect process", stream).await
    }

    /// Reads the start event, which is always first.
    async fn opened(&self, operation: &'static str, mut stream: MessageStream) -> Result<Process, ClientError> {
        loop {
            let event = stream.next::<StreamEvent>().await?.map(|message| message.event);
            let pid = match event {
                Some(ProcessEvent::Start(start)) => start.pid,
                Some(ProcessEvent::Keepalive(_)) => continue,
                Some(_) => return Err(ClientError::decode(operation, "an event before the start event", &[])),
                None => return Err(ClientError::decode(operation, "the stream ended before the start event", &[])),
            };
            return Ok(Process { input: ProcessInput { rpc: self.rpc.clone(), pid }, operation, stream, ended: false });
        }
    }

    /// The processes started through envd that run.
    ///
    /// # Errors
    /// `Rpc` or `Transport`.
    pub async fn list(&self) -> Result<Vec<ProcessInfo>, ClientError> {
        let answer: ListResponse = self.rpc.unary("list processes", "/process.Process/List", &Empty {}).await?;
        Ok(answer.processes)
    }

    /// Sends bytes to a process's stdin.
    ///
    /// # Errors
    /// `Rpc(NotFound)` for an unknown process; `Rpc(Internal)` when its stdin is closed.
    pub async fn send_stdin(&self, process: &Selector, bytes: &[u8]) -> Result<(), ClientError> {
        for piece in bytes.chunks(INPUT_BYTES) {
            self.send(process, Input::Stdin(piece.to_vec())).await?;
        }
        Ok(())
    }

    /// Types bytes into a process's terminal.
    ///
    /// # Errors
    /// As [`Processes::send_stdin`].
    pub async fn send_pty(&self, process: &Selector, bytes: &[u8]) -> Result<(), ClientError> {
        for piece in bytes.chunks(INPUT_BYTES) {
            self.send(process, Input::Pty(piece.to_vec())).await?;
        }
        Ok(())
    }

    async fn send(&self, process: &Selector, input: Input) -> Result<(), ClientError> {
        let request = SendInputRequest { process: Some(process.clone()), input: Some(input) };
        let _: Empty = self.rpc.unary("send input", "/process.Process/SendInput", &request).await?;
        Ok(())
    }

    /// Closes a process's stdin: it reads an end of file after what was sent.
    ///
    /// # Errors
    /// `Rpc(NotFound)` for an unknown process; `Rpc(Unknown)` when it has no stdin.
    pub async fn close_stdin(&self, process: &Selector) -> Result<(), ClientError> {
        let request = ProcessRequest { process: Some(process.clone()) };
        let _: Empty = self.rpc.unary("close stdin", "/process.Process/CloseStdin", &request).await?;
        Ok(())
    }

    /// Sends a signal.
    ///
    /// # Errors
    /// `Rpc(NotFound)` for an unknown process.
    pub async fn signal(&self, process: &Selector, signal: Signal) -> Result<(), ClientError> {
        let request = SendSignalRequest { process: Some(process.clone()), signal };
        let _: Empty = self.rpc.unary("signal process", "/process.Process/SendSignal", &request).await?;
        Ok(())
    }

    /// Resizes a process's terminal.
    ///
    /// # Errors
    /// `Rpc(NotFound)` for an unknown process; `Rpc(Internal)` when it has no terminal.
    pub async fn resize(&self, process: &Selector, size: PtySize) -> Result<(), ClientError> {
        let request = UpdateRequest { process: Some(process.clone()), pty: Some(Pty { size: Some(size) }) };
        let _: Empty = self.rpc.unary("resize terminal", "/process.Process/Update", &request).await?;
        Ok(())
    }
}

/// What a process wrote, or its end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Output {
    /// Bytes of its stdout.
    Stdout(Bytes),
    /// Bytes of its stderr.
    Stderr(Bytes),
    /// Bytes of its terminal.
    Pty(Bytes),
    /// It ended, after all its output. Always the last.
    End(EndEvent),
}

/// A process and the stream of its output. Dropping it stops listening; the process goes on.
#[derive(Debug)]
pub struct Process {
    input: ProcessInput,
    operation: &'static str,
    stream: MessageStream,
    ended: bool,
}

impl Process {
    /// Its pid inside the sandbox.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.input.pid
    }

    /// A handle for its input and for signals, which can be used while output is awaited.
    #[must_use]
    pub fn input(&self) -> ProcessInput {
        self.input.clone()
    }

    /// The next piece of output, in the order of each stream; `None` after [`Output::End`].
    ///
    /// # Errors
    /// `Rpc(DeadlineExceeded)` when its timeout passed; `Transport` when the stream broke, and then the process may go on.
    ///
    /// # Cancel safety
    /// Nothing is lost; call it again.
    pub async fn next(&mut self) -> Result<Option<Output>, ClientError> {
        if self.ended {
            return Ok(None);
        }
        loop {
            let output = match self.stream.next::<StreamEvent>().await?.map(|message| message.event) {
                None => {
                    self.ended = true;
                    return Err(ClientError::decode(self.operation, "the stream ended without an end event", &[]));
                }
                Some(ProcessEvent::Start(_) | ProcessEvent::Keepalive(_)) => continue,
                Some(ProcessEvent::Data(DataEvent::Stdout(bytes))) => Output::Stdout(bytes.into()),
                Some(ProcessEvent::Data(DataEvent::Stderr(bytes))) => Output::Stderr(bytes.into()),
                Some(ProcessEvent::Data(DataEvent::Pty(bytes))) => Output::Pty(bytes.into()),
                Some(ProcessEvent::End(end)) => {
                    self.ended = true;
                    Output::End(end)
                }
            };
            return Ok(Some(output));
        }
    }
}

/// Input and signals of one process.
#[derive(Debug, Clone)]
pub struct ProcessInput {
    rpc: Rpc,
    pid: u32,
}

impl ProcessInput {
    fn processes(&self) -> (Processes, Selector) {
        (Processes::new(self.rpc.clone()), Selector::Pid(self.pid))
    }

    /// As [`Processes::send_stdin`].
    ///
    /// # Errors
    /// As [`Processes::send_stdin`].
    pub async fn send_stdin(&self, bytes: &[u8]) -> Result<(), ClientError> {
        let (processes, process) = self.processes();
        processes.send_stdin(&process, bytes).await
    }

    /// As [`Processes::send_pty`].
    ///
    /// # Errors
    /// As [`Processes::send_pty`].
    pub async fn send_pty(&self, bytes: &[u8]) -> Result<(), ClientError> {
        let (processes, process) = self.processes();
        processes.send_pty(&process, bytes).await
    }

    /// As [`Processes::close_stdin`].
    ///
    /// # Errors
    /// As [`Processes::close_stdin`].
    pub async fn close_stdin(&self) -> Result<(), ClientError> {
        let (processes, process) = self.processes();
        processes.close_stdin(&process).await
    }

    /// As [`Processes::signal`].
    ///
    /// # Errors
    /// As [`Processes::signal`].
    pub async fn signal(&self, signal: Signal) -> Result<(), ClientError> {
        let (processes, process) = self.processes();
        processes.signal(&process, signal).await
    }

    /// As [`Processes::resize`].
    ///
    /// # Errors
    /// As [`Processes::resize`].
    pub async fn resize(&self, size: PtySize) -> Result<(), ClientError> {
        let (processes, process) = self.processes();
        processes.resize(&process, size).await
    }
}
