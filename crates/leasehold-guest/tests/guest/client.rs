//! Starting a guest, and a small client for it.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use envd::{EndStream, Flags, FrameDecoder, ProcessEvent, RpcError, StreamEvent};
use leasehold_guest::{AccessToken, Identity};
use serde_json::{Value, json};

pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// A running guest; it and everything it started end when this is dropped.
pub(crate) struct TestGuest {
    pub(crate) dir: tempfile::TempDir,
    child: Child,
}

pub(crate) fn own_name() -> String {
    let uid = rustix::process::geteuid().as_raw();
    leasehold_guest::users::Users::default().name_of(uid).expect("the tests' user has a name")
}

pub(crate) fn identity() -> Identity {
    let mut identity = Identity::new("i0123", "host");
    identity.default_user = own_name();
    identity.default_workdir = Some("/".into());
    identity.envs.insert("FROM_IDENTITY".into(), "yes".into());
    identity
}

impl TestGuest {
    pub(crate) fn start() -> Self {
        Self::with_identity(&identity())
    }

    pub(crate) fn with_token(token: &str) -> Self {
        Self::with_identity(&Identity { access_token: Some(AccessToken::new(token)), ..identity() })
    }

    pub(crate) fn with_identity(identity: &Identity) -> Self {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("identity.json"), serde_json::to_vec(identity).unwrap()).unwrap();
        Self::launch(dir, &["--envd-port", "0", "--shellctl-port", "0"]).expect("the guest starts")
    }

    /// The error that the guest reports when it cannot start.
    pub(crate) fn launch(dir: tempfile::TempDir, args: &[&str]) -> Result<Self, String> {
        let mut child = Command::new(env!("CARGO_BIN_EXE_leasehold-guest"))
            .args(["init", "--ready-fd", "1", "--run"])
            .arg(dir.path())
            .arg("--state")
            .arg(dir.path().join("state"))
            .args(args)
            .env_clear()
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let guest = Self { dir, child };
        let report: Value = serde_json::from_str(&line).expect("one JSON line");
        match report["error"].as_str() {
            None => {
                assert_eq!(report, json!({ "ready": true }));
                Ok(guest)
            }
            Some(error) => Err(error.to_owned()),
        }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn connect(&self, socket: &str) -> UnixStream {
        let stream = UnixStream::connect(self.path(socket)).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    }

    pub(crate) fn client(&self) -> Client {
        self.client_of("envd.sock")
    }

    /// A connection to another of the guest's sockets.
    pub(crate) fn client_of(&self, socket: &str) -> Client {
        Client { stream: BufReader::new(self.connect(socket)), headers: Vec::new() }
    }

    /// Unary call on a connection of its own.
    pub(crate) fn call(&self, method: &str, message: Value) -> Result<Value, RpcError> {
        self.client().call(method, message)
    }

    /// Opens the stream of a process that runs `sh -c script`, with these members laid over the request.
    pub(crate) fn sh(&self, script: &str, extra: Value) -> EventStream {
        self.client().sh(script, extra)
    }

    /// Supervisors of this guest and zombies below it, with their states. The spawner, its one lasting child, is not among them.
    pub(crate) fn children(&self) -> Vec<(u32, String)> {
        let stats = std::fs::read_dir("/proc").unwrap().filter_map(|entry| {
            let pid: u32 = entry.ok()?.file_name().to_str()?.parse().ok()?;
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
            let mut fields = stat.rsplit(')').next()?.split_ascii_whitespace();
            let state = fields.next()?.to_owned();
            let parent: u32 = fields.next()?.parse().ok()?;
            Some((pid, parent, state))
        });
        let stats: Vec<_> = stats.collect();
        let below = |parent: u32| stats.iter().filter(move |(_, found, _)| *found == parent);
        let spawners = below(self.pid()).filter(|(_, _, state)| state != "Z");
        let zombies = below(self.pid()).filter(|(_, _, state)| state == "Z");
        let supervisors = spawners.flat_map(|(pid, ..)| below(*pid));
        zombies.chain(supervisors).map(|(pid, _, state)| (*pid, state.clone())).collect()
    }

    /// The spawner's process id, once there is one.
    pub(crate) fn spawner(&self) -> Option<u32> {
        // Children are listed with the thread that made them.
        let threads = std::fs::read_dir(format!("/proc/{}/task", self.pid())).ok()?;
        threads.flatten().find_map(|thread| {
            std::fs::read_to_string(thread.path().join("children")).ok()?.split_whitespace().next()?.parse().ok()
        })
    }
}

impl Drop for TestGuest {
    fn drop(&mut self) {
        // Supervisors see their sockets close and end what they own.
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

/// One connection.
pub(crate) struct Client {
    stream: BufReader<UnixStream>,
    headers: Vec<(String, String)>,
}

pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

impl Answer {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find_map(|(found, value)| found.eq_ignore_ascii_case(name).then_some(value.as_str()))
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|_| panic!("{:?}", String::from_utf8_lossy(&self.body)))
    }
}

impl Client {
    pub(crate) fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.into(), value.into()));
        self
    }

    pub(crate) fn send(&mut self, method: &str, path: &str, content_type: &str, body: &[u8]) {
        let mut request = format!("{method} {path} HTTP/1.1\r\nHost: guest\r\nContent-Type: {content_type}\r\n");
        for (name, value) in &self.headers {
            request.push_str(&format!("{name}: {value}\r\n"));
        }
        request.push_str(&format!("Content-Length: {}\r\n\r\n", body.len()));
        self.stream.get_mut().write_all(&[request.as_bytes(), body].concat()).unwrap();
    }

    fn read_head(&mut self) -> (u16, Vec<(String, String)>) {
        let mut line = String::new();
        self.stream.read_line(&mut line).unwrap();
        let status = line.split(' ').nth(1).unwrap_or_else(|| panic!("no status in {line:?}")).parse().unwrap();
        let mut headers = Vec::new();
        loop {
            line.clear();
            self.stream.read_line(&mut line).unwrap();
            let Some((name, value)) = line.trim_end().split_once(": ") else { return (status, headers) };
            headers.push((name.to_owned(), value.to_owned()));
        }
    }

    pub(crate) fn request(&mut self, method: &str, path: &str, content_type: &str, body: &[u8]) -> Answer {
        self.send(method, path, content_type, body);
        let (status, headers) = self.read_head();
        let mut answer = Answer { status, headers, body: Vec::new() };
        let length = answer.header("content-length").map_or(0, |length| length.parse().unwrap());
        answer.body.resize(length, 0);
        self.stream.read_exact(&mut answer.body).unwrap();
        answer
    }

    pub(crate) fn get(&mut self, path: &str) -> Answer {
        self.request("GET", path, "text/plain", b"")
    }

    pub(crate) fn call(&mut self, method: &str, message: Value) -> Result<Value, RpcError> {
        let answer = self.request("POST", method, "application/json", message.to_string().as_bytes());
        if answer.status == 200 {
            return Ok(answer.json());
        }
        let error: RpcError = serde_json::from_slice(&answer.body).expect("a Connect error");
        assert_eq!(answer.status, error.code.http_status());
        Err(error)
    }

    pub(crate) fn stream(mut self, method: &str, messages: &[Value]) -> EventStream {
        let body: Vec<u8> = messages.iter().flat_map(envd::encode_message).collect();
        self.send("POST", method, "application/connect+json", &body);
        let (status, headers) = self.read_head();
        assert_eq!(status, 200, "{headers:?}");
        EventStream { client: self, decoder: FrameDecoder::default(), over: false, end: None, pid: 0 }
    }

    pub(crate) fn sh(self, script: &str, extra: Value) -> EventStream {
        let mut request = json!({ "process": { "cmd": "/bin/sh", "args": ["-c", script] }, "stdin": false });
        for (name, value) in extra.as_object().into_iter().flatten() {
            request[name] = value.clone();
        }
        let mut stream = self.stream("/process.Process/Start", &[request]);
        match stream.next() {
            Some(ProcessEvent::Start(start)) => stream.pid = start.pid,
            other => assert!(other.is_none(), "the first event is {other:?}"),
        }
        stream
    }
}

/// The messages of a response.
pub(crate) struct EventStream {
    client: Client,
    decoder: FrameDecoder,
    over: bool,
    /// The last envelope.
    pub(crate) end: Option<EndStream>,
    pub(crate) pid: u32,
}

/// What a whole stream said.
#[derive(Debug, Default)]
pub(crate) struct Said {
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: Vec<u8>,
    pub(crate) pty: Vec<u8>,
    pub(crate) end: Option<envd::EndEvent>,
    pub(crate) keepalives: usize,
    pub(crate) error: Option<RpcError>,
}

impl EventStream {
    /// The next message as it is, `None` at the end of the stream.
    pub(crate) fn next_message(&mut self) -> Option<Value> {
        while !self.over {
            match self.decoder.next_frame().unwrap() {
                Some((Flags::Message, payload)) => return Some(serde_json::from_slice(payload).unwrap()),
                Some((Flags::EndStream, payload)) => self.end = Some(serde_json::from_slice(payload).unwrap()),
                None => match self.chunk() {
                    Some(chunk) => self.decoder.push(&chunk),
                    None => {
                        assert!(!self.decoder.has_partial() && self.end.is_some(), "the stream was cut");
                        self.over = true;
                    }
                },
            }
        }
        None
    }

    pub(crate) fn next(&mut self) -> Option<ProcessEvent> {
        let message = self.next_message()?;
        assert!(self.end.is_none(), "{message} came after the end of the stream");
        Some(serde_json::from_value::<StreamEvent>(message).unwrap().event)
    }

    fn chunk(&mut self) -> Option<Vec<u8>> {
        let mut line = String::new();
        self.client.stream.read_line(&mut line).unwrap();
        let size = usize::from_str_radix(line.trim_end(), 16).expect("a chunk size");
        let mut chunk = vec![0; size + 2];
        self.client.stream.read_exact(&mut chunk).unwrap();
        chunk.truncate(size);
        (size > 0).then_some(chunk)
    }

    pub(crate) fn until(&mut self, said: &mut Said, done: impl Fn(&Said) -> bool) {
        use envd::DataEvent::{Pty, Stderr, Stdout};
        while !done(said) {
            let event = self.next();
            assert!(said.end.is_none() || event.is_none(), "{event:?} came after the end event");
            match event {
                Some(ProcessEvent::Start(_)) => {}
                Some(ProcessEvent::Keepalive(_)) => said.keepalives += 1,
                Some(ProcessEvent::Data(Stdout(bytes))) => said.stdout.extend(bytes),
                Some(ProcessEvent::Data(Stderr(bytes))) => said.stderr.extend(bytes),
                Some(ProcessEvent::Data(Pty(bytes))) => said.pty.extend(bytes),
                Some(ProcessEvent::End(end)) => said.end = Some(end),
                None => {
                    said.error = self.end.take().unwrap().error;
                    return;
                }
            }
        }
    }

    pub(crate) fn finish(mut self) -> Said {
        let mut said = Said::default();
        self.until(&mut said, |_| false);
        said
    }
}

pub(crate) fn wait_for(what: &str, condition: impl Fn() -> bool) {
    let start = std::time::Instant::now();
    while !condition() {
        assert!(start.elapsed() < PATIENCE, "waited in vain for {what}");
        std::thread::yield_now();
    }
}
