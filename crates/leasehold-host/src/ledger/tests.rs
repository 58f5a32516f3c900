use super::*;
use crate::ids::SandboxId;
use crate::port::{Limits, ProcessId};
use crate::secret::Secret;

fn row(id: &str) -> Row {
    Row {
        origin: Origin {
            id: SandboxId::parse(id).expect("an id"),
            template_id: "base".to_owned(),
            layers: vec!["sha256:00".to_owned()],
            metadata: [("k".to_owned(), "v".to_owned())].into(),
            envs: [("A".to_owned(), "1".to_owned())].into(),
            access_token: Some(Secret::new("t")),
            traffic_token: None,
            limits: Limits::default(),
            timeout_s: 5,
            pause_on_timeout: true,
            pause_keeps_memory: true,
            auto_resume: false,
        },
        stage: Stage::Running,
        started_at: Wall::from_micros(1),
        ends_at: Wall::from_micros(2),
        generation: 3,
        process: Some(ProcessId { pid: 4, start_time: 5 }),
        boot_id: Some("b".to_owned()),
        reason: None,
        kept: true,
        session: false,
    }
}

fn snapshot(id: &str, name: Option<&str>) -> Snapshot {
    Snapshot {
        id: id.to_owned(),
        source: "i1".to_owned(),
        created_at: Wall::from_micros(7),
        layers: vec!["sha256:aa".to_owned()],
        name: name.map(|name| (name.to_owned(), "default".to_owned())),
    }
}

async fn reopened(path: &Path, ledger: Ledger, thread: LedgerThread) -> (Ledger, LedgerThread, Content) {
    ledger.close().await;
    thread.join();
    Ledger::open(path).expect("opens again")
}

#[tokio::test]
async fn what_was_written_is_read_again() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("ledger.db");
    let (ledger, thread, content) = Ledger::open(&path).expect("new");
    assert!(content.sandboxes.is_empty());
    ledger.put(row("i1")).await.expect("stored");
    ledger.put(row("i2")).await.expect("stored");
    ledger
        .put(Row { stage: Stage::Cold, process: None, reason: Some("r".to_owned()), ..row("i1") })
        .await
        .expect("stored");
    ledger
        .end(End { id: "i2".to_owned(), reason: "killed".to_owned(), at: Wall::from_micros(9) })
        .await
        .expect("stored");
    for (snapshot, replaced) in [
        (snapshot("s1", Some("home")), None),
        (snapshot("s2", Some("home")), Some("s1".to_owned())),
        (snapshot("s3", None), None),
    ] {
        ledger.begin_snapshot(snapshot.id.clone(), snapshot.source.clone(), snapshot.created_at).await.expect("stored");
        ledger.finish_snapshot(snapshot, replaced).await.expect("stored");
    }
    ledger.begin_snapshot("s4".to_owned(), "i1".to_owned(), Wall::from_micros(8)).await.expect("stored");
    let (_, _, content) = reopened(&path, ledger, thread).await;
    let [only] = &content.sandboxes[..] else { panic!("one row, not {:?}", content.sandboxes) };
    assert_eq!((only.origin.id.as_str(), only.stage, only.process, only.kept), ("i1", Stage::Cold, None, true));
    assert_eq!(only.reason.as_deref(), Some("r"));
    assert_eq!(only.origin.access_token.as_ref().map(Secret::expose), Some("t"));
    assert_eq!(content.snapshots, [snapshot("s2", Some("home")), snapshot("s3", None)]);
    assert_eq!(content.unfinished_snapshots, ["s4"]);
    assert_eq!(content.ends, [End { id: "i2".to_owned(), reason: "killed".to_owned(), at: Wall::from_micros(9) }]);
}

#[tokio::test]
async fn a_newer_schema_is_refused_and_both_versions_are_named() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("ledger.db");
    let newer = schema::known_version() + 6;
    let connection = Connection::open(&path).expect("opens");
    connection.pragma_update(None, "user_version", newer).expect("set");
    drop(connection);
    let Err(error) = Ledger::open(&path) else { panic!("opened a newer schema") };
    let text = error.to_string();
    assert!(text.contains(&format!("version {newer}")), "{text}");
    assert!(text.contains(&format!("up to {}", schema::known_version())), "{text}");
}

#[tokio::test]
async fn every_version_is_migrated_to_ours() {
    let dir = tempfile::tempdir().expect("a directory");
    for version in 0..=schema::known_version() {
        let path = dir.path().join(format!("{version}.db"));
        schema::make_version(&path, version);
        let (ledger, thread, _) = Ledger::open(&path).expect("migrated");
        ledger.put(row("i1")).await.expect("stored");
        ledger.close().await;
        thread.join();
        let found: u32 = Connection::open(&path)
            .and_then(|connection| connection.query_row("PRAGMA user_version", [], |row| row.get(0)))
            .expect("a version");
        assert_eq!(found, schema::known_version());
    }
}

#[tokio::test]
async fn a_failed_write_fails_alone() {
    let dir = tempfile::tempdir().expect("a directory");
    let (ledger, thread, _) = Ledger::open(&dir.path().join("ledger.db")).expect("new");
    let begin = |id: &str| ledger.begin_snapshot(id.to_owned(), "i1".to_owned(), Wall::from_micros(1));
    let (first, second, third) = tokio::join!(begin("s1"), begin("s1"), begin("s2"));
    assert!(first.is_ok() && third.is_ok());
    assert!(matches!(second, Err(LedgerError::Database { .. })));
    ledger.close().await;
    thread.join();
    assert!(matches!(ledger.put(row("i1")).await, Err(LedgerError::Closed)));
}

#[tokio::test]
async fn a_damaged_row_is_named() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("ledger.db");
    let (ledger, thread, _) = Ledger::open(&path).expect("new");
    ledger.put(row("i1")).await.expect("stored");
    ledger.close().await;
    thread.join();
    Connection::open(&path).expect("opens").execute("UPDATE sandboxes SET stage = 'x'", []).expect("set");
    let Err(error) = Ledger::open(&path) else { panic!("read a damaged row") };
    assert!(error.to_string().contains("i1"), "{error}");
}
