//! A server that does exactly what a test's script says, byte by byte, and remembers what it was asked.

#![allow(dead_code, reason = "each test file uses its own part")]
#![allow(clippy::unwrap_used, reason = "a failure here is the test's failure")]
#![allow(clippy::allow_attributes, reason = "`expect` would fail in the file that uses all of it")]

pub(crate) mod faults;

use std::collections::{BTreeMap, VecDeque};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use leasehold_e2b::{Client, ClientOptions, Timeouts};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream, UnixListener};
use tokio::sync::watch;
use tokio::task::JoinSet;

pub(crate) const KEY: &str = "e2b_00000000000000000000000000000000000000aa";

/// What the server does with one request. Every connection serves one.
#[derive(Debug, Clone)]
pub(crate) enum Step {
    /// Reads the request, writes these pieces one by one, closes in order.
    Write(Vec<Vec<u8>>),
    /// Reads the request, writes, then resets the connection.
    WriteThenReset(Vec<u8>),
    /// Reads the request, writes, then keeps silent until the client leaves.
    WriteThenStall(Vec<u8>),
    /// Resets the connection without reading.
    ResetUnread,
}

impl Step {
    /// A whole answer.
    pub(crate) fn answer(status: u16, headers: &[(&str, &str)], body: impl AsRef<[u8]>) -> Self {
        let body = body.as_ref();
        let mut head = format!("HTTP/1.1 {status} Status\r\nconnection: close\r\ncontent-length: {}\r\n", body.len());
        for (name, value) in headers {
            head += &format!("{name}: {value}\r\n");
        }
        Self::Write(vec![[head.as_bytes(), b"\r\n", body].concat()])
    }

    /// A whole JSON answer.
    pub(crate) fn json(status: u16, body: &str) -> Self {
        Self::answer(status, &[("content-type", "application/json")], body)
    }

    /// Success without a body.
    pub(crate) fn no_content() -> Self {
        Self::Write(vec![b"HTTP/1.1 204 No Content\r\nconnection: close\r\n\r\n".to_vec()])
    }

    /// A body in pieces, its end told by the end of the connection.
    pub(crate) fn pieces(content_type: &str, pieces: impl IntoIterator<Item = Vec<u8>>) -> Self {
        let head = format!("HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-type: {content_type}\r\n\r\n");
        Self::Write(std::iter::once(head.into_bytes()).chain(pieces).collect())
    }
}

/// A request as it arrived.
#[derive(Debug, Clone)]
pub(crate) struct Seen {
    pub(crate) method: String,
    pub(crate) target: String,
    pub(crate) headers: BTreeMap<String, String>,
    pub(crate) body: Vec<u8>,
    pub(crate) at: Instant,
}

impl Seen {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(String::as_str)
    }

    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }
}

#[derive(Debug, Default)]
struct State {
    script: VecDeque<Step>,
    /// The last step, repeated when the script is over.
    last: Option<Step>,
    connections: usize,
    seen: Vec<Seen>,
    /// Length of `seen`, for those who wait for a request.
    count: watch::Sender<usize>,
}

/// The server; ends when dropped.
pub(crate) struct Server {
    pub(crate) url: String,
    state: Arc<Mutex<State>>,
    tasks: JoinSet<()>,
}

impl Server {
    /// A server on loopback TCP.
    pub(crate) async fn start(script: impl IntoIterator<Item = Step>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let state = State::with(script);
        let mut tasks = JoinSet::new();
        let shared = state.clone();
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                stream.set_nodelay(true).unwrap();
                let step = shared.lock().unwrap().next();
                connections.spawn(serve(stream, step, shared.clone()));
            }
        });
        Self { url, state, tasks }
    }

    /// A server on a Unix socket.
    pub(crate) fn start_unix(path: &Path, script: impl IntoIterator<Item = Step>) -> Self {
        let listener = UnixListener::bind(path).unwrap();
        let state = State::with(script);
        let mut tasks = JoinSet::new();
        let shared = state.clone();
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let step = shared.lock().unwrap().next();
                connections.spawn(serve(stream, step, shared.clone()));
            }
        });
        Self { url: "http://localhost".to_owned(), state, tasks }
    }

    /// What it was asked, in order.
    pub(crate) fn seen(&self) -> Vec<Seen> {
        self.state.lock().unwrap().seen.clone()
    }

    /// Waits until it has read so many requests.
    pub(crate) async fn saw(&self, requests: usize) {
        let mut count = self.state.lock().unwrap().count.subscribe();
        count.wait_for(|count| *count >= requests).await.unwrap();
    }

    /// The only request.
    pub(crate) fn only(&self) -> Seen {
        let seen = self.seen();
        assert_eq!(seen.len(), 1, "{seen:?}");
        seen[0].clone()
    }

    /// How many connections it took.
    pub(crate) fn connections(&self) -> usize {
        self.state.lock().unwrap().connections
    }

    /// Options of a client for it.
    pub(crate) fn options(&self) -> ClientOptions {
        Client::builder().api_key(KEY).api_url(&self.url).sandbox_url(&self.url)
    }

    /// A client for it, with short time limits.
    pub(crate) fn client(&self) -> Client {
        self.options().timeouts(short()).build().unwrap()
    }
}

/// Time limits that a test can wait for, far apart enough to tell which of them fired, and long enough for a busy machine.
pub(crate) fn short() -> Timeouts {
    Timeouts { connect: Duration::from_secs(20), read: Duration::from_secs(2), total: Some(Duration::from_secs(60)) }
}

impl State {
    fn with(script: impl IntoIterator<Item = Step>) -> Arc<Mutex<Self>> {
        Arc::new(Mutex::new(Self { script: script.into_iter().collect(), ..Self::default() }))
    }

    fn saw(&mut self, seen: Seen) {
        self.seen.push(seen);
        self.count.send_replace(self.seen.len());
    }

    fn next(&mut self) -> Step {
        self.connections += 1;
        if let Some(step) = self.script.pop_front() {
            self.last = Some(step);
        }
        self.last.clone().expect("a script has at least one step")
    }
}

/// A connection that can be reset instead of closed.
pub(crate) trait Reset {
    fn reset_on_drop(&self);
}

impl Reset for TcpStream {
    fn reset_on_drop(&self) {
        self.set_zero_linger().unwrap();
    }
}

impl Reset for tokio::net::UnixStream {
    fn reset_on_drop(&self) {}
}

async fn serve<S: AsyncRead + AsyncWrite + Unpin + Reset>(mut stream: S, step: Step, state: Arc<Mutex<State>>) {
    if matches!(step, Step::ResetUnread) {
        stream.reset_on_drop();
        return;
    }
    let Some(seen) = read_request(&mut stream).await else { return };
    state.lock().unwrap().saw(seen);
    // A client that left is the test's affair.
    let mut write = async |bytes: &[u8]| drop(stream.write_all(bytes).await);
    match step {
        Step::Write(pieces) => {
            for piece in pieces {
                write(&piece).await;
                tokio::task::yield_now().await;
            }
            drop(stream.shutdown().await);
        }
        Step::WriteThenReset(bytes) => {
            write(&bytes).await;
            stream.reset_on_drop();
        }
        Step::WriteThenStall(bytes) => {
            write(&bytes).await;
            drop(stream.read_to_end(&mut Vec::new()).await);
        }
        Step::ResetUnread => unreachable!("handled before the request was read"),
    }
}

/// Reads one HTTP/1.1 request with a `Content-Length` or chunked body; `None` when the client left before its end.
async fn read_request(stream: &mut (impl AsyncRead + Unpin)) -> Option<Seen> {
    let mut bytes = Vec::new();
    let end = loop {
        if let Some(at) = bytes.windows(4).position(|four| four == b"\r\n\r\n") {
            break at + 4;
        }
        more(stream, &mut bytes).await?;
    };
    let head = String::from_utf8(bytes[..end].to_vec()).unwrap();
    let mut rest = bytes.split_off(end);
    let mut lines = head.lines();
    let mut first = lines.next()?.split(' ');
    let (method, target) = (first.next()?.to_owned(), first.next()?.to_owned());
    let headers: BTreeMap<String, String> = lines
        .filter_map(|line| line.split_once(": "))
        .map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned()))
        .collect();
    let body = if headers.get("transfer-encoding").is_some_and(|coding| coding == "chunked") {
        let mut body = Vec::new();
        loop {
            let line = loop {
                if let Some(at) = rest.windows(2).position(|two| two == b"\r\n") {
                    break at;
                }
                more(stream, &mut rest).await?;
            };
            let size = usize::from_str_radix(std::str::from_utf8(&rest[..line]).unwrap(), 16).unwrap();
            while rest.len() < line + 2 + size + 2 {
                more(stream, &mut rest).await?;
            }
            body.extend_from_slice(&rest[line + 2..line + 2 + size]);
            rest.drain(..line + 2 + size + 2);
            if size == 0 {
                break body;
            }
        }
    } else {
        let length = headers.get("content-length").map_or(0, |length| length.parse().unwrap());
        while rest.len() < length {
            more(stream, &mut rest).await?;
        }
        rest
    };
    Some(Seen { method, target, headers, body, at: Instant::now() })
}

async fn more(stream: &mut (impl AsyncRead + Unpin), bytes: &mut Vec<u8>) -> Option<()> {
    let mut buffer = [0; 8192];
    let count = stream.read(&mut buffer).await.ok()?;
    bytes.extend_from_slice(&buffer[..count]);
    (count > 0).then_some(())
}

/// A loopback address on which nothing listens.
pub(crate) async fn refused_url() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    format!("http://{}", listener.local_addr().unwrap())
}

/// The answer of create and connect.
pub(crate) fn sandbox_json(id: &str) -> String {
    format!(
        r#"{{"sandboxID":"{id}","templateID":"base","clientID":"c","envdVersion":"0.6.13","envdAccessToken":"envd-token","trafficAccessToken":"traffic-token","domain":"sbx.test"}}"#
    )
}
