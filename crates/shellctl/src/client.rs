//! Async client of the protocol.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use leasehold_http::{
    Call, Payload, Secret, Timeouts, Transport, TransportError, TransportKind, TransportOptions, Url, clean, redact,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::watch;

use crate::{
    DeleteQuery, Deleted, ErrorCode, ErrorEnvelope, Health, InputRequest, Invalid, JobId, JobInfo, JobList, JobResult,
    JobStatusView, ListQuery, RunRequest, TailQuery, TerminateRequest, WaitRequest, route,
};

/// Where the daemon listens unless told otherwise.
pub const DEFAULT_BASE_URL: &str = "http://127.0.0.1:8765";

/// Time limit of each phase of a call, as the Python client has it.
const PHASE: Duration = Duration::from_secs(30);

/// What a call that waits in the daemon may take beyond its own wait, as the Python client has it.
const MARGIN: Duration = Duration::from_secs(10);

/// Largest answer that is read: 1 MiB of output, each byte of it at most six characters of JSON, and some.
const ANSWER_BYTES: usize = 8 << 20;

/// How a [`Client`] reaches its daemon.
///
/// Nothing is read from the environment, unless [`ClientOptions::from_env`] is asked to: a token meant for another daemon must
/// not be sent to a sandbox.
#[derive(Debug, Clone)]
#[must_use]
pub struct ClientOptions {
    base_url: String,
    token: Secret,
    headers: HeaderMap,
    unix_socket: Option<PathBuf>,
    connect: Duration,
    read: Duration,
}

impl Default for ClientOptions {
    fn default() -> Self {
        Self {
            base_url: DEFAULT_BASE_URL.to_owned(),
            token: Secret::default(),
            headers: HeaderMap::new(),
            unix_socket: None,
            connect: PHASE,
            read: PHASE,
        }
    }
}

impl ClientOptions {
    /// Options for a base URL, without a token.
    pub fn new(base_url: impl Into<String>) -> Self {
        Self { base_url: base_url.into(), ..Self::default() }
    }

    /// Options from `SHELLCTL_BASE_URL` and `SHELLCTL_AUTH_TOKEN`.
    pub fn from_env() -> Self {
        let variable = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
        let mut options = Self::default();
        options.base_url = variable("SHELLCTL_BASE_URL").unwrap_or(options.base_url);
        options.token = variable("SHELLCTL_AUTH_TOKEN").map(Secret::new).unwrap_or_default();
        options
    }

    /// The bearer token; empty for none.
    pub fn token(mut self, token: impl Into<Secret>) -> Self {
        self.token = token.into();
        self
    }

    /// A further header of every request. Mark secret values as sensitive.
    pub fn header(mut self, name: HeaderName, value: HeaderValue) -> Self {
        self.headers.insert(name, value);
        self
    }

    /// Further headers of every request.
    pub fn headers(mut self, headers: HeaderMap) -> Self {
        self.headers.extend(headers);
        self
    }

    /// Speak over this Unix socket; of the base URL only the path is then used.
    pub fn unix_socket(mut self, path: impl Into<PathBuf>) -> Self {
        self.unix_socket = Some(path.into());
        self
    }

    /// Connect and read time-outs. The read time-out of a call that waits in the daemon is its own wait and 10 s. Default 30 s
    /// each.
    pub fn timeouts(mut self, connect: Duration, read: Duration) -> Self {
        (self.connect, self.read) = (connect, read);
        self
    }

    /// Makes the client. Opens no connection.
    ///
    /// # Errors
    /// `InvalidInput`: the base URL is none, the token cannot be a header, there are no root certificates for `https`.
    pub fn build(self) -> Result<Client, ClientError> {
        let base = self.base()?;
        let transport = TransportOptions::default()
            .unix_socket(self.unix_socket.clone())
            .timeouts(Timeouts { connect: self.connect, read: self.read, total: None })
            .tls(base.scheme() == "https" && self.unix_socket.is_none())
            .user_agent(concat!("leasehold-shellctl/", env!("CARGO_PKG_VERSION")));
        let transport = Transport::new(&transport).map_err(|error| ClientError::invalid(error.to_string()))?;
        self.build_on(transport)
    }

    /// Makes the client on a transport that others use too; the socket and the time-outs are then the transport's.
    ///
    /// # Errors
    /// As [`ClientOptions::build`].
    pub fn build_on(self, transport: Transport) -> Result<Client, ClientError> {
        let base = self.base()?;
        let mut headers = self.headers;
        headers.insert(header::ACCEPT, HeaderValue::from_static("application/json"));
        if !self.token.is_empty() {
            let mut value = HeaderValue::from_str(&format!("Bearer {}", self.token.expose()))
                .map_err(|_| ClientError::invalid("the token holds characters that no header can carry".to_owned()))?;
            value.set_sensitive(true);
            headers.insert(header::AUTHORIZATION, value);
        }
        let secrets = headers.values().filter(|value| value.is_sensitive());
        let mut secrets: Vec<Secret> = secrets.filter_map(|value| value.to_str().ok().map(Secret::from)).collect();
        secrets.push(self.token);
        let closed = watch::Sender::new(false);
        Ok(Client { shared: Arc::new(Shared { transport, base, headers, secrets, closed }) })
    }

    fn base(&self) -> Result<Url, ClientError> {
        let wrong = |why: String| ClientError::invalid(format!("base URL {:?}: {why}", self.base_url));
        let url = Url::parse(&self.base_url).map_err(|error| wrong(error.to_string()))?;
        if !matches!(url.scheme(), "http" | "https") {
            return Err(wrong("must begin with http:// or https://".to_owned()));
        }
        Ok(url)
    }
}

/// What kind of failure a [`ClientError`] is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ClientErrorKind {
    /// No complete answer.
    Transport(TransportKind),
    /// The daemon, or something before it, refused with this HTTP status.
    Refused(u16),
    /// An answer that makes no sense.
    Decode,
    /// The request is outside the protocol's limits. Nothing was sent.
    InvalidInput,
    /// The client was closed. The request may have been sent.
    Closed,
}

/// A failed call. Its message is capped at 1 KiB, control characters are escaped, tokens redacted.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{code}: {message}")]
pub struct ClientError {
    kind: ClientErrorKind,
    code: String,
    message: String,
}

impl ClientError {
    fn new(kind: ClientErrorKind, code: &str, message: String) -> Self {
        Self { kind, code: code.to_owned(), message }
    }

    fn invalid(message: String) -> Self {
        Self::new(ClientErrorKind::InvalidInput, "invalid_input", message)
    }

    fn closed() -> Self {
        Self::new(ClientErrorKind::Closed, "closed", "the client is closed".to_owned())
    }

    /// What failed.
    #[must_use]
    pub fn kind(&self) -> ClientErrorKind {
        self.kind
    }

    /// The daemon's code; else `timeout`, `request_error`, `invalid_json`, `invalid_payload`, `request_failed`, `invalid_input` or
    /// `closed`.
    #[must_use]
    pub fn code(&self) -> &str {
        &self.code
    }

    /// The daemon's code, if it is one of the protocol's.
    #[must_use]
    pub fn known_code(&self) -> Option<ErrorCode> {
        matches!(self.kind, ClientErrorKind::Refused(_)).then(|| ErrorCode::parse(&self.code)).flatten()
    }

    /// The HTTP status of a refusal.
    #[must_use]
    pub fn status(&self) -> Option<u16> {
        match self.kind {
            ClientErrorKind::Refused(status) => Some(status),
            _ => None,
        }
    }

    /// The phase, when there was no complete answer.
    #[must_use]
    pub fn transport_kind(&self) -> Option<TransportKind> {
        match self.kind {
            ClientErrorKind::Transport(kind) => Some(kind),
            _ => None,
        }
    }

    /// The text without the code.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.message
    }
}

impl From<Invalid> for ClientError {
    fn from(invalid: Invalid) -> Self {
        Self::invalid(invalid.to_string())
    }
}

/// A client of one daemon. Cheap to clone; clones share connections and are closed together.
///
/// # Examples
/// ```no_run
/// use shellctl::RunRequest;
/// use shellctl::client::ClientOptions;
///
/// # async fn example() -> Result<(), shellctl::client::ClientError> {
/// let client = ClientOptions::new("http://127.0.0.1:5004").build()?;
/// let result = client.run(&RunRequest::new("echo hi")).await?;
/// println!("{}", result.output);
/// client.delete(&result.job_id, &Default::default()).await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Client {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    transport: Transport,
    base: Url,
    headers: HeaderMap,
    secrets: Vec<Secret>,
    closed: watch::Sender<bool>,
}

impl Client {
    /// Whether the daemon takes requests.
    ///
    /// # Errors
    /// `Transport`, `Refused` or `Decode`.
    pub async fn health(&self) -> Result<Health, ClientError> {
        self.call(Exchange::get(route::HEALTHZ.to_owned())).await
    }

    /// Starts a job and waits for its first output.
    ///
    /// # Errors
    /// `InvalidInput` for values outside the limits, else as [`Client::health`]. A job that fails to start is no error: its
    /// status is `failed`.
    ///
    /// # Repeating
    /// Starts another job.
    ///
    /// # Cancel safety
    /// When dropped the job may run; it is found by [`Client::list`].
    pub async fn run(&self, request: &RunRequest) -> Result<JobResult, ClientError> {
        request.validate()?;
        self.call(Exchange::waiting(route::RUN.to_owned(), request, request.wait())).await
    }

    /// Waits for output beyond an offset, or for the end.
    ///
    /// # Errors
    /// As [`Client::run`].
    ///
    /// # Repeating
    /// Reads the same output again.
    pub async fn wait(&self, job: &JobId, request: &WaitRequest) -> Result<JobResult, ClientError> {
        request.validate()?;
        self.call(Exchange::waiting(route::wait(job), request, request.wait())).await
    }

    /// Types into a job's terminal, then waits as [`Client::wait`] does.
    ///
    /// # Errors
    /// As [`Client::run`]; `job_not_running` (409) when it ended.
    ///
    /// # Repeating
    /// Types the text again.
    pub async fn input(&self, job: &JobId, request: &InputRequest) -> Result<JobResult, ClientError> {
        request.validate()?;
        self.call(Exchange::waiting(route::input(job), request, request.wait())).await
    }

    /// The end of a job's output.
    ///
    /// # Errors
    /// As [`Client::run`].
    pub async fn tail(&self, job: &JobId, query: &TailQuery) -> Result<JobResult, ClientError> {
        self.call(Exchange::get(route::tail(job)).query(query.to_pairs())).await
    }

    /// A job's state.
    ///
    /// # Errors
    /// As [`Client::health`]; `job_not_found` (404).
    pub async fn get(&self, job: &JobId) -> Result<JobStatusView, ClientError> {
        self.call(Exchange::get(route::job(job))).await
    }

    /// The daemon's jobs, newest first.
    ///
    /// # Errors
    /// As [`Client::health`].
    pub async fn list(&self, query: &ListQuery) -> Result<Vec<JobInfo>, ClientError> {
        let list: JobList = self.call(Exchange::get(route::JOBS.to_owned()).query(query.to_pairs())).await?;
        Ok(list.jobs)
    }

    /// Stops a job and everything it started.
    ///
    /// # Errors
    /// As [`Client::run`].
    ///
    /// # Repeating
    /// Harmless.
    pub async fn terminate(&self, job: &JobId, request: &TerminateRequest) -> Result<JobStatusView, ClientError> {
        request.validate()?;
        self.call(Exchange::waiting(route::terminate(job), request, request.grace())).await
    }

    /// Forgets a job and its files.
    ///
    /// # Errors
    /// `job_running` (409) for a running job without `force`; `job_not_found` (404).
    pub async fn delete(&self, job: &JobId, query: &DeleteQuery) -> Result<Deleted, ClientError> {
        TerminateRequest { grace_seconds: query.grace_seconds }.validate()?;
        self.call(Exchange::delete(job, query)).await
    }

    /// Closes the client and its clones: calls under way end with `Closed`, and so does every later one.
    ///
    /// # Repeating
    /// Harmless.
    pub fn close(&self) {
        self.shared.closed.send_replace(true);
    }

    async fn call<T: DeserializeOwned>(&self, exchange: Exchange) -> Result<T, ClientError> {
        let mut closed = self.shared.closed.subscribe();
        // An error would mean that the sender is gone, and this borrow of the client keeps it.
        tokio::select! {
            biased; // a closed client must not send
            _ = closed.wait_for(|closed| *closed) => Err(ClientError::closed()),
            answer = self.exchange(exchange) => answer,
        }
    }

    async fn exchange<T: DeserializeOwned>(&self, exchange: Exchange) -> Result<T, ClientError> {
        let shared = &self.shared;
        let mut url = shared.base.clone();
        let base = url.path().trim_end_matches('/').to_owned();
        url.set_path(&format!("{base}{}", exchange.path));
        if !exchange.query.is_empty() {
            url.query_pairs_mut().extend_pairs(&exchange.query);
        }
        let mut call = Call::new(exchange.method, url);
        call.headers.clone_from(&shared.headers);
        if let Some(body) = exchange.body {
            call.headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
            call.payload = Payload::Bytes(body);
        }
        call.read = exchange.read;
        call.total = Some(None);
        let failed = |error: TransportError| {
            let timeout = matches!(error.kind(), TransportKind::ConnectTimeout | TransportKind::ReadTimeout);
            let code = if timeout { "timeout" } else { "request_error" };
            ClientError::new(
                ClientErrorKind::Transport(error.kind()),
                code,
                redact(&error.to_string(), &shared.secrets),
            )
        };
        let reply = shared.transport.send(call).await.map_err(failed)?;
        let status = reply.status();
        let body = reply.collect(ANSWER_BYTES).await;
        if !status.is_success() {
            return Err(refused(status, body.as_deref().unwrap_or_default(), &shared.secrets));
        }
        decode(&body.map_err(failed)?)
    }
}

/// One request, before it is sent.
#[derive(Debug)]
struct Exchange {
    method: Method,
    path: String,
    query: Vec<(&'static str, String)>,
    body: Option<Bytes>,
    /// Its read time-out, if it is not the client's.
    read: Option<Duration>,
}

impl Exchange {
    fn get(path: String) -> Self {
        Self { method: Method::GET, path, query: Vec::new(), body: None, read: None }
    }

    fn query(mut self, query: Vec<(&'static str, String)>) -> Self {
        self.query = query;
        self
    }

    /// A request that the daemon may answer as late as after `wait`.
    fn waiting(path: String, request: &impl Serialize, wait: Duration) -> Self {
        let read = Some(wait + MARGIN);
        Self { method: Method::POST, path, query: Vec::new(), body: Some(encode(request)), read }
    }

    /// Only a forced deletion waits, for the job's end.
    fn delete(job: &JobId, query: &DeleteQuery) -> Self {
        let read = query.force.then(|| query.grace() + MARGIN);
        Self { method: Method::DELETE, path: route::job(job), query: query.to_pairs(), body: None, read }
    }
}

fn encode(request: &impl Serialize) -> Bytes {
    serde_json::to_vec(request).expect("requests have string keys and never fail to serialise").into()
}

fn decode<T: DeserializeOwned>(body: &[u8]) -> Result<T, ClientError> {
    serde_json::from_slice(body).map_err(|error| {
        let code = if error.is_data() { "invalid_payload" } else { "invalid_json" };
        ClientError::new(ClientErrorKind::Decode, code, clean(&error.to_string()))
    })
}

fn refused(status: StatusCode, body: &[u8], secrets: &[Secret]) -> ClientError {
    let kind = ClientErrorKind::Refused(status.as_u16());
    match serde_json::from_slice::<ErrorEnvelope>(body) {
        Ok(envelope) => {
            let error = envelope.error;
            ClientError::new(kind, &clean(&error.code), clean(&redact(&error.message, secrets)))
        }
        Err(_) => {
            let text = clean(&redact(String::from_utf8_lossy(body).trim(), secrets));
            let separator = if text.is_empty() { "" } else { ": " };
            ClientError::new(kind, "request_failed", format!("HTTP {}{separator}{text}", status.as_u16()))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(status: u16, body: &str) -> ClientError {
        refused(StatusCode::from_u16(status).unwrap(), body.as_bytes(), &[Secret::new("traffic-token")])
    }

    #[test]
    fn read_timeouts_follow_the_wait_in_the_daemon() {
        let job = JobId::new("j1").unwrap();
        let read = |exchange: Exchange| exchange.read.map(|read| read.as_secs());
        assert_eq!(read(Exchange::get(route::HEALTHZ.to_owned())), None);
        let run = RunRequest { timeout: 300.0, ..RunRequest::new("x") };
        assert_eq!(read(Exchange::waiting(route::RUN.to_owned(), &run, run.wait())), Some(310));
        let poll = WaitRequest { timeout: 0.0, ..WaitRequest::new(0) };
        assert_eq!(read(Exchange::waiting(route::wait(&job), &poll, poll.wait())), Some(10));
        let force = |force| DeleteQuery { force, grace_seconds: 5.0 };
        assert_eq!(read(Exchange::delete(&job, &force(true))), Some(15));
        assert_eq!(read(Exchange::delete(&job, &force(false))), None);
    }

    #[test]
    fn refusals_keep_the_daemons_code_and_the_status() {
        let error = refusal(409, r#"{"error":{"code":"job_running","message":"still at it"}}"#);
        assert_eq!(error.known_code(), Some(ErrorCode::JobRunning));
        assert_eq!(error.status(), Some(409));
        assert_eq!(error.to_string(), "job_running: still at it");
        let error = refusal(500, r#"{"error":{"code":"tmux_error","message":"x"}}"#);
        assert_eq!((error.code(), error.known_code()), ("tmux_error", None));
    }

    #[test]
    fn refusals_without_an_envelope_are_request_failed() {
        for body in ["", "<html>", r#"{"detail":[]}"#, "[]"] {
            let error = refusal(422, body);
            assert_eq!((error.code(), error.status(), error.known_code()), ("request_failed", Some(422), None));
        }
        assert_eq!(refusal(502, "").message(), "HTTP 502");
        assert_eq!(refusal(403, "bad traffic-token\n!").message(), "HTTP 403: bad [redacted]\\n!");
    }

    #[test]
    fn answers_that_make_no_sense_say_how() {
        let code = |body: &str| decode::<Health>(body.as_bytes()).unwrap_err().code().to_owned();
        assert_eq!(code("<html>"), "invalid_json");
        assert_eq!(code(""), "invalid_json");
        assert_eq!(code("[1]"), "invalid_payload");
        assert_eq!(code("{}"), "invalid_payload");
    }

    #[test]
    fn options_that_cannot_work_are_refused() {
        for url in ["", "x", "ftp://x", "unix:/x"] {
            assert_eq!(ClientOptions::new(url).build().unwrap_err().kind(), ClientErrorKind::InvalidInput, "{url}");
        }
        assert!(ClientOptions::default().token("a\nb").build().is_err());
        let options = ClientOptions::default().token("traffic-token");
        assert!(!format!("{options:?} {:?}", options.clone().build().unwrap()).contains("traffic-token"));
    }
}
