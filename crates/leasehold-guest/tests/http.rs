//! The HTTP server on real sockets.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail by panicking, as tests do")]

use std::io::{self, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use leasehold_guest::http::{Handler, Limits, Listener, Request, Response, Server, Wait};
use rustix::event::{EventfdFlags, eventfd};

struct Routes {
    gone: std::sync::mpsc::SyncSender<Wait>,
}

impl Handler for Routes {
    fn handle(&self, request: &mut Request<'_>, response: Response<'_>) -> io::Result<()> {
        match (request.method(), request.path()) {
            ("GET" | "HEAD", "/hello") => response.header("X-A", "b\r\nInjected: 1").send(b"hello"),
            ("POST", "/echo") => {
                let body = request.body().read_to_limit(1 << 20)?;
                response.send(&body)
            }
            ("POST", "/ignore") => response.send(b"ignored"),
            ("GET", "/stream") => {
                let mut body = response.stream()?;
                body.write(b"one", None)?;
                body.write(b"two", None)?;
                body.finish()
            }
            ("GET", "/cut") => {
                let mut body = response.stream()?;
                body.write(b"one", None)?;
                Err(io::ErrorKind::Other.into())
            }
            ("GET" | "HEAD", "/file") => {
                let file = std::fs::File::open("/proc/self/exe")?;
                let mut body = response.fixed(100_000)?;
                body.send_file(&file, 1, 100_000)?;
                body.finish()
            }
            ("GET", "/wait") => {
                let never = eventfd(0, EventfdFlags::CLOEXEC)?;
                let mut body = response.stream()?;
                body.write(b"waiting", None)?;
                let wait = body.wait_beside(std::os::fd::AsFd::as_fd(&never), Some(Duration::from_secs(20)))?;
                self.gone.send(wait).expect("the test listens");
                Err(io::ErrorKind::BrokenPipe.into())
            }
            ("GET", "/panic") => panic!("asked to"),
            ("GET", "/silent") => Ok(()),
            _ => response.status(404).send_text("no such route"),
        }
    }
}

struct Fixture {
    _server: Server,
    dir: tempfile::TempDir,
    gone: std::sync::mpsc::Receiver<Wait>,
}

fn fixture(limits: Limits) -> Fixture {
    let dir = tempfile::tempdir().unwrap();
    let (sender, gone) = std::sync::mpsc::sync_channel(1);
    let listener = UnixListener::bind(dir.path().join("s")).unwrap();
    let server = Server::start(vec![Listener::http(listener, Arc::new(Routes { gone: sender })).unwrap()], limits);
    Fixture { _server: server.unwrap(), dir, gone }
}

impl Fixture {
    fn connect(&self) -> UnixStream {
        let stream = UnixStream::connect(self.dir.path().join("s")).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        stream
    }

    /// Sends bytes and reads until the server closes.
    fn talk(&self, bytes: &[u8]) -> String {
        let mut stream = self.connect();
        // A server that refuses may close before it has read everything, which ends in an error here; what counts is its answer.
        stream.write_all(bytes).ok();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).ok();
        String::from_utf8_lossy(&answer).into_owned()
    }
}

fn status(answer: &str) -> &str {
    answer.split(' ').nth(1).unwrap_or("none")
}

#[test]
fn requests_are_understood_when_they_arrive_byte_by_byte() {
    let fixture = fixture(Limits::default());
    let mut stream = fixture.connect();
    let wire = b"POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n3;ext=1\r\nabc\r\nA\r\n0123456789\r\n0\r\nT: 1\r\n\r\n\
        POST /echo HTTP/1.1\r\nContent-Length: 4\r\nConnection: close\r\n\r\nlast";
    for byte in wire {
        stream.write_all(&[*byte]).unwrap();
    }
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.contains("\r\n\r\nabc0123456789HTTP/1.1 200 OK"), "{answer}");
    assert!(answer.ends_with("\r\n\r\nlast"), "{answer}");
}

#[test]
fn pipelined_requests_are_answered_in_order_and_ignored_bodies_are_skipped() {
    let fixture = fixture(Limits::default());
    let answer = fixture.talk(
        b"POST /ignore HTTP/1.1\r\nContent-Length: 5\r\n\r\n12345POST /ignore HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n\
        2\r\nab\r\n0\r\n\r\nGET /nope HTTP/1.1\r\n\r\nGET /hello HTTP/1.1\r\nConnection: close\r\n\r\n",
    );
    let statuses: Vec<_> = answer.match_indices("HTTP/1.1 ").map(|(at, _)| &answer[at + 9..at + 12]).collect();
    assert_eq!(statuses, ["200", "200", "404", "200"]);
    assert!(answer.ends_with("hello"));
    assert!(!answer.contains("\r\nInjected"), "a header value must not add headers: {answer}");
}

#[test]
fn streams_are_chunked_and_a_failed_one_is_cut_short() {
    let fixture = fixture(Limits::default());
    let answer = fixture.talk(b"GET /stream HTTP/1.1\r\nConnection: close\r\n\r\n");
    assert!(answer.ends_with("\r\n\r\n3\r\none\r\n3\r\ntwo\r\n0\r\n\r\n"), "{answer}");
    let answer = fixture.talk(b"GET /stream HTTP/1.0\r\n\r\n");
    assert!(answer.ends_with("\r\n\r\nonetwo"), "{answer}");
    let answer = fixture.talk(b"GET /cut HTTP/1.1\r\n\r\n");
    assert!(answer.ends_with("\r\n3\r\none\r\n"), "{answer}");
}

#[test]
fn head_requests_get_no_body() {
    let fixture = fixture(Limits::default());
    for path in ["hello", "file"] {
        let answer = fixture.talk(format!("HEAD /{path} HTTP/1.1\r\nConnection: close\r\n\r\n").as_bytes());
        assert!(answer.contains("Content-Length: ") && answer.ends_with("\r\n\r\n"), "{answer}");
    }
}

#[test]
fn file_ranges_are_sent_whole() {
    let fixture = fixture(Limits::default());
    let mut stream = fixture.connect();
    stream.write_all(b"GET /file HTTP/1.1\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    let expected = &std::fs::read("/proc/self/exe").unwrap()[1..100_001];
    assert!(answer.ends_with(expected));
}

#[test]
fn continue_is_sent_when_the_body_is_wanted_and_only_then() {
    let fixture = fixture(Limits::default());
    let mut stream = fixture.connect();
    stream
        .write_all(b"POST /echo HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 2\r\nConnection: close\r\n\r\n")
        .unwrap();
    let mut interim = [0; 25];
    stream.read_exact(&mut interim).unwrap();
    assert_eq!(&interim, b"HTTP/1.1 100 Continue\r\n\r\n");
    stream.write_all(b"hi").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.ends_with("hi"));

    let answer = fixture.talk(b"POST /ignore HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n");
    assert_eq!(status(&answer), "200");
    assert!(answer.contains("Connection: close"), "the body may or may not follow: {answer}");
}

#[test]
fn bad_requests_get_their_status() {
    let fixture = fixture(Limits::default());
    let long = format!("GET /{} HTTP/1.1\r\n\r\n", "x".repeat(70_000));
    let many = format!("GET / HTTP/1.1\r\n{}\r\n", "a: b\r\n".repeat(200));
    for (request, expected) in [
        ("nonsense\r\n\r\n", "400"),
        ("GET / HTTP/1.1\r\nBad Header: x\r\n\r\n", "400"),
        (long.as_str(), "431"),
        (many.as_str(), "431"),
        ("GET / HTTP/2.0\r\n\r\n", "505"),
        ("POST /echo HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", "400"),
        ("POST /echo HTTP/1.1\r\nContent-Length: 1048577\r\n\r\n", "413"),
        ("POST /echo HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", "400"),
        ("POST /echo HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nab\r\n0\r\n\r\n", "400"),
        ("GET /panic HTTP/1.1\r\n\r\n", "500"),
        ("GET /silent HTTP/1.1\r\n\r\n", "500"),
    ] {
        let answer = fixture.talk(request.as_bytes());
        assert_eq!(status(&answer), expected, "{request:.60}: {answer}");
    }
    assert_eq!(status(&fixture.talk(b"GET /hello HTTP/1.1\r\nConnection: close\r\n\r\n")), "200");
}

#[test]
fn a_body_longer_than_the_limit_is_refused_also_when_chunked() {
    let fixture = fixture(Limits::default());
    let mut request = b"POST /echo HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n".to_vec();
    for _ in 0..17 {
        request.extend(b"10000\r\n");
        request.extend(std::iter::repeat_n(b'x', 0x10000));
        request.extend(b"\r\n");
    }
    request.extend(b"0\r\n\r\n");
    assert_eq!(status(&fixture.talk(&request)), "413");
}

#[test]
fn slow_heads_and_idle_connections_are_closed() {
    let soon = Duration::from_millis(50);
    let fixture = fixture(Limits { head: soon, idle: soon, ..Limits::default() });
    assert_eq!(status(&fixture.talk(b"GET / HT")), "408");
    assert_eq!(fixture.talk(b""), "");
}

#[test]
fn connections_above_the_limit_get_503_until_one_ends() {
    let fixture = fixture(Limits { connections: 1, ..Limits::default() });
    let mut first = fixture.connect();
    first.write_all(b"GET /hello HTTP/1.1\r\n\r\n").unwrap();
    first.read_exact(&mut [0; 12]).unwrap();
    let mut second = fixture.connect();
    let mut answer = String::new();
    second.read_to_string(&mut answer).unwrap();
    assert_eq!(status(&answer), "503");
    drop(first);
    let start = Instant::now();
    while fixture.talk(b"GET /hello HTTP/1.1\r\nConnection: close\r\n\r\n").contains(" 503 ") {
        assert!(start.elapsed() < Duration::from_secs(20), "the closed connection still counts");
    }
}

#[test]
fn an_idle_stream_notices_that_its_client_left() {
    let fixture = fixture(Limits::default());
    let mut stream = fixture.connect();
    stream.write_all(b"GET /wait HTTP/1.1\r\n\r\n").unwrap();
    let mut seen = Vec::new();
    while !seen.ends_with(b"waiting\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        seen.extend(byte);
    }
    drop(stream);
    assert_eq!(fixture.gone.recv_timeout(Duration::from_secs(10)), Ok(Wait::PeerGone));
}
