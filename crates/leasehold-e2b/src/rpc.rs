//! Connect-JSON calls to envd.

use std::time::Duration;

use base64::Engine as _;
use envd::{Code, EndStream, Flags, FrameDecoder, RpcError};
use http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use leasehold_http::{Call, Payload, Reply, Secret, Transport, TransportError, TransportKind, Url};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::ClientError;

/// Largest unary answer that is read. Chosen: a directory of a hundred thousand entries fits.
const ANSWER_BYTES: usize = 64 << 20;

/// Largest error body that is read.
const ERROR_BYTES: usize = 64 << 10;

/// Seconds of silence after which envd shall send a keepalive on a stream, the value of E2B's SDKs.
const KEEPALIVE_SECONDS: u64 = 50;

/// Longest silence of a stream: two keepalives missed, and some. A sandbox that vanished without a word is noticed then.
const STREAM_SILENCE: Duration = Duration::from_secs(120);

/// One sandbox's envd.
#[derive(Debug, Clone)]
pub(crate) struct Rpc {
    pub(crate) transport: Transport,
    /// An error only when the endpoint's domain is malformed; it is told by the first call.
    pub(crate) base: Result<Url, ClientError>,
    pub(crate) headers: HeaderMap,
    pub(crate) token: Secret,
    pub(crate) user: Option<String>,
}

impl Rpc {
    /// A request to a path of envd, as this user.
    pub(crate) fn request(&self, operation: &'static str, method: Method, path: &str) -> Result<Call, ClientError> {
        let mut url = self.base.clone()?;
        let base = url.path().trim_end_matches('/').to_owned();
        url.set_path(&format!("{base}{path}"));
        let mut call = Call::new(method, url);
        call.headers = self.headers.clone();
        if let Some(user) = &self.user {
            let credentials = base64::engine::general_purpose::STANDARD.encode(format!("{user}:"));
            let value = HeaderValue::from_str(&format!("Basic {credentials}"))
                .map_err(|_| ClientError::invalid(operation, format!("user {user:?} is malformed")))?;
            call.headers.insert(header::AUTHORIZATION, value);
        }
        Ok(call)
    }

    /// A call with one answer.
    pub(crate) async fn unary<T: DeserializeOwned>(
        &self,
        operation: &'static str,
        method: &str,
        message: &impl Serialize,
    ) -> Result<T, ClientError> {
        let mut call = self.request(operation, Method::POST, method)?;
        call.headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        call.headers.insert("connect-protocol-version", HeaderValue::from_static("1"));
        call.payload = Payload::Bytes(json(message).into());
        let reply = self.transport.send(call).await.map_err(|error| self.failed(operation, &error))?;
        if reply.status() != StatusCode::OK {
            return Err(self.refused(operation, reply).await);
        }
        let body = reply.collect(ANSWER_BYTES).await.map_err(|error| self.failed(operation, &error))?;
        serde_json::from_slice(&body)
            .map_err(|error| ClientError::decode(operation, &error.to_string(), &[&self.token]))
    }

    /// A call with a stream of answers. `timeout` is the server's deadline for it.
    pub(crate) async fn stream(
        &self,
        operation: &'static str,
        method: &str,
        message: &impl Serialize,
        timeout: Option<Duration>,
    ) -> Result<MessageStream, ClientError> {
        let mut call = self.request(operation, Method::POST, method)?;
        call.headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/connect+json"));
        call.headers.insert("connect-protocol-version", HeaderValue::from_static("1"));
        call.headers.insert("keepalive-ping-interval", HeaderValue::from(KEEPALIVE_SECONDS));
        if let Some(timeout) = timeout {
            // The protocol allows ten digits; zero would mean "no deadline" to E2B's server.
            let milliseconds = u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX).clamp(1, 9_999_999_999);
            call.headers.insert("connect-timeout-ms", HeaderValue::from(milliseconds));
        }
        call.payload = Payload::Bytes(envd::encode_message(message).into());
        call.read = Some(STREAM_SILENCE);
        call.total = Some(None);
        let reply = self.transport.send(call).await.map_err(|error| self.failed(operation, &error))?;
        if reply.status() != StatusCode::OK {
            return Err(self.refused(operation, reply).await);
        }
        Ok(MessageStream {
            rpc_token: self.token.clone(),
            operation,
            reply,
            decoder: FrameDecoder::default(),
            state: StreamState::Open,
        })
    }

    pub(crate) fn failed(&self, operation: &'static str, error: &TransportError) -> ClientError {
        ClientError::transport(operation, error, &[&self.token])
    }

    /// Reads an answer that is no success: a Connect error, or a proxy's.
    async fn refused(&self, operation: &'static str, reply: Reply) -> ClientError {
        #[derive(serde::Deserialize)]
        struct Proxy {
            message: String,
        }

        let status = reply.status();
        let body = reply.collect(ERROR_BYTES).await.unwrap_or_default();
        let error = serde_json::from_slice::<RpcError>(&body).unwrap_or_else(|_| {
            let text = serde_json::from_slice::<Proxy>(&body).map(|proxy| proxy.message);
            let text = text.unwrap_or_else(|_| String::from_utf8_lossy(&body).trim().to_owned());
            let code = Code::from_http_status(status.as_u16());
            RpcError::new(code, format!("HTTP {}: {text}", status.as_u16()))
        });
        ClientError::rpc(operation, &error, &[&self.token]).with_status(status)
    }
}

fn json(message: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(message).expect("our messages have string keys and never fail to serialise")
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StreamState {
    Open,
    Over,
}

/// Messages of a stream as they come.
#[derive(Debug)]
pub(crate) struct MessageStream {
    rpc_token: Secret,
    operation: &'static str,
    reply: Reply,
    decoder: FrameDecoder,
    state: StreamState,
}

impl MessageStream {
    /// The next message; `None` after an end of stream without an error. Holds one frame at most.
    ///
    /// Cancel safe: bytes already read stay in the decoder.
    pub(crate) async fn next<T: DeserializeOwned>(&mut self) -> Result<Option<T>, ClientError> {
        loop {
            if self.state == StreamState::Over {
                return Ok(None);
            }
            let operation = self.operation;
            let token = &self.rpc_token;
            let wrong = |why: &str| ClientError::decode(operation, why, &[token]);
            match self.decoder.next_frame() {
                Ok(Some((Flags::Message, payload))) => {
                    return serde_json::from_slice(payload).map(Some).map_err(|error| wrong(&error.to_string()));
                }
                Ok(Some((Flags::EndStream, payload))) => {
                    self.state = StreamState::Over;
                    let end: EndStream = serde_json::from_slice(payload).map_err(|error| wrong(&error.to_string()))?;
                    return match end.error {
                        None => Ok(None),
                        Some(error) => Err(ClientError::rpc(operation, &error, &[token])),
                    };
                }
                Ok(None) => {}
                Err(error) => {
                    self.state = StreamState::Over;
                    return Err(wrong(&error.to_string()));
                }
            }
            let chunk = self.reply.chunk().await.and_then(|chunk| {
                chunk.ok_or_else(|| {
                    TransportError::new(TransportKind::RemoteProtocol, "stream ended without its last frame")
                })
            });
            match chunk {
                Ok(chunk) => self.decoder.push(&chunk),
                Err(error) => {
                    self.state = StreamState::Over;
                    return Err(ClientError::transport(operation, &error, &[token]));
                }
            }
        }
    }
}
