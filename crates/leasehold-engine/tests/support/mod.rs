//! A data directory with an engine, commands in sandboxes, and the check that nothing stays behind.
#![allow(
    dead_code,
    clippy::allow_attributes,
    reason = "each test binary uses another part, so nothing can be expected"
)]

use std::collections::BTreeSet;
use std::fs;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use envd::{Code, DataEvent, FrameDecoder, ProcessConfig, ProcessEvent, StartRequest, StreamEvent, encode_message};
use leasehold_engine::{Engine, EngineConfig, GuestSocket, LayerDigest, Limits, Running, StartSpec, Template};
use leasehold_guest::Identity;

/// An engine on a data directory of its own. Dropped, it removes all sandboxes and fails the test if anything is left.
pub(crate) struct Machine {
    pub(crate) engine: Option<Engine>,
    pub(crate) data: PathBuf,
    directory: Option<tempfile::TempDir>,
    before: BTreeSet<String>,
}

impl Machine {
    pub(crate) fn new() -> Self {
        let before = cgroups();
        let directory = tempfile::Builder::new().prefix("leasehold-engine-").tempdir().unwrap();
        let data = directory.path().canonicalize().unwrap().join("data");
        let engine = Engine::open(EngineConfig::new(&data)).unwrap();
        Self { engine: Some(engine), data, directory: Some(directory), before }
    }

    pub(crate) fn engine(&self) -> &Engine {
        self.engine.as_ref().unwrap()
    }

    pub(crate) fn start(&self, id: &str, layers: &[LayerDigest]) -> Running {
        self.engine().start(&spec(id, layers)).unwrap_or_else(|error| panic!("{error}"))
    }

    /// Runs a shell script in a sandbox and returns what it wrote to both streams. It must succeed.
    pub(crate) fn sh(&self, id: &str, user: User, script: &str) -> String {
        let output = self.try_sh(id, user, script);
        assert_eq!(output.exit_code, 0, "{script}\n{}", output.text);
        output.text
    }

    pub(crate) fn try_sh(&self, id: &str, user: User, script: &str) -> Output {
        let request = StartRequest {
            process: ProcessConfig {
                cmd: "/bin/bash".into(),
                args: vec!["-c".into(), script.into()],
                ..Default::default()
            },
            ..Default::default()
        };
        let body = encode_message(&request);
        let head = format!(
            "POST /process.Process/Start HTTP/1.1\r\nHost: sandbox\r\nConnection: close\r\nAuthorization: Basic {}\r\n\
             Content-Type: application/connect+json\r\nConnect-Protocol-Version: 1\r\nContent-Length: {}\r\n\r\n",
            user.credentials(),
            body.len()
        );
        let mut stream = self.engine().connect(id, GuestSocket::Envd).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        stream.write_all(head.as_bytes()).unwrap();
        stream.write_all(&body).unwrap();
        let mut response = Vec::new();
        stream.read_to_end(&mut response).unwrap();
        output(&response)
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        let Some(engine) = self.engine.take() else { return };
        for id in engine.leftovers().unwrap() {
            engine.stop(&id, None).unwrap();
            engine.remove(&id).unwrap();
        }
        let ids = engine.leftovers().unwrap();
        drop(engine);
        let left = leftovers(&self.data);
        let groups: Vec<_> =
            cgroups().difference(&self.before).filter(|group| group.contains(&tag(&self.data))).cloned().collect();
        let directory = self.directory.take();
        if !std::thread::panicking() {
            assert!(ids.is_empty() && left.is_empty() && groups.is_empty(), "left behind: {ids:?} {left:?} {groups:?}");
            if let Some(directory) = directory {
                directory.close().unwrap();
            }
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum User {
    Root,
    User,
}

impl User {
    fn credentials(self) -> &'static str {
        match self {
            Self::Root => "cm9vdDo=",
            Self::User => "dXNlcjo=",
        }
    }
}

pub(crate) struct Output {
    pub(crate) exit_code: i32,
    pub(crate) text: String,
}

pub(crate) fn spec(id: &str, layers: &[LayerDigest]) -> StartSpec {
    StartSpec {
        id: id.into(),
        template: Template::Host,
        layers: layers.to_vec(),
        limits: Limits::default(),
        identity: Identity::new(id, "host"),
    }
}

/// Takes a whole response of a stream apart: HTTP, chunks, envelopes, events.
fn output(response: &[u8]) -> Output {
    let end = response.windows(4).position(|window| window == b"\r\n\r\n").expect("a response has a head");
    let head = String::from_utf8_lossy(&response[..end]).to_lowercase();
    assert!(head.starts_with("http/1.1 200"), "{}", String::from_utf8_lossy(response));
    let mut rest = &response[end + 4..];
    let mut decoder = FrameDecoder::default();
    if head.contains("transfer-encoding: chunked") {
        while let Some(at) = rest.windows(2).position(|window| window == b"\r\n") {
            let length = usize::from_str_radix(std::str::from_utf8(&rest[..at]).unwrap(), 16).unwrap();
            decoder.push(&rest[at + 2..at + 2 + length]);
            rest = &rest[at + 2 + length + 2..];
        }
    } else {
        decoder.push(rest);
    }
    let mut output = Output { exit_code: i32::MIN, text: String::new() };
    while let Some((flags, frame)) = decoder.next_frame().unwrap() {
        if flags != envd::Flags::Message {
            assert!(
                !String::from_utf8_lossy(frame).contains(Code::Internal.as_str()),
                "{}",
                String::from_utf8_lossy(frame)
            );
            continue;
        }
        match serde_json::from_slice::<StreamEvent>(frame).unwrap().event {
            ProcessEvent::Data(DataEvent::Stdout(bytes) | DataEvent::Stderr(bytes)) => {
                output.text.push_str(&String::from_utf8_lossy(&bytes))
            }
            ProcessEvent::End(end) => output.exit_code = end.exit_code,
            _ => {}
        }
    }
    output
}

/// What on this machine still refers to a data directory: processes by their mounts, mounts of our own.
pub(crate) fn leftovers(data: &Path) -> Vec<String> {
    let needle = data.to_str().unwrap();
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").unwrap().filter_map(Result::ok) {
        let name = entry.file_name().into_string().unwrap();
        let Ok(mounts) = fs::read_to_string(entry.path().join("mountinfo")) else { continue };
        if name.bytes().all(|byte| byte.is_ascii_digit()) && mounts.contains(needle) {
            let command = fs::read_to_string(entry.path().join("comm")).unwrap_or_default();
            found.push(format!("process {name} {}", command.trim()));
        }
    }
    for directory in ["run/s", "sandboxes"] {
        found.extend(fs::read_dir(data.join(directory)).unwrap().map(|entry| format!("{:?}", entry.unwrap().path())));
    }
    found
}

fn tag(data: &Path) -> String {
    use sha2::Digest;
    use std::os::unix::ffi::OsStrExt;
    let digest = sha2::Sha256::digest(data.as_os_str().as_bytes());
    digest[..6].iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Every control group of ours, in every hierarchy.
fn cgroups() -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut pending = vec![PathBuf::from("/sys/fs/cgroup")];
    while let Some(directory) = pending.pop() {
        for entry in fs::read_dir(&directory).into_iter().flatten().filter_map(Result::ok) {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                if entry.file_name().to_string_lossy().starts_with("leasehold-") {
                    found.insert(entry.path().to_string_lossy().into_owned());
                }
                pending.push(entry.path());
            }
        }
    }
    found
}
