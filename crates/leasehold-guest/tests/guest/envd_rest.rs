//! The plain HTTP routes, access tokens, and what browsers ask.

use std::net::{Ipv4Addr, TcpListener};

use envd::Code;
use serde_json::json;

use super::client::{TestGuest, own_name};

#[test]
fn health_needs_no_token_and_everything_else_does() {
    let guest = TestGuest::with_token("secret");
    assert_eq!(guest.client().get("/health").status, 204);
    for path in ["/envs", "/metrics", "/nope"] {
        let refused = guest.client().get(path);
        assert_eq!(refused.status, 401, "{path}");
        assert!(refused.json()["message"].as_str().unwrap().starts_with("unauthorized access, please provide"));
        assert_eq!(guest.client().header("X-Access-Token", "secre").get(path).status, 401, "{path}");
    }
    for path in ["/process.Process/List", "/filesystem.Filesystem/Stat"] {
        assert_eq!(guest.client().request("POST", path, "application/json", b"{}").status, 401, "{path}");
    }
    let mut client = guest.client().header("X-Access-Token", "secret");
    assert_eq!(client.get("/envs").json(), json!({ "FROM_IDENTITY": "yes" }));
    assert_eq!(client.call("/process.Process/List", json!({})), Ok(json!({})));
    assert_eq!(client.get("/nope").status, 404);
    let metrics = client.get("/metrics").json();
    assert!(metrics["mem_total"].as_u64() > Some(1 << 20) && metrics["cpu_count"].as_u64() > Some(0), "{metrics}");
}

#[test]
fn reserved_routes_are_not_found() {
    let guest = TestGuest::start();
    for path in ["/init", "/freeze", "/unfreeze"] {
        let answer = guest.client().request("POST", path, "application/json", b"{}");
        assert_eq!(answer.status, 404);
        assert!(answer.json()["message"].as_str().unwrap().starts_with("This endpoint is reserved"), "{path}");
    }
}

#[test]
fn browsers_may_read_and_are_told_so() {
    let guest = TestGuest::with_token("secret");
    let mut client = guest
        .client()
        .header("Origin", "https://example.com")
        .header("Access-Control-Request-Headers", "x-access-token, content-type");
    let preflight = client.request("OPTIONS", "/process.Process/Start", "text/plain", b"");
    assert_eq!(preflight.status, 204);
    assert_eq!(preflight.header("Access-Control-Allow-Origin"), Some("*"));
    assert_eq!(preflight.header("Access-Control-Allow-Headers"), Some("x-access-token, content-type"));
    let health = client.get("/health");
    assert_eq!(health.header("Access-Control-Expose-Headers"), Some("*"));
    assert_eq!(guest.client().get("/health").header("Access-Control-Allow-Origin"), None);
}

#[test]
fn calls_of_the_wrong_kind_are_refused() {
    let guest = TestGuest::start();
    let post = |path: &str, kind: &str, body: &[u8]| guest.client().request("POST", path, kind, body).status;
    assert_eq!(guest.client().get("/process.Process/List").status, 405);
    assert_eq!(post("/process.Process/List", "application/proto", b""), 415);
    assert_eq!(post("/process.Process/Start", "application/json", b"{}"), 415);
    assert_eq!(post("/process.Process/List", "application/json; charset=utf-8", b""), 200);
    let error = guest.call("/process.Process/SendInput", json!({ "process": 7 })).unwrap_err();
    assert_eq!(error.code, Code::InvalidArgument);
    let stream = guest.client().stream("/process.Process/Start", &[]).finish();
    assert_eq!(stream.error.unwrap().code, Code::InvalidArgument);
}

#[test]
fn files_are_served_beside() {
    let guest = TestGuest::start();
    let path = guest.path("note");
    let mut client = guest.client();
    let target = format!("/files?path={}", path.display());
    assert_eq!(client.request("POST", &target, "application/octet-stream", b"hello").status, 200);
    assert_eq!(client.get(&target).body, b"hello");
    let stat = client.call("/filesystem.Filesystem/Stat", json!({ "path": path })).unwrap();
    assert_eq!(stat["entry"]["size"], "5");
    assert_eq!(client.call("/filesystem.Filesystem/Remove", json!({ "path": path })), Ok(json!({})));
    assert_eq!(client.call("/filesystem.Filesystem/Stat", json!({ "path": path })).unwrap_err().code, Code::NotFound);
}

fn free_port() -> u16 {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap().port()
}

#[test]
fn over_loopback_without_a_token_only_the_default_user_acts() {
    use std::io::{Read as _, Write as _};
    let port = free_port();
    let dir = tempfile::tempdir().unwrap();
    let identity = serde_json::to_vec(&super::client::identity()).unwrap();
    std::fs::write(dir.path().join("identity.json"), identity).unwrap();
    let guest = TestGuest::launch(dir, &["--envd-port", &port.to_string(), "--shellctl-port", "0"]).unwrap();
    let list = |user: &str| {
        let credentials = base64::Engine::encode(&base64::engine::general_purpose::STANDARD, format!("{user}:"));
        let mut stream = std::net::TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
        write!(
            stream,
            "POST /process.Process/List HTTP/1.1\r\nAuthorization: Basic {credentials}\r\n\
             Content-Type: application/json\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{{}}"
        )
        .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    };
    assert!(list(&own_name()).starts_with("HTTP/1.1 200 "));
    let refused = list("daemon");
    assert!(refused.starts_with("HTTP/1.1 403 ") && refused.contains("permission_denied"), "{refused}");
    drop(guest);
}

#[test]
fn a_guest_that_cannot_start_says_why() {
    let taken = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let dir = tempfile::tempdir().unwrap();
    let identity = serde_json::to_vec(&super::client::identity()).unwrap();
    std::fs::write(dir.path().join("identity.json"), identity).unwrap();
    let error = TestGuest::launch(dir, &["--envd-port", &port, "--shellctl-port", "0"]).err().unwrap();
    assert!(error.contains(&format!("port {port} of the sandbox is needed by the guest")), "{error}");

    let error = TestGuest::launch(tempfile::tempdir().unwrap(), &["--envd-port", "0"]).err().unwrap();
    assert!(error.contains("identity.json") && error.contains("No such file"), "{error}");
}
