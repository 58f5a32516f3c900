//! The data plane of the real client: which credentials travel, and what closing does.

#![expect(clippy::unwrap_used, reason = "a failure here is the test's failure")]

mod support;

use std::time::Duration;

use leasehold::{DeleteJob, Effect, ErrorKind, JobId, RunCommand};
use leasehold_e2b::driver::{DataPlane, DataPlaneFactory as _, DataPlaneTarget, Sandbox as _, SeamErrorKind};
use support::{Server, Step, sandbox_json};

async fn plane(steps: impl IntoIterator<Item = Step>) -> (Server, std::sync::Arc<dyn DataPlane>) {
    let server = Server::start(std::iter::once(Step::json(200, &sandbox_json("abc"))).chain(steps)).await;
    let client = server.options().timeouts(support::short()).build().unwrap();
    let sandbox = leasehold_e2b::driver::ControlPlane::connect(&client, "abc", Duration::from_secs(9)).await.unwrap();
    let target = DataPlaneTarget::new("abc", sandbox.host_for(5004), 5004, sandbox.traffic_token().unwrap());
    let plane = client.open(target).unwrap();
    (server, plane)
}

#[tokio::test]
async fn the_traffic_token_is_the_only_credential() {
    if std::env::var_os("SHELLCTL_AUTH_TOKEN").is_none() {
        // The variable must be there for this to mean something, and cannot be set in this process safely.
        let output = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "the_traffic_token_is_the_only_credential"])
            .env("SHELLCTL_AUTH_TOKEN", "ambient")
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && text.contains("1 passed"), "{text}");
        return;
    }
    let (server, plane) = plane([Step::json(200, r#"{"status":"ok"}"#)]).await;
    plane.health().await.unwrap();
    let seen = &server.seen()[1];
    assert_eq!((seen.method.as_str(), seen.target.as_str()), ("GET", "/healthz"));
    assert_eq!(seen.header("e2b-traffic-access-token"), Some("traffic-token"));
    assert_eq!(seen.header("e2b-sandbox-id"), Some("abc"));
    assert_eq!(seen.header("e2b-sandbox-port"), Some("5004"));
    for name in ["authorization", "x-access-token", "x-api-key"] {
        assert_eq!(seen.header(name), None, "{name}");
    }
}

#[tokio::test]
async fn health_failures_keep_their_kind() {
    for (step, kind) in [
        (Step::answer(500, &[], ""), SeamErrorKind::Status(500)),
        (Step::json(503, r#"{"error":{"code":"busy","message":"later"}}"#), SeamErrorKind::Status(503)),
        (Step::answer(401, &[], ""), SeamErrorKind::Status(401)),
        (Step::answer(404, &[], ""), SeamErrorKind::Status(404)),
        (Step::WriteThenStall(vec![]), SeamErrorKind::ReadTimeout),
        (Step::Write(vec![]), SeamErrorKind::RemoteProtocol),
        (Step::json(200, "<html>"), SeamErrorKind::Decode),
        (Step::json(200, r#"{"status":"starting"}"#), SeamErrorKind::Validation),
    ] {
        let (server, plane) = plane([step.clone()]).await;
        let error = plane.health().await.unwrap_err();
        assert_eq!(error.kind(), kind, "{step:?}");
        assert_eq!(server.connections(), 2, "{step:?}");
    }
}

#[tokio::test]
async fn closing_ends_calls_under_way_and_later_ones() {
    let (server, plane) = plane([Step::WriteThenStall(vec![])]).await;
    let waiting = {
        let plane = plane.clone();
        tokio::spawn(async move { plane.commands().run(RunCommand::new("sleep 9")).await })
    };
    server.saw(2).await;
    plane.close().await.unwrap();
    plane.close().await.unwrap();
    let error = waiting.await.unwrap().unwrap_err();
    assert_eq!((error.kind(), error.effect()), (ErrorKind::Closed, Effect::Unknown));
    assert_eq!(plane.health().await.unwrap_err().kind(), SeamErrorKind::Closed);
    assert_eq!(server.connections(), 2);
}

#[tokio::test]
async fn commands_travel_as_they_are_and_errors_keep_code_and_status() {
    let running = r#"{"job_id":"j1","done":false,"status":"running","exit_code":null,"output_path":"/o","output":"hi","offset":2,"truncated":false}"#;
    let error = |status, code: &str| Step::json(status, &format!(r#"{{"error":{{"code":"{code}","message":"m"}}}}"#));
    let (server, plane) = plane([
        Step::json(200, running),
        error(404, "job_not_found"),
        error(404, "job_not_found"),
        error(409, "job_running"),
        Step::answer(404, &[], "<html>"),
    ])
    .await;
    let commands = plane.commands();
    let job =
        commands.run(RunCommand::new("echo hi").cwd("/w").env("A", "1").timeout(Duration::from_secs(2))).await.unwrap();
    assert_eq!((job.output.as_str(), job.offset, job.done), ("hi", 2, false));
    assert_eq!(
        server.seen()[1].text(),
        r#"{"script":"echo hi","cwd":"/w","env":{"A":"1"},"timeout":2.0,"output_limit":8192,"idle_flush_seconds":0.5}"#
    );
    let missing = commands.read_output(&job.job_id, 0).await.unwrap_err();
    assert_eq!(
        (missing.kind(), missing.code(), missing.status()),
        (ErrorKind::NotFound, Some("job_not_found"), Some(404))
    );
    commands.delete(&job.job_id, DeleteJob::Force { grace: None }).await.unwrap();
    assert_eq!(server.seen()[3].target, "/v1/jobs/j1?force=true&grace_seconds=10");
    let running = commands.delete(&job.job_id, DeleteJob::IfDone).await.unwrap_err();
    assert_eq!((running.kind(), running.status()), (ErrorKind::Conflict, Some(409)));
    let proxy = commands.tail(&job.job_id).await.unwrap_err();
    assert_eq!((proxy.kind(), proxy.code()), (ErrorKind::Internal, Some("request_failed")));
    let malformed = commands.tail(&JobId::new("../x")).await.unwrap_err();
    assert_eq!((malformed.kind(), malformed.effect()), (ErrorKind::InvalidInput, Effect::None));
}

#[tokio::test]
async fn failed_commands_have_a_kind_and_an_effect() {
    let error = |status, code: &str| Step::json(status, &format!(r#"{{"error":{{"code":"{code}","message":"m"}}}}"#));
    let (certain, unknown) = (Effect::None, Effect::Unknown);
    for (step, kind, effect) in [
        (error(400, "invalid_cwd"), ErrorKind::InvalidInput, certain),
        (error(401, "unauthorized"), ErrorKind::Unauthorized, certain),
        (error(403, "x"), ErrorKind::Unauthorized, certain),
        (error(404, "job_not_found"), ErrorKind::NotFound, certain),
        (error(408, "x"), ErrorKind::Internal, unknown),
        (error(409, "job_not_running"), ErrorKind::Conflict, certain),
        (error(413, "request_too_large"), ErrorKind::InvalidInput, certain),
        (error(422, "validation_error"), ErrorKind::InvalidInput, certain),
        (error(429, "too_many_jobs"), ErrorKind::Unavailable, certain),
        (error(500, "internal_error"), ErrorKind::Internal, unknown),
        (Step::answer(502, &[], ""), ErrorKind::Unavailable, unknown),
        (Step::answer(503, &[], ""), ErrorKind::Unavailable, unknown),
        (Step::answer(504, &[], ""), ErrorKind::Unavailable, unknown),
        (Step::json(200, "nonsense"), ErrorKind::Internal, unknown),
        (Step::WriteThenReset(vec![]), ErrorKind::Unavailable, unknown),
        (Step::WriteThenStall(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n".to_vec()), ErrorKind::TimedOut, unknown),
    ] {
        let (_server, plane) = plane([step.clone()]).await;
        // A tail has the transport's own read time-out; a run would wait for its own and ten seconds.
        let error = plane.commands().tail(&JobId::new("j1")).await.unwrap_err();
        assert_eq!((error.kind(), error.effect()), (kind, effect), "{step:?}: {error}");
    }
    let (server, plane) = plane([]).await;
    drop(server);
    let error = plane.commands().tail(&JobId::new("j1")).await.unwrap_err();
    assert_eq!((error.kind(), error.effect()), (ErrorKind::Unavailable, certain), "{error}");
    let zero = plane.commands().run(RunCommand::new("x").timeout(Duration::ZERO)).await.unwrap_err();
    assert_eq!((zero.kind(), zero.effect()), (ErrorKind::InvalidInput, certain), "{zero}");
}
