//! The host's private routes, over its Unix socket.

use std::path::PathBuf;

use anyhow::{Context as _, bail};
use bytes::Bytes;
use http::{Method, Request, StatusCode};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use tokio::net::UnixStream;

/// Largest answer accepted from our own host, in bytes.
const MAX_ANSWER_BYTES: usize = 4 << 20;

/// A way to our own host.
#[derive(Debug, Clone)]
pub(crate) struct HostApi {
    socket: PathBuf,
}

/// Tells the host that this command lives. When it ends, however it ends, the host cleans up what it made.
#[derive(Debug)]
pub(crate) struct Session {
    /// Sent as `Leasehold-Session` when something is made.
    pub(crate) id: String,
    _stream: Incoming,
}

#[derive(Debug, Deserialize)]
struct ErrorBody {
    message: String,
}

impl HostApi {
    pub(crate) fn new(socket: PathBuf) -> Self {
        Self { socket }
    }

    async fn send(&self, method: Method, path: &str) -> anyhow::Result<http::Response<Incoming>> {
        let stream = UnixStream::connect(&self.socket)
            .await
            .with_context(|| format!("cannot connect to the host at {}", self.socket.display()))?;
        let (mut sender, connection) =
            http1::handshake::<_, Full<Bytes>>(TokioIo::new(stream)).await.context("the host does not speak HTTP")?;
        // Ends with the connection: when the answer was read, or the session is dropped.
        tokio::spawn(connection);
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header(http::header::HOST, "localhost")
            .body(Full::default())
            .expect("our own paths are valid");
        sender.send_request(request).await.with_context(|| format!("the host did not answer {path}"))
    }

    /// Calls a route and reads its JSON answer.
    pub(crate) async fn call<T: DeserializeOwned>(&self, method: Method, path: &str) -> anyhow::Result<T> {
        let response = self.send(method, path).await?;
        let status = response.status();
        let body =
            Limited::new(response.into_body(), MAX_ANSWER_BYTES).collect().await.map_err(anyhow::Error::from_boxed);
        let body = body.with_context(|| format!("the host's answer to {path} broke off"))?.to_bytes();
        if !status.is_success() {
            let message =
                serde_json::from_slice::<ErrorBody>(&body).map_or_else(|_| status.to_string(), |body| body.message);
            bail!("{message}");
        }
        let body: &[u8] = if status == StatusCode::NO_CONTENT || body.is_empty() { b"null" } else { &body };
        serde_json::from_slice(body).with_context(|| format!("the host's answer to {path} is not understood"))
    }

    /// Opens a session.
    pub(crate) async fn open_session(&self) -> anyhow::Result<Session> {
        #[derive(Deserialize)]
        struct Opened {
            session: String,
        }
        let response = self.send(Method::POST, "/leasehold/v1/sessions").await?;
        if !response.status().is_success() {
            bail!("the host refused a session: {}", response.status());
        }
        let mut stream = response.into_body();
        let mut line = Vec::new();
        while !line.contains(&b'\n') {
            let frame = stream.frame().await.context("the host closed the session")??;
            line.extend_from_slice(frame.data_ref().map_or(&[], |data| &data[..]));
            if line.len() > 4096 {
                bail!("the host's session line is too long");
            }
        }
        let opened: Opened = serde_json::from_slice(&line).context("the host's session line is not understood")?;
        Ok(Session { id: opened.session, _stream: stream })
    }
}
