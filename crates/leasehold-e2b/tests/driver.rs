//! What the driver promises beyond the seed's test: leaving, panics, lost answers, leases, shutdown, secrets.

#![expect(clippy::unwrap_used, reason = "a test's helpers may, as the test may")]

mod fake;

use std::sync::Arc;
use std::time::Duration;

use fake::records::Records;
use fake::{
    Life, Phase, Plan, World, binding, create_spec, destroy_spec, other, seam, snapshot_spec, status, transport,
};
use leasehold::{
    DeleteJob, Effect, ErrorKind, ExecutionBindingBackend as _, ExecutionBindingDestroySpec, FilesExt as _,
    HomeSnapshotBackend as _, JobId, RunCommand, RuntimeError, RuntimeLayout, SnapshotRef, WorkspaceFate, WorkspaceRef,
    with_lease,
};
use leasehold_e2b::driver::{Driver, DriverConfig, SeamErrorKind};
use tokio::time::Instant;

const MINUTE: Duration = Duration::from_secs(60);

fn connected() -> (World, Driver<World>) {
    let world = World::new();
    world.put("sandbox-1", Life::Paused);
    let driver = world.driver();
    (world, driver)
}

fn plan(index: usize, phase: Phase) -> Plan {
    Plan { index, phase, hold: false, failure: None, panic: false }
}

/// Virtual time: the clock is paused.
async fn settle() {
    tokio::time::sleep(MINUTE).await;
}

async fn panics<T>(call: impl Future<Output = T> + Send) -> bool {
    use futures_util::FutureExt as _;
    std::panic::AssertUnwindSafe(call).catch_unwind().await.is_err()
}

// --- panics ---

#[tokio::test(start_paused = true)]
async fn a_panic_in_a_step_is_undone_and_then_unwinds() {
    for index in 0..6 {
        for phase in [Phase::BeforeEffect, Phase::AfterEffect] {
            let world = World::new();
            let driver = world.driver();
            world.plan(vec![Plan { panic: true, ..plan(index, phase) }]);
            assert!(panics(driver.create_binding(&create_spec("b", None))).await, "{index} {phase:?}");
            settle().await;
            assert!(world.state().boxes.is_empty(), "{index} {phase:?}");
        }
    }
    for index in 0..3 {
        for phase in [Phase::BeforeEffect, Phase::AfterEffect] {
            let (world, driver) = connected();
            world.plan(vec![Plan { panic: true, ..plan(index, phase) }]);
            assert!(panics(driver.acquire(&binding("sandbox-1"))).await, "{index} {phase:?}");
            assert_eq!(world.state().boxes["sandbox-1"].life, Life::Paused, "{index} {phase:?}");
            assert!(world.state().planes.iter().all(|open| !open), "{index} {phase:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_panic_in_close_still_pauses_and_a_panic_in_pause_unwinds() {
    for index in 0..2 {
        let (world, driver) = connected();
        let lease = driver.adopt(world.handle("sandbox-1"), world.plane());
        world.plan(vec![Plan { panic: true, ..plan(index, Phase::AfterEffect) }]);
        assert!(panics(driver.release(&lease)).await, "{index}");
        assert_eq!(world.calls(), ["close", "pause"], "{index}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_panic_while_capturing_deletes_the_snapshot() {
    let (world, driver) = connected();
    let lease = driver.adopt(world.handle("sandbox-1"), world.plane());
    world.plan(vec![Plan { panic: true, ..plan(0, Phase::AfterEffect) }]);
    assert!(panics(driver.create_from_runtime(&snapshot_spec("1"), &lease)).await);
    assert!(world.state().snapshots.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_panic_in_an_acquires_clean_up_does_not_hide_the_first_error() {
    let (world, driver) = connected();
    world.fail("health", [status(401, "bad token")]);
    world.plan(vec![Plan { panic: true, ..plan(3, Phase::BeforeEffect) }]);
    let error = driver.acquire_lease(&binding("sandbox-1")).await.unwrap_err();
    assert!(error.message().contains("bad token"), "{error}");
    assert_eq!(world.calls(), ["connect", "exists", "health", "close", "pause"]);
}

// --- leaving ---

#[tokio::test(start_paused = true)]
async fn leaving_during_a_delay_ends_the_retries_of_a_step_but_not_of_a_clean_up() {
    let (world, driver) = connected();
    world.fail("connect", [transport(SeamErrorKind::Connect)]);
    assert!(tokio::time::timeout(Duration::from_millis(100), driver.acquire(&binding("sandbox-1"))).await.is_err());
    settle().await;
    assert_eq!(world.calls(), ["connect"]);

    let (world, driver) = connected();
    world.fail("kill", [transport(SeamErrorKind::Connect)]);
    assert!(
        tokio::time::timeout(Duration::from_millis(100), driver.destroy_binding(&destroy_spec("sandbox-1")))
            .await
            .is_err()
    );
    settle().await;
    assert_eq!(world.calls(), ["kill", "kill"]);
    assert!(world.state().boxes.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_step_that_fails_after_its_caller_left_is_not_tried_again_and_says_nothing_of_it() {
    let records = Records::catch();
    let (world, driver) = connected();
    let failure = Some(transport(SeamErrorKind::Connect));
    world.plan(vec![Plan { hold: true, failure, ..plan(0, Phase::BeforeEffect) }]);
    let start = Instant::now();
    let one = binding("sandbox-1");
    tokio::select! {
        biased;
        () = world.reached() => {}
        _ = driver.acquire(&one) => panic!("it is held"),
    }
    world.let_go();
    assert_eq!(driver.shutdown(MINUTE).await.unfinished, 0);
    assert_eq!(world.calls(), ["connect"]);
    assert_eq!(start.elapsed(), Duration::ZERO);
    assert!(records.all().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_caller_that_leaves_at_once_starts_nothing_but_what_only_cleans_up() {
    use futures_util::FutureExt as _;
    let (world, driver) = connected();
    assert!(driver.create_binding(&create_spec("b", None)).now_or_never().is_none());
    assert!(driver.acquire(&binding("sandbox-1")).now_or_never().is_none());
    settle().await;
    assert!(world.calls().is_empty());
    let lease = driver.adopt(world.handle("sandbox-1"), world.plane());
    assert!(driver.create_from_runtime(&snapshot_spec("1"), &lease).now_or_never().is_none());
    settle().await;
    assert!(world.calls().is_empty());
    assert!(driver.release(&lease).now_or_never().is_none());
    settle().await;
    assert_eq!(world.calls(), ["close", "pause"]);
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_nobody_takes_is_undone() {
    let world = World::new();
    world.put("source", Life::Running);
    let driver = world.driver();
    for operation in 0..3 {
        let source = driver.adopt(world.handle("source"), world.plane());
        // The operation ends while its caller is not looking; then the caller goes.
        let caller: std::pin::Pin<Box<dyn Future<Output = ()> + Send>> = match operation {
            0 => Box::pin(async { drop(driver.create_binding(&create_spec("b", None)).await) }),
            1 => Box::pin(async { drop(driver.acquire(&binding("source")).await) }),
            _ => Box::pin(async { drop(driver.create_from_runtime(&snapshot_spec("1"), &source).await) }),
        };
        let mut caller = caller;
        assert!(futures_util::poll!(caller.as_mut()).is_pending());
        settle().await;
        drop(caller);
        drop(source);
        settle().await;
        let state = world.state();
        assert_eq!(state.boxes.keys().collect::<Vec<_>>(), ["source"], "{operation}");
        assert_eq!(state.boxes["source"].life, Life::Paused, "{operation}");
        assert!(state.snapshots.is_empty(), "{operation}");
        assert!(state.planes.iter().all(|open| !open), "{operation}");
    }
}

// --- lost answers ---

#[tokio::test(start_paused = true)]
async fn a_create_whose_answer_is_lost_is_found_and_killed_before_the_error_is_returned() {
    let world = World::new();
    let driver = world.driver();
    world.plan(vec![Plan { failure: Some(transport(SeamErrorKind::ReadTimeout)), ..plan(0, Phase::AfterEffect) }]);
    let error = driver.create_binding(&create_spec("binding-1", None)).await.unwrap_err();
    assert_eq!((error.kind(), error.effect()), (ErrorKind::BindingCreate, Effect::Unknown));
    assert_eq!(world.calls(), ["create", "find_sandbox", "kill"]);
    assert!(world.state().boxes.is_empty());
}

#[tokio::test(start_paused = true)]
async fn clean_up_never_takes_another_create_with_the_same_ids() {
    let world = World::new();
    let driver = world.driver();
    let kept = driver.create_binding(&create_spec("binding-1", None)).await.unwrap();
    world.plan(vec![Plan { failure: Some(transport(SeamErrorKind::Read)), ..plan(0, Phase::AfterEffect) }]);
    driver.create_binding(&create_spec("binding-1", None)).await.unwrap_err();
    settle().await;
    assert_eq!(world.state().boxes.keys().collect::<Vec<_>>(), [kept.binding_ref.as_str()]);
    let requests: Vec<_> =
        world.state().requests.iter().map(|request| request.metadata["leasehold.create_id"].clone()).collect();
    assert_ne!(requests[0], requests[1]);
    assert_eq!(requests[0].len(), 32);
}

#[tokio::test(start_paused = true)]
async fn a_lost_create_that_appears_later_is_still_killed() {
    for (late, killed) in
        [(Duration::from_millis(900), true), (Duration::from_secs(5), true), (Duration::from_secs(7), false)]
    {
        let world = World::new();
        let driver = world.driver();
        world.fail("create", [transport(SeamErrorKind::RemoteProtocol)]);
        let start = Instant::now();
        driver.create_binding(&create_spec("binding-1", None)).await.unwrap_err();
        assert_eq!(start.elapsed(), Duration::ZERO);
        tokio::time::sleep(late).await;
        // The provider comes to it only now; the identity is that of the request it was sent.
        world.put("late", Life::Running);
        let identity = world.state().looked_for.clone();
        world.state().boxes.get_mut("late").unwrap().metadata = identity;
        settle().await;
        assert_eq!(world.state().boxes.is_empty(), killed, "{late:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn how_often_a_lost_create_is_looked_for() {
    let looks = |error| async move {
        let world = World::new();
        world.fail("create", [error]);
        world.driver().create_binding(&create_spec("binding-1", None)).await.unwrap_err();
        settle().await;
        world.count("find_sandbox")
    };
    assert_eq!(looks(transport(SeamErrorKind::Connect)).await, 0, "it was never sent");
    assert_eq!(looks(status(400, "bad template")).await, 0, "it was refused");
    assert_eq!(looks(seam(SeamErrorKind::Capacity, "full")).await, 0, "it was refused");
    assert_eq!(looks(status(500, "broken")).await, 1, "the endpoint is done with it");
    assert_eq!(looks(seam(SeamErrorKind::Decode, "no json")).await, 1, "the endpoint is done with it");
    assert_eq!(looks(seam(SeamErrorKind::Validation, "no id")).await, 1, "the endpoint is done with it");
    assert_eq!(looks(status(502, "gateway")).await, 3, "a gateway speaks for nobody");
    assert_eq!(looks(status(504, "gateway")).await, 3, "a gateway speaks for nobody");
    assert_eq!(looks(transport(SeamErrorKind::ReadTimeout)).await, 3, "it may still come");
    assert_eq!(looks(seam(SeamErrorKind::Cancelled, "cancelled")).await, 3, "it may still come");
}

#[tokio::test(start_paused = true)]
async fn a_look_that_fails_is_logged_and_repeated() {
    let records = Records::catch();
    let world = World::new();
    let driver = world.driver();
    world.fail("find_sandbox", [status(503, "not now")]);
    world.plan(vec![Plan { failure: Some(status(500, "broken")), ..plan(0, Phase::AfterEffect) }]);
    driver.create_binding(&create_spec("binding-1", None)).await.unwrap_err();
    settle().await;
    assert!(world.state().boxes.is_empty());
    assert_eq!(world.calls(), ["create", "find_sandbox", "find_sandbox", "kill"]);
    let ignored = records.with_outcome("ignored_cleanup_failure");
    assert_eq!(ignored.len(), 1);
    assert_eq!(ignored[0].get("e2b_operation"), "find_sandbox");
    assert_eq!(ignored[0].get("sandbox_id"), "binding-1");
}

#[tokio::test(start_paused = true)]
async fn a_lost_create_whose_kill_fails_is_killed_later() {
    let world = World::new();
    let driver = world.driver();
    world.fail("kill", [status(503, "not now")]);
    world.plan(vec![Plan { failure: Some(status(500, "broken")), ..plan(0, Phase::AfterEffect) }]);
    driver.create_binding(&create_spec("binding-1", None)).await.unwrap_err();
    settle().await;
    assert!(world.state().boxes.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_snapshot_whose_answer_is_lost_is_found_by_name_and_deleted() {
    let (world, driver) = connected();
    let lease = driver.adopt(world.handle("sandbox-1"), world.plane());
    world.state().snapshots.insert("other".to_owned(), "home-11".to_owned());
    world.plan(vec![Plan { failure: Some(transport(SeamErrorKind::ReadTimeout)), ..plan(0, Phase::AfterEffect) }]);
    driver.create_from_runtime(&snapshot_spec("1"), &lease).await.unwrap_err();
    assert_eq!(world.calls(), ["create_snapshot", "find_snapshot", "delete_snapshot"]);
    assert_eq!(world.subjects("find_snapshot"), ["home-1"]);
    assert_eq!(world.state().snapshots.keys().collect::<Vec<_>>(), ["other"]);
}

#[tokio::test(start_paused = true)]
async fn a_snapshot_that_was_never_sent_is_not_looked_for_and_failed_looks_are_logged() {
    let records = Records::catch();
    let (world, driver) = connected();
    let lease = driver.adopt(world.handle("sandbox-1"), world.plane());
    world.fail("create_snapshot", [transport(SeamErrorKind::Connect), transport(SeamErrorKind::Read)]);
    world.fail("find_snapshot", [status(500, "broken")]);
    driver.create_from_runtime(&snapshot_spec("1"), &lease).await.unwrap_err();
    assert_eq!(world.count("find_snapshot"), 0);
    driver.create_from_runtime(&snapshot_spec("1"), &lease).await.unwrap_err();
    assert_eq!(world.count("find_snapshot"), 1);
    assert_eq!(records.outcomes(), ["ignored_cleanup_failure"]);
    assert_eq!(records.all()[0].get("cleanup_stage"), "home_snapshot_create_compensation");
}

#[tokio::test(start_paused = true)]
async fn a_connect_that_may_have_woken_the_sandbox_pauses_it_by_id() {
    let pauses = |error| async move {
        let (world, driver) = connected();
        world.plan(vec![Plan { failure: Some(error), ..plan(0, Phase::AfterEffect) }]);
        driver.acquire_lease(&binding("sandbox-1")).await.unwrap_err();
        (world.count("pause"), world.state().boxes["sandbox-1"].life)
    };
    assert_eq!(pauses(status(503, "gone wrong")).await, (1, Life::Paused));
    assert_eq!(pauses(seam(SeamErrorKind::Cancelled, "cancelled")).await, (1, Life::Paused));
    assert_eq!(pauses(status(404, "<html>")).await.0, 0, "a refusal woke nothing");
    assert_eq!(pauses(seam(SeamErrorKind::NotFound, "gone")).await.0, 0, "nothing is there");
}

#[tokio::test(start_paused = true)]
async fn an_earlier_attempt_without_answer_counts_too() {
    let (world, driver) = connected();
    world.fail("connect", [transport(SeamErrorKind::ReadTimeout), transport(SeamErrorKind::Connect)]);
    let error = driver.acquire_lease(&binding("sandbox-1")).await.unwrap_err();
    assert_eq!(error.effect(), Effect::Unknown);
    assert_eq!(error.message(), "stale E2B connection (2 attempts)");
    assert_eq!(world.count("pause"), 1);
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_never_comes_is_waited_for_no_longer_than_the_deadline() {
    let (world, _) = connected();
    let config = DriverConfig::new("t").unwrap().deadline(Duration::from_secs(7)).unwrap();
    let driver = Driver::new(world.clone(), Arc::new(world.clone()), config);
    world.plan(vec![Plan { hold: true, ..plan(0, Phase::AfterEffect) }]);
    let start = Instant::now();
    let error = driver.destroy_binding(&destroy_spec("sandbox-1")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::BindingDestroy);
    assert!(error.message().contains("kill got no answer within 7000 ms"), "{error}");
    assert_eq!(start.elapsed(), Duration::from_secs(7));
    assert_eq!(world.calls(), ["kill"], "our deadline is not one of the failures that are tried again");
}

// --- what failures mean ---

#[tokio::test(start_paused = true)]
async fn a_cancelled_compensation_is_raised_with_the_first_error_as_its_source() {
    let records = Records::catch();
    let world = World::new();
    world.always_fail("pause", other("primary"));
    world.fail("kill_handle", [seam(SeamErrorKind::Cancelled, "kill cancelled")]);
    let error = world.driver().create_binding(&create_spec("b", None)).await.unwrap_err();
    assert_eq!((error.kind(), error.message()), (ErrorKind::Cancelled, "kill cancelled"));
    let source = std::error::Error::source(&error).unwrap();
    assert!(source.to_string().contains("primary"), "{source}");
    assert!(records.all().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_step_is_undone_and_never_wrapped() {
    for call in ["make_dir", "list", "remove", "pause"] {
        let world = World::new();
        world.fail(call, [seam(SeamErrorKind::Cancelled, "cancelled")]);
        let error = world.driver().create_binding(&create_spec("b", None)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Cancelled, "{call}");
        assert!(world.state().boxes.is_empty(), "{call}");
    }
    for call in ["exists", "health"] {
        let records = Records::catch();
        let (world, driver) = connected();
        world.fail(call, [seam(SeamErrorKind::Cancelled, "cancelled")]);
        world.fail("close", [seam(SeamErrorKind::Cancelled, "close cancelled")]);
        world.fail("pause", [seam(SeamErrorKind::Cancelled, "pause cancelled")]);
        let error = driver.acquire_lease(&binding("sandbox-1")).await.unwrap_err();
        assert_eq!((error.kind(), error.message()), (ErrorKind::Cancelled, "cancelled"), "{call}");
        assert_eq!(world.count("pause"), 1);
        let swallowed = records.with_outcome("ignored_cleanup_failure").len();
        assert_eq!(swallowed, if call == "health" { 2 } else { 1 }, "an acquire's compensation swallows everything");
    }
}

#[tokio::test(start_paused = true)]
async fn a_missing_workspace_is_lost_and_the_sandbox_sleeps_again() {
    let (world, driver) = connected();
    world.state().boxes.get_mut("sandbox-1").unwrap().paths.clear();
    world.always_fail("pause", status(500, "no"));
    let error = driver.acquire_lease(&binding("sandbox-1")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::BindingLost);
    assert_eq!(world.calls(), ["connect", "exists", "pause"]);
}

#[tokio::test(start_paused = true)]
async fn only_confirmed_absence_is_lost_or_gone() {
    for error in [status(404, "<html>not found</html>"), status(502, "sandbox was not found"), status(410, "gone")] {
        let (world, driver) = connected();
        world.fail("connect", [error.clone()]);
        world.fail("kill", [error.clone()]);
        world.fail("delete_snapshot", [error.clone()]);
        assert_eq!(driver.acquire_lease(&binding("sandbox-1")).await.unwrap_err().kind(), ErrorKind::BindingAcquire);
        assert_eq!(
            driver.destroy_binding(&destroy_spec("sandbox-1")).await.unwrap_err().kind(),
            ErrorKind::BindingDestroy
        );
        let deleted = driver.delete(&SnapshotRef::new("s").unwrap()).await;
        assert_eq!(deleted.unwrap_err().kind(), ErrorKind::BindingDestroy);
    }
    let driver = World::new().driver();
    assert_eq!(driver.acquire_lease(&binding("gone")).await.unwrap_err().kind(), ErrorKind::BindingLost);
    driver.destroy_binding(&destroy_spec("gone")).await.unwrap();
    driver.delete(&SnapshotRef::new("gone").unwrap()).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn absence_inside_a_new_or_found_sandbox_is_a_failure_like_any_other() {
    let world = World::new();
    world.fail("make_dir", [seam(SeamErrorKind::NotFound, "gone")]);
    let error = world.driver().create_binding(&create_spec("b", None)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::BindingCreate);
    let (world, driver) = connected();
    world.fail("exists", [seam(SeamErrorKind::NotFound, "gone")]);
    assert_eq!(driver.acquire_lease(&binding("sandbox-1")).await.unwrap_err().kind(), ErrorKind::BindingAcquire);
    assert_eq!(world.state().boxes["sandbox-1"].life, Life::Paused);
}

#[tokio::test(start_paused = true)]
async fn an_undone_create_says_whether_anything_may_be_left() {
    let world = World::new();
    world.always_fail("make_dir", transport(SeamErrorKind::Read));
    let error = world.driver().create_binding(&create_spec("b", None)).await.unwrap_err();
    assert_eq!(error.effect(), Effect::None, "it was killed");
    world.always_fail("kill_handle", status(500, "no"));
    let error = world.driver().create_binding(&create_spec("b", None)).await.unwrap_err();
    assert_eq!(error.effect(), Effect::Unknown, "it may be there");
}

#[tokio::test(start_paused = true)]
async fn a_refusal_keeps_status_and_wait() {
    let world = World::new();
    world.fail(
        "create",
        [seam(SeamErrorKind::Capacity, "full").with_retry_after(Duration::from_secs(3)), status(401, "bad key")],
    );
    let driver = world.driver();
    let error = driver.create_binding(&create_spec("b", None)).await.unwrap_err();
    assert_eq!((error.retry_after(), error.effect()), (Some(Duration::from_secs(3)), Effect::None));
    let error = driver.create_binding(&create_spec("b", None)).await.unwrap_err();
    assert_eq!((error.status(), error.effect()), (Some(401), Effect::None));
}

#[tokio::test(start_paused = true)]
async fn messages_and_records_are_short_and_hold_no_secret() {
    let records = Records::catch();
    let (world, driver) = connected();
    let key = format!("e2b_{}", "0123456789".repeat(4));
    let text = format!("line\nbell\u{7} {key} token traffic-token {}", "x".repeat(5000));
    world.always_fail("health", status(503, &text));
    world.always_fail("close", other(&text));
    let error = driver.acquire_lease(&binding("sandbox-1")).await.unwrap_err();
    let chain = format!("{error} {error:?} {}", std::error::Error::source(&error).unwrap());
    assert!(error.message().starts_with("line\\nbell\\u{7} [redacted] token [redacted] xxx"), "{}", error.message());
    assert!(error.message().len() <= 1024);
    let logged: String = records.all().iter().map(|record| format!("{:?}", record.fields)).collect();
    assert_eq!(records.all().len(), 1);
    for text in [chain, logged] {
        assert!(!text.contains("traffic-token") && !text.contains(&key) && !text.contains('\n'), "{text}");
    }
}

// --- refusals before any call ---

#[tokio::test(start_paused = true)]
async fn refs_that_are_no_ids_are_refused_before_any_call() {
    let (world, driver) = connected();
    for reference in ["..", "a/b", "%2e%2e", "a b", "x?y", "ü", "a.b"] {
        let error = driver.acquire_lease(&binding(reference)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{reference}");
        let error = driver.destroy_binding(&destroy_spec(reference)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{reference}");
    }
    for reference in ["..", "a/../b", "/a", "a/", "./a"] {
        let error = driver.delete(&SnapshotRef::new(reference).unwrap()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{reference}");
    }
    let other = ExecutionBindingDestroySpec::new(binding("a"), WorkspaceFate::Destroy(WorkspaceRef::new("b").unwrap()));
    assert_eq!(driver.destroy_binding(&other).await.unwrap_err().kind(), ErrorKind::BindingDestroy);
    assert!(world.calls().is_empty());
    driver.delete(&SnapshotRef::new("team/home-1:default").unwrap()).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn an_id_that_could_not_be_used_later_fails_the_create() {
    let world = World::new();
    world.state().next_id = Some("../etc".to_owned());
    let error = world.driver().create_binding(&create_spec("b", None)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::BindingCreate, "{error}");
    assert!(world.state().boxes.is_empty());
}

// --- leases ---

#[tokio::test(start_paused = true)]
async fn a_foreign_or_released_lease_is_refused_before_any_call() {
    let (world, driver) = connected();
    let (elsewhere, stranger) = connected();
    let lease = stranger.adopt(elsewhere.handle("sandbox-1"), elsewhere.plane());
    assert_eq!(driver.release(&lease).await.unwrap_err().kind(), ErrorKind::ForeignLease);
    let error = driver.create_from_runtime(&snapshot_spec("1"), &lease).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ForeignLease);
    assert!(world.calls().is_empty() && elsewhere.calls().is_empty());

    stranger.release(&lease).await.unwrap();
    assert_eq!(stranger.release(&lease).await.unwrap_err().kind(), ErrorKind::ForeignLease);
    let error = stranger.create_from_runtime(&snapshot_spec("1"), &lease).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ForeignLease);
    drop(lease);
    settle().await;
    assert_eq!(elsewhere.calls(), ["close", "pause"], "released once");
}

#[tokio::test(start_paused = true)]
async fn a_released_lease_is_of_no_use() {
    let (world, driver) = connected();
    let lease = driver.acquire(&binding("sandbox-1")).await.unwrap();
    driver.release(lease.as_ref()).await.unwrap();
    let calls = world.calls().len();
    let (job, zero) = (JobId::new("j"), Duration::ZERO);
    let commands = lease.commands();
    let refused: Vec<RuntimeError> = vec![
        commands.run(RunCommand::new("true")).await.unwrap_err(),
        commands.wait(&job, 0, zero).await.unwrap_err(),
        commands.read_output(&job, 0).await.unwrap_err(),
        commands.input(&job, "x", 0, zero).await.unwrap_err(),
        commands.interrupt(&job, zero).await.unwrap_err(),
        commands.tail(&job).await.unwrap_err(),
        commands.delete(&job, DeleteJob::IfDone).await.unwrap_err(),
        lease.files().exists("/x").await.unwrap_err(),
        lease.files().make_dir("/x").await.unwrap_err(),
        lease.files().list("/x").await.unwrap_err(),
        lease.files().remove("/x").await.unwrap_err(),
        lease.files().read("/x").await.err().unwrap(),
        lease.files().write_all("/x", "y".into()).await.unwrap_err(),
    ];
    for error in refused {
        assert_eq!(error.kind(), ErrorKind::Closed, "{error}");
    }
    assert_eq!(world.calls().len(), calls);
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_is_dropped_is_released_by_the_driver() {
    let (world, driver) = connected();
    let lease = driver.acquire_lease(&binding("sandbox-1")).await.unwrap();
    let shown = format!("{lease:?} {driver:?}");
    assert!(shown.contains("sandbox-1") && shown.contains("prepared-template"), "{shown}");
    assert!(!shown.contains("traffic-token"), "{shown}");
    drop(lease);
    assert_eq!(driver.shutdown(MINUTE).await.unfinished, 0);
    assert_eq!(world.calls(), ["connect", "exists", "health", "close", "pause"]);
}

#[tokio::test(start_paused = true)]
async fn with_lease_releases_after_success_failure_panic_and_leaving() {
    let (world, driver) = connected();
    let one = binding("sandbox-1");
    let value: Result<u32, RuntimeError> = with_lease(&driver, &one, async |_| Ok(7)).await;
    assert_eq!(value.unwrap(), 7);
    let failed: Result<(), RuntimeError> =
        with_lease(&driver, &one, async |lease| lease.files().list("/x").await.map(drop).and(Err(error()))).await;
    assert_eq!(failed.unwrap_err().message(), "body");
    assert!(panics(with_lease::<_, _, (), RuntimeError>(&driver, &one, async |_| panic!("body"))).await);
    settle().await;
    let leaving = with_lease::<_, _, (), RuntimeError>(&driver, &one, async |_| std::future::pending().await);
    assert!(tokio::time::timeout(MINUTE, leaving).await.is_err());
    settle().await;
    assert_eq!(world.count("close"), 4);
    assert_eq!(world.count("pause"), 4);
    assert_eq!(world.state().boxes["sandbox-1"].life, Life::Paused);
}

fn error() -> RuntimeError {
    RuntimeError::new(ErrorKind::Internal, "body", "test", "body")
}

#[tokio::test(start_paused = true)]
async fn a_release_failure_after_success_is_returned() {
    let (world, driver) = connected();
    let one = binding("sandbox-1");
    let cancelled = || seam(SeamErrorKind::Cancelled, "release cancelled");
    world.fail("close", [cancelled(), cancelled()]);
    let outcome: Result<(), RuntimeError> = with_lease(&driver, &one, async |_| Ok(())).await;
    assert_eq!(outcome.unwrap_err().message(), "release cancelled");
    let outcome: Result<(), RuntimeError> = with_lease(&driver, &one, async |_| Err(error())).await;
    assert_eq!(outcome.unwrap_err().message(), "body");
}

#[tokio::test(start_paused = true)]
async fn of_two_leases_on_one_sandbox_the_last_one_pauses_it() {
    let (world, driver) = connected();
    let first = driver.acquire(&binding("sandbox-1")).await.unwrap();
    let second = driver.acquire(&binding("sandbox-1")).await.unwrap();
    driver.release(first.as_ref()).await.unwrap();
    assert_eq!(world.state().boxes["sandbox-1"].life, Life::Running, "the second lease is still at work");
    world.fail("connect", [status(503, "no")]);
    driver.acquire_lease(&binding("sandbox-1")).await.unwrap_err();
    world.fail("health", [status(401, "no")]);
    driver.acquire_lease(&binding("sandbox-1")).await.unwrap_err();
    assert_eq!(world.count("pause"), 0);
    driver.release(second.as_ref()).await.unwrap();
    assert_eq!(world.state().boxes["sandbox-1"].life, Life::Paused);
    assert_eq!(world.state().planes, [false, false, false]);
    drop(driver.acquire(&binding("sandbox-1")).await.unwrap());
    settle().await;
    assert_eq!(world.count("pause"), 2, "nobody is counted who left");
    world.fail("connect", [status(401, "no")]);
    driver.acquire_lease(&binding("sandbox-1")).await.unwrap_err();
    driver.release(driver.acquire(&binding("sandbox-1")).await.unwrap().as_ref()).await.unwrap();
    assert_eq!(world.count("pause"), 3, "nobody is counted who was refused");
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_is_detached_leaves_the_sandbox_as_it_is() {
    let (world, driver) = connected();
    let lease = driver.acquire_lease(&binding("sandbox-1")).await.unwrap();
    driver.detach(lease);
    driver.settled().await;
    assert_eq!(world.calls(), ["connect", "exists", "health"]);
    drop(driver.acquire_lease(&binding("sandbox-1")).await.unwrap());
    driver.settled().await;
    assert_eq!(world.count("pause"), 1, "it is not counted as a user any more");
}

#[tokio::test(start_paused = true)]
async fn a_release_waits_for_a_snapshot_in_progress() {
    let (world, driver) = connected();
    let lease = driver.adopt(world.handle("sandbox-1"), world.plane());
    world.plan(vec![Plan { hold: true, ..plan(0, Phase::AfterEffect) }]);
    let spec = snapshot_spec("1");
    let (snapshot, released, ()) = tokio::join!(
        driver.create_from_runtime(&spec, &lease),
        async {
            world.reached().await;
            driver.release(&lease).await
        },
        async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            assert_eq!(world.calls(), ["create_snapshot", "close"]);
            world.let_go();
        }
    );
    snapshot.unwrap();
    released.unwrap();
    assert_eq!(world.calls(), ["create_snapshot", "close", "pause"]);
}

#[tokio::test(start_paused = true)]
async fn commands_run_under_home_or_workspace_with_the_leases_home() {
    let (world, _) = connected();
    let layout = RuntimeLayout::new("/home/user", "/workspace").unwrap();
    let config = DriverConfig::new("t").unwrap().layout(layout).shellctl_port(6000);
    let driver = Driver::new(world.clone(), Arc::new(world.clone()), config);
    let lease = driver.acquire(&binding("sandbox-1")).await.unwrap();
    assert_eq!(world.state().opened[0].host, "sandbox-1-6000.example.test");
    let command = RunCommand::new("pwd").cwd("~/x").env("HOME", "/elsewhere").env("A", "b");
    lease.commands().run(command).await.unwrap();
    lease.commands().run(RunCommand::new("pwd")).await.unwrap();
    let error = lease.commands().run(RunCommand::new("pwd").cwd("/etc")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    let state = world.state();
    assert_eq!(state.runs.len(), 2);
    assert_eq!(state.runs[0].cwd.as_deref(), Some("/home/user/x"));
    assert_eq!(state.runs[0].env["HOME"], "/home/user");
    assert_eq!(state.runs[0].env["A"], "b");
    assert_eq!(state.runs[1].cwd.as_deref(), Some("/workspace"));
}

#[tokio::test(start_paused = true)]
async fn files_are_given_in_the_contracts_terms() {
    let (world, driver) = connected();
    let lease = driver.acquire(&binding("sandbox-1")).await.unwrap();
    let files = lease.files();
    assert!(files.make_dir("/workspace/a").await.unwrap());
    assert!(!files.make_dir("/workspace/a").await.unwrap());
    assert!(files.exists("/workspace/a").await.unwrap());
    assert_eq!(files.list("/workspace").await.unwrap()[0].name, "a");
    files.remove("/workspace/a").await.unwrap();
    assert!(!files.exists("/workspace/a").await.unwrap());
    files.write_all("/workspace/b", "text".into()).await.unwrap();
    assert_eq!(files.read_all("/workspace/b", 100).await.unwrap(), "/workspace/b");
    assert_eq!(files.read_all("/workspace/b", 12).await.unwrap(), "/workspace/b");
    assert_eq!(files.read_all("/workspace/b", 11).await.unwrap_err().kind(), ErrorKind::InvalidInput);
    for (kind, expected) in [
        (SeamErrorKind::NotFound, ErrorKind::NotFound),
        (SeamErrorKind::Status(404), ErrorKind::NotFound),
        (SeamErrorKind::Validation, ErrorKind::InvalidInput),
        (SeamErrorKind::Status(400), ErrorKind::InvalidInput),
        (SeamErrorKind::Status(422), ErrorKind::InvalidInput),
        (SeamErrorKind::Status(409), ErrorKind::Conflict),
        (SeamErrorKind::Status(401), ErrorKind::Unauthorized),
        (SeamErrorKind::Status(403), ErrorKind::Unauthorized),
        (SeamErrorKind::Cancelled, ErrorKind::Cancelled),
        (SeamErrorKind::Closed, ErrorKind::Closed),
        (SeamErrorKind::ConnectTimeout, ErrorKind::TimedOut),
        (SeamErrorKind::ReadTimeout, ErrorKind::TimedOut),
        (SeamErrorKind::Pool, ErrorKind::TimedOut),
        (SeamErrorKind::Deadline, ErrorKind::TimedOut),
        (SeamErrorKind::Connect, ErrorKind::Unavailable),
        (SeamErrorKind::Status(503), ErrorKind::Unavailable),
        (SeamErrorKind::Decode, ErrorKind::Internal),
    ] {
        world.fail("exists", [seam(kind, "why traffic-token")]);
        let error = files.exists("/x").await.unwrap_err();
        assert_eq!(error.kind(), expected, "{kind:?}");
        assert_eq!(error.message(), "why [redacted]");
        assert_eq!(error.effect(), kind.default_effect());
        assert_eq!(error.status(), if let SeamErrorKind::Status(status) = kind { Some(status) } else { None });
        assert_eq!(error.operation(), "exists");
    }
}

#[tokio::test(start_paused = true)]
async fn a_body_that_cannot_be_read_fails_the_write() {
    let (_world, driver) = connected();
    let lease = driver.acquire(&binding("sandbox-1")).await.unwrap();
    let body = futures_util::stream::iter([Ok("a".into()), Err(error())]);
    let failed = lease.files().write("/workspace/b", Box::pin(body)).await.unwrap_err();
    assert_eq!(failed.kind(), ErrorKind::Unavailable);
    assert!(failed.message().contains("body could not be read: body"), "{failed}");
}

// --- shutdown ---

#[tokio::test(start_paused = true)]
async fn a_shutdown_takes_no_more_work_releases_leases_and_counts_what_is_not_done() {
    let (world, driver) = connected();
    let lease = driver.acquire(&binding("sandbox-1")).await.unwrap();
    world.plan(vec![Plan { hold: true, ..plan(0, Phase::AfterEffect) }]);
    assert_eq!(driver.shutdown(Duration::from_secs(2)).await.unfinished, 1);
    for error in [
        driver.create_binding(&create_spec("b", None)).await.unwrap_err(),
        driver.acquire_lease(&binding("sandbox-1")).await.unwrap_err(),
        driver.destroy_binding(&destroy_spec("sandbox-1")).await.unwrap_err(),
    ] {
        assert_eq!((error.kind(), error.effect()), (ErrorKind::Unavailable, Effect::None), "{error}");
    }
    world.let_go();
    assert_eq!(driver.shutdown(Duration::from_secs(2)).await.unfinished, 0);
    assert_eq!(world.state().boxes["sandbox-1"].life, Life::Paused);
    assert_eq!(driver.release(lease.as_ref()).await.unwrap_err().kind(), ErrorKind::ForeignLease);
}

#[tokio::test(start_paused = true)]
async fn every_task_that_is_not_done_is_counted_and_waited_for() {
    let world = World::new();
    let driver = world.driver();
    world.plan((0..3).map(|index| Plan { hold: true, ..plan(index, Phase::AfterEffect) }).collect());
    for id in ["a", "b", "c"] {
        world.put(id, Life::Running);
        drop(driver.adopt(world.handle(id), world.plane()));
    }
    assert!(tokio::time::timeout(MINUTE, driver.settled()).await.is_err(), "all three are held");
    assert_eq!(driver.shutdown(Duration::ZERO).await.unfinished, 3);
    for left in (0..3).rev() {
        world.let_go();
        assert_eq!(driver.shutdown(Duration::from_millis(1)).await.unfinished, left);
    }
    driver.settled().await;
    assert!(world.state().boxes.values().all(|one| one.life == Life::Paused));
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_outlives_the_shutdown_can_still_be_released() {
    let (world, driver) = connected();
    world.plan(vec![Plan { hold: true, ..plan(0, Phase::AfterEffect) }]);
    let acquiring = tokio::spawn({
        let driver = driver.clone();
        async move { driver.acquire_lease(&binding("sandbox-1")).await.unwrap() }
    });
    world.reached().await;
    assert_eq!(driver.shutdown(Duration::from_millis(1)).await.unfinished, 1);
    world.let_go();
    let lease = acquiring.await.unwrap();
    driver.release(&lease).await.unwrap();
    assert_eq!(world.state().boxes["sandbox-1"].life, Life::Paused);
}

#[test]
fn a_lease_dropped_after_its_runtime_ended_does_not_panic() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (world, driver) = runtime.block_on(async { connected() });
    let lease = runtime.block_on(driver.acquire_lease(&binding("sandbox-1"))).unwrap();
    drop(runtime);
    drop(lease);
    assert_eq!(world.count("close"), 0);
}
