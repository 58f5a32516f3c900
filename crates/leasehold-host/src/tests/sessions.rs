//! Sessions, keeping, and when an embedded host leaves.

use std::time::Duration;

use http_body_util::BodyExt as _;
use serde_json::{Value, json};

use super::client::{Client, request};
use super::{Stage, eventually};
use crate::Lifetime;

/// Opens a session; it ends when what is returned is dropped.
async fn open(client: &Client) -> (String, hyper::body::Incoming) {
    let response = client.start(request("POST", "/leasehold/v1/sessions", &[], Value::Null)).await;
    assert_eq!(response.status(), 200);
    let mut body = response.into_body();
    let line = body.frame().await.expect("a line").expect("read").into_data().expect("data");
    let line: Value = serde_json::from_slice(&line).expect("JSON");
    (line["session"].as_str().expect("an id").to_owned(), body)
}

async fn create_in(client: &Client, session: &str) -> super::client::Answer {
    client
        .send(request("POST", "/v2/sandboxes", &[("leasehold-session", session)], json!({"templateID": "base"})))
        .await
}

#[tokio::test]
async fn what_a_client_made_goes_when_it_goes() {
    let stage = Stage::new().await;
    let (session, body) = open(&stage.client).await;
    let gone = create_in(&stage.client, &session).await.expect(201).json()["sandboxID"].clone();
    let kept = create_in(&stage.client, &session).await.expect(201).json()["sandboxID"].clone();
    let kept = kept.as_str().expect("an id");
    stage.client.post(&format!("/leasehold/v1/sandboxes/{kept}/keep"), Value::Null).await.expect(204);
    drop(body);
    assert_eq!(stage.end_reason(gone.as_str().expect("an id")).await, "the client that made it went away");
    assert_eq!(stage.engine.with_files(), [kept]);
    create_in(&stage.client, &session).await.expect(409);
    stage.end().await;
}

#[tokio::test]
async fn o1_a_client_lost_in_the_middle_of_a_create_leaves_nothing() {
    let stage = Stage::new().await;
    let (session, body) = open(&stage.client).await;
    stage.engine.hold("start");
    let client = stage.client.clone();
    let creating = tokio::spawn(async move { create_in(&client, &session).await });
    eventually("the create is under way", async || !stage.engine.calls().iter().all(|call| !call.starts_with("start")))
        .await;
    creating.abort();
    drop(body);
    let info = async || stage.client.get("/leasehold/v1/info").await.json();
    eventually("the session is over", async || info().await["sessions"] == 0).await;
    stage.engine.release("start");
    eventually("nothing is left", async || stage.engine.with_files().is_empty() && stage.engine.alive().is_empty())
        .await;
    eventually("no slot is taken", async || info().await["sandboxes"]["running"] == 0).await;
    stage.end().await;
}

fn embedded(empty_ms: u64, paused_ms: u64) -> Lifetime {
    Lifetime::Embedded {
        first_client: Duration::from_secs(10),
        empty: Duration::from_millis(empty_ms),
        paused_only: Duration::from_millis(paused_ms),
    }
}

#[tokio::test]
async fn an_embedded_host_leaves_when_nobody_needs_it() {
    let stage = Stage::with(|config| config.lifetime = embedded(1, 60_000)).await;
    let (session, body) = open(&stage.client).await;
    create_in(&stage.client, &session).await.expect(201);
    drop(body);
    tokio::time::timeout(super::SOON, stage.host.wait()).await.expect("it leaves");
    stage.end().await;
}

#[tokio::test]
async fn an_embedded_host_stays_while_something_runs_and_leaves_the_paused_cold() {
    let stage = Stage::with(|config| config.lifetime = embedded(1, 50)).await;
    let id = stage.client.create(json!({"templateID": "base", "timeout": 1, "autoPause": true})).await;
    // It stays until the timeout pauses the sandbox, and a little longer.
    let left = tokio::time::Instant::now();
    tokio::time::timeout(super::SOON, stage.host.wait()).await.expect("it leaves");
    assert!(left.elapsed() >= Duration::from_millis(900));
    assert_eq!(stage.engine.with_files(), [id]);
    stage.end().await;
}

#[tokio::test]
async fn shutdown_is_for_the_unix_socket() {
    let stage = Stage::with(|config| config.listen = Some(([127, 0, 0, 1], 0).into())).await;
    let tcp = Client::Tcp(stage.host.local_addr().expect("listens"));
    let key = stage.host.api_key().expect("has one").expose().to_owned();
    for path in ["/leasehold/v1/shutdown", "/leasehold/v1/sessions"] {
        let answer = tcp.send(request("POST", path, &[("x-api-key", &key)], Value::Null)).await.expect(403);
        assert_eq!(answer.message(), "only on the host's Unix socket");
    }
    stage.client.post("/leasehold/v1/shutdown", Value::Null).await.expect(202);
    tokio::time::timeout(super::SOON, stage.host.wait()).await.expect("it stops");
    stage.end().await;
}
