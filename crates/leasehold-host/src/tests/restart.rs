//! What a host finds when it starts: rows of the ledger against what the engine has.

use std::sync::Arc;

use serde_json::json;

use super::double::Double;
use super::{SOON, Stage, start};
use crate::ids::SandboxId;
use crate::ledger::Ledger;
use crate::port::{Limits, Sandboxes as _};
use crate::record::{Origin, Row, Stage as RowStage};
use crate::wall::Wall;
use crate::{AtShutdown, HostConfig};

fn row(id: &str, stage: RowStage) -> Row {
    Row {
        origin: Origin {
            id: SandboxId::parse(id).expect("an id"),
            template_id: "base".to_owned(),
            layers: Vec::new(),
            metadata: [].into(),
            envs: [].into(),
            access_token: None,
            traffic_token: None,
            limits: Limits::default(),
            timeout_s: 60,
            pause_on_timeout: false,
            pause_keeps_memory: true,
            auto_resume: false,
        },
        stage,
        started_at: Wall::now(),
        ends_at: Wall::now().plus_seconds(60),
        generation: 1,
        process: None,
        boot_id: None,
        reason: None,
        kept: false,
        session: false,
    }
}

/// A ledger as a host that was killed left it, on an engine where the rows marked `true` have a process.
async fn left_behind(rows: Vec<(Row, bool)>) -> (tempfile::TempDir, Arc<Double>) {
    let dir = tempfile::tempdir().expect("a directory");
    let engine = Arc::new(Double::default());
    let (ledger, thread, _) = Ledger::open(&dir.path().join("ledger.db")).expect("new");
    for (mut row, runs) in rows {
        let running = engine.start(&row.origin.start_spec(1)).expect("starts");
        row.process = Some(running.process);
        row.boot_id = Some(running.boot_id);
        if !runs {
            engine.end_process(row.origin.id.as_str());
        }
        ledger.put(row).await.expect("stored");
    }
    ledger.close().await;
    thread.join();
    (dir, engine)
}

#[tokio::test]
async fn every_stage_is_adopted_or_reaped() {
    use RowStage::{Booting, Cold, Creating, Frozen, Killing, Running, Stopping};
    let pausing = |row: Row| Row { origin: Origin { pause_on_timeout: true, ..row.origin }, ..row };
    let kept = |row: Row| Row { kept: true, ..row };
    let session = |row: Row| Row { session: true, ..row };
    let plain = |row: Row| row;
    // Row, whether its process lives, and the state and memory afterwards (none: destroyed).
    type Case = (RowStage, bool, Box<dyn Fn(Row) -> Row>, Option<(&'static str, &'static str)>);
    let cases: Vec<Case> = vec![
        (Creating, true, Box::new(plain), None),
        (Creating, false, Box::new(kept), None),
        (Killing, true, Box::new(plain), None),
        (Killing, false, Box::new(plain), None),
        (Running, true, Box::new(plain), Some(("running", "live"))),
        (Running, false, Box::new(plain), None),
        (Running, false, Box::new(pausing), Some(("paused", "gone"))),
        (Running, false, Box::new(kept), Some(("paused", "gone"))),
        (Running, true, Box::new(session), None),
        (Frozen, true, Box::new(plain), Some(("paused", "frozen"))),
        (Frozen, false, Box::new(plain), Some(("paused", "gone"))),
        (Stopping, true, Box::new(plain), Some(("paused", "gone"))),
        (Stopping, false, Box::new(plain), Some(("paused", "gone"))),
        (Booting, true, Box::new(plain), Some(("paused", "gone"))),
        (Cold, false, Box::new(plain), Some(("paused", "gone"))),
    ];
    let mut rows = Vec::new();
    for (n, (stage, runs, change, _)) in cases.iter().enumerate() {
        rows.push((change(row(&format!("i{n}"), *stage)), *runs));
    }
    let (dir, engine) = left_behind(rows).await;
    // Things of which there is no record at all.
    let stranger = row("istranger", Running).origin.start_spec(1);
    engine.start(&stranger).expect("starts");
    let stage = Stage::on(dir, engine, |_| {}).await;
    for (n, (row_stage, runs, _, expected)) in cases.iter().enumerate() {
        let what = format!("{n}: {row_stage:?}, runs: {runs}");
        let known = stage.client.get(&format!("/leasehold/v1/sandboxes/i{n}")).await.expect(200).json();
        match expected {
            Some((state, memory)) => {
                assert_eq!((&known["state"], &known["memory"]), (&json!(state), &json!(memory)), "{what}");
                assert!(stage.engine.with_files().contains(&format!("i{n}")), "{what}");
                assert_eq!(stage.engine.alive().contains(&format!("i{n}")), *memory != "gone", "{what}");
            }
            None => {
                assert_eq!(known["state"], "ended", "{what}");
                assert!(!known["reason"].as_str().expect("a reason").is_empty());
                assert!(!stage.engine.with_files().contains(&format!("i{n}")), "{what}");
            }
        }
    }
    assert!(!stage.engine.with_files().contains(&"istranger".to_owned()));
    stage.end().await;
}

#[tokio::test]
async fn o5_a_host_that_left_its_sandboxes_finds_them_again() {
    let dir = tempfile::tempdir().expect("a directory");
    let engine = Arc::new(Double::default());
    let first = Stage::on(dir, engine, |config| config.at_shutdown = AtShutdown::Leave).await;
    let running = first.client.create(json!({"templateID": "base", "timeout": 600, "metadata": {"a": "b"}})).await;
    let paused = first.client.create(json!({"templateID": "base"})).await;
    first.client.post(&format!("/sandboxes/{paused}/pause"), json!({})).await.expect(204);
    let snapshot =
        first.client.post(&format!("/sandboxes/{running}/snapshots"), json!({"name": "home"})).await.expect(201);
    let details = async |stage: &Stage| {
        (
            stage.client.get(&format!("/sandboxes/{running}")).await.expect(200).json(),
            stage.client.get(&format!("/sandboxes/{paused}")).await.expect(200).json(),
            stage.client.get("/snapshots").await.expect(200).json(),
        )
    };
    let before = details(&first).await;
    let Stage { host, engine, dir, .. } = first;
    host.shutdown(SOON).await;
    assert_eq!(engine.alive().len(), 2);
    let second = Stage::on(dir, engine, |_| {}).await;
    // Times included: they survive to the microsecond.
    assert_eq!(details(&second).await, before);
    second.client.inside(&running, 49983, "GET", "/health", &[]).await.expect(200);
    let id = snapshot.json()["snapshotID"].as_str().expect("an id").to_owned();
    second.client.create(json!({"templateID": id})).await;
    // The adopted process is watched.
    second.engine.end_process(&running);
    super::eventually("its end is seen", async || {
        second.client.get(&format!("/sandboxes/{running}")).await.status == 404
    })
    .await;
    second.end().await;
}

#[tokio::test]
async fn a_clean_stop_keeps_the_files_that_were_meant_to_stay() {
    let dir = tempfile::tempdir().expect("a directory");
    let engine = Arc::new(Double::default());
    let first = Stage::on(dir, engine, |_| {}).await;
    let kept = first.client.create(json!({"templateID": "base", "autoPause": true})).await;
    let frozen = first.client.create(json!({"templateID": "base"})).await;
    first.client.post(&format!("/sandboxes/{frozen}/pause"), json!({})).await.expect(204);
    first.client.create(json!({"templateID": "base"})).await;
    let Stage { host, engine, dir, .. } = first;
    host.shutdown(SOON).await;
    assert_eq!(engine.alive(), Vec::<String>::new());
    let mut files = [kept.clone(), frozen];
    files.sort();
    assert_eq!(engine.with_files(), files);
    let second = Stage::on(dir, engine, |_| {}).await;
    let known = second.client.get(&format!("/leasehold/v1/sandboxes/{kept}")).await.expect(200).json();
    assert_eq!((&known["memory"], &known["memoryLost"]), (&json!("gone"), &json!("the host was shut down")));
    second.client.post(&format!("/sandboxes/{kept}/connect"), json!({"timeout": 9})).await.expect(201);
    second.end().await;
}

#[tokio::test]
async fn one_host_per_data_directory() {
    let stage = Stage::new().await;
    let engine = Arc::new(Double::default());
    let opened = Arc::clone(&engine);
    let second = crate::Host::start_with(HostConfig::new(stage.dir.path()), move |_| Ok(opened as _)).await;
    let error = second.expect_err("held").to_string();
    assert!(error.contains(&format!("pid {}", std::process::id())), "{error}");
    assert!(engine.calls().is_empty());
    stage.end().await;
}

#[tokio::test]
async fn an_unfinished_snapshot_and_unneeded_layers_are_removed() {
    let (dir, engine) = left_behind(Vec::new()).await;
    let (ledger, thread, _) = Ledger::open(&dir.path().join("ledger.db")).expect("opens");
    ledger.begin_snapshot("s1".to_owned(), "i1".to_owned(), Wall::now()).await.expect("stored");
    ledger.close().await;
    thread.join();
    std::fs::create_dir_all(dir.path().join("layers")).expect("made");
    std::fs::write(dir.path().join("layers/00ff.tar"), "").expect("written");
    let host = start(HostConfig::new(dir.path()), &engine).await;
    assert!(engine.calls().contains(&"delete_layer sha256:00ff".to_owned()));
    host.shutdown(SOON).await;
    let (_, _, content) = Ledger::open(&dir.path().join("ledger.db")).expect("opens");
    assert!(content.unfinished_snapshots.is_empty());
}
