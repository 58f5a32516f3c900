//! The data plane: shellctl inside a sandbox, reached through the endpoint's edge.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use http::HeaderValue;
use leasehold::{
    CommandMode, Commands, DeleteJob, Effect, ErrorKind, JobId, JobOutput, JobState, JobStatus, RunCommand,
    RuntimeError,
};
use leasehold_http::TransportKind;
use shellctl::client::{Client as Shellctl, ClientError as ShellctlError, ClientErrorKind, ClientOptions};
use shellctl::{DeleteQuery, ErrorCode, InputRequest, Mode, RunRequest, TailQuery, TerminateRequest, WaitRequest};

use crate::driver::{DataPlane, DataPlaneFactory, DataPlaneTarget, SeamError, SeamErrorKind};
use crate::provider::phase;
use crate::{Client, TRAFFIC_TOKEN_HEADER};

/// The name of this driver in errors.
const DRIVER: &str = "e2b";

impl DataPlaneFactory for Client {
    fn open(&self, target: DataPlaneTarget) -> Result<Arc<dyn DataPlane>, SeamError> {
        let endpoint = self.origin(None).endpoint(&target.host)?;
        let mut token = HeaderValue::from_str(&target.traffic_token)
            .map_err(|_| SeamError::new(SeamErrorKind::Validation, "traffic access token cannot be a header"))?;
        token.set_sensitive(true);
        // No bearer token, and none from the environment: the daemon is opened by the traffic token alone.
        let client = ClientOptions::new(endpoint.url)
            .headers(endpoint.headers)
            .header(TRAFFIC_TOKEN_HEADER, token)
            .build_on(self.shared.transport.clone())
            .map_err(SeamError::from)?;
        Ok(Arc::new(ShellctlPlane { commands: ShellctlCommands { client } }))
    }
}

/// A lease's connections to the daemon.
#[derive(Debug)]
struct ShellctlPlane {
    commands: ShellctlCommands,
}

#[async_trait]
impl DataPlane for ShellctlPlane {
    async fn health(&self) -> Result<(), SeamError> {
        let health = self.commands.client.health().await?;
        if health.is_ok() {
            return Ok(());
        }
        Err(SeamError::new(SeamErrorKind::Validation, format!("health status is {:?}, not \"ok\"", health.status)))
    }

    fn commands(&self) -> &dyn Commands {
        &self.commands
    }

    async fn close(&self) -> Result<(), SeamError> {
        self.commands.client.close();
        Ok(())
    }
}

impl From<ShellctlError> for SeamError {
    fn from(error: ShellctlError) -> Self {
        let kind = match error.kind() {
            ClientErrorKind::Transport(kind) => phase(kind),
            ClientErrorKind::Refused(status) => SeamErrorKind::Status(status),
            ClientErrorKind::Decode => SeamErrorKind::Decode,
            ClientErrorKind::InvalidInput => SeamErrorKind::Validation,
            ClientErrorKind::Closed => SeamErrorKind::Closed,
            _ => SeamErrorKind::Other,
        };
        Self::new(kind, error.to_string())
    }
}

/// The contract's commands on the daemon's jobs.
#[derive(Debug)]
struct ShellctlCommands {
    client: Shellctl,
}

#[async_trait]
impl Commands for ShellctlCommands {
    async fn run(&self, command: RunCommand) -> Result<JobOutput, RuntimeError> {
        let mut request = RunRequest::new(command.script);
        request.cwd = command.cwd;
        request.env = Some(command.env).filter(|env: &BTreeMap<_, _>| !env.is_empty());
        request.timeout = command.timeout.as_secs_f64();
        request.mode = match command.mode {
            CommandMode::Pty => Mode::Pty,
            CommandMode::Stdio => Mode::Stdio,
        };
        self.client.run(&request).await.map(output).map_err(|error| failed("run", error))
    }

    async fn wait(&self, job: &JobId, offset: u64, timeout: Duration) -> Result<JobOutput, RuntimeError> {
        let request = WaitRequest { timeout: timeout.as_secs_f64(), ..WaitRequest::new(offset) };
        self.client.wait(&id("wait", job)?, &request).await.map(output).map_err(|error| failed("wait", error))
    }

    async fn read_output(&self, job: &JobId, offset: u64) -> Result<JobOutput, RuntimeError> {
        let request = WaitRequest { timeout: 0.0, ..WaitRequest::new(offset) };
        let read = self.client.wait(&id("read_output", job)?, &request).await;
        read.map(output).map_err(|error| failed("read_output", error))
    }

    async fn input(&self, job: &JobId, text: &str, offset: u64, timeout: Duration) -> Result<JobOutput, RuntimeError> {
        let request = InputRequest { timeout: timeout.as_secs_f64(), ..InputRequest::new(text, offset) };
        self.client.input(&id("input", job)?, &request).await.map(output).map_err(|error| failed("input", error))
    }

    async fn interrupt(&self, job: &JobId, grace: Duration) -> Result<JobState, RuntimeError> {
        let request = TerminateRequest { grace_seconds: grace.as_secs_f64() };
        let view = self.client.terminate(&id("interrupt", job)?, &request).await;
        let view = view.map_err(|error| failed("interrupt", error))?;
        Ok(JobState {
            job_id: JobId::new(view.job_id.as_str()),
            status: status(view.status),
            done: view.done,
            exit_code: view.exit_code,
            offset: view.offset,
        })
    }

    async fn tail(&self, job: &JobId) -> Result<JobOutput, RuntimeError> {
        let tail = self.client.tail(&id("tail", job)?, &TailQuery::default()).await;
        tail.map(output).map_err(|error| failed("tail", error))
    }

    async fn delete(&self, job: &JobId, how: DeleteJob) -> Result<(), RuntimeError> {
        let query = match how {
            DeleteJob::IfDone => DeleteQuery::default(),
            DeleteJob::Force { grace: None } => DeleteQuery { force: true, ..DeleteQuery::default() },
            DeleteJob::Force { grace: Some(grace) } => DeleteQuery { force: true, grace_seconds: grace.as_secs_f64() },
        };
        match self.client.delete(&id("delete", job)?, &query).await {
            Ok(_) => Ok(()),
            Err(error) if error.known_code() == Some(ErrorCode::JobNotFound) => Ok(()),
            Err(error) => Err(failed("delete", error)),
        }
    }
}

fn id(operation: &'static str, job: &JobId) -> Result<shellctl::JobId, RuntimeError> {
    shellctl::JobId::new(job.as_str())
        .map_err(|bad| RuntimeError::new(ErrorKind::InvalidInput, operation, DRIVER, bad.to_string()).without_effect())
}

fn output(result: shellctl::JobResult) -> JobOutput {
    JobOutput {
        job_id: JobId::new(result.job_id.as_str()),
        status: status(result.status),
        done: result.done,
        exit_code: result.exit_code,
        output: result.output,
        offset: result.offset,
        truncated: result.truncated,
        output_path: Some(result.output_path).filter(|path| !path.is_empty()),
    }
}

fn status(status: shellctl::JobStatus) -> JobStatus {
    match status {
        shellctl::JobStatus::Created => JobStatus::Created,
        shellctl::JobStatus::Starting => JobStatus::Starting,
        shellctl::JobStatus::Running => JobStatus::Running,
        shellctl::JobStatus::Exited => JobStatus::Exited,
        shellctl::JobStatus::Terminated => JobStatus::Terminated,
        shellctl::JobStatus::Failed => JobStatus::Failed,
        shellctl::JobStatus::Lost => JobStatus::Lost,
    }
}

fn failed(operation: &'static str, error: ShellctlError) -> RuntimeError {
    let kind = match error.kind() {
        ClientErrorKind::Transport(kind) => match kind {
            TransportKind::ConnectTimeout | TransportKind::ReadTimeout | TransportKind::Deadline => ErrorKind::TimedOut,
            TransportKind::Invalid => ErrorKind::InvalidInput,
            _ => ErrorKind::Unavailable,
        },
        // A 404 without the daemon's code is a proxy's, and says nothing about the job.
        ClientErrorKind::Refused(_) if error.known_code() == Some(ErrorCode::JobNotFound) => ErrorKind::NotFound,
        ClientErrorKind::Refused(400 | 413 | 422) => ErrorKind::InvalidInput,
        ClientErrorKind::Refused(401 | 403) => ErrorKind::Unauthorized,
        ClientErrorKind::Refused(409) => ErrorKind::Conflict,
        ClientErrorKind::Refused(429 | 502 | 503 | 504) => ErrorKind::Unavailable,
        ClientErrorKind::InvalidInput => ErrorKind::InvalidInput,
        ClientErrorKind::Closed => ErrorKind::Closed,
        _ => ErrorKind::Internal,
    };
    let effect = match error.kind() {
        ClientErrorKind::Transport(kind) if !kind.may_have_been_sent() => Effect::None,
        ClientErrorKind::Refused(status) if (400..500).contains(&status) && status != 408 => Effect::None,
        ClientErrorKind::InvalidInput => Effect::None,
        _ => Effect::Unknown,
    };
    let mut failed =
        RuntimeError::new(kind, operation, DRIVER, error.message()).with_effect(effect).with_code(error.code());
    if let Some(status) = error.status() {
        failed = failed.with_status(status);
    }
    failed
}
