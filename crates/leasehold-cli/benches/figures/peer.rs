//! The published Python daemon, run as it comes from the registry: a black box that speaks the same protocol.

use std::io::{BufRead as _, BufReader, Read as _};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use anyhow::{Context as _, bail};
use bytes::Bytes;
use http::{Method, Request, header};
use http_body_util::{BodyExt as _, Full};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use serde::de::DeserializeOwned;
use shellctl::{Deleted, JobId, JobResult, route};
use tempfile::TempDir;

use crate::stage::temporary;

/// What is compared with.
pub(crate) const NAME: &str = "shell-session-manager 2.4.1";

/// Installs the daemon and what it needs, unless they are there, and says where it is.
const INSTALL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/install-peer");

/// A running daemon with one connection to it.
pub(crate) struct Peer {
    process: Child,
    sender: SendRequest<Full<Bytes>>,
    _dir: TempDir,
}

impl Peer {
    pub(crate) async fn start() -> anyhow::Result<Self> {
        let installed = Command::new(INSTALL).stderr(Stdio::inherit()).output().context("cannot install it")?;
        if !installed.status.success() {
            bail!("scripts/install-peer: {}", installed.status);
        }
        let program = String::from_utf8(installed.stdout).context("its path is no text")?;
        let dir = temporary()?;
        let mut process = spawn(program.trim(), dir.path())?;
        match connect(&mut process).await {
            Ok(sender) => Ok(Self { process, sender, _dir: dir }),
            Err(error) => {
                process.kill()?;
                process.wait()?;
                Err(error)
            }
        }
    }

    pub(crate) async fn run(&mut self, script: &str) -> anyhow::Result<JobResult> {
        // Its version refuses a request with a mode.
        let body = serde_json::to_vec(&serde_json::json!({ "script": script }))?;
        self.call(Method::POST, route::RUN, body).await
    }

    pub(crate) async fn delete(&mut self, job: &JobId) -> anyhow::Result<()> {
        let _: Deleted = self.call(Method::DELETE, &format!("{}?force=true", route::job(job)), Vec::new()).await?;
        Ok(())
    }

    async fn call<T: DeserializeOwned>(&mut self, method: Method, path: &str, body: Vec<u8>) -> anyhow::Result<T> {
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header(header::HOST, "localhost")
            .header(header::CONTENT_TYPE, "application/json")
            .body(Full::from(body))?;
        self.sender.ready().await?;
        let response = self.sender.send_request(request).await?;
        let status = response.status();
        let body = response.into_body().collect().await?.to_bytes();
        if !status.is_success() {
            bail!("the peer answered {status} to {path}: {}", String::from_utf8_lossy(&body));
        }
        serde_json::from_slice(&body).with_context(|| format!("the peer said {}", String::from_utf8_lossy(&body)))
    }

    pub(crate) fn stop(mut self) -> anyhow::Result<()> {
        self.process.kill()?;
        self.process.wait()?;
        Ok(())
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // Ended already after `stop`.
        self.process.kill().and_then(|()| self.process.wait()).ok();
    }
}

/// In a PID namespace of its own, so that one kill ends it with its tmux servers; the shell there collects what they leave.
fn spawn(program: &str, dir: &Path) -> anyhow::Result<Child> {
    let bin = Path::new(program).parent().context("the peer's path has no directory")?;
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap_or_default());
    Command::new("unshare")
        .args(["--pid", "--fork", "--kill-child=SIGKILL", "--mount-proc", "sh", "-c", "\"$@\" & wait", "sh", program])
        .args(["serve", "--listen", "127.0.0.1:0", "--state-dir"])
        .arg(dir.join("state"))
        .arg("--runtime-dir")
        .arg(dir.join("run"))
        .env("PATH", path)
        .env_remove("SHELLCTL_AUTH_TOKEN")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .context("cannot start it")
}

/// Waits until it says where it listens, and connects there.
async fn connect(process: &mut Child) -> anyhow::Result<SendRequest<Full<Bytes>>> {
    let mut stderr = BufReader::new(process.stderr.take().expect("stderr was asked to be a pipe"));
    let mut said = String::new();
    let address: SocketAddr = loop {
        let mut line = String::new();
        if stderr.read_line(&mut line)? == 0 {
            bail!("it ended before it was ready: {}", said.trim());
        }
        let address = line.split_once("running on http://").and_then(|(_, rest)| rest.split(' ').next()?.parse().ok());
        match address {
            Some(address) => break address,
            None => said.push_str(&line),
        }
    };
    std::thread::spawn(move || stderr.read_to_end(&mut Vec::new()));
    let stream = tokio::net::TcpStream::connect(address).await.context("cannot connect to it")?;
    stream.set_nodelay(true)?;
    let (sender, connection) = handshake(TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    Ok(sender)
}
