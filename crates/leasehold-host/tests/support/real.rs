//! A host on the real engine, for tests.

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::Path;
use std::time::Duration;

use leasehold_host::{Host, HostConfig};
use serde_json::{Value, json};

use crate::client::{Client, request};

/// Longest time for one test.
const TEST_LIMIT: Duration = Duration::from_secs(60);

pub(crate) struct Real {
    pub(crate) host: Host,
    pub(crate) client: Client,
    pub(crate) dir: tempfile::TempDir,
}

impl Real {
    async fn start(dir: tempfile::TempDir) -> Self {
        let host = Host::start(HostConfig::new(dir.path())).await.expect("starts");
        let client = Client::unix(dir.path());
        Self { host, client, dir }
    }

    async fn end(self, well: bool) {
        let mut ids = names(&self.dir.path().join("sandboxes"));
        for sandbox in self.client.get("/v2/sandboxes").await.expect(200).json().as_array().expect("a list") {
            let id = sandbox["sandboxID"].as_str().expect("an id");
            self.client.delete(&format!("/sandboxes/{id}")).await.expect(204);
        }
        self.host.shutdown(Duration::from_secs(20)).await;
        if well {
            ids.extend(names(&self.dir.path().join("sandboxes")));
            assert_nothing_left(self.dir.path(), &ids);
        }
    }
}

/// Runs a test on a host of its own. Also when it fails, its sandboxes and its host are ended.
pub(crate) fn on_real(test: impl AsyncFnOnce(&Real)) {
    on_real_in(tempfile::tempdir().expect("a directory"), test);
}

/// [`on_real`] on a directory that exists.
pub(crate) fn on_real_in(dir: tempfile::TempDir, test: impl AsyncFnOnce(&Real)) {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime");
    let real = runtime.block_on(Real::start(dir));
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        runtime.block_on(async { tokio::time::timeout(TEST_LIMIT, test(&real)).await.expect("in time") });
    }));
    runtime.block_on(real.end(outcome.is_ok()));
    if let Err(panic) = outcome {
        resume_unwind(panic);
    }
}

pub(crate) fn names(path: &Path) -> BTreeSet<String> {
    let entries = std::fs::read_dir(path).expect("a directory");
    entries.map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned()).collect()
}

/// No socket, run directory, files, mount, process or control group of this directory's sandboxes.
fn assert_nothing_left(dir: &Path, ids: &BTreeSet<String>) {
    assert!(!dir.join("run/host.sock").exists());
    assert_eq!(names(&dir.join("run/s")), BTreeSet::new());
    assert_eq!(names(&dir.join("sandboxes")), BTreeSet::new());
    for process in std::fs::read_dir("/proc").expect("proc") {
        let path = process.expect("an entry").path().join("mountinfo");
        // Ours, and those of every sandbox that still has a process. A process that ends meanwhile has none.
        let mounts = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(!mounts.contains(&*dir.to_string_lossy()), "{}: {mounts}", path.display());
    }
    for hierarchy in std::fs::read_dir("/sys/fs/cgroup").expect("control groups") {
        let Ok(groups) = std::fs::read_dir(hierarchy.expect("an entry").path()) else { continue };
        for group in groups {
            let group = group.expect("an entry").path();
            for id in ids {
                assert!(!group.join(id).exists(), "{}", group.join(id).display());
            }
        }
    }
}

/// Runs a command in a sandbox and returns its standard output.
pub(crate) async fn run(client: &Client, id: &str, token: &str, script: &str) -> String {
    let message = json!({"process": {"cmd": "/bin/sh", "args": ["-c", script]}, "stdin": false}).to_string();
    let mut frame = vec![0];
    frame.extend_from_slice(&u32::try_from(message.len()).expect("short").to_be_bytes());
    frame.extend_from_slice(message.as_bytes());
    let headers = [
        ("e2b-sandbox-id", id),
        ("e2b-sandbox-port", "49983"),
        ("x-access-token", token),
        ("content-type", "application/connect+json"),
        ("connect-protocol-version", "1"),
    ];
    let (parts, ()) = request("POST", "/process.Process/Start", &headers, Value::Null).map(|_| ()).into_parts();
    let answer =
        client.send(http::Request::from_parts(parts, http_body_util::Full::new(frame.into()))).await.expect(200);
    let mut rest = &answer.body[..];
    let mut output = String::new();
    while rest.len() >= 5 {
        let length = u32::from_be_bytes([rest[1], rest[2], rest[3], rest[4]]) as usize;
        let message: Value = serde_json::from_slice(&rest[5..5 + length]).expect("JSON");
        if let Some(data) = message["event"]["data"]["stdout"].as_str() {
            output.push_str(&decode(data));
        }
        assert!(message["error"].is_null(), "{message}");
        rest = &rest[5 + length..];
    }
    output
}

pub(crate) fn decode(text: &str) -> String {
    use base64::Engine as _;
    let bytes = base64::engine::general_purpose::STANDARD.decode(text).expect("base64");
    String::from_utf8(bytes).expect("text")
}

pub(crate) async fn create(client: &Client, body: Value) -> (String, String) {
    let made = client.post("/v2/sandboxes", body).await.expect(201).json();
    let text = |field: &str| made[field].as_str().expect("a text").to_owned();
    (text("sandboxID"), text("envdAccessToken"))
}
