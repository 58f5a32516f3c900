//! Calls of the control plane.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, header};
use leasehold_http::{Call, Payload, Secret, Transport, Url};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::{Route, refused};
use crate::sandbox::{Origin, Sandbox};
use crate::wire::{ConnectBody, PauseBody, SandboxBody, SnapshotBody, TimeoutBody, whole_seconds};
use crate::{
    ClientError, ClientOptions, NewSandbox, Page, PauseMode, SandboxInfo, SandboxQuery, SnapshotInfo, SnapshotQuery,
};

/// Largest answer of the control plane that is read. Chosen: a page of 100 sandboxes with generous metadata stays far below.
const ANSWER_BYTES: usize = 16 << 20;

/// Characters of a path segment that travel as they are.
const SEGMENT: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');

/// A client of one endpoint. Cheap to clone; clones share connections.
///
/// No call is repeated by the client: whether that is safe is the caller's knowledge.
///
/// # Examples
/// ```no_run
/// use leasehold_e2b::{Client, NewSandbox, Output, ProcessSpec};
///
/// # async fn example() -> Result<(), leasehold_e2b::ClientError> {
/// let client = Client::from_env()?;
/// let sandbox = client.create(&NewSandbox::new("base")).await?;
/// let mut process = sandbox.start(&ProcessSpec::shell("echo hi")).await?;
/// while let Some(output) = process.next().await? {
///     match output {
///         Output::Stdout(bytes) => print!("{}", String::from_utf8_lossy(&bytes)),
///         Output::Stderr(bytes) | Output::Pty(bytes) => eprint!("{}", String::from_utf8_lossy(&bytes)),
///         Output::End(end) => println!("exit code {}", end.exit_code),
///     }
/// }
/// sandbox.kill().await
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Client {
    pub(crate) shared: Arc<Shared>,
}

#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) transport: Transport,
    api_url: Url,
    pub(crate) sandbox_url: Option<Url>,
    pub(crate) domain: String,
    headers: HeaderMap,
    api_key: Secret,
}

impl Client {
    /// Options without anything set.
    pub fn builder() -> ClientOptions {
        ClientOptions::default()
    }

    /// A client for the endpoint that the `E2B_*` variables name.
    ///
    /// # Errors
    /// As [`ClientOptions::build`].
    pub fn from_env() -> Result<Self, ClientError> {
        ClientOptions::from_env().build()
    }

    pub(crate) fn assemble(
        transport: Transport,
        api_url: Url,
        sandbox_url: Option<Url>,
        domain: String,
        headers: HeaderMap,
        api_key: Secret,
    ) -> Self {
        Self { shared: Arc::new(Shared { transport, api_url, sandbox_url, domain, headers, api_key }) }
    }

    /// Creates a sandbox and waits until it answers.
    ///
    /// # Errors
    /// `Capacity` when the endpoint has no room (status 429); `Status` for other refusals, an unknown template among them.
    ///
    /// # Repeating
    /// Makes another sandbox.
    ///
    /// # Cancel safety
    /// When dropped the sandbox may exist, and runs until its timeout.
    pub async fn create(&self, new: &NewSandbox) -> Result<Sandbox, ClientError> {
        let operation = "create sandbox";
        let body: SandboxBody =
            self.json(operation, Route::Create, Method::POST, self.url(operation, &["v2", "sandboxes"])?, new).await?;
        self.sandbox(operation, body)
    }

    /// Connects to a sandbox and resumes it when it is paused. Its timeout becomes at least `timeout` from now; it is never
    /// shortened.
    ///
    /// # Errors
    /// `NotFound` when it does not exist.
    ///
    /// # Repeating
    /// Harmless.
    pub async fn connect(&self, id: &str, timeout: Duration) -> Result<Sandbox, ClientError> {
        let operation = "connect sandbox";
        let url = self.url(operation, &["v2", "sandboxes", checked_id(operation, id)?, "connect"])?;
        let body = ConnectBody { timeout: whole_seconds(timeout), memory: None };
        let body: SandboxBody = self.json(operation, Route::Other, Method::POST, url, &body).await?;
        if body.sandbox_id != id {
            let why = format!("asked for sandbox {id:?}, got {:?}", body.sandbox_id);
            return Err(ClientError::decode(operation, &why, &[]));
        }
        self.sandbox(operation, body)
    }

    /// What is known about a sandbox.
    ///
    /// # Errors
    /// `NotFound` when it does not exist.
    pub async fn get(&self, id: &str) -> Result<SandboxInfo, ClientError> {
        let operation = "get sandbox";
        let url = self.url(operation, &["sandboxes", checked_id(operation, id)?])?;
        decode(operation, &self.call(operation, Route::Other, Method::GET, url, Payload::Empty).await?.1)
    }

    /// One page of sandboxes, newest first.
    ///
    /// # Errors
    /// `Status` when the endpoint refuses.
    pub async fn list(&self, query: &SandboxQuery) -> Result<Page<SandboxInfo>, ClientError> {
        let operation = "list sandboxes";
        self.page(operation, self.url(operation, &["v2", "sandboxes"])?, &query.pairs()).await
    }

    /// All sandboxes that match, page after page.
    ///
    /// # Errors
    /// As [`Client::list`]; `Decode` when the endpoint names the same page twice.
    pub async fn list_all(&self, query: &SandboxQuery) -> Result<Vec<SandboxInfo>, ClientError> {
        let mut query = query.clone();
        let mut all = Vec::new();
        loop {
            let page = self.list(&query).await?;
            all.extend(page.items);
            if page.next.is_none() {
                return Ok(all);
            }
            if page.next == query.next {
                return Err(ClientError::decode("list sandboxes", "the next page is the same page", &[]));
            }
            query.next = page.next;
        }
    }

    /// Kills a sandbox, running or paused, and deletes what is stored of it.
    ///
    /// # Errors
    /// `NotFound` when it does not exist.
    ///
    /// # Repeating
    /// Answers `NotFound`.
    pub async fn kill(&self, id: &str) -> Result<(), ClientError> {
        let operation = "kill sandbox";
        let url = self.url(operation, &["sandboxes", checked_id(operation, id)?])?;
        self.call(operation, Route::Other, Method::DELETE, url, Payload::Empty).await.map(drop)
    }

    /// Pauses a sandbox.
    ///
    /// # Errors
    /// `NotFound` when it does not exist; `Status` 409 when it is paused already.
    ///
    /// # Repeating
    /// Answers 409 and changes nothing.
    pub async fn pause(&self, id: &str, mode: PauseMode) -> Result<(), ClientError> {
        let operation = "pause sandbox";
        let url = self.url(operation, &["sandboxes", checked_id(operation, id)?, "pause"])?;
        let body = encode(&PauseBody { memory: mode.keeps_memory() });
        self.call(operation, Route::Other, Method::POST, url, body).await.map(drop)
    }

    /// Lets the sandbox's timeout pass `timeout` from now, earlier or later than before; zero means now.
    ///
    /// # Errors
    /// `NotFound` when it does not exist or is paused.
    pub async fn set_timeout(&self, id: &str, timeout: Duration) -> Result<(), ClientError> {
        let operation = "set sandbox timeout";
        let url = self.url(operation, &["sandboxes", checked_id(operation, id)?, "timeout"])?;
        let body = encode(&TimeoutBody { timeout: whole_seconds(timeout) });
        self.call(operation, Route::Other, Method::POST, url, body).await.map(drop)
    }

    /// Takes a snapshot of a sandbox, which then goes on.
    ///
    /// # Errors
    /// `NotFound` when the sandbox does not exist.
    ///
    /// # Repeating
    /// Makes another snapshot.
    pub async fn create_snapshot(&self, id: &str, name: Option<&str>) -> Result<SnapshotInfo, ClientError> {
        let operation = "create snapshot";
        let url = self.url(operation, &["sandboxes", checked_id(operation, id)?, "snapshots"])?;
        self.json(operation, Route::Other, Method::POST, url, &SnapshotBody { name }).await
    }

    /// One page of snapshots, newest first.
    ///
    /// # Errors
    /// `Status` when the endpoint refuses.
    pub async fn list_snapshots(&self, query: &SnapshotQuery) -> Result<Page<SnapshotInfo>, ClientError> {
        let operation = "list snapshots";
        self.page(operation, self.url(operation, &["snapshots"])?, &query.pairs()).await
    }

    /// All snapshots that match, page after page.
    ///
    /// # Errors
    /// As [`Client::list_snapshots`]; `Decode` when the endpoint names the same page twice.
    pub async fn list_all_snapshots(&self, query: &SnapshotQuery) -> Result<Vec<SnapshotInfo>, ClientError> {
        let mut query = query.clone();
        let mut all = Vec::new();
        loop {
            let page = self.list_snapshots(&query).await?;
            all.extend(page.items);
            if page.next.is_none() {
                return Ok(all);
            }
            if page.next == query.next {
                return Err(ClientError::decode("list snapshots", "the next page is the same page", &[]));
            }
            query.next = page.next;
        }
    }

    /// Deletes a snapshot.
    ///
    /// # Errors
    /// `NotFound` when it does not exist.
    ///
    /// # Repeating
    /// Answers `NotFound`.
    pub async fn delete_snapshot(&self, snapshot: &str) -> Result<(), ClientError> {
        let operation = "delete snapshot";
        let url = self.url(operation, &["templates", snapshot])?;
        self.call(operation, Route::Other, Method::DELETE, url, Payload::Empty).await.map(drop)
    }

    fn sandbox(&self, operation: &'static str, body: SandboxBody) -> Result<Sandbox, ClientError> {
        if checked_id(operation, &body.sandbox_id).is_err() {
            return Err(ClientError::decode(operation, &format!("sandboxID {:?} is malformed", body.sandbox_id), &[]));
        }
        Ok(Sandbox::new(self.clone(), body))
    }

    /// Where a sandbox of `domain` is reached.
    pub(crate) fn origin(&self, domain: Option<&str>) -> Origin {
        let domain = domain.filter(|domain| !domain.is_empty()).unwrap_or(&self.shared.domain);
        Origin { fixed: self.shared.sandbox_url.clone(), domain: domain.to_owned() }
    }

    /// A URL of the control plane; each segment is encoded, so that an id can hold `/` and `:` but never leave its place.
    fn url(&self, operation: &'static str, segments: &[&str]) -> Result<Url, ClientError> {
        let mut path = self.shared.api_url.path().trim_end_matches('/').to_owned();
        for segment in segments {
            if matches!(*segment, "" | "." | "..") {
                return Err(ClientError::invalid(operation, format!("id {segment:?} is malformed")));
            }
            path.push('/');
            path.extend(utf8_percent_encode(segment, SEGMENT));
        }
        let mut url = self.shared.api_url.clone();
        url.set_path(&path);
        url.set_query(None);
        Ok(url)
    }

    async fn page<T: DeserializeOwned>(
        &self,
        operation: &'static str,
        mut url: Url,
        pairs: &[(&'static str, String)],
    ) -> Result<Page<T>, ClientError> {
        if !pairs.is_empty() {
            url.query_pairs_mut().extend_pairs(pairs);
        }
        let (headers, body) = self.call(operation, Route::Other, Method::GET, url, Payload::Empty).await?;
        let next = headers.get("x-next-token").and_then(|token| token.to_str().ok());
        let next = next.filter(|token| !token.is_empty()).map(str::to_owned);
        Ok(Page { items: decode(operation, &body)?, next })
    }

    async fn json<T: DeserializeOwned>(
        &self,
        operation: &'static str,
        route: Route,
        method: Method,
        url: Url,
        body: &impl Serialize,
    ) -> Result<T, ClientError> {
        decode(operation, &self.call(operation, route, method, url, encode(body)).await?.1)
    }

    /// One request, one answer; the body of a success.
    async fn call(
        &self,
        operation: &'static str,
        route: Route,
        method: Method,
        url: Url,
        payload: Payload,
    ) -> Result<(HeaderMap, Bytes), ClientError> {
        let secrets = [&self.shared.api_key];
        let mut call = Call::new(method, url);
        call.headers = self.shared.headers.clone();
        call.headers.insert(header::ACCEPT, HeaderValue::from_static("application/json"));
        if matches!(payload, Payload::Bytes(_)) {
            call.headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        }
        call.payload = payload;
        let failed = |error| ClientError::transport(operation, &error, &secrets);
        let reply = self.shared.transport.send(call).await.map_err(failed)?;
        let (status, headers) = (reply.status(), reply.headers().clone());
        let body = reply.collect(ANSWER_BYTES).await;
        if !status.is_success() {
            return Err(refused(operation, route, status, &headers, body.as_deref(), &secrets));
        }
        Ok((headers, body.map_err(failed)?))
    }
}

fn encode(body: &impl Serialize) -> Payload {
    let bytes = serde_json::to_vec(body).expect("our bodies have string keys and never fail to serialise");
    Payload::Bytes(bytes.into())
}

fn decode<T: DeserializeOwned>(operation: &'static str, body: &[u8]) -> Result<T, ClientError> {
    // The body itself is not quoted: it may hold tokens. serde's text names field and position only, save for values of the
    // wrong type, which are no tokens of ours.
    serde_json::from_slice(body).map_err(|error| ClientError::decode(operation, &error.to_string(), &[]))
}

/// Refuses ids that cannot be one before they become part of a path or a host name.
fn checked_id<'a>(operation: &'static str, id: &'a str) -> Result<&'a str, ClientError> {
    let right = !id.is_empty()
        && id.len() <= 63
        && id.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_');
    if right { Ok(id) } else { Err(ClientError::invalid(operation, format!("sandbox id {id:?} is malformed"))) }
}
