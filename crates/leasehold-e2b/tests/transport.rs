//! The table of failures on real sockets: what the other side does → kind, requests that it saw, text.

#![expect(clippy::unwrap_used, reason = "a failure here is the test's failure")]

mod support;

use std::time::Duration;

use leasehold_e2b::{Client, ClientError, ClientErrorKind, NewSandbox, PauseMode, Timeouts, TransportKind};
use support::faults::{READ, REMOTE_PROTOCOL, WRITE, for_each_row};
use support::{KEY, Server, Step, refused_url, short};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

#[test]
fn every_failure_has_its_kind_and_is_not_repeated() {
    for_each_row(async |row| {
        let server = Server::start([row.step.clone()]).await;
        let error = server.client().connect("abc", Duration::from_secs(60)).await.unwrap_err();
        assert!(row.kinds.contains(&error.kind()), "{}: {:?} {error}", row.name, error.kind());
        assert!(error.to_string().contains(row.message), "{}: {error}", row.name);
        let requests = if row.name == "redirect to itself" { 6 } else { 1 };
        assert_eq!(server.connections(), requests, "{}", row.name);
        if row.name == "503" {
            assert_eq!(error.retry_after(), Some(Duration::from_secs(7)));
        }
    });
}

#[tokio::test]
async fn too_many_requests_is_capacity_on_create_only() {
    let answer = Step::answer(429, &[("retry-after", "3")], r#"{"code":429,"message":"full"}"#);
    let server = Server::start([answer]).await;
    let error = server.client().create(&NewSandbox::new("base")).await.unwrap_err();
    assert_eq!(error.kind(), ClientErrorKind::Capacity);
    assert_eq!(error.retry_after(), Some(Duration::from_secs(3)));
    assert_eq!(server.connections(), 1);
    let error = server.client().pause("abc", PauseMode::Full).await.unwrap_err();
    assert_eq!(error.kind(), ClientErrorKind::Status);
}

fn at(url: &str) -> Client {
    Client::builder().api_key(KEY).api_url(url).sandbox_url(url).timeouts(short()).build().unwrap()
}

async fn kill_at(url: &str) -> ClientError {
    at(url).kill("abc").await.unwrap_err()
}

#[tokio::test]
async fn a_refused_connection_is_connect() {
    let error = kill_at(&refused_url().await).await;
    assert_eq!(error.kind(), ClientErrorKind::Transport(TransportKind::Connect));
    assert!(error.to_string().contains("refused"), "{error}");
    assert!(!error.may_have_happened());
}

#[tokio::test]
async fn a_name_that_does_not_exist_is_connect() {
    // `.invalid` never exists (RFC 2606); without any resolver the lookup fails all the same.
    let error = kill_at("http://leasehold.invalid:1").await;
    assert_eq!(error.kind(), ClientErrorKind::Transport(TransportKind::Connect), "{error}");
}

#[tokio::test]
async fn a_failed_tls_handshake_is_connect() {
    // A server that takes the hello for a bad request and answers in plain text.
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("https://{}", listener.local_addr().unwrap());
    let plain = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        stream.read_exact(&mut [0; 5]).await.unwrap();
        stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await.unwrap();
        drop(stream.shutdown().await);
    });
    let error = kill_at(&url).await;
    plain.await.unwrap();
    assert_eq!(error.kind(), ClientErrorKind::Transport(TransportKind::Connect), "{error}");
}

#[tokio::test]
async fn a_connect_that_takes_too_long_is_connect_timeout() {
    // TLS belongs to connecting: a listener that says nothing stalls the handshake.
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("https://{}", listener.local_addr().unwrap());
    let timeouts = Timeouts { connect: Duration::from_millis(300), read: Duration::from_millis(100), total: None };
    let client = Client::builder().api_key(KEY).api_url(&url).timeouts(timeouts).build().unwrap();
    let error = client.kill("abc").await.unwrap_err();
    assert_eq!(error.kind(), ClientErrorKind::Transport(TransportKind::ConnectTimeout), "{error}");
    assert!(!error.may_have_happened());
}

#[tokio::test]
async fn the_total_deadline_is_a_kind_of_its_own() {
    let server = Server::start([Step::WriteThenStall(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n{".to_vec())]).await;
    let total = Some(Duration::from_millis(200));
    let timeouts = Timeouts { total, ..Timeouts::default() };
    let error = server.options().timeouts(timeouts).build().unwrap().kill("abc").await.unwrap_err();
    assert_eq!(error.kind(), ClientErrorKind::Transport(TransportKind::Deadline), "{error}");
}

#[tokio::test]
async fn a_write_to_a_connection_that_no_longer_reads_is_write_or_read() {
    // The server resets while megabytes are on their way: a broken pipe or a reset, whichever the kernel tells first.
    let server = Server::start([Step::json(201, &support::sandbox_json("abc")), Step::ResetUnread]).await;
    let sandbox = server.client().create(&NewSandbox::new("base")).await.unwrap();
    let error = sandbox.files().write("/x", vec![0_u8; 32 << 20]).await.unwrap_err();
    assert!([READ, WRITE].contains(&error.kind()), "{error}");
    assert_eq!(server.connections(), 2);
}

#[tokio::test]
async fn same_origin_redirects_are_followed() {
    let server = Server::start([Step::answer(307, &[("location", "/moved")], ""), Step::no_content()]).await;
    server.client().kill("abc").await.unwrap();
    let seen = server.seen();
    assert_eq!(seen[1].target, "/moved");
    assert_eq!(seen[1].method, "DELETE");
}

#[tokio::test]
async fn keys_of_the_caller_are_redacted_from_messages() {
    let body = format!(r#"{{"code":401,"message":"unknown key {KEY}\u001b[2J"}}"#);
    let server = Server::start([Step::json(401, &body)]).await;
    let error = server.client().kill("abc").await.unwrap_err();
    assert_eq!(error.to_string(), r"kill sandbox: HTTP 401: unknown key [redacted]\u{1b}[2J");
    assert!(!format!("{error:?} {:?}", server.client()).contains(KEY));
}

/// Runs one test of this file in a process that trusts our certificate: the variable cannot be set in this one safely.
fn with_trusted_certificate(test: &str) {
    let certificate = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/localhost.cert.pem");
    let output = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture", "--include-ignored"])
        .env("SSL_CERT_FILE", certificate)
        .env("LEASEHOLD_TEST_TLS", "1")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && text.contains("1 passed"),
        "{text}\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

fn tls_acceptor() -> tokio_rustls::TlsAcceptor {
    use rustls::pki_types::pem::PemObject as _;
    use rustls::pki_types::{CertificateDer, PrivateKeyDer};

    let certificate = CertificateDer::from_pem_slice(include_bytes!("support/localhost.cert.pem")).unwrap();
    let key = PrivateKeyDer::from_pem_slice(include_bytes!("support/localhost.key.pem")).unwrap();
    let provider = std::sync::Arc::new(rustls::crypto::ring::default_provider());
    let mut config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate], key)
        .unwrap();
    config.alpn_protocols = vec![b"h2".to_vec()];
    std::sync::Arc::new(config).into()
}

/// Reads HTTP/2 frames until a HEADERS frame; false when the client left before.
async fn read_until_headers(stream: &mut (impl tokio::io::AsyncRead + Unpin)) -> bool {
    loop {
        let mut head = [0; 9];
        if stream.read_exact(&mut head).await.is_err() {
            return false;
        }
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        stream.read_exact(&mut vec![0; length as usize]).await.unwrap();
        if head[3] == 1 {
            return true;
        }
    }
}

#[tokio::test]
async fn http2_goaway_is_remote_protocol_and_not_repeated() {
    if std::env::var_os("LEASEHOLD_TEST_TLS").is_none() {
        let test = "http2_goaway_is_remote_protocol_and_not_repeated";
        return tokio::task::spawn_blocking(move || with_trusted_certificate(test)).await.unwrap();
    }
    // Both a GOAWAY with an error, and a polite one that says the request was not processed: the library would repeat the latter.
    for error_code in [1_u8, 0] {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("https://{}", listener.local_addr().unwrap());
        let server = tokio::spawn(async move {
            let mut requests = 0;
            loop {
                let Ok((stream, _)) = listener.accept().await else { return requests };
                let mut stream = tls_acceptor().accept(stream).await.unwrap();
                stream.read_exact(&mut [0; 24]).await.unwrap();
                stream.write_all(&[0, 0, 0, 4, 0, 0, 0, 0, 0]).await.unwrap(); // SETTINGS, empty
                if read_until_headers(&mut stream).await {
                    requests += 1;
                }
                let goaway = [0, 0, 8, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, error_code];
                stream.write_all(&goaway).await.unwrap();
                drop(stream.shutdown().await);
                if requests == 1 {
                    // Another connection would be a repeated request.
                    let more = tokio::time::timeout(Duration::from_millis(500), listener.accept()).await;
                    return requests + usize::from(more.is_ok());
                }
            }
        });
        let error = kill_at(&url).await;
        assert_eq!(error.kind(), REMOTE_PROTOCOL, "GOAWAY {error_code}: {error}");
        assert_eq!(server.await.unwrap(), 1, "GOAWAY {error_code}");
    }
}

#[tokio::test]
async fn a_reset_within_an_http2_body_is_read() {
    if std::env::var_os("LEASEHOLD_TEST_TLS").is_none() {
        let test = "a_reset_within_an_http2_body_is_read";
        return tokio::task::spawn_blocking(move || with_trusted_certificate(test)).await.unwrap();
    }
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("https://{}", listener.local_addr().unwrap());
    let server = tokio::spawn(async move {
        let (stream, _) = listener.accept().await.unwrap();
        let mut stream = tls_acceptor().accept(stream).await.unwrap();
        stream.read_exact(&mut [0; 24]).await.unwrap();
        stream.write_all(&[0, 0, 0, 4, 0, 0, 0, 0, 0]).await.unwrap(); // SETTINGS, empty
        assert!(read_until_headers(&mut stream).await);
        stream.write_all(&[0, 0, 1, 1, 4, 0, 0, 0, 1, 0x88]).await.unwrap(); // HEADERS of stream 1: status 200
        stream.flush().await.unwrap();
        stream.get_ref().0.set_zero_linger().unwrap();
    });
    let error = at(&url).get("abc").await.unwrap_err();
    server.await.unwrap();
    assert_eq!(error.kind(), READ, "{error}");
}

#[tokio::test]
async fn an_unknown_authority_is_connect() {
    // Without SSL_CERT_FILE naming it, our certificate is nobody's.
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("https://{}", listener.local_addr().unwrap());
    let server = tokio::spawn(async move {
        let (stream, _) = listener.accept().await.unwrap();
        tls_acceptor().accept(stream).await.is_err()
    });
    let error = kill_at(&url).await;
    assert_eq!(error.kind(), ClientErrorKind::Transport(TransportKind::Connect), "{error}");
    assert!(error.to_string().contains("certificate"), "{error}");
    assert!(server.await.unwrap());
}
