//! Time limits, bodies and connections on real sockets. The table of failures is walked in `leasehold-e2b`, through the client
//! that uses it.

#![expect(clippy::unwrap_used, reason = "a failure here is the test's failure")]

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Method, header};
use leasehold_http::{Call, Payload, Timeouts, Transport, TransportKind, TransportOptions, Url};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

const OK: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";

async fn listener() -> (TcpListener, Url) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    (listener, Url::parse(&url).unwrap())
}

fn transport(timeouts: Timeouts) -> Transport {
    Transport::new(&TransportOptions::default().timeouts(timeouts)).unwrap()
}

fn short() -> Timeouts {
    Timeouts { connect: Duration::from_secs(5), read: Duration::from_secs(1), total: None }
}

async fn read_head(stream: &mut TcpStream) {
    let mut seen = Vec::new();
    while !seen.ends_with(b"\r\n\r\n") {
        seen.push(stream.read_u8().await.unwrap());
    }
}

#[tokio::test]
async fn connections_are_used_again() {
    let (listener, url) = listener().await;
    let server = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        for _ in 0..3 {
            read_head(&mut stream).await;
            stream.write_all(OK).await.unwrap();
        }
    });
    let transport = transport(short());
    for _ in 0..3 {
        let reply = transport.send(Call::new(Method::GET, url.clone())).await.unwrap();
        assert_eq!(reply.collect(9).await.unwrap(), "ok");
    }
    server.await.unwrap();
}

#[tokio::test]
async fn a_body_that_is_sent_slowly_is_no_stalled_read() {
    let (listener, url) = listener().await;
    let server = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut seen = Vec::new();
        while !seen.ends_with(b"0\r\n\r\n") {
            seen.push(stream.read_u8().await.unwrap());
        }
        stream.write_all(OK).await.unwrap();
    });
    // Fifteen pieces, each well within the read time-out, all of them beyond it.
    let mut ticks = tokio::time::interval(Duration::from_millis(100));
    let mut left = 15;
    let body = futures_util::stream::poll_fn(move |context| {
        if left == 0 {
            return std::task::Poll::Ready(None);
        }
        ticks.poll_tick(context).map(|_| {
            left -= 1;
            Some(Ok(Bytes::from_static(b"x")))
        })
    });
    let mut call = Call::new(Method::POST, url);
    call.payload = Payload::Stream(Box::pin(body));
    transport(short()).send(call).await.unwrap();
    server.await.unwrap();
}

#[tokio::test]
async fn a_body_shorter_than_promised_is_an_aborted_write() {
    let (listener, url) = listener().await;
    let server = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        drop(stream.read_to_end(&mut Vec::new()).await);
    });
    let mut call = Call::new(Method::POST, url);
    call.headers.insert(header::CONTENT_LENGTH, HeaderValue::from_static("9"));
    call.payload = Payload::Stream(Box::pin(futures_util::stream::iter([Ok(Bytes::from_static(b"x"))])));
    let error = transport(short()).send(call).await.unwrap_err();
    assert_eq!(error.kind(), TransportKind::Write, "{error}");
    server.await.unwrap();
}

#[tokio::test]
async fn limits_of_a_call_win_over_the_transports() {
    let (listener, url) = listener().await;
    let server = tokio::spawn(async move {
        // Both connections stay open and silent until the client leaves.
        for _ in 0..2 {
            let (mut stream, _) = listener.accept().await.unwrap();
            drop(stream.read_to_end(&mut Vec::new()).await);
        }
    });
    let patient = Timeouts { total: Some(Duration::from_secs(60)), read: Duration::from_secs(60), ..short() };
    let transport = transport(patient);
    let mut call = Call::new(Method::GET, url.clone());
    call.read = Some(Duration::from_millis(50));
    assert_eq!(transport.send(call).await.unwrap_err().kind(), TransportKind::ReadTimeout);
    let mut call = Call::new(Method::GET, url);
    call.total = Some(Some(Duration::from_millis(50)));
    assert_eq!(transport.send(call).await.unwrap_err().kind(), TransportKind::Deadline);
    server.await.unwrap();
}

#[tokio::test]
async fn answers_beyond_the_limit_are_refused() {
    let (listener, url) = listener().await;
    let server = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        read_head(&mut stream).await;
        stream.write_all(OK).await.unwrap();
    });
    let reply = transport(short()).send(Call::new(Method::GET, url)).await.unwrap();
    assert_eq!(reply.collect(1).await.unwrap_err().kind(), TransportKind::TooLarge);
    server.await.unwrap();
}

#[tokio::test]
async fn https_without_roots_is_refused() {
    let (listener, mut url) = listener().await;
    url = Url::parse(&format!("https://{}/", url.socket_addrs(|| None).unwrap()[0])).unwrap();
    let server = tokio::spawn(async move { drop(listener.accept().await.unwrap().0.read_u8().await) });
    let error = transport(short()).send(Call::new(Method::GET, url)).await.unwrap_err();
    assert_eq!(error.kind(), TransportKind::Connect, "{error}");
    server.await.unwrap();
}

#[tokio::test]
async fn a_url_that_is_not_http_is_invalid_and_causes_are_told_once() {
    let error = transport(short()).send(Call::new(Method::GET, Url::parse("ftp://x/").unwrap())).await.unwrap_err();
    assert_eq!(error.kind(), TransportKind::Invalid, "{error}");
    let (listener, url) = listener().await;
    drop(listener);
    let error = transport(short()).send(Call::new(Method::GET, url)).await.unwrap_err();
    assert_eq!(error.kind(), TransportKind::Connect);
    assert_eq!(error.to_string().matches("refused").count(), 1, "{error}");
}
