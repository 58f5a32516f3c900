//! The seed's test, row by row: `docs/seed-map.md` says which test here stands for which of its functions and parameters.
//!
//! The provider is in memory and the clock is paused, so delays are exact: what a call took is what the driver slept.

#![expect(clippy::unwrap_used, reason = "a test's helpers may, as the test may")]

mod fake;

use std::time::Duration;

use fake::records::{Record, Records};
use fake::{Life, World, binding, create_spec, destroy_spec, other, seam, snapshot_spec, status, transport};
use leasehold::{
    ErrorKind, ExecutionBindingBackend as _, ExecutionBindingDestroySpec, HomeSnapshotBackend as _, RuntimeError,
    RuntimeLease, SnapshotRef, WorkspaceFate, WorkspaceRef,
};
use leasehold_e2b::E2bLease;
use leasehold_e2b::driver::{DataPlane, Driver, SeamErrorKind};
use tokio::time::Instant;
use tracing::Level;

const QUARTER: Duration = Duration::from_millis(250);
const SECOND: Duration = Duration::from_secs(1);

/// The seed's `_connected_backend`.
fn connected() -> (World, Driver<World>) {
    let world = World::new();
    world.put("sandbox-1", Life::Paused);
    let driver = world.driver();
    (world, driver)
}

/// A lease that was made by hand, on a running sandbox.
fn leased(world: &World, driver: &Driver<World>, id: &str) -> E2bLease<World> {
    world.put(id, Life::Running);
    driver.adopt(world.handle(id), world.plane())
}

/// Runs a call and tells how long it slept.
async fn timed<T>(call: impl Future<Output = T>) -> (T, Duration) {
    let start = Instant::now();
    let value = call.await;
    (value, start.elapsed())
}

fn assert_error(error: &RuntimeError, kind: ErrorKind, text: &str) {
    assert_eq!(error.kind(), kind, "{error}");
    assert!(error.message().contains(text), "{:?} is not in {:?}", text, error.message());
    assert!(error.to_string().contains(text), "{error}");
}

fn assert_record(record: &Record, operation: &str, id: &str, attempt: &str, stage: &str, exception: &str) {
    assert_eq!(record.level, Level::WARN);
    assert_eq!(record.get("e2b_operation"), operation);
    assert_eq!(record.get("sandbox_id"), id);
    assert_eq!(record.get("attempt"), attempt);
    assert_eq!(record.get("cleanup_stage"), stage);
    assert_eq!(record.get("exception_type"), exception);
}

mod e2b_connect_retries_one_transport_failure {
    use super::*;

    async fn retries(kind: SeamErrorKind, exception: &str) {
        let records = Records::catch();
        let (world, driver) = connected();
        world.fail("connect", [transport(kind)]);

        let (lease, slept) = timed(driver.acquire(&binding("sandbox-1"))).await;
        let lease = lease.unwrap();

        assert_eq!(world.subjects("connect"), ["sandbox-1", "sandbox-1"]);
        assert_eq!(slept, QUARTER);
        let retrying = records.with_outcome("retrying");
        assert_eq!(records.all().len(), 1);
        assert_record(&retrying[0], "connect", "sandbox-1", "1", "binding_acquire", exception);
        assert_eq!(retrying[0].get("function"), "acquire");
        driver.release(lease.as_ref()).await.unwrap();
        assert_eq!(world.state().planes, [false]);
    }

    #[tokio::test(start_paused = true)]
    async fn connect_error() {
        retries(SeamErrorKind::Connect, "ConnectError").await;
    }

    #[tokio::test(start_paused = true)]
    async fn read_timeout() {
        retries(SeamErrorKind::ReadTimeout, "ReadTimeout").await;
    }
}

mod e2b_initial_pause_retries_one_transport_failure {
    use super::*;

    async fn retries(kind: SeamErrorKind) {
        let world = World::new();
        world.fail("pause", [transport(kind)]);

        let driver = world.driver();
        let (allocation, slept) = timed(driver.create_binding(&create_spec("binding-1", None))).await;
        let allocation = allocation.unwrap();

        assert_eq!(world.subjects("create"), ["prepared-template"]);
        let id = allocation.binding_ref.as_str();
        assert_eq!(world.subjects("pause"), [id, id]);
        assert_eq!(world.state().boxes[id].life, Life::Paused);
        assert_eq!(slept, QUARTER);
    }

    #[tokio::test(start_paused = true)]
    async fn read_error() {
        retries(SeamErrorKind::Read).await;
    }

    #[tokio::test(start_paused = true)]
    async fn read_timeout() {
        retries(SeamErrorKind::ReadTimeout).await;
    }
}

mod e2b_destroy_retries_one_transport_failure {
    use super::*;

    async fn retries(kind: SeamErrorKind) {
        let (world, driver) = connected();
        world.fail("kill", [transport(kind)]);

        let (outcome, slept) = timed(driver.destroy_binding(&destroy_spec("sandbox-1"))).await;

        outcome.unwrap();
        assert_eq!(world.subjects("kill"), ["sandbox-1", "sandbox-1"]);
        assert!(world.state().boxes.is_empty());
        assert_eq!(slept, QUARTER);
    }

    #[tokio::test(start_paused = true)]
    async fn write_error() {
        retries(SeamErrorKind::Write).await;
    }

    #[tokio::test(start_paused = true)]
    async fn read_timeout() {
        retries(SeamErrorKind::ReadTimeout).await;
    }
}

mod e2b_snapshot_delete_retries_one_transport_failure {
    use super::*;

    async fn retries(kind: SeamErrorKind, exception: &str) {
        let records = Records::catch();
        let world = World::new();
        world.state().snapshots.insert("snapshot-1".to_owned(), "home-1".to_owned());
        world.fail("delete_snapshot", [transport(kind)]);

        let (outcome, slept) = timed(world.driver().delete(&SnapshotRef::new("snapshot-1").unwrap())).await;

        outcome.unwrap();
        assert_eq!(world.subjects("delete_snapshot"), ["snapshot-1", "snapshot-1"]);
        assert!(world.state().snapshots.is_empty());
        assert_eq!(slept, QUARTER);
        let all = records.all();
        assert_eq!(all.len(), 1);
        assert_record(&all[0], "delete_snapshot", "snapshot-1", "1", "home_snapshot_delete", exception);
    }

    #[tokio::test(start_paused = true)]
    async fn remote_protocol_error() {
        retries(SeamErrorKind::RemoteProtocol, "RemoteProtocolError").await;
    }

    #[tokio::test(start_paused = true)]
    async fn read_timeout() {
        retries(SeamErrorKind::ReadTimeout, "ReadTimeout").await;
    }
}

#[tokio::test(start_paused = true)]
async fn e2b_connect_raises_after_two_read_timeouts() {
    let records = Records::catch();
    let (world, driver) = connected();
    world.fail("connect", [transport(SeamErrorKind::ReadTimeout), transport(SeamErrorKind::ReadTimeout)]);

    let (outcome, slept) = timed(driver.acquire_lease(&binding("sandbox-1"))).await;

    assert_error(&outcome.unwrap_err(), ErrorKind::BindingAcquire, "stale E2B connection");
    assert_eq!(world.subjects("connect"), ["sandbox-1", "sandbox-1"]);
    assert_eq!(slept, QUARTER);
    assert_eq!(records.outcomes(), ["retrying", "retry_exhausted"]);
    assert_record(&records.all()[1], "connect", "sandbox-1", "2", "binding_acquire", "ReadTimeout");
}

mod e2b_connect_does_not_retry_non_transport_failures {
    use super::*;

    async fn fails_at_once(kind: SeamErrorKind, text: &str, expected: ErrorKind) -> RuntimeError {
        let records = Records::catch();
        let (world, driver) = connected();
        world.fail("connect", [seam(kind, text)]);

        let (outcome, slept) = timed(driver.acquire_lease(&binding("sandbox-1"))).await;

        let error = outcome.unwrap_err();
        assert_error(&error, expected, text);
        assert_eq!(world.subjects("connect"), ["sandbox-1"]);
        assert_eq!(slept, Duration::ZERO);
        assert!(records.all().is_empty());
        error
    }

    #[tokio::test(start_paused = true)]
    async fn not_found() {
        fails_at_once(SeamErrorKind::NotFound, "missing", ErrorKind::BindingLost).await;
    }

    #[tokio::test(start_paused = true)]
    async fn http_status() {
        let error = fails_at_once(SeamErrorKind::Status(503), "E2B unavailable", ErrorKind::BindingAcquire).await;
        assert_eq!(error.status(), Some(503));
    }

    #[tokio::test(start_paused = true)]
    async fn validation() {
        fails_at_once(SeamErrorKind::Validation, "invalid E2B response", ErrorKind::BindingAcquire).await;
    }

    #[tokio::test(start_paused = true)]
    async fn cancelled() {
        fails_at_once(SeamErrorKind::Cancelled, "cancelled", ErrorKind::Cancelled).await;
    }
}

mod e2b_create_and_snapshot_create_are_not_retried {
    use super::*;

    async fn one_shot(kind: SeamErrorKind) {
        let world = World::new();
        world.fail("create", [transport(kind)]);
        world.fail("create_snapshot", [transport(kind)]);
        let driver = world.driver();
        let source = leased(&world, &driver, "sandbox-snapshot");

        let (created, slept) = timed(driver.create_binding(&create_spec("binding-1", None))).await;
        assert_error(&created.unwrap_err(), ErrorKind::BindingCreate, "stale E2B connection");
        assert_eq!(slept, Duration::ZERO);
        let (captured, slept) = timed(driver.create_from_runtime(&snapshot_spec("home-1"), &source)).await;
        assert_error(&captured.unwrap_err(), ErrorKind::HomeSnapshotCreate, "stale E2B connection");
        assert_eq!(slept, Duration::ZERO);

        assert_eq!(world.subjects("create"), ["prepared-template"]);
        assert_eq!(world.count("create_snapshot"), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn connect_error() {
        one_shot(SeamErrorKind::Connect).await;
    }

    #[tokio::test(start_paused = true)]
    async fn read_timeout() {
        one_shot(SeamErrorKind::ReadTimeout).await;
    }
}

#[tokio::test(start_paused = true)]
async fn e2b_create_maps_capacity_exhaustion_without_retry() {
    let world = World::new();
    world.fail("create", [seam(SeamErrorKind::Capacity, "maximum concurrent sandboxes reached")]);

    let driver = world.driver();
    let (outcome, slept) = timed(driver.create_binding(&create_spec("binding-1", None))).await;

    assert_error(&outcome.unwrap_err(), ErrorKind::BindingCapacityExhausted, "maximum concurrent sandboxes reached");
    assert_eq!(world.calls(), ["create"]);
    assert_eq!(slept, Duration::ZERO);
}

mod e2b_file_initialization_is_one_shot_and_compensates_on_failure {
    use super::*;

    async fn compensates(stage: &'static str, expected: [usize; 3]) {
        let world = World::new();
        world.always_fail(stage, transport(SeamErrorKind::Read));

        let driver = world.driver();
        let (outcome, slept) = timed(driver.create_binding(&create_spec("binding-1", None))).await;

        assert_error(&outcome.unwrap_err(), ErrorKind::BindingCreate, "stale E2B connection");
        assert_eq!(slept, Duration::ZERO);
        assert_eq!(["make_dir", "list", "remove"].map(|call| world.count(call)), expected);
        assert_eq!(world.count("kill_handle"), 1);
        assert!(world.state().boxes.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn make_dir() {
        compensates("make_dir", [1, 0, 0]).await;
    }

    #[tokio::test(start_paused = true)]
    async fn list() {
        compensates("list", [1, 1, 0]).await;
    }

    #[tokio::test(start_paused = true)]
    async fn remove() {
        compensates("remove", [1, 1, 1]).await;
    }
}

#[tokio::test(start_paused = true)]
async fn e2b_binding_uses_default_template_or_exact_snapshot_and_couples_refs() {
    let world = World::new();
    world.state().snapshots.insert("snapshot-1".to_owned(), "home-1".to_owned());
    let driver = world.driver();

    let by_default = driver.create_binding(&create_spec("binding-1", None)).await.unwrap();
    let by_snapshot = driver.create_binding(&create_spec("binding-2", Some("snapshot-1"))).await.unwrap();

    assert_eq!(world.subjects("create"), ["prepared-template", "snapshot-1"]);
    for allocation in [&by_default, &by_snapshot] {
        assert_eq!(allocation.binding_ref.as_str(), allocation.workspace_ref.as_str());
        let state = world.state();
        let made = &state.boxes[allocation.binding_ref.as_str()];
        assert_eq!(made.life, Life::Paused);
        assert_eq!(made.paths.iter().collect::<Vec<_>>(), ["/workspace"]);
        assert!(!state.removed.contains(&"/workspace".to_owned()));
        assert_eq!(made.metadata["dify.resource"], "runtime-sandbox");
    }
    assert_eq!(world.subjects("pause"), [by_default.binding_ref.as_str(), by_snapshot.binding_ref.as_str()]);

    for allocation in [&by_default, &by_snapshot] {
        driver.destroy_binding(&destroy_spec(allocation.binding_ref.as_str())).await.unwrap();
    }
    driver.delete(&SnapshotRef::new("snapshot-1").unwrap()).await.unwrap();
    assert_eq!(world.subjects("kill"), [by_default.binding_ref.as_str(), by_snapshot.binding_ref.as_str()]);
    assert_eq!(world.subjects("delete_snapshot"), ["snapshot-1"]);
}

#[tokio::test(start_paused = true)]
async fn e2b_rejects_shared_workspace_and_binding_only_destroy() {
    let world = World::new();
    let driver = world.driver();

    let spec =
        create_spec("binding-2", Some("snapshot-1")).with_existing_workspace(WorkspaceRef::new("sandbox-1").unwrap());
    let error = driver.create_binding(&spec).await.unwrap_err();
    assert_error(&error, ErrorKind::SharedWorkspaceUnsupported, "cannot be shared");
    let spec = ExecutionBindingDestroySpec::new(binding("sandbox-1"), WorkspaceFate::Keep);
    let error = driver.destroy_binding(&spec).await.unwrap_err();
    assert_error(&error, ErrorKind::WorkspacePreservationUnsupported, "cannot go without its workspace");

    assert!(world.calls().is_empty());
    assert!(!driver.capabilities().shared_workspace);
    assert!(!driver.capabilities().binding_only_destroy);
}

#[tokio::test(start_paused = true)]
async fn e2b_binding_create_kills_sandbox_when_initialization_fails() {
    let world = World::new();
    world.always_fail("pause", other("pause failed"));

    let error = world.driver().create_binding(&create_spec("binding-1", Some("snapshot-1"))).await.unwrap_err();

    assert_error(&error, ErrorKind::BindingCreate, "pause failed");
    assert_eq!(world.count("pause"), 1);
    assert_eq!(world.count("kill_handle"), 1);
    assert!(world.state().boxes.is_empty());
}

#[tokio::test(start_paused = true)]
async fn e2b_binding_create_preserves_primary_error_when_compensation_kill_fails() {
    let records = Records::catch();
    let world = World::new();
    world.always_fail("pause", other("primary pause failure"));
    world.fail("kill_handle", [transport(SeamErrorKind::Write), transport(SeamErrorKind::Write)]);

    let driver = world.driver();
    let (outcome, slept) = timed(driver.create_binding(&create_spec("binding-1", None))).await;

    assert_error(&outcome.unwrap_err(), ErrorKind::BindingCreate, "primary pause failure");
    assert_eq!(world.count("kill_handle"), 2);
    assert_eq!(slept, QUARTER);
    assert_eq!(records.outcomes(), ["retrying", "retry_exhausted", "ignored_cleanup_failure"]);
    let ignored = &records.with_outcome("ignored_cleanup_failure")[0];
    assert_record(ignored, "kill", "sandbox-1", "2", "binding_create_compensation", "WriteError");
    assert_eq!(ignored.get("function"), "create_binding");
}

#[tokio::test(start_paused = true)]
async fn e2b_binding_create_fails_closed_when_initial_pause_retries_are_exhausted() {
    let world = World::new();
    world.fail("pause", [transport(SeamErrorKind::Read), transport(SeamErrorKind::Read)]);

    let driver = world.driver();
    let (outcome, slept) = timed(driver.create_binding(&create_spec("binding-1", None))).await;

    assert_error(&outcome.unwrap_err(), ErrorKind::BindingCreate, "stale E2B connection");
    assert_eq!(world.count("pause"), 2);
    assert_eq!(world.count("kill_handle"), 1);
    assert_eq!(slept, QUARTER);
}

#[tokio::test(start_paused = true)]
async fn e2b_missing_explicit_snapshot_does_not_fall_back_to_template() {
    let world = World::new();
    world.always_fail("create", other("snapshot unavailable"));

    let error = world.driver().create_binding(&create_spec("binding-1", Some("missing-snapshot"))).await.unwrap_err();

    assert_error(&error, ErrorKind::BindingCreate, "snapshot unavailable");
    assert_eq!(world.subjects("create"), ["missing-snapshot"]);
}

#[tokio::test(start_paused = true)]
async fn e2b_checkpoint_uses_exact_source_runtime() {
    let world = World::new();
    let driver = world.driver();
    let source = leased(&world, &driver, "source");
    world.put("bystander", Life::Running);

    let snapshot = driver.create_from_runtime(&snapshot_spec("2"), &source).await.unwrap();

    assert_eq!(snapshot.as_str(), "snapshot-source-1");
    assert_eq!(world.subjects("create_snapshot"), ["source"]);
    assert_eq!(world.state().snapshots["snapshot-source-1"], "home-2");
    assert_eq!(world.calls(), ["create_snapshot"]);
}

mod e2b_release_warns_without_raising_for_cleanup_failures {
    use super::*;

    async fn warns(close_fails: bool, pause_fails: bool, operations: &[&str]) {
        let records = Records::catch();
        let world = World::new();
        let driver = world.driver();
        let lease = leased(&world, &driver, "sandbox-release");
        if close_fails {
            world.always_fail("close", other("close failed"));
        }
        if pause_fails {
            world.always_fail("pause", other("pause failed"));
        }

        driver.release(&lease).await.unwrap();

        assert_eq!(world.calls(), ["close", "pause"]);
        let all = records.all();
        assert_eq!(all.iter().map(|record| record.get("e2b_operation")).collect::<Vec<_>>(), operations);
        for record in &all {
            let operation = record.get("e2b_operation").to_owned();
            assert_record(record, &operation, "sandbox-release", "1", "binding_release", "RuntimeError");
            assert_eq!(record.get("outcome"), "ignored_cleanup_failure");
            assert_eq!(record.get("function"), "release");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn close_fails() {
        warns(true, false, &["close_data_plane"]).await;
    }

    #[tokio::test(start_paused = true)]
    async fn pause_fails() {
        warns(false, true, &["pause"]).await;
    }

    #[tokio::test(start_paused = true)]
    async fn both_fail() {
        warns(true, true, &["close_data_plane", "pause"]).await;
    }
}

#[tokio::test(start_paused = true)]
async fn e2b_release_retries_pause_transport_failure() {
    let world = World::new();
    let driver = world.driver();
    let lease = leased(&world, &driver, "sandbox-release");
    world.fail("pause", [transport(SeamErrorKind::RemoteProtocol)]);

    let (outcome, slept) = timed(driver.release(&lease)).await;

    outcome.unwrap();
    assert_eq!(world.calls(), ["close", "pause", "pause"]);
    assert_eq!(world.state().boxes["sandbox-release"].life, Life::Paused);
    assert_eq!(slept, QUARTER);
}

#[tokio::test(start_paused = true)]
async fn e2b_release_ignores_exhausted_pause_read_timeouts() {
    let records = Records::catch();
    let world = World::new();
    let driver = world.driver();
    let lease = leased(&world, &driver, "sandbox-release");
    world.fail("pause", [transport(SeamErrorKind::ReadTimeout), transport(SeamErrorKind::ReadTimeout)]);

    let (outcome, slept) = timed(driver.release(&lease)).await;

    outcome.unwrap();
    assert_eq!(world.calls(), ["close", "pause", "pause"]);
    assert_eq!(slept, QUARTER);
    assert_eq!(records.outcomes(), ["retrying", "retry_exhausted", "ignored_cleanup_failure"]);
    let ignored = &records.with_outcome("ignored_cleanup_failure")[0];
    assert_record(ignored, "pause", "sandbox-release", "2", "binding_release", "ReadTimeout");
}

mod e2b_release_does_not_swallow_base_exceptions {
    use super::*;

    async fn raises(stage: &'static str) {
        let records = Records::catch();
        let world = World::new();
        let driver = world.driver();
        let lease = leased(&world, &driver, "sandbox-release");
        world.fail(stage, [seam(SeamErrorKind::Cancelled, "cancelled below")]);

        let (outcome, slept) = timed(driver.release(&lease)).await;

        assert_error(&outcome.unwrap_err(), ErrorKind::Cancelled, "cancelled below");
        assert_eq!(world.calls(), ["close", "pause"]);
        assert_eq!(slept, Duration::ZERO);
        assert!(records.all().is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn close() {
        raises("close").await;
    }

    #[tokio::test(start_paused = true)]
    async fn pause() {
        raises("pause").await;
    }
}

#[tokio::test(start_paused = true)]
async fn e2b_release_preserves_close_base_exception_when_pause_also_raises() {
    let world = World::new();
    let driver = world.driver();
    let lease = leased(&world, &driver, "sandbox-release");
    world.fail("close", [seam(SeamErrorKind::Cancelled, "close cancelled")]);
    world.fail("pause", [seam(SeamErrorKind::Cancelled, "pause cancelled")]);

    let error = driver.release(&lease).await.unwrap_err();

    assert_error(&error, ErrorKind::Cancelled, "close cancelled");
    let source = std::error::Error::source(&error).unwrap().downcast_ref::<RuntimeError>().unwrap();
    assert_error(source, ErrorKind::Cancelled, "pause cancelled");
    assert_eq!(world.calls(), ["close", "pause"]);
}

#[tokio::test(start_paused = true)]
async fn e2b_acquire_retries_transient_shellctl_failures_until_ready() {
    let (world, driver) = connected();
    world.fail(
        "health",
        [seam(SeamErrorKind::ReadTimeout, "shellctl starting"), seam(SeamErrorKind::Connect, "shellctl starting")],
    );

    let (lease, slept) = timed(driver.acquire(&binding("sandbox-1"))).await;
    let lease = lease.unwrap();

    assert_eq!(world.count("health"), 3);
    assert_eq!(slept, SECOND);
    assert_eq!(lease.layout().home_dir(), "/home/dify");
    assert_eq!(lease.layout().workspace_dir(), "/workspace");
    {
        let state = world.state();
        assert_eq!(state.opened.len(), 1);
        assert_eq!(state.opened[0].traffic_token, "traffic-token");
        assert_eq!(state.opened[0].host, "sandbox-1-5004.example.test");
        assert_eq!(state.planes, [true]);
    }
    driver.release(lease.as_ref()).await.unwrap();
    assert_eq!(world.state().planes, [false]);
}

mod e2b_acquire_fails_closed_without_traffic_token {
    use super::*;

    async fn fails_closed(token: Option<&str>) {
        let (world, driver) = connected();
        world.set_traffic_token(token);

        let error = driver.acquire_lease(&binding("sandbox-1")).await.unwrap_err();

        assert_error(&error, ErrorKind::BindingAcquire, "traffic access token");
        assert!(world.state().opened.is_empty());
        assert_eq!(world.calls(), ["connect", "exists", "pause"]);
        assert_eq!(world.state().boxes["sandbox-1"].life, Life::Paused);
    }

    #[tokio::test(start_paused = true)]
    async fn none() {
        fails_closed(None).await;
    }

    #[tokio::test(start_paused = true)]
    async fn empty() {
        fails_closed(Some("")).await;
    }
}

#[tokio::test(start_paused = true)]
async fn e2b_acquire_closes_transport_and_pauses_after_readiness_retries_exhausted() {
    let (world, driver) = connected();
    world.always_fail("health", status(503, "starting: not ready"));

    let (outcome, slept) = timed(driver.acquire_lease(&binding("sandbox-1"))).await;

    assert_error(&outcome.unwrap_err(), ErrorKind::BindingAcquire, "not ready");
    assert_eq!(world.calls(), ["connect", "exists", "health", "health", "health", "close", "pause"]);
    assert_eq!(slept, SECOND);
    assert_eq!(world.state().planes, [false]);
    assert_eq!(world.state().boxes["sandbox-1"].life, Life::Paused);
}

#[tokio::test(start_paused = true)]
async fn e2b_acquire_does_not_retry_shellctl_4xx_and_preserves_error_when_pause_fails() {
    let (world, driver) = connected();
    world.always_fail("health", status(401, "unauthorized: bad token"));
    world.always_fail("pause", other("pause failed"));

    let (outcome, slept) = timed(driver.acquire_lease(&binding("sandbox-1"))).await;

    assert_error(&outcome.unwrap_err(), ErrorKind::BindingAcquire, "bad token");
    assert_eq!(world.calls(), ["connect", "exists", "health", "close", "pause"]);
    assert_eq!(slept, Duration::ZERO);
    assert_eq!(world.state().planes, [false]);
}

#[tokio::test(start_paused = true)]
async fn e2b_acquire_preserves_health_failure_when_close_and_pause_fail() {
    let records = Records::catch();
    let (world, driver) = connected();
    world.always_fail("health", status(503, "starting: primary health failure"));
    world.always_fail("close", other("close failed"));
    world.always_fail("pause", other("pause failed"));

    let error = driver.acquire_lease(&binding("sandbox-1")).await.unwrap_err();

    assert_error(&error, ErrorKind::BindingAcquire, "primary health failure");
    assert_eq!(world.count("health"), 3);
    assert_eq!(world.count("close"), 1);
    assert_eq!(world.count("pause"), 1);
    let all = records.all();
    assert_eq!(all.len(), 2);
    assert_record(&all[0], "close_data_plane", "sandbox-1", "1", "binding_acquire_compensation", "RuntimeError");
    assert_record(&all[1], "pause", "sandbox-1", "1", "binding_acquire_compensation", "RuntimeError");
}

#[test]
fn leases_and_data_planes_are_usable_as_trait_objects() {
    fn object_safe(_: Option<&dyn RuntimeLease>, _: Option<&dyn DataPlane>) {}
    object_safe(None, None);
}
