//! What the figures do with a sandbox.

use anyhow::{Context as _, bail};
use leasehold_e2b::{Client, EndEvent, NewSandbox, Output, Process, ProcessSpec, Sandbox, TRAFFIC_TOKEN_HEADER};
use shellctl::client::ClientOptions;

use crate::stage::Stage;

/// The template of all figures: this machine's own programs.
pub(crate) const TEMPLATE: &str = "base";

/// What a process said and how it ended.
pub(crate) struct Ended {
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: Vec<u8>,
    pub(crate) end: EndEvent,
}

/// Creates a sandbox whose ports want a token, as the driver does.
pub(crate) async fn create(client: &Client) -> anyhow::Result<Sandbox> {
    client.create(&NewSandbox::new(TEMPLATE).public_traffic(false)).await.context("cannot create a sandbox")
}

/// Reads a process's output until its end event.
pub(crate) async fn finish(process: &mut Process) -> anyhow::Result<Ended> {
    let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
    loop {
        match process.next().await? {
            Some(Output::Stdout(bytes) | Output::Pty(bytes)) => stdout.extend_from_slice(&bytes),
            Some(Output::Stderr(bytes)) => stderr.extend_from_slice(&bytes),
            Some(Output::End(end)) => return Ok(Ended { stdout, stderr, end }),
            None => bail!("a process's end was not reported"),
        }
    }
}

/// Starts a process and waits for its end.
pub(crate) async fn run(sandbox: &Sandbox, spec: &ProcessSpec) -> anyhow::Result<Ended> {
    finish(&mut sandbox.start(spec).await?).await
}

/// `echo hi`, checked.
pub(crate) async fn echo(sandbox: &Sandbox) -> anyhow::Result<()> {
    let ended = run(sandbox, &ProcessSpec::new("echo").argument("hi")).await?;
    if ended.stdout != b"hi\n" || !ended.stderr.is_empty() || ended.end.exit_code != 0 {
        let [stdout, stderr] = [&ended.stdout, &ended.stderr].map(|bytes| String::from_utf8_lossy(bytes));
        bail!("echo hi said {stdout:?} and {stderr:?}, exit code {}", ended.end.exit_code);
    }
    Ok(())
}

/// A client of the sandbox's command daemon, through the host's edge.
pub(crate) fn shellctl(stage: &Stage, sandbox: &Sandbox) -> anyhow::Result<shellctl::client::Client> {
    let endpoint = sandbox.endpoint_for(shellctl::limits::DEFAULT_PORT)?;
    let mut options = ClientOptions::new(endpoint.url).headers(endpoint.headers).unix_socket(stage.socket());
    if let Some(token) = sandbox.traffic_token() {
        let mut value = http::HeaderValue::from_str(token.expose()).context("the traffic token is no header")?;
        value.set_sensitive(true);
        options = options.header(TRAFFIC_TOKEN_HEADER, value);
    }
    Ok(options.build()?)
}
