//! The edge: requests into sandboxes.

use std::time::Duration;

use base64::Engine as _;
use http_body_util::BodyExt as _;
use serde_json::{Value, json};
use sha2::Digest as _;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

use super::client::{Client, request};
use super::{Stage, eventually};

const MISSING: &str = "i00000000000000000000";

#[tokio::test]
async fn requests_are_routed_by_headers_or_host_name() {
    let stage = Stage::new().await;
    let id = stage.client.create(json!({"templateID": "base"})).await;
    let answer = stage.client.inside(&id, 49983, "GET", "/a?b=c", &[("x-thing", "1")]).await.expect(200).text();
    assert!(answer.starts_with("GET /a?b=c HTTP/1.1\r\n") && answer.contains("x-thing: 1"), "{answer}");
    let by_name = [("host", &*format!("5004-{id}.localhost:3999"))];
    let answer = stage.client.send(request("POST", "/b", &by_name, json!({"k": 1}))).await.expect(200).text();
    assert!(answer.starts_with("POST /b HTTP/1.1\r\n") && answer.ends_with("{\"k\":1}"), "{answer}");
    for headers in [&[("e2b-sandbox-id", &*id)][..], &[("host", "0-iabc.localhost")]] {
        stage.client.send(request("GET", "/", headers, Value::Null)).await.expect(400);
    }
    stage.end().await;
}

#[tokio::test]
async fn refusals_have_e2bs_exact_bodies() {
    let stage = Stage::new().await;
    let closed = TcpListener::bind("127.0.0.1:0").await.expect("a port").local_addr().expect("an address").port();
    let id = stage.client.create(json!({"templateID": "base"})).await;
    let unknown = stage.client.inside(MISSING, 49983, "GET", "/health", &[]).await.expect(502).json();
    assert_eq!(unknown, json!({"sandboxId": MISSING, "message": "The sandbox was not found", "code": 502}));
    let refused = stage.client.inside(&id, closed, "GET", "/", &[]).await.expect(502).json();
    assert_eq!(
        refused,
        json!({"sandboxId": id, "message": "The sandbox is running but port is not open", "port": closed, "code": 502})
    );
    for path in ["/init", "/freeze", "/unfreeze"] {
        let reserved = stage.client.inside(&id, 49983, "POST", path, &[]).await.expect(404).json();
        assert_eq!(
            reserved["message"],
            "This endpoint is reserved for the E2B control plane and is not reachable through the sandbox URL"
        );
    }
    let closed = stage.client.inside(&id, 49983, "GET", "/close", &[]).await.expect(502).json();
    assert_eq!(closed["code"], 502);
    stage.client.post(&format!("/sandboxes/{id}/pause"), json!({})).await.expect(204);
    let paused = stage.client.inside(&id, 49983, "GET", "/health", &[]).await.expect(502).json();
    assert_eq!(paused, json!({"sandboxId": id, "message": "The sandbox was not found", "code": 502}));
    stage.end().await;
}

#[tokio::test]
async fn private_ports_need_the_traffic_token() {
    let stage = Stage::new().await;
    let body = json!({"templateID": "base", "network": {"allowPublicTraffic": false}});
    let made = stage.client.post("/v2/sandboxes", body).await.expect(201).json();
    let (id, token) =
        (made["sandboxID"].as_str().expect("an id"), made["trafficAccessToken"].as_str().expect("a token"));
    let with = async |headers: &[(&str, &str)]| stage.client.inside(id, 5004, "GET", "/healthz", headers).await;
    let missing = with(&[]).await.expect(403).json();
    assert_eq!(
        missing["message"],
        "Sandbox is secured with traffic access token. Token header 'e2b-traffic-access-token' is missing"
    );
    let wrong = with(&[("e2b-traffic-access-token", "x")]).await.expect(403).json();
    assert_eq!(
        wrong["message"],
        "Sandbox is secured with traffic access token. Provided token in header 'e2b-traffic-access-token' is invalid"
    );
    let passed = with(&[("e2b-traffic-access-token", token)]).await.expect(200).text();
    assert!(!passed.contains(token), "the token is for the edge, not for the server inside: {passed}");
    // envd's own token is the guest's to check.
    stage.client.inside(id, 49983, "GET", "/health", &[]).await.expect(200);
    stage.end().await;
}

#[tokio::test]
async fn traffic_wakes_a_sandbox_that_was_made_so() {
    let stage = Stage::new().await;
    let id = stage.client.create(json!({"templateID": "base", "timeout": 10, "autoResume": {"enabled": true}})).await;
    for port in [49983, 5004] {
        stage.client.post(&format!("/sandboxes/{id}/pause"), json!({})).await.expect(204);
        stage.client.inside(&id, port, "GET", "/health", &[]).await.expect(200);
        assert_eq!(stage.client.get(&format!("/sandboxes/{id}")).await.json()["state"], "running");
    }
    // A pause that gave up memory is not undone by traffic.
    stage.client.post(&format!("/sandboxes/{id}/pause"), json!({"memory": false})).await.expect(204);
    stage.client.inside(&id, 5004, "GET", "/health", &[]).await.expect(502);
    stage.end().await;
}

#[tokio::test]
async fn l17_the_first_request_after_every_resume_passes() {
    let stage = Stage::new().await;
    let id = stage.client.create(json!({"templateID": "base"})).await;
    for _ in 0..100 {
        stage.client.inside(&id, 49983, "GET", "/before", &[]).await.expect(200);
        stage.client.post(&format!("/sandboxes/{id}/pause"), json!({})).await.expect(204);
        stage.client.post(&format!("/sandboxes/{id}/resume"), json!({})).await.expect(201);
        stage.client.inside(&id, 49983, "GET", "/after", &[]).await.expect(200);
    }
    stage.end().await;
}

#[tokio::test]
async fn a_stream_that_is_open_when_the_sandbox_stops_ends_in_order() {
    let stage = Stage::new().await;
    let id = stage.client.create(json!({"templateID": "base"})).await;
    let headers = [("e2b-sandbox-id", &*id), ("e2b-sandbox-port", "49983")];
    let mut body = stage.client.start(request("POST", "/cut", &headers, Value::Null)).await.into_body();
    let first = body.frame().await.expect("a frame").expect("read").into_data().expect("data");
    assert_eq!(&first[..], b"\x00\x00\x00\x00\x02{}");
    stage.client.post(&format!("/sandboxes/{id}/pause"), json!({})).await.expect(204);
    let rest = tokio::time::timeout(super::SOON, body.collect()).await.expect("it ends").expect("in order").to_bytes();
    assert_eq!(rest[0], 2);
    assert!(String::from_utf8_lossy(&rest[5..]).contains("\"unavailable\""));
    stage.end().await;
}

#[tokio::test]
async fn ports_stream_both_ways_and_upgrade() {
    let stage = Stage::new().await;
    let id = stage.client.create(json!({"templateID": "base"})).await;
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let port = listener.local_addr().expect("an address").port();
    let server = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.expect("a connection");
        let mut head = vec![0; 4096];
        let length = stream.read(&mut head).await.expect("read");
        let head = String::from_utf8_lossy(&head[..length]).to_lowercase();
        assert!(head.contains("upgrade: websocket") && head.contains("connection: upgrade"), "{head}");
        let answer = "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\nhello";
        stream.write_all(answer.as_bytes()).await.expect("written");
        let mut echo = [0; 4];
        stream.read_exact(&mut echo).await.expect("read");
        stream.write_all(&echo).await.expect("written");
        // The other side's end reaches us.
        assert_eq!(stream.read(&mut echo).await.expect("read"), 0);
    });
    let path = stage.dir.path().join("run/host.sock");
    let mut client = tokio::net::UnixStream::connect(path).await.expect("listens");
    let head =
        format!("GET /ws HTTP/1.1\r\nhost: {port}-{id}.localhost\r\nconnection: Upgrade\r\nupgrade: websocket\r\n\r\n");
    client.write_all(head.as_bytes()).await.expect("written");
    let mut seen = Vec::new();
    while !seen.ends_with(b"hello") {
        let mut buffer = [0; 1024];
        let length = client.read(&mut buffer).await.expect("read");
        assert_ne!(length, 0, "{}", String::from_utf8_lossy(&seen));
        seen.extend_from_slice(&buffer[..length]);
    }
    assert!(seen.starts_with(b"HTTP/1.1 101"));
    client.write_all(b"ping").await.expect("written");
    let mut echo = [0; 4];
    client.read_exact(&mut echo).await.expect("read");
    assert_eq!(&echo, b"ping");
    drop(client);
    tokio::time::timeout(super::SOON, server).await.expect("in time").expect("as expected");
    stage.end().await;
}

#[tokio::test]
async fn a_signed_file_url_finds_its_sandbox() {
    let stage = Stage::with(|config| config.listen = Some(([127, 0, 0, 1], 0).into())).await;
    let tcp = Client::Tcp(stage.host.local_addr().expect("listens"));
    stage.client.create(json!({"templateID": "base"})).await;
    let made = stage.client.post("/v2/sandboxes", json!({"templateID": "base"})).await.expect(201).json();
    let token = made["envdAccessToken"].as_str().expect("a token");
    let digest = sha2::Sha256::digest(format!("/tmp/a b:read::{token}:99"));
    let signature = format!("v1_{}", base64::engine::general_purpose::STANDARD_NO_PAD.encode(digest));
    let signature: String = form_urlencoded::byte_serialize(signature.as_bytes()).collect();
    let path = format!("/files?path=%2Ftmp%2Fa%20b&signature={signature}&signature_expiration=99");
    let passed = tcp.send(request("GET", &path, &[("host", "127.0.0.1:3999")], Value::Null)).await.expect(200).text();
    assert!(passed.starts_with("GET /files?"), "{passed}");
    // Another operation, or no such signature.
    tcp.send(request("POST", &path, &[], Value::Null)).await.expect(401);
    tcp.get("/files?path=x&signature=v1_no").await.expect(401);
    stage.end().await;
}

#[tokio::test]
async fn requests_wait_for_a_short_change_of_state() {
    let stage = Stage::new().await;
    let id = stage.client.create(json!({"templateID": "base"})).await;
    stage.engine.hold("snapshot");
    let (client, path) = (stage.client.clone(), format!("/sandboxes/{id}/snapshots"));
    let snapshot = tokio::spawn(async move { client.post(&path, json!({})).await });
    eventually("it is under way", async || stage.engine.calls().contains(&format!("snapshot {id}"))).await;
    let (client, inside) = (stage.client.clone(), id.clone());
    let request = tokio::spawn(async move { client.inside(&inside, 49983, "GET", "/x", &[]).await });
    tokio::time::sleep(Duration::from_millis(20)).await;
    assert!(!request.is_finished());
    stage.engine.release("snapshot");
    snapshot.await.expect("answered").expect(201);
    request.await.expect("answered").expect(200);
    stage.end().await;
}

#[tokio::test]
async fn our_api_key_does_not_reach_a_sandbox() {
    let stage = Stage::with(|config| config.listen = Some(([127, 0, 0, 1], 0).into())).await;
    let key = stage.host.api_key().expect("has one").expose().to_owned();
    let id = stage.client.create(json!({"templateID": "base"})).await;
    let passed = stage.client.inside(&id, 49983, "GET", "/x", &[("x-api-key", &key)]).await.expect(200).text();
    assert!(!passed.contains(&key), "{passed}");
    let own = stage.client.inside(&id, 49983, "GET", "/x", &[("x-api-key", "theirs")]).await.expect(200).text();
    assert!(own.contains("theirs"), "{own}");
    stage.end().await;
}
