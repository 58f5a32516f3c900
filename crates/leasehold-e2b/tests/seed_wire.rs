//! The driver on the real client and a real socket: the rows of the seed's test that are about the SDK's boundary, and how often the
//! server is asked for each failure of the transport.

#![expect(clippy::unwrap_used, reason = "a failure here is the test's failure")]

#[path = "fake/records.rs"]
#[allow(dead_code, unreachable_pub, reason = "each test file uses its own part")]
#[allow(clippy::allow_attributes, reason = "`expect` would fail in a file that uses all of it")]
mod records;
mod support;

use std::sync::Arc;
use std::time::Duration;

use leasehold::{
    AgentId, BindingId, BindingRef, Effect, ErrorKind, ExecutionBindingBackend as _, ExecutionBindingCreateSpec,
    ExecutionBindingDestroySpec, TenantId, WorkspaceFate, WorkspaceId, WorkspaceRef,
};
use leasehold_e2b::Client;
use leasehold_e2b::driver::{Driver, DriverConfig};
use records::Records;
use support::{KEY, Server, Step, sandbox_json};

fn driver(server: &Server) -> Driver<Client> {
    let client = server.client();
    Driver::new(client.clone(), Arc::new(client), DriverConfig::new("prepared-template").unwrap())
}

fn spec() -> ExecutionBindingCreateSpec {
    ExecutionBindingCreateSpec::new(
        TenantId::new("tenant-1").unwrap(),
        AgentId::new("agent-1").unwrap(),
        BindingId::new("binding-1").unwrap(),
        WorkspaceId::new("workspace-1").unwrap(),
    )
}

#[tokio::test]
async fn e2b_sdk_create_disables_public_traffic() {
    let entries = r#"{"entries":[{"name":"old","type":"FILE_TYPE_FILE","path":"/workspace/old","size":"1"}]}"#;
    let server = Server::start([
        Step::json(201, &sandbox_json("abc")),
        Step::json(200, r#"{"entry":{}}"#),
        Step::json(200, entries),
        Step::json(200, "{}"),
        Step::no_content(),
    ])
    .await;

    let allocation = driver(&server).create_binding(&spec()).await.unwrap();

    assert_eq!((allocation.binding_ref.as_str(), allocation.workspace_ref.as_str()), ("abc", "abc"));
    let seen = server.seen();
    let targets: Vec<_> = seen.iter().map(|seen| seen.target.as_str()).collect();
    let expected = [
        "/v2/sandboxes",
        "/filesystem.Filesystem/MakeDir",
        "/filesystem.Filesystem/ListDir",
        "/filesystem.Filesystem/Remove",
        "/sandboxes/abc/pause",
    ];
    assert_eq!(targets, expected);
    let body: serde_json::Value = serde_json::from_slice(&seen[0].body).unwrap();
    let create_id = body["metadata"]["leasehold.create_id"].as_str().unwrap().to_owned();
    let expected = format!(
        concat!(
            r#"{{"templateID":"prepared-template","timeout":3600,"autoPause":true,"autoPauseMemory":true,"#,
            r#""autoResume":{{"enabled":false}},"network":{{"allowPublicTraffic":false}},"metadata":{{"#,
            r#""dify.agent_id":"agent-1","dify.binding_id":"binding-1","dify.resource":"runtime-sandbox","#,
            r#""dify.tenant_id":"tenant-1","dify.workspace_id":"workspace-1","leasehold.create_id":"{}"}}}}"#
        ),
        create_id
    );
    assert_eq!(seen[0].text(), expected);
}

#[tokio::test]
async fn e2b_sdk_create_maps_provider_capacity_exhaustion() {
    let refusal = r#"{"code":429,"message":"maximum concurrent sandboxes reached"}"#;
    let server = Server::start([Step::answer(429, &[("retry-after", "3")], refusal)]).await;

    let error = driver(&server).create_binding(&spec()).await.unwrap_err();

    assert_eq!(error.kind(), ErrorKind::BindingCapacityExhausted);
    assert!(error.message().contains("maximum concurrent sandboxes reached"), "{error}");
    assert_eq!(error.retry_after(), Some(Duration::from_secs(3)));
    assert_eq!(error.effect(), Effect::None);
    assert_eq!(server.connections(), 1);
}

/// What a script makes of a destroy: requests that the server got, the error if any, and the records.
async fn destroyed(step: Step) -> (usize, Option<(ErrorKind, String)>, Vec<String>) {
    let records = Records::catch();
    let server = Server::start([step]).await;
    let spec = ExecutionBindingDestroySpec::new(
        BindingRef::new("abc").unwrap(),
        WorkspaceFate::Destroy(WorkspaceRef::new("abc").unwrap()),
    );
    let outcome = driver(&server).destroy_binding(&spec).await;
    let exceptions = records.all().iter().map(|record| record.get("exception_type").to_owned()).collect();
    (server.connections(), outcome.err().map(|error| (error.kind(), error.message().to_owned())), exceptions)
}

#[tokio::test]
async fn an_idempotent_call_is_sent_twice_for_each_failure_of_the_control_set() {
    let half = b"HTTP/1.1 200 OK\r\ncontent-le".to_vec();
    let body = b"HTTP/1.1 500 No\r\ncontent-length: 100\r\n\r\n{".to_vec();
    for (about, step, exceptions) in [
        (
            "reset before the request was read",
            Step::ResetUnread,
            &["ReadError", "RemoteProtocolError", "WriteError"][..],
        ),
        ("reset within the head", Step::WriteThenReset(half.clone()), &["ReadError", "RemoteProtocolError"]),
        ("stalled within the head", Step::WriteThenStall(half.clone()), &["ReadTimeout"]),
        ("closed within the head", Step::Write(vec![half]), &["RemoteProtocolError"]),
        ("garbage", Step::Write(vec![b"\0\x01SSH-2.0-x\r\n\r\n".to_vec()]), &["RemoteProtocolError"]),
    ] {
        let (requests, error, records) = destroyed(step).await;
        assert_eq!(requests, 2, "{about}");
        let (kind, message) = error.unwrap();
        assert_eq!(kind, ErrorKind::BindingDestroy, "{about}: {message}");
        assert!(message.ends_with("(2 attempts)"), "{about}: {message}");
        assert!(
            records.len() == 2 && records.iter().all(|one| exceptions.contains(&one.as_str())),
            "{about}: {records:?}"
        );
    }
    // A status that was read is the answer, whatever becomes of its body.
    let (requests, error, records) = destroyed(Step::WriteThenReset(body)).await;
    assert_eq!((requests, error.unwrap().0, records.len()), (1, ErrorKind::BindingDestroy, 0));
}

#[tokio::test]
async fn a_status_is_an_answer_and_never_sent_again() {
    let json = |status: u16| Step::json(status, &format!(r#"{{"code":{status},"message":"why {KEY}"}}"#));
    for (step, text) in [
        (json(401), "why"),
        (Step::answer(404, &[("content-type", "text/html")], "<html>not found</html>"), "not found"),
        (Step::json(404, r#"{"code":"404","message":"text code"}"#), "text code"),
        (json(409), "why"),
        (json(429), "why"),
        (Step::answer(429, &[("retry-after", "1")], r#"{"code":429,"message":"slow down"}"#), "slow down"),
        (json(500), "why"),
        (json(503), "why"),
        (Step::answer(502, &[], "sandbox was not found"), "sandbox was not found"),
    ] {
        let (requests, error, records) = destroyed(step).await;
        let (kind, message) = error.unwrap();
        assert_eq!((requests, kind, records.len()), (1, ErrorKind::BindingDestroy, 0), "{message}");
        assert!(message.contains(text) && !message.contains(KEY), "{message}");
    }
    let (requests, error, records) = destroyed(Step::json(404, r#"{"code":404,"message":"gone"}"#)).await;
    assert_eq!((requests, error, records.len()), (1, None, 0), "confirmed absence is what was asked for");
}

#[tokio::test]
async fn a_refused_connection_is_tried_twice_and_nothing_is_undone() {
    let records = Records::catch();
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let client = Client::builder().api_key(KEY).api_url(format!("http://127.0.0.1:{port}")).build().unwrap();
    let driver = Driver::new(client.clone(), Arc::new(client), DriverConfig::new("t").unwrap());
    let error = driver.acquire(&BindingRef::new("abc").unwrap()).await.err().unwrap();
    assert_eq!((error.kind(), error.effect()), (ErrorKind::BindingAcquire, Effect::None), "{error}");
    let exceptions: Vec<_> = records.all().iter().map(|record| record.get("exception_type").to_owned()).collect();
    assert_eq!(exceptions, ["ConnectError", "ConnectError"]);
    assert_eq!(records.outcomes(), ["retrying", "retry_exhausted"]);
}

#[tokio::test]
async fn malformed_json_is_an_acquire_error_and_the_sandbox_is_paused_again() {
    let server = Server::start([Step::answer(200, &[], "{not json"), Step::no_content()]).await;
    let error = driver(&server).acquire(&BindingRef::new("abc").unwrap()).await.err().unwrap();
    assert_eq!((error.kind(), error.effect()), (ErrorKind::BindingAcquire, Effect::Unknown), "{error}");
    let targets: Vec<_> = server.seen().iter().map(|seen| seen.target.clone()).collect();
    assert_eq!(targets.len(), 2, "{targets:?}");
    assert!(
        targets[0].ends_with("/sandboxes/abc/connect") && targets[1].ends_with("/sandboxes/abc/pause"),
        "{targets:?}"
    );
}
