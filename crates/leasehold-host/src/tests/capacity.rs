//! Room: never more than the limit, and a slot is free when a kill has answered.

use serde_json::json;
use tokio::task::JoinSet;

use super::Stage;

#[tokio::test]
async fn q2_a_burst_never_exceeds_the_limit() {
    let stage = Stage::with(|config| config.max_running = 10).await;
    let mut all = JoinSet::new();
    for _ in 0..100 {
        let client = stage.client.clone();
        all.spawn(async move { client.post("/v2/sandboxes", json!({"templateID": "base"})).await });
    }
    let answers = all.join_all().await;
    let created = answers.iter().filter(|answer| answer.status == 201).count();
    assert_eq!(created, 10);
    for refused in answers.iter().filter(|answer| answer.status != 201) {
        assert_eq!(refused.status, 429);
        assert!(refused.message().starts_with("you have reached the maximum number of concurrent sandboxes (10)"));
        assert_eq!(refused.headers["retry-after"], "1");
    }
    assert!(stage.engine.most() <= 10);
    stage.end().await;
}

#[tokio::test]
async fn l14_created_is_what_is_alive() {
    let stage = Stage::with(|config| config.max_running = 100).await;
    stage.engine.fail("start", 7);
    let mut all = JoinSet::new();
    for _ in 0..50 {
        let client = stage.client.clone();
        all.spawn(async move { client.post("/v2/sandboxes", json!({"templateID": "base"})).await.status == 201 });
    }
    let created = all.join_all().await.into_iter().filter(|created| *created).count();
    assert_eq!(created, 43);
    let listed = stage.client.get("/v2/sandboxes").await.json().as_array().expect("a list").len();
    assert_eq!((created, created), (listed, stage.engine.alive().len()));
    stage.end().await;
}

#[tokio::test]
async fn q1_kill_then_create_at_the_limit_works() {
    let stage = Stage::with(|config| config.max_running = 15).await;
    let mut all = JoinSet::new();
    let room = std::sync::Arc::new(tokio::sync::Semaphore::new(15));
    for _ in 0..40 {
        let (client, room) = (stage.client.clone(), std::sync::Arc::clone(&room));
        all.spawn(async move {
            let _one = room.acquire().await.expect("open");
            let id = client.create(json!({"templateID": "base"})).await;
            client.delete(&format!("/sandboxes/{id}")).await.expect(204);
        });
    }
    all.join_all().await;
    stage.end().await;
}

#[tokio::test]
async fn paused_sandboxes_take_no_room_and_need_some_to_resume() {
    let stage = Stage::with(|config| config.max_running = 1).await;
    let first = stage.client.create(json!({"templateID": "base"})).await;
    stage.client.post(&format!("/sandboxes/{first}/pause"), json!({})).await.expect(204);
    let second = stage.client.create(json!({"templateID": "base"})).await;
    stage.client.post(&format!("/sandboxes/{first}/connect"), json!({"timeout": 9})).await.expect(429);
    assert!(stage.engine.frozen(&first));
    stage.client.delete(&format!("/sandboxes/{second}")).await.expect(204);
    stage.client.post(&format!("/sandboxes/{first}/connect"), json!({"timeout": 9})).await.expect(201);
    stage.end().await;
}
