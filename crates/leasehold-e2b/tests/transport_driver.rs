//! The same table through the driver: how often the server is asked, what the caller sees, what is logged.

#![expect(clippy::unwrap_used, reason = "a failure here is the test's failure")]
#![allow(dead_code, reason = "the records' helper serves other tests too")]
#![allow(clippy::allow_attributes, reason = "`expect` would fail once all of it is used")]

#[path = "fake/records.rs"]
#[expect(unreachable_pub, reason = "written for a module of its own")]
mod records;
mod support;

use std::sync::Arc;
use std::time::Duration;

use leasehold::{
    AgentId, BindingId, BindingRef, ErrorKind, ExecutionBindingBackend as _, ExecutionBindingCreateSpec,
    ExecutionBindingDestroySpec, TenantId, WorkspaceFate, WorkspaceId, WorkspaceRef,
};
use leasehold_e2b::Client;
use leasehold_e2b::driver::{Driver, DriverConfig};
use records::{Record, Records};
use support::faults::{Row, for_each_row};
use support::{KEY, Server, Step, refused_url, sandbox_json, short};

fn driver(client: &Client) -> Driver<Client> {
    Driver::new(client.clone(), Arc::new(client.clone()), DriverConfig::new("base").unwrap())
}

fn binding() -> BindingRef {
    BindingRef::new("abc").unwrap()
}

fn destroy() -> ExecutionBindingDestroySpec {
    ExecutionBindingDestroySpec::new(binding(), WorkspaceFate::Destroy(WorkspaceRef::new("abc").unwrap()))
}

/// Requests that the server read, whose method and target begin so. A redirect of the server to itself counts once.
fn asked(server: &Server, method: &str, target: &str) -> usize {
    server.seen().iter().filter(|seen| seen.method == method && seen.target == target).count()
}

/// Records of one call: (outcome, attempt).
fn of<'a>(records: &'a [Record], call: &str) -> Vec<(&'a str, &'a str)> {
    let of_call = records.iter().filter(|record| record.get("e2b_operation") == call);
    of_call.map(|record| (record.get("outcome"), record.get("attempt"))).collect()
}

fn read_by_server(row: &Row) -> bool {
    !matches!(row.step, Step::ResetUnread)
}

fn is_success_without_body(row: &Row) -> bool {
    row.exceptions() == ["DecodingError"]
}

#[test]
fn connect_is_tried_twice_on_the_control_set_only() {
    for_each_row(async |row| {
        let records = Records::catch();
        let server = Server::start([row.step.clone()]).await;
        let error = driver(&server.client()).acquire(&binding()).await.map(drop).unwrap_err();
        let lost = row.name == "404 with a body";
        assert_eq!(error.kind(), if lost { ErrorKind::BindingLost } else { ErrorKind::BindingAcquire }, "{}", row.name);
        assert!(error.message().contains(row.message), "{}: {error}", row.name);
        assert_eq!(error.status(), row.status().filter(|_| !lost), "{}", row.name);
        let attempts = if row.in_control_set() { 2 } else { 1 };
        if read_by_server(row) {
            assert_eq!(asked(&server, "POST", "/v2/sandboxes/abc/connect"), attempts, "{}", row.name);
        }
        let all = records.all();
        let logged: &[_] = if row.in_control_set() { &[("retrying", "1"), ("retry_exhausted", "2")] } else { &[] };
        assert_eq!(of(&all, "connect"), logged, "{}", row.name);
        for record in all.iter().filter(|record| record.get("e2b_operation") == "connect") {
            assert_eq!(record.level, tracing::Level::WARN);
            assert_eq!(record.get("sandbox_id"), "abc");
            assert_eq!(record.get("cleanup_stage"), "binding_acquire");
            assert_eq!(record.get("function"), "acquire");
            assert!(row.exceptions().contains(&record.get("exception_type")), "{}: {record:?}", row.name);
        }
    });
}

#[test]
fn kill_is_tried_twice_on_the_control_set_only() {
    for_each_row(async |row| {
        let records = Records::catch();
        let server = Server::start([row.step.clone()]).await;
        let outcome = driver(&server.client()).destroy_binding(&destroy()).await;
        // Nothing is expected of the body of a successful kill, and absence is what was wanted.
        if row.name == "404 with a body" || is_success_without_body(row) {
            outcome.unwrap();
            assert_eq!(server.connections(), 1, "{}", row.name);
            assert_eq!(records.all().len(), 0, "{}", row.name);
            return;
        }
        let error = outcome.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::BindingDestroy, "{}", row.name);
        assert!(error.message().contains(row.message), "{}: {error}", row.name);
        let attempts = if row.in_control_set() { 2 } else { 1 };
        let hops = if row.name == "redirect to itself" { 6 } else { 1 };
        assert_eq!(server.connections(), attempts * hops, "{}", row.name);
        if let ([first, second], true) = (&server.seen()[..], row.in_control_set()) {
            // That it is exactly 250 ms is shown on a paused clock.
            assert!(second.at - first.at >= Duration::from_millis(250), "{}", row.name);
        }
        let all = records.all();
        let logged: &[_] = if row.in_control_set() { &[("retrying", "1"), ("retry_exhausted", "2")] } else { &[] };
        assert_eq!(of(&all, "kill"), logged, "{}", row.name);
        assert_eq!(all.len(), logged.len(), "{}", row.name);
    });
}

#[tokio::test]
async fn a_failure_that_passes_is_no_failure() {
    let records = Records::catch();
    let server = Server::start([Step::WriteThenReset(vec![]), Step::no_content()]).await;
    driver(&server.client()).destroy_binding(&destroy()).await.unwrap();
    assert_eq!(server.connections(), 2);
    assert_eq!(records.outcomes(), ["retrying"]);
}

#[tokio::test]
async fn a_refused_connection_is_tried_again_and_told() {
    let records = Records::catch();
    let url = refused_url().await;
    let client = Client::builder().api_key(KEY).api_url(&url).sandbox_url(&url).timeouts(short()).build().unwrap();
    let error = driver(&client).destroy_binding(&destroy()).await.unwrap_err();
    assert_eq!((error.kind(), error.effect()), (ErrorKind::BindingDestroy, leasehold::Effect::None));
    assert!(error.message().contains("refused"), "{error}");
    assert_eq!(of(&records.all(), "kill"), [("retrying", "1"), ("retry_exhausted", "2")]);
    assert_eq!(records.all()[1].get("exception_type"), "ConnectError");
}

fn stat() -> Step {
    Step::json(200, r#"{"entry":{"name":"workspace","type":"FILE_TYPE_DIRECTORY","path":"/workspace"}}"#)
}

#[test]
fn pause_at_release_is_tried_twice_on_the_control_set_and_never_fails_the_caller() {
    for_each_row(async |row| {
        let records = Records::catch();
        let healthy = Step::json(200, r#"{"status":"ok"}"#);
        let server = Server::start([Step::json(200, &sandbox_json("abc")), stat(), healthy, row.step.clone()]).await;
        let driver = driver(&server.client());
        let lease = driver.acquire(&binding()).await.unwrap();
        assert_eq!(records.all().len(), 0, "{}", row.name);
        driver.release(lease.as_ref()).await.unwrap();
        let attempts = if row.in_control_set() { 2 } else { 1 };
        if read_by_server(row) {
            assert_eq!(asked(&server, "POST", "/sandboxes/abc/pause"), attempts, "{}", row.name);
        }
        let logged: &[_] = if row.in_control_set() {
            &[("retrying", "1"), ("retry_exhausted", "2"), ("ignored_cleanup_failure", "2")]
        } else if row.name == "409" || is_success_without_body(row) {
            &[] // paused already, or a success whose body nobody reads
        } else {
            &[("ignored_cleanup_failure", "1")]
        };
        let all = records.all();
        assert_eq!(of(&all, "pause"), logged, "{}", row.name);
        assert!(all.iter().all(|record| record.get("cleanup_stage") == "binding_release"), "{}", row.name);
    });
}

#[test]
fn create_is_asked_once_whatever_happens() {
    let spec = ExecutionBindingCreateSpec::new(
        TenantId::new("t").unwrap(),
        AgentId::new("a").unwrap(),
        BindingId::new("b").unwrap(),
        WorkspaceId::new("w").unwrap(),
    );
    for_each_row(async |row| {
        let server = Server::start([row.step.clone(), Step::json(200, "[]")]).await;
        let error = driver(&server.client()).create_binding(&spec).await.unwrap_err();
        let capacity = row.name == "429";
        let kind = if capacity { ErrorKind::BindingCapacityExhausted } else { ErrorKind::BindingCreate };
        // A redirect of a POST by 302 becomes a GET, as everywhere; the listing then answers it.
        if row.name != "redirect to itself" {
            assert_eq!(error.kind(), kind, "{}", row.name);
            assert!(error.message().contains(row.message), "{}: {error}", row.name);
        }
        if read_by_server(row) {
            assert_eq!(asked(&server, "POST", "/v2/sandboxes"), 1, "{}", row.name);
        }
    });
}

#[test]
fn health_is_asked_three_times_on_the_health_set_only() {
    for_each_row(async |row| {
        let server = Server::start([Step::json(200, &sandbox_json("abc")), stat(), row.step.clone()]).await;
        let error = driver(&server.client()).acquire(&binding()).await.map(drop).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::BindingAcquire, "{}", row.name);
        let again = row.in_control_set() || row.status().is_some_and(|status| status >= 500);
        if read_by_server(row) {
            assert_eq!(asked(&server, "GET", "/healthz"), if again { 3 } else { 1 }, "{}", row.name);
        }
    });
}
