//! A plain HTTP client for tests: one connection per request, nothing retried.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use http::{HeaderMap, Method, Request, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::{TcpStream, UnixStream};

/// Where a host listens.
#[derive(Debug, Clone)]
pub(crate) enum Client {
    Unix(PathBuf),
    Tcp(SocketAddr),
}

/// An answer, read to its end.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Answer {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {:?}", self.body))
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// The message of a refusal, whose form is checked.
    pub(crate) fn message(&self) -> String {
        let json = self.json();
        assert_eq!(json["code"], self.status.as_u16(), "{json}");
        assert_eq!(self.headers["content-type"], "application/json");
        json["message"].as_str().expect("a message").to_owned()
    }

    /// Panics unless the status is `status`.
    #[track_caller]
    pub(crate) fn expect(self, status: u16) -> Self {
        assert_eq!(self.status.as_u16(), status, "{}", self.text());
        self
    }
}

impl Client {
    pub(crate) fn unix(data_dir: &Path) -> Self {
        Self::Unix(data_dir.join("run/host.sock"))
    }

    pub(crate) async fn open(&self) -> http1::SendRequest<Full<Bytes>> {
        self.try_open().await.expect("the host listens")
    }

    /// A connection, unless the host is gone.
    pub(crate) async fn try_open(&self) -> Option<http1::SendRequest<Full<Bytes>>> {
        match self {
            Self::Unix(path) => {
                let stream = UnixStream::connect(path).await.ok()?;
                let (sender, connection) = http1::handshake(TokioIo::new(stream)).await.ok()?;
                tokio::spawn(connection.with_upgrades());
                Some(sender)
            }
            Self::Tcp(address) => {
                let stream = TcpStream::connect(address).await.ok()?;
                let (sender, connection) = http1::handshake(TokioIo::new(stream)).await.ok()?;
                tokio::spawn(connection.with_upgrades());
                Some(sender)
            }
        }
    }

    /// Sends and returns the head; the body is still to come.
    pub(crate) async fn start(&self, request: Request<Full<Bytes>>) -> http::Response<Incoming> {
        self.open().await.send_request(request).await.expect("an answer")
    }

    pub(crate) async fn send(&self, request: Request<Full<Bytes>>) -> Answer {
        let (parts, body) = self.start(request).await.into_parts();
        let body = body.collect().await.expect("a whole body").to_bytes();
        Answer { status: parts.status, headers: parts.headers, body }
    }

    pub(crate) async fn call(&self, method: &str, path: &str, body: Value) -> Answer {
        self.send(request(method, path, &[], body)).await
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        self.call("GET", path, Value::Null).await
    }

    pub(crate) async fn post(&self, path: &str, body: Value) -> Answer {
        self.call("POST", path, body).await
    }

    pub(crate) async fn delete(&self, path: &str) -> Answer {
        self.call("DELETE", path, Value::Null).await
    }

    /// Creates a sandbox and returns its id.
    pub(crate) async fn create(&self, body: Value) -> String {
        let answer = self.post("/v2/sandboxes", body).await.expect(201);
        answer.json()["sandboxID"].as_str().expect("an id").to_owned()
    }

    /// Sends a request into a sandbox.
    pub(crate) async fn inside(
        &self,
        id: &str,
        port: u16,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
    ) -> Answer {
        let port = port.to_string();
        let mut all = vec![("e2b-sandbox-id", id), ("e2b-sandbox-port", port.as_str())];
        all.extend_from_slice(headers);
        self.send(request(method, path, &all, Value::Null)).await
    }
}

/// A request; no body when it is null.
pub(crate) fn request(method: &str, path: &str, headers: &[(&str, &str)], body: Value) -> Request<Full<Bytes>> {
    let body = if body.is_null() { Bytes::new() } else { body.to_string().into() };
    let mut request = Request::builder().method(method.parse::<Method>().expect("a method")).uri(path);
    if !headers.iter().any(|(name, _)| *name == "host") {
        request = request.header("host", "localhost");
    }
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    request.body(Full::new(body)).expect("a request")
}
