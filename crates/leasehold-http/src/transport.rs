//! Sending a request and reading its answer.

use std::fmt;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures_core::Stream;
use http::{HeaderMap, Method, StatusCode};
use reqwest::Url;
use tokio::time::Instant;

use crate::phase::{self, PhaseLayer, Progress};
use crate::{TransportError, TransportKind, classify::classify, tls};

/// Idle connections are dropped after this. Chosen below the 5 s at which common servers close theirs: a request on a
/// connection that the server closes at that moment fails, and creates are never repeated.
const IDLE_CONNECTION: Duration = Duration::from_secs(4);

/// Redirects followed within one origin. Chosen: an API needs none, a proxy that adds a slash one.
const REDIRECTS: usize = 5;

/// Time limits of a request, one per phase.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timeouts {
    /// Name lookup, connecting and the TLS handshake together. Default 30 s.
    pub connect: Duration,
    /// Longest silence while a request or an answer is under way. Default 60 s, as E2B's SDKs.
    pub read: Duration,
    /// The whole call until its answer is complete; `None` for no limit. Default 120 s: one pause in each of two phases.
    pub total: Option<Duration>,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self { connect: Duration::from_secs(30), read: Duration::from_secs(60), total: Some(Duration::from_secs(120)) }
    }
}

/// How a [`Transport`] is made.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct TransportOptions {
    /// Speak HTTP over this Unix socket, whatever the URLs say.
    pub unix_socket: Option<PathBuf>,
    /// Time limits; `read` and `total` can be set per call too.
    pub timeouts: Timeouts,
    /// Whether an `https` URL will be called. Without it no certificates are loaded and such a call fails.
    pub tls: bool,
    /// Value of `User-Agent`; empty for none.
    pub user_agent: String,
}

impl TransportOptions {
    /// The same options with a Unix socket.
    #[must_use]
    pub fn unix_socket(mut self, path: Option<PathBuf>) -> Self {
        self.unix_socket = path;
        self
    }

    /// The same options with other time limits.
    #[must_use]
    pub fn timeouts(mut self, timeouts: Timeouts) -> Self {
        self.timeouts = timeouts;
        self
    }

    /// The same options with or without TLS.
    #[must_use]
    pub fn tls(mut self, tls: bool) -> Self {
        self.tls = tls;
        self
    }

    /// The same options with a user agent.
    #[must_use]
    pub fn user_agent(mut self, user_agent: impl Into<String>) -> Self {
        self.user_agent = user_agent.into();
        self
    }
}

/// A body that is produced while it is sent.
pub type BodyStream = Pin<Box<dyn Stream<Item = std::io::Result<Bytes>> + Send>>;

/// The body of a request.
#[derive(Default)]
pub enum Payload {
    /// No body.
    #[default]
    Empty,
    /// These bytes, with a `Content-Length`.
    Bytes(Bytes),
    /// A stream of unknown length, sent chunked; only one chunk is held at a time.
    Stream(BodyStream),
}

impl fmt::Debug for Payload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => f.write_str("Empty"),
            Self::Bytes(bytes) => write!(f, "Bytes({})", bytes.len()),
            Self::Stream(_) => f.write_str("Stream"),
        }
    }
}

/// One request.
#[derive(Debug)]
#[non_exhaustive]
pub struct Call {
    /// Its method.
    pub method: Method,
    /// Where to.
    pub url: Url,
    /// Its headers; those with secrets should be marked sensitive.
    pub headers: HeaderMap,
    /// Its body.
    pub payload: Payload,
    /// Instead of [`Timeouts::read`].
    pub read: Option<Duration>,
    /// Instead of [`Timeouts::total`]; `Some(None)` for no limit.
    pub total: Option<Option<Duration>>,
}

impl Call {
    /// A request without headers or body.
    #[must_use]
    pub fn new(method: Method, url: Url) -> Self {
        Self { method, url, headers: HeaderMap::new(), payload: Payload::Empty, read: None, total: None }
    }
}

/// Sends requests. Cheap to clone; clones share the connections.
#[derive(Debug, Clone)]
pub struct Transport {
    client: reqwest::Client,
    timeouts: Timeouts,
    /// Keeps the directory of a socket whose path is too long open, see [`short_socket_path`].
    _socket_directory: Option<std::sync::Arc<std::fs::File>>,
}

impl Transport {
    /// Makes a transport. Opens no connection.
    ///
    /// # Errors
    /// `Invalid` when TLS is asked for and no root certificate is found, or the user agent is no header value.
    pub fn new(options: &TransportOptions) -> Result<Self, TransportError> {
        let mut builder = reqwest::Client::builder()
            .tls_backend_preconfigured(tls::client_config(options.tls)?)
            .connect_timeout(options.timeouts.connect)
            .connector_layer(PhaseLayer)
            .pool_idle_timeout(IDLE_CONNECTION)
            .retry(reqwest::retry::never())
            .referer(false)
            .redirect(reqwest::redirect::Policy::custom(|attempt| {
                let same = attempt.previous().last().is_some_and(|from| from.origin() == attempt.url().origin());
                if !same {
                    attempt.stop()
                } else if attempt.previous().len() > REDIRECTS {
                    attempt.error(format!("more than {REDIRECTS}"))
                } else {
                    attempt.follow()
                }
            }));
        if !options.user_agent.is_empty() {
            builder = builder.user_agent(&options.user_agent);
        }
        #[cfg(feature = "hickory-dns")]
        {
            builder = builder.dns_resolver(std::sync::Arc::new(crate::names::Hickory::default()));
        }
        let mut socket_directory = None;
        if let Some(path) = &options.unix_socket {
            let (path, directory) = short_socket_path(path)?;
            socket_directory = directory;
            builder = builder.no_proxy().unix_socket(path);
        } else {
            builder = without_loopback_proxy(builder);
        }
        let client = builder.build().map_err(classify)?;
        Ok(Self { client, timeouts: options.timeouts, _socket_directory: socket_directory })
    }

    /// The default time limits.
    #[must_use]
    pub fn timeouts(&self) -> Timeouts {
        self.timeouts
    }

    /// Sends a request and waits for the head of its answer. Any status is a success here.
    ///
    /// # Errors
    /// See [`TransportKind`].
    ///
    /// # Cancel safety
    /// Dropping it closes the connection; whether the other side acts on the request is then unknown.
    pub async fn send(&self, call: Call) -> Result<Reply, TransportError> {
        let read = call.read.unwrap_or(self.timeouts.read);
        let limit = call.total.unwrap_or(self.timeouts.total);
        let deadline = limit.map(|limit| (Instant::now() + limit, limit));
        let (progress, watch) = phase::start();
        let mut request = reqwest::Request::new(call.method, call.url);
        *request.headers_mut() = call.headers;
        *request.body_mut() = match call.payload {
            Payload::Empty => None,
            Payload::Bytes(bytes) => Some(bytes.into()),
            Payload::Stream(stream) => {
                Some(reqwest::Body::wrap_stream(Reported { stream, progress: progress.clone() }))
            }
        };
        let sending = phase::within(progress, self.client.execute(request));
        let response = tokio::select! {
            sent = sending => sent.map_err(classify)?,
            () = phase::stalled(watch, read) => return Err(TransportError::after(TransportKind::ReadTimeout, read)),
            error = expired(deadline) => return Err(error),
        };
        Ok(Reply { response, read, deadline })
    }
}

/// Waits until the deadline, for ever if there is none.
async fn expired(deadline: Option<(Instant, Duration)>) -> TransportError {
    match deadline {
        Some((at, limit)) => {
            tokio::time::sleep_until(at).await;
            TransportError::after(TransportKind::Deadline, limit)
        }
        None => std::future::pending().await,
    }
}

/// A proxy set in the environment is used, but never for loopback: a key must not go through it on its way to this machine.
fn without_loopback_proxy(builder: reqwest::ClientBuilder) -> reqwest::ClientBuilder {
    let variable =
        |names: &[&str]| names.iter().find_map(|name| std::env::var(name).ok().filter(|value| !value.is_empty()));
    let mut exempt = vec!["localhost".to_owned(), "127.0.0.0/8".to_owned(), "::1".to_owned()];
    exempt.extend(variable(&["NO_PROXY", "no_proxy"]));
    let exempt = reqwest::NoProxy::from_string(&exempt.join(","));
    let mut builder = builder.no_proxy();
    let all = variable(&["ALL_PROXY", "all_proxy"]);
    let http = variable(&["http_proxy"]).or_else(|| all.clone());
    let https = variable(&["HTTPS_PROXY", "https_proxy"]).or(all);
    if let Some(Ok(proxy)) = http.map(reqwest::Proxy::http) {
        builder = builder.proxy(proxy.no_proxy(exempt.clone()));
    }
    if let Some(Ok(proxy)) = https.map(reqwest::Proxy::https) {
        builder = builder.proxy(proxy.no_proxy(exempt));
    }
    builder
}

/// A socket's path must be below 108 bytes; a longer one is reached through its open directory.
#[cfg(target_os = "linux")]
fn short_socket_path(path: &Path) -> Result<(PathBuf, Option<std::sync::Arc<std::fs::File>>), TransportError> {
    use std::os::fd::AsRawFd as _;
    use std::os::unix::ffi::OsStrExt as _;

    if path.as_os_str().as_bytes().len() < 108 {
        return Ok((path.to_owned(), None));
    }
    let invalid = |detail: String| TransportError::new(TransportKind::Connect, &detail);
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(invalid(format!("{}: not a socket's path", path.display())));
    };
    let directory = std::fs::File::open(parent).map_err(|error| invalid(format!("{}: {error}", parent.display())))?;
    let short = Path::new("/proc/self/fd").join(directory.as_raw_fd().to_string()).join(name);
    Ok((short, Some(std::sync::Arc::new(directory))))
}

#[cfg(not(target_os = "linux"))]
fn short_socket_path(path: &Path) -> Result<(PathBuf, Option<std::sync::Arc<std::fs::File>>), TransportError> {
    Ok((path.to_owned(), None))
}

/// A body stream that reports each chunk as progress.
struct Reported {
    stream: BodyStream,
    progress: Progress,
}

impl Stream for Reported {
    type Item = std::io::Result<Bytes>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let next = self.stream.as_mut().poll_next(context);
        if next.is_ready() {
            phase::advance(&self.progress);
        }
        next
    }
}

/// The head of an answer, and its body yet to be read.
#[derive(Debug)]
pub struct Reply {
    response: reqwest::Response,
    read: Duration,
    deadline: Option<(Instant, Duration)>,
}

impl Reply {
    /// The status.
    #[must_use]
    pub fn status(&self) -> StatusCode {
        self.response.status()
    }

    /// The headers.
    #[must_use]
    pub fn headers(&self) -> &HeaderMap {
        self.response.headers()
    }

    /// The next bytes of the body, `None` at its end.
    ///
    /// # Errors
    /// See [`TransportKind`].
    ///
    /// # Cancel safety
    /// Nothing is lost when it is dropped; call it again.
    pub async fn chunk(&mut self) -> Result<Option<Bytes>, TransportError> {
        tokio::select! {
            chunk = self.response.chunk() => chunk.map_err(classify),
            () = tokio::time::sleep(self.read) => Err(TransportError::after(TransportKind::ReadTimeout, self.read)),
            error = expired(self.deadline) => Err(error),
        }
    }

    /// The whole body.
    ///
    /// # Errors
    /// `TooLarge` beyond `limit` bytes, else see [`TransportKind`].
    pub async fn collect(mut self, limit: usize) -> Result<Bytes, TransportError> {
        let mut all = BytesMut::new();
        while let Some(chunk) = self.chunk().await? {
            if all.len() + chunk.len() > limit {
                return Err(TransportError::new(TransportKind::TooLarge, &format!("more than {limit} bytes")));
            }
            all.extend_from_slice(&chunk);
        }
        Ok(all.freeze())
    }
}
