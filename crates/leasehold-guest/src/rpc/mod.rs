//! The Connect protocol with JSON, on the guest's HTTP server: unary calls, server streams, client streams.
//!
//! Only what E2B's SDKs use: POST, JSON, no compression. An error of a unary call is an HTTP status with a JSON body; one of a stream is in
//! its last envelope, under status 200.

mod follow;
mod process;

use std::io::{self, Read as _};
use std::time::Duration;

use envd::{Code, Flags, FrameDecoder, FrameError, MAX_FRAME_BYTES, RpcError, encode_end, encode_message};
use serde::Serialize;
use serde::de::DeserializeOwned;

pub use self::process::ProcessService;
use crate::clock::Countdown;
use crate::http::{Body, Head, Request, Response, StreamBody};

/// How often a stream without events sends a keepalive unless the client says otherwise. As envd does (0.6.13).
const KEEPALIVE: Duration = Duration::from_secs(90);

/// Answers a unary call.
///
/// # Errors
/// When the connection fails, or the body is no HTTP.
pub fn unary<Q: DeserializeOwned, A: Serialize>(
    request: &mut Request<'_>,
    response: Response<'_>,
    call: impl FnOnce(Q) -> Result<A, RpcError>,
) -> io::Result<()> {
    if !is_json_post(request, "application/json") {
        return unsupported(request, response, "application/json");
    }
    let body = request.body().read_to_limit(MAX_FRAME_BYTES)?;
    match parse(&body).and_then(call) {
        Ok(answer) => response.send_json(&answer),
        Err(error) => response.status(error.code.http_status()).send_json(&error),
    }
}

/// Answers a call of which one message comes and a stream of messages goes.
///
/// # Errors
/// When the connection fails, or the body is no HTTP.
pub(crate) fn server_stream<Q: DeserializeOwned>(
    request: &mut Request<'_>,
    response: Response<'_>,
    call: impl FnOnce(Q, &mut Outgoing<'_>) -> io::Result<Result<(), RpcError>>,
) -> io::Result<()> {
    if !is_json_post(request, "application/connect+json") {
        return unsupported(request, response, "application/connect+json");
    }
    let keepalive = keepalive(request);
    let message = Incoming::new(request.body()).only_message();
    let mut stream = Outgoing::new(response, keepalive)?;
    let outcome = match message.and_then(|bytes| parse(&bytes)) {
        Ok(message) => call(message, &mut stream)?,
        Err(error) => Err(error),
    };
    stream.finish(outcome.err())
}

/// Answers a call of which a stream of messages comes and one message goes.
///
/// # Errors
/// When the connection fails, or the body is no HTTP.
pub(crate) fn client_stream<A: Serialize>(
    request: &mut Request<'_>,
    response: Response<'_>,
    call: impl FnOnce(&mut Incoming<'_, '_>) -> Result<A, RpcError>,
) -> io::Result<()> {
    if !is_json_post(request, "application/connect+json") {
        return unsupported(request, response, "application/connect+json");
    }
    let outcome = call(&mut Incoming::new(request.body()));
    let mut stream = Outgoing::new(response, KEEPALIVE)?;
    match outcome {
        Ok(answer) => {
            stream.push(&answer);
            stream.finish(None)
        }
        Err(error) => stream.finish(Some(error)),
    }
}

fn is_json_post(head: &Head, content_type: &str) -> bool {
    let given = head.header("content-type").unwrap_or_default().split(';').next().unwrap_or_default().trim();
    head.method() == "POST" && given.eq_ignore_ascii_case(content_type)
}

fn unsupported(head: &Head, response: Response<'_>, content_type: &str) -> io::Result<()> {
    if head.method() != "POST" {
        return response.status(405).header("Allow", "POST").send(b"");
    }
    response.status(415).header("Accept-Post", content_type).send(b"")
}

fn parse<Q: DeserializeOwned>(bytes: &[u8]) -> Result<Q, RpcError> {
    // No body at all is an empty message: old clients send none with List.
    let bytes = if bytes.trim_ascii().is_empty() { b"{}" } else { bytes };
    serde_json::from_slice(bytes).map_err(|error| invalid(format!("cannot read the message: {error}")))
}

pub(crate) fn invalid(message: impl Into<String>) -> RpcError {
    RpcError::new(Code::InvalidArgument, message)
}

/// The client's time limit. 0 means none, as the SDKs use it.
pub(crate) fn timeout(head: &Head) -> Result<Option<Duration>, RpcError> {
    let Some(text) = head.header("connect-timeout-ms") else { return Ok(None) };
    let digits = text.bytes().all(|byte| byte.is_ascii_digit()) && (1..=10).contains(&text.len());
    let ms: u64 = if digits { text.parse().unwrap_or(0) } else { return Err(bad_timeout(text)) };
    Ok((ms > 0).then(|| Duration::from_millis(ms)))
}

fn bad_timeout(text: &str) -> RpcError {
    invalid(format!("connect-timeout-ms {text:?} is no number of at most ten digits"))
}

fn keepalive(head: &Head) -> Duration {
    let seconds = head.header("keepalive-ping-interval").and_then(|text| text.trim().parse().ok());
    seconds.filter(|seconds| *seconds > 0).map_or(KEEPALIVE, Duration::from_secs)
}

/// The messages of a request's stream.
#[derive(Debug)]
pub(crate) struct Incoming<'r, 'c> {
    body: &'r mut Body<'c>,
    decoder: FrameDecoder,
    /// The client said that nothing more comes.
    ended: bool,
}

impl<'r, 'c> Incoming<'r, 'c> {
    fn new(body: &'r mut Body<'c>) -> Self {
        Self { body, decoder: FrameDecoder::default(), ended: false }
    }

    /// Waits for the next message; `None` at the end of the stream.
    pub(crate) fn next<Q: DeserializeOwned>(&mut self) -> Result<Option<Q>, RpcError> {
        self.next_bytes()?.map(|bytes| parse(&bytes)).transpose()
    }

    fn next_bytes(&mut self) -> Result<Option<Vec<u8>>, RpcError> {
        let mut buffer = [0; 16 << 10];
        while !self.ended {
            match self.decoder.next_frame().map_err(bad_frame)? {
                Some((Flags::Message, payload)) => return Ok(Some(payload.to_vec())),
                Some((Flags::EndStream, _)) => self.ended = true,
                None => match self.body.read(&mut buffer) {
                    Ok(0) if self.decoder.has_partial() => return Err(invalid("the stream ends inside a message")),
                    Ok(0) => self.ended = true,
                    Ok(count) => self.decoder.push(&buffer[..count]),
                    Err(error) => return Err(RpcError::new(Code::Canceled, format!("the stream broke: {error}"))),
                },
            }
        }
        Ok(None)
    }

    /// The message of a stream that has exactly one.
    fn only_message(&mut self) -> Result<Vec<u8>, RpcError> {
        let message = self.next_bytes()?.ok_or_else(|| invalid("the stream has no message"))?;
        match self.next_bytes()? {
            None => Ok(message),
            Some(_) => Err(invalid("the stream has more than one message")),
        }
    }
}

fn bad_frame(error: FrameError) -> RpcError {
    let code = match error {
        FrameError::TooLarge(_) => Code::ResourceExhausted,
        FrameError::Compressed => Code::Unimplemented,
        FrameError::UnknownFlags(_) => Code::InvalidArgument,
    };
    RpcError::new(code, error.to_string())
}

/// The messages of a response's stream.
#[derive(Debug)]
pub(crate) struct Outgoing<'c> {
    body: StreamBody<'c>,
    keepalive: Duration,
}

impl<'c> Outgoing<'c> {
    fn new(response: Response<'c>, keepalive: Duration) -> io::Result<Self> {
        let body = response.header("Content-Type", "application/connect+json").stream()?;
        Ok(Self { body, keepalive })
    }

    /// Adds a message to what the next flush sends.
    fn push(&mut self, message: &impl Serialize) {
        self.body.push(&encode_message(message));
    }

    fn flush(&mut self, deadline: Option<&mut Countdown>) -> io::Result<()> {
        self.body.flush(deadline)
    }

    fn finish(mut self, error: Option<RpcError>) -> io::Result<()> {
        self.body.push(&encode_end(error));
        self.body.finish()
    }
}
