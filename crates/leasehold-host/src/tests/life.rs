//! The life of sandboxes: expiry, pause and resume, ends and their reasons.

use serde_json::json;

use super::{Stage, eventually};

#[tokio::test]
async fn l2_a_paused_sandbox_resumes_at_once_100_times() {
    let stage = Stage::new().await;
    let id = stage.client.create(json!({"templateID": "base"})).await;
    for _ in 0..100 {
        stage.client.post(&format!("/sandboxes/{id}/pause"), json!({})).await.expect(204);
        stage.client.post(&format!("/v2/sandboxes/{id}/connect"), json!({})).await.expect(201);
        stage.client.inside(&id, 49983, "GET", "/health", &[]).await.expect(200);
    }
    stage.end().await;
}

#[tokio::test]
async fn l4_an_extension_in_time_keeps_the_sandbox() {
    let stage = Stage::new().await;
    let id = stage.client.create(json!({"templateID": "base", "timeout": 1})).await;
    for _ in 0..40 {
        stage.client.post(&format!("/sandboxes/{id}/timeout"), json!({"timeout": 1})).await.expect(204);
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    stage.client.get(&format!("/sandboxes/{id}")).await.expect(200);
    stage.end().await;
}

#[tokio::test]
async fn l19_a_list_shows_what_was_just_done() {
    let stage = Stage::new().await;
    let listed = async || stage.client.get("/v2/sandboxes").await.expect(200).json();
    for _ in 0..20 {
        let id = stage.client.create(json!({"templateID": "base"})).await;
        assert_eq!(listed().await[0]["sandboxID"], id);
        stage.client.post(&format!("/sandboxes/{id}/pause"), json!(null)).await.expect(204);
        assert_eq!(listed().await[0]["state"], "paused");
        stage.client.delete(&format!("/sandboxes/{id}")).await.expect(204);
        assert_eq!(listed().await, json!([]));
    }
    stage.end().await;
}

#[tokio::test]
async fn a_timeout_kills_and_says_so() {
    let stage = Stage::new().await;
    let id = stage.client.create(json!({"templateID": "base", "timeout": 60})).await;
    stage.client.post(&format!("/sandboxes/{id}/timeout"), json!({"timeout": 0})).await.expect(204);
    assert_eq!(stage.end_reason(&id).await, "its timeout passed");
    stage.client.get(&format!("/sandboxes/{id}")).await.expect(404);
    assert!(stage.engine.with_files().is_empty());
    stage.end().await;
}

#[tokio::test]
async fn a_timeout_pauses_when_made_so() {
    let stage = Stage::new().await;
    let id = stage.client.create(json!({"templateID": "base", "timeout": 1, "autoPause": true})).await;
    let detail = async || stage.client.get(&format!("/sandboxes/{id}")).await.expect(200).json();
    eventually("it is paused", async || detail().await["pauseMode"] == "full").await;
    assert!(stage.engine.frozen(&id));
    assert_eq!(detail().await["state"], "paused");
    stage.end().await;
}

#[tokio::test]
async fn d5_memory_false_is_heard_however_the_body_is_sent() {
    let stage = Stage::new().await;
    for (body, cold) in [(Some(r#"{"memory":false}"#), true), (Some("{}"), false), (Some(""), false), (None, false)] {
        let id = stage.client.create(json!({"templateID": "base"})).await;
        let first = boot_id(&stage, &id).await;
        chunked(&stage, &format!("/sandboxes/{id}/pause"), body).await;
        let detail = stage.client.get(&format!("/sandboxes/{id}")).await.expect(200).json();
        assert_eq!(detail["pauseMode"], if cold { "filesystem" } else { "full" }, "{body:?}");
        assert_eq!(stage.engine.alive().contains(&id), !cold);
        stage.client.post(&format!("/v2/sandboxes/{id}/connect"), json!({})).await.expect(201);
        assert_eq!(boot_id(&stage, &id).await == first, !cold);
        stage.client.delete(&format!("/sandboxes/{id}")).await.expect(204);
    }
    stage.end().await;
}

async fn boot_id(stage: &Stage, id: &str) -> String {
    let known = stage.client.get(&format!("/leasehold/v1/sandboxes/{id}")).await.expect(200).json();
    known["bootID"].as_str().expect("a boot id").to_owned()
}

/// Sends a body in chunks, or none at all.
async fn chunked(stage: &Stage, path: &str, body: Option<&str>) {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let socket = stage.dir.path().join("run/host.sock");
    let mut stream = tokio::net::UnixStream::connect(socket).await.expect("listens");
    let mut text = format!("POST {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n");
    match body {
        None => text.push_str("\r\n"),
        Some(body) => {
            text.push_str("transfer-encoding: chunked\r\n\r\n");
            for byte in body.chars() {
                text.push_str(&format!("1\r\n{byte}\r\n"));
            }
            text.push_str("0\r\n\r\n");
        }
    }
    stream.write_all(text.as_bytes()).await.expect("sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.expect("answered");
    assert!(answer.starts_with("HTTP/1.1 204"), "{answer}");
}

#[tokio::test]
async fn t1_connect_never_shortens_and_the_end_stays_identical() {
    let stage = Stage::new().await;
    let id = stage.client.create(json!({"templateID": "base", "timeout": 1800})).await;
    let end = async || stage.client.get(&format!("/sandboxes/{id}")).await.expect(200).json()["endAt"].clone();
    let before = end().await;
    for body in [json!({}), json!({"timeout": 1}), json!({"timeout": 300})] {
        stage.client.post(&format!("/v2/sandboxes/{id}/connect"), body).await.expect(200);
        stage.client.post(&format!("/sandboxes/{id}/refreshes"), json!({"duration": 5})).await.expect(204);
        assert_eq!(end().await, before);
    }
    stage.client.post(&format!("/sandboxes/{id}/connect"), json!({"timeout": 3600})).await.expect(200);
    assert_ne!(end().await, before);
    stage.end().await;
}

#[tokio::test]
async fn a_process_that_ends_ends_its_sandbox_with_a_reason() {
    let stage = Stage::new().await;
    let id = stage.client.create(json!({"templateID": "base"})).await;
    stage.engine.end_process(&id);
    assert_eq!(stage.end_reason(&id).await, "its first process ended by itself");
    assert!(stage.engine.with_files().is_empty());
    stage.end().await;
}

#[tokio::test]
async fn files_that_were_meant_to_stay_outlive_the_process() {
    let stage = Stage::new().await;
    let id = stage.client.create(json!({"templateID": "base", "autoPause": true})).await;
    stage.engine.end_process(&id);
    let known = async || stage.client.get(&format!("/leasehold/v1/sandboxes/{id}")).await.expect(200).json();
    eventually("it is paused", async || known().await["memory"] == "gone").await;
    assert_eq!(known().await["memoryLost"], "its first process ended by itself");
    stage.client.post(&format!("/sandboxes/{id}/connect"), json!({"timeout": 60})).await.expect(201);
    assert_eq!(known().await["generation"], 2);
    stage.end().await;
}

#[tokio::test]
async fn a_start_that_fails_leaves_nothing() {
    let stage = Stage::new().await;
    stage.engine.fail("start", 1);
    let answer = stage.client.post("/v2/sandboxes", json!({"templateID": "base"})).await.expect(500);
    assert!(answer.message().contains("start was told to fail"));
    assert!(stage.engine.with_files().is_empty());
    assert_eq!(stage.client.get("/v2/sandboxes").await.json(), json!([]));
    let info = stage.client.get("/leasehold/v1/info").await.expect(200).json();
    assert_eq!(info["sandboxes"]["running"], 0);
    stage.end().await;
}

#[tokio::test]
async fn failures_of_pause_resume_and_snapshot_leave_the_state_before() {
    let stage = Stage::new().await;
    let id = stage.client.create(json!({"templateID": "base"})).await;
    let state = async || stage.client.get(&format!("/sandboxes/{id}")).await.expect(200).json()["state"].clone();
    stage.engine.fail("pause", 1);
    stage.client.post(&format!("/sandboxes/{id}/pause"), json!({})).await.expect(500);
    assert_eq!(state().await, "running");
    stage.engine.fail("snapshot", 1);
    stage.client.post(&format!("/sandboxes/{id}/snapshots"), json!({})).await.expect(500);
    assert_eq!(state().await, "running");
    assert!(!stage.engine.frozen(&id));
    assert_eq!(stage.client.get("/snapshots").await.json(), json!([]));
    stage.client.post(&format!("/sandboxes/{id}/pause"), json!({})).await.expect(204);
    stage.engine.fail("resume", 1);
    stage.client.post(&format!("/sandboxes/{id}/connect"), json!({"timeout": 9})).await.expect(500);
    assert_eq!(state().await, "paused");
    stage.client.post(&format!("/sandboxes/{id}/connect"), json!({"timeout": 9})).await.expect(201);
    stage.end().await;
}

#[tokio::test]
async fn a_kill_that_fails_is_tried_again_by_itself() {
    let stage = Stage::new().await;
    let id = stage.client.create(json!({"templateID": "base"})).await;
    stage.engine.fail("stop", 1);
    stage.client.delete(&format!("/sandboxes/{id}")).await.expect(500);
    let connect = stage.client.post(&format!("/sandboxes/{id}/connect"), json!({"timeout": 5})).await.expect(409);
    assert_eq!(connect.message(), format!("Sandbox \"{id}\" is being killed"));
    eventually("it is destroyed", async || stage.engine.with_files().is_empty()).await;
    stage.end().await;
}

#[tokio::test]
async fn o7_a_client_that_leaves_in_the_middle_of_a_delete_stops_nothing() {
    let stage = Stage::new().await;
    let id = stage.client.create(json!({"templateID": "base"})).await;
    stage.engine.hold("stop");
    let path = format!("/sandboxes/{id}");
    let client = stage.client.clone();
    let deleting = tokio::spawn(async move { client.delete(&path).await });
    eventually("the delete is under way", async || stage.engine.calls().contains(&format!("stop {id}"))).await;
    deleting.abort();
    stage.engine.release("stop");
    eventually("it is destroyed", async || stage.engine.with_files().is_empty()).await;
    stage.end().await;
}

#[tokio::test]
async fn concurrent_requests_on_a_paused_sandbox_each_get_a_documented_answer() {
    let stage = Stage::new().await;
    let id = stage.client.create(json!({"templateID": "base"})).await;
    for (path, allowed) in [("connect", [200, 201]), ("resume", [409, 201])] {
        stage.client.post(&format!("/sandboxes/{id}/pause"), json!({})).await.expect(204);
        let mut all = tokio::task::JoinSet::new();
        for _ in 0..16 {
            let (client, path) = (stage.client.clone(), format!("/sandboxes/{id}/{path}"));
            all.spawn(async move { client.post(&path, json!({"timeout": 60})).await.status.as_u16() });
        }
        let statuses = all.join_all().await;
        assert!(statuses.iter().all(|status| allowed.contains(status)), "{statuses:?}");
        assert_eq!(statuses.iter().filter(|status| **status == 201).count(), 1, "{statuses:?}");
    }
    stage.end().await;
}

#[tokio::test]
async fn requests_during_a_change_of_state_are_told_which() {
    let stage = Stage::new().await;
    let id = stage.client.create(json!({"templateID": "base"})).await;
    stage.engine.hold("snapshot");
    let (client, path) = (stage.client.clone(), format!("/sandboxes/{id}/snapshots"));
    let snapshot = tokio::spawn(async move { client.post(&path, json!({})).await });
    eventually("it is under way", async || stage.engine.calls().contains(&format!("snapshot {id}"))).await;
    let paused = stage.client.post(&format!("/sandboxes/{id}/pause"), json!({})).await.expect(409);
    assert_eq!(paused.message(), format!("Sandbox '{id}' cannot be paused while in 'snapshotting' state"));
    let again = stage.client.post(&format!("/sandboxes/{id}/snapshots"), json!({})).await.expect(409);
    assert_eq!(again.message(), format!("Sandbox '{id}' cannot be snapshotted while in 'snapshotting' state"));
    let (client, path) = (stage.client.clone(), format!("/sandboxes/{id}/connect"));
    let connect = tokio::spawn(async move { client.post(&path, json!({"timeout": 900})).await });
    stage.engine.release("snapshot");
    snapshot.await.expect("answered").expect(201);
    connect.await.expect("answered").expect(200);
    stage.end().await;
}
