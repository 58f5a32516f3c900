//! What the client sends, byte by byte, and what it makes of the answers.

#![expect(clippy::unwrap_used, reason = "a failure here is the test's failure")]

mod support;

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::time::Duration;

use bytes::Bytes;
use envd::{DataEvent, Empty, EndEvent, ProcessEvent, RpcError, StartEvent, StreamEvent};
use leasehold_e2b::driver::{ControlPlane, CreateSandbox};
use leasehold_e2b::{
    Client, ClientErrorKind, ClientOptions, Code, NewSandbox, Output, PauseMode, ProcessSpec, PtySize, Sandbox,
    SandboxQuery, SandboxState, Selector, Signal, SnapshotQuery, TransportKind,
};
use support::{KEY, Server, Step, sandbox_json};

#[tokio::test]
async fn the_drivers_create_sends_exactly_these_bytes() {
    let server = Server::start([Step::json(201, &sandbox_json("abc"))]).await;
    let metadata: BTreeMap<_, _> = [
        ("dify.resource", "runtime-sandbox"),
        ("dify.binding_id", "b1"),
        ("dify.workspace_id", "w1"),
        ("dify.tenant_id", "t1"),
        ("dify.agent_id", "a1"),
    ]
    .map(|(key, value)| (key.to_owned(), value.to_owned()))
    .into();
    let request = CreateSandbox::new("base", Duration::from_secs(3600), metadata);
    ControlPlane::create(&server.client(), request).await.unwrap();
    let seen = server.only();
    assert_eq!((seen.method.as_str(), seen.target.as_str()), ("POST", "/v2/sandboxes"));
    assert_eq!(
        seen.text(),
        concat!(
            r#"{"templateID":"base","timeout":3600,"autoPause":true,"autoPauseMemory":true,"autoResume":{"enabled":false},"#,
            r#""network":{"allowPublicTraffic":false},"metadata":{"dify.agent_id":"a1","dify.binding_id":"b1","#,
            r#""dify.resource":"runtime-sandbox","dify.tenant_id":"t1","dify.workspace_id":"w1"}}"#
        )
    );
    assert_eq!(seen.header("x-api-key"), Some(KEY));
    assert_eq!(seen.header("content-type"), Some("application/json"));
}

#[tokio::test]
async fn each_call_has_its_route_and_body() {
    let server = Server::start([Step::json(201, &sandbox_json("abc"))]).await;
    let client = server.client();
    let sandbox = client.connect("abc", Duration::from_secs(90)).await.unwrap();
    assert_eq!(sandbox.id(), "abc");
    let server = Server::start([Step::no_content()]).await;
    let client = server.client();
    client.kill("abc").await.unwrap();
    client.pause("abc", PauseMode::Full).await.unwrap();
    client.pause("abc", PauseMode::FilesOnly).await.unwrap();
    client.set_timeout("abc", Duration::ZERO).await.unwrap();
    client.delete_snapshot("team/home-1:default").await.unwrap();
    let seen: Vec<_> =
        server.seen().iter().map(|seen| format!("{} {} {}", seen.method, seen.target, seen.text())).collect();
    assert_eq!(
        seen,
        [
            "DELETE /sandboxes/abc ",
            r#"POST /sandboxes/abc/pause {"memory":true}"#,
            r#"POST /sandboxes/abc/pause {"memory":false}"#,
            r#"POST /sandboxes/abc/timeout {"timeout":0}"#,
            "DELETE /templates/team%2Fhome-1%3Adefault ",
        ]
    );
    let server = Server::start([
        Step::json(201, &sandbox_json("abc")),
        Step::json(201, r#"{"snapshotID":"t:default","names":["team/home-1:default"]}"#),
        Step::json(201, r#"{"snapshotID":"t:default","names":null}"#),
    ])
    .await;
    let client = server.client();
    client.connect("abc", Duration::from_secs(90)).await.unwrap();
    let snapshot = client.create_snapshot("abc", Some("home-1")).await.unwrap();
    assert_eq!(snapshot.names, ["team/home-1:default"]);
    assert!(client.create_snapshot("abc", None).await.unwrap().names.is_empty());
    let seen: Vec<_> = server.seen().iter().map(|seen| format!("{} {}", seen.target, seen.text())).collect();
    assert_eq!(
        seen,
        [
            r#"/v2/sandboxes/abc/connect {"timeout":90}"#,
            r#"/sandboxes/abc/snapshots {"name":"home-1"}"#,
            "/sandboxes/abc/snapshots {}",
        ]
    );
}

#[tokio::test]
async fn ids_that_would_leave_their_place_are_refused_unsent() {
    let server = Server::start([Step::no_content()]).await;
    let client = server.client();
    for id in ["", ".", "..", "../x", "a/b", "a b", "a?b", "a%2fb", "a\nb", &"a".repeat(64)] {
        assert_eq!(client.kill(id).await.unwrap_err().kind(), ClientErrorKind::InvalidInput, "{id:?}");
        let connect = client.connect(id, Duration::from_secs(1)).await.unwrap_err();
        assert_eq!(connect.kind(), ClientErrorKind::InvalidInput, "{id:?}");
    }
    for id in ["", ".", ".."] {
        assert_eq!(client.delete_snapshot(id).await.unwrap_err().kind(), ClientErrorKind::InvalidInput, "{id:?}");
    }
    assert_eq!(server.connections(), 0);
}

fn listed(id: &str, state: &str) -> String {
    format!(
        r#"{{"sandboxID":"{id}","templateID":"base","clientID":"c","startedAt":"2026-09-01T12:00:00.123456Z","endAt":"2026-09-01T12:05:00Z","cpuCount":2,"memoryMB":512,"diskSizeMB":1024,"state":"{state}","envdVersion":"0.6.13","metadata":{{"a b":"c&d"}}}}"#
    )
}

#[tokio::test]
async fn listing_follows_pages_and_encodes_its_filter() {
    let page = |id, next| Step::answer(200, next, format!("[{}]", listed(id, "paused")));
    let server = Server::start([page("a", &[("x-next-token", "tok/1")]), page("b", &[])]).await;
    let query = SandboxQuery::default()
        .metadata("a b", "c&d")
        .state(SandboxState::Running)
        .state(SandboxState::Paused)
        .limit(1);
    let found = server.client().list_all(&query).await.unwrap();
    let ids: Vec<_> = found.iter().map(|info| info.sandbox_id.as_str()).collect();
    assert_eq!(ids, ["a", "b"]);
    assert_eq!(found[0].state, SandboxState::Paused);
    assert_eq!(found[0].started_at, "2026-09-01T12:00:00.123456Z");
    let targets: Vec<_> = server.seen().into_iter().map(|seen| seen.target).collect();
    let filter = "/v2/sandboxes?metadata=a%252520b%3Dc%252526d&state=running%2Cpaused&limit=1";
    assert_eq!(targets, [filter.to_owned(), format!("{filter}&nextToken=tok%2F1")]);
}

#[tokio::test]
async fn a_listing_that_never_ends_is_refused() {
    let server = Server::start([Step::answer(200, &[("x-next-token", "same")], "[]")]).await;
    let error = server.client().list_all(&SandboxQuery::default()).await.unwrap_err();
    assert_eq!(error.kind(), ClientErrorKind::Decode);
    let error = server.client().list_all_snapshots(&SnapshotQuery::default()).await.unwrap_err();
    assert_eq!(error.kind(), ClientErrorKind::Decode);
}

#[tokio::test]
async fn lookups_before_a_kill_do_not_trust_the_servers_filter() {
    let listing = format!("[{},{}]", listed("mine", "running"), listed("other", "running").replace("c&d", "x"));
    let server = Server::start([Step::json(200, &listing)]).await;
    let pairs = BTreeMap::from([("a b".to_owned(), "c&d".to_owned())]);
    assert_eq!(server.client().find_by_metadata(&pairs).await.unwrap(), ["mine"]);
    let snapshots =
        r#"[{"snapshotID":"1","names":["t/home-1:default"]},{"snapshotID":"2","names":["t/home-12:default"]}]"#;
    let server = Server::start([Step::json(200, snapshots)]).await;
    assert_eq!(server.client().find_snapshots_by_name("home-1").await.unwrap(), ["1"]);
    assert_eq!(server.only().target, "/snapshots?name=home-1");
}

async fn sandbox_on(steps: impl IntoIterator<Item = Step>) -> (Server, Sandbox) {
    let server = Server::start(std::iter::once(Step::json(201, &sandbox_json("abc"))).chain(steps)).await;
    let client = server.options().header("Leasehold-Session", "s1").timeouts(support::short()).build().unwrap();
    let sandbox = client.create(&NewSandbox::new("base")).await.unwrap();
    (server, sandbox)
}

#[tokio::test]
async fn a_sandbox_is_reached_by_domain_url_or_socket() {
    let (server, sandbox) = sandbox_on([]).await;
    assert_eq!(sandbox.host_for(5004), "5004-abc.sbx.test");
    assert_eq!(sandbox.url_for(5004).unwrap().as_str(), format!("{}/", server.url));
    let endpoint = sandbox.endpoint_for(5004).unwrap();
    assert_eq!(endpoint.headers.get("e2b-sandbox-id").unwrap(), "abc");
    assert_eq!(endpoint.headers.get("e2b-sandbox-port").unwrap(), "5004");
    assert_eq!(endpoint.headers.len(), 2);

    let server = Server::start([Step::json(201, &sandbox_json("abc"))]).await;
    let client = Client::builder().api_key(KEY).api_url(&server.url).build().unwrap();
    let sandbox = client.create(&NewSandbox::new("base")).await.unwrap();
    assert_eq!(sandbox.url_for(8080).unwrap().as_str(), "https://8080-abc.sbx.test/");
    assert_eq!(sandbox.traffic_token().unwrap().expose(), "traffic-token");
    assert_eq!(sandbox.envd_access_token().unwrap().expose(), "envd-token");
    assert!(!format!("{sandbox:?}").contains("-token"));
}

#[test]
fn options_come_from_the_variables_of_the_sdks() {
    let options = |set: &[(&str, &str)]| {
        let set: BTreeMap<String, String> = set.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        ClientOptions::from_variables(move |name| set.get(name).cloned())
    };
    let local = ("E2B_API_URL", "http://127.0.0.1:3999");
    let error = options(&[local, ("E2B_API_KEY", "")]).build().unwrap_err();
    assert!(error.to_string().contains("E2B_API_KEY"), "{error}");
    assert!(
        options(&[local, ("E2B_SANDBOX_URL", "http://127.0.0.1:3999"), ("E2B_API_KEY", "anything")]).build().is_ok()
    );
    let error = options(&[("E2B_API_KEY", "k"), ("E2B_API_URL", "ftp://x")]).build().unwrap_err();
    assert!(error.to_string().contains("ftp://x"), "{error}");
    assert!(options(&[("E2B_API_KEY", "a\nb")]).build().is_err());
}

#[tokio::test]
async fn keys_and_sessions_stay_with_the_control_plane() {
    let (server, sandbox) = sandbox_on([Step::json(200, r#"{"entry":{"name":"x","path":"/x"}}"#)]).await;
    assert!(sandbox.files().as_user("root").exists("/x").await.unwrap());
    let [control, envd] = &server.seen()[..] else { panic!("two requests") };
    assert_eq!(control.header("leasehold-session"), Some("s1"));
    assert_eq!(control.header("x-access-token"), None);
    assert_eq!(envd.header("leasehold-session"), None);
    assert_eq!(envd.header("x-api-key"), None);
    assert_eq!(envd.header("x-access-token"), Some("envd-token"));
    assert_eq!(envd.header("e2b-sandbox-id"), Some("abc"));
    assert_eq!(envd.header("e2b-sandbox-port"), Some("49983"));
    assert_eq!(envd.header("authorization"), Some("Basic cm9vdDo="));
    assert_eq!(envd.target, "/filesystem.Filesystem/Stat");
    assert_eq!(envd.text(), r#"{"path":"/x"}"#);
}

#[tokio::test]
async fn absence_of_a_file_is_only_what_envd_says_itself() {
    let rpc = |status, body| Step::json(status, body);
    let exists = async |step| sandbox_on([step]).await.1.files().exists("/x").await;
    assert!(!exists(rpc(404, r#"{"code":"not_found","message":"no such file"}"#)).await.unwrap());
    for step in [
        rpc(404, r#"{"code":404,"message":"nope"}"#),
        Step::answer(404, &[], "<html>"),
        rpc(502, r#"{"sandboxId":"abc","message":"The sandbox was not found","code":502}"#),
    ] {
        let error = exists(step).await.unwrap_err();
        assert!(!error.is_not_found(), "{error}");
        assert!(error.status().is_some());
    }
    let error = exists(rpc(502, r#"{"sandboxId":"abc","message":"The sandbox was not found","code":502}"#)).await;
    let error = error.unwrap_err();
    assert_eq!(error.kind(), ClientErrorKind::Rpc(Code::Unavailable));
    assert_eq!(error.message(), "unavailable: HTTP 502: The sandbox was not found");
}

#[tokio::test]
async fn files_are_made_listed_and_removed() {
    let entries = r#"{"entries":[{"name":"f","type":"FILE_TYPE_FILE","path":"/w/f","size":"12"}]}"#;
    let (server, sandbox) = sandbox_on([
        Step::json(200, r#"{"entry":{}}"#),
        Step::json(409, r#"{"code":"already_exists","message":"directory exists"}"#),
        Step::json(200, entries),
        Step::json(200, "{}"),
        Step::json(200, r#"{"entry":{"path":"/b"}}"#),
    ])
    .await;
    let files = sandbox.files();
    assert!(files.make_dir("/w").await.unwrap());
    assert!(!files.make_dir("/w").await.unwrap());
    assert_eq!(files.list("/w", 1).await.unwrap()[0].size, 12);
    files.remove("/w/f").await.unwrap();
    files.rename("/a", "/b").await.unwrap();
    let seen: Vec<_> = server.seen()[1..].iter().map(|seen| format!("{} {}", seen.target, seen.text())).collect();
    assert_eq!(
        seen,
        [
            r#"/filesystem.Filesystem/MakeDir {"path":"/w"}"#,
            r#"/filesystem.Filesystem/MakeDir {"path":"/w"}"#,
            r#"/filesystem.Filesystem/ListDir {"path":"/w","depth":1}"#,
            r#"/filesystem.Filesystem/Remove {"path":"/w/f"}"#,
            r#"/filesystem.Filesystem/Move {"source":"/a","destination":"/b"}"#,
        ]
    );
}

#[tokio::test]
async fn files_stream_bytes_both_ways() {
    let written = r#"[{"path":"/home/user/ä b","name":"ä b","type":"file"}]"#;
    let bytes = [0_u8, 159, 146, 150, b'\n'];
    let body = Step::Write(
        [b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 5\r\n\r\n".to_vec()]
            .into_iter()
            .chain(bytes.chunks(2).map(<[u8]>::to_vec))
            .collect(),
    );
    let (server, sandbox) = sandbox_on([Step::json(200, written), Step::json(200, written), body.clone(), body]).await;
    let files = sandbox.files().as_user("root");
    files.write("ä b", Bytes::copy_from_slice(&bytes)).await.unwrap();
    let pieces: Vec<_> = bytes.chunks(2).map(|piece| Ok(Bytes::copy_from_slice(piece))).collect();
    files.write_stream("ä b", futures_util::stream::iter(pieces)).await.unwrap();
    let mut reader = files.read("ä b").await.unwrap();
    assert_eq!(reader.length(), Some(5));
    let mut read = Vec::new();
    while let Some(piece) = reader.next().await.unwrap() {
        read.extend_from_slice(&piece);
    }
    assert_eq!(read, bytes);
    let error = files.read_all("ä b", 4).await.unwrap_err();
    assert_eq!(error.kind(), ClientErrorKind::Transport(TransportKind::TooLarge));
    let seen = server.seen();
    for write in &seen[1..3] {
        assert_eq!(write.method, "POST");
        assert_eq!(write.target, "/files?path=%C3%A4+b&username=root");
        assert_eq!(write.header("content-type"), Some("application/octet-stream"));
        assert_eq!(write.body, bytes);
    }
    assert_eq!(seen[1].header("content-length"), Some("5"));
    assert_eq!(seen[2].header("transfer-encoding"), Some("chunked"));
    assert_eq!((seen[3].method.as_str(), seen[3].target.as_str()), ("GET", "/files?path=%C3%A4+b&username=root"));
}

#[tokio::test]
async fn a_failing_body_stream_is_the_callers_failure() {
    let (_server, sandbox) = sandbox_on([Step::json(200, "[]")]).await;
    let pieces = vec![Ok(Bytes::from_static(b"a")), Err(std::io::Error::other("disk on fire"))];
    let error = sandbox.files().write_stream("/x", futures_util::stream::iter(pieces)).await.unwrap_err();
    assert_eq!(error.kind(), ClientErrorKind::Transport(TransportKind::RequestBody), "{error}");
    assert!(error.to_string().contains("disk on fire"), "{error}");
}

#[tokio::test]
async fn a_truncated_file_is_an_error_and_a_missing_one_is_not_found() {
    let truncated = Step::Write(vec![b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nabc".to_vec()]);
    let missing = Step::json(404, r#"{"code":404,"message":"path '/x' does not exist"}"#);
    let (_server, sandbox) = sandbox_on([truncated, missing]).await;
    let mut reader = sandbox.files().read("/x").await.unwrap();
    assert_eq!(reader.next().await.unwrap().as_deref(), Some(b"abc".as_slice()));
    let error = reader.next().await.unwrap_err();
    assert_eq!(error.kind(), ClientErrorKind::Transport(TransportKind::Read));
    assert_eq!(sandbox.files().read("/x").await.unwrap_err().kind(), ClientErrorKind::NotFound);
}

fn event(event: ProcessEvent) -> Vec<u8> {
    envd::encode_message(&StreamEvent { event })
}

fn exit(code: i32) -> EndEvent {
    EndEvent { exit_code: code, exited: true, status: format!("exit status {code}"), error: None }
}

/// start, output on both streams, a keepalive, the end.
fn whole_stream() -> Vec<u8> {
    let mut wire = event(ProcessEvent::Keepalive(Empty {}));
    wire.extend(event(ProcessEvent::Start(StartEvent { pid: 7 })));
    wire.extend(event(ProcessEvent::Data(DataEvent::Stdout(vec![0xff, 0, b'\n']))));
    wire.extend(event(ProcessEvent::Keepalive(Empty {})));
    wire.extend(event(ProcessEvent::Data(DataEvent::Stderr(b"err".to_vec()))));
    wire.extend(event(ProcessEvent::End(exit(3))));
    wire.extend(envd::encode_end(None));
    wire
}

#[tokio::test]
async fn process_streams_are_read_at_any_split() {
    let wire = whole_stream();
    for size in [1, 2, 3, 5, 7, 11, 64, wire.len()] {
        let stream = Step::pieces("application/connect+json", wire.chunks(size).map(<[u8]>::to_vec));
        let (_server, sandbox) = sandbox_on([stream]).await;
        let mut process = sandbox.start(&ProcessSpec::new("true")).await.unwrap();
        assert_eq!(process.pid(), 7);
        let mut outputs = Vec::new();
        while let Some(output) = process.next().await.unwrap() {
            outputs.push(output);
        }
        assert_eq!(
            outputs,
            [
                Output::Stdout(Bytes::from_static(&[0xff, 0, b'\n'])),
                Output::Stderr(Bytes::from_static(b"err")),
                Output::End(exit(3)),
            ],
            "{size}"
        );
        assert_eq!(process.next().await.unwrap(), None);
    }
}

#[tokio::test]
async fn a_start_carries_everything_that_was_asked() {
    let (server, sandbox) = sandbox_on([Step::pieces("application/connect+json", [whole_stream()])]).await;
    let spec = ProcessSpec::shell("echo hi")
        .env("A", "1")
        .cwd("/tmp")
        .user("root")
        .tag("t")
        .stdin(true)
        .terminal(PtySize { cols: 80, rows: 24 })
        .timeout(Duration::from_millis(1500));
    sandbox.start(&spec).await.unwrap();
    let seen = &server.seen()[1];
    assert_eq!(seen.target, "/process.Process/Start");
    assert_eq!(seen.header("content-type"), Some("application/connect+json"));
    assert_eq!(seen.header("connect-protocol-version"), Some("1"));
    assert_eq!(seen.header("connect-timeout-ms"), Some("1500"));
    assert_eq!(seen.header("keepalive-ping-interval"), Some("50"));
    assert_eq!(seen.header("authorization"), Some("Basic cm9vdDo="));
    let json = concat!(
        r#"{"process":{"cmd":"/bin/bash","args":["-l","-c","echo hi"],"envs":{"A":"1"},"cwd":"/tmp"},"#,
        r#""pty":{"size":{"cols":80,"rows":24}},"tag":"t","stdin":true}"#
    );
    assert_eq!(seen.body[5..], *json.as_bytes());
    assert_eq!(seen.body[..5], [&[0][..], &u32::try_from(json.len()).unwrap().to_be_bytes()].concat());
}

#[tokio::test]
async fn without_a_timeout_none_is_sent_and_stdin_is_closed() {
    let (server, sandbox) = sandbox_on([Step::pieces("application/connect+json", [whole_stream()])]).await;
    sandbox.start(&ProcessSpec::new("true")).await.unwrap();
    let seen = &server.seen()[1];
    assert_eq!(seen.header("connect-timeout-ms"), None);
    assert_eq!(seen.header("authorization"), None);
    assert_eq!(&seen.body[5..], br#"{"process":{"cmd":"true"},"stdin":false}"#);
}

#[tokio::test]
async fn what_json_cannot_carry_is_refused_unsent() {
    let (server, sandbox) = sandbox_on([Step::no_content()]).await;
    let spec = ProcessSpec::new("printf").argument("a").argument(OsStr::from_bytes(b"\xff\xfe"));
    let error = sandbox.start(&spec).await.unwrap_err();
    assert_eq!(error.kind(), ClientErrorKind::InvalidInput);
    assert!(error.to_string().contains(r#"argument 2 "\xFF\xFE" is not valid UTF-8"#), "{error}");
    let error = sandbox.start(&ProcessSpec::new("true").env("A=B", "1")).await.unwrap_err();
    assert!(error.to_string().contains(r#""A=B""#), "{error}");
    assert_eq!(server.connections(), 1);
}

#[tokio::test]
async fn processes_that_fail_to_start_or_to_end_say_why() {
    let stream = |wire: Vec<u8>| Step::pieces("application/connect+json", [wire]);
    let error = |code, message: &str| envd::encode_end(Some(RpcError::new(code, message)));
    let start = || event(ProcessEvent::Start(StartEvent { pid: 7 }));
    let began = async |wire| sandbox_on([stream(wire)]).await.1.start(&ProcessSpec::new("x")).await;
    let ended = async |wire| began(wire).await.unwrap().next().await;

    let refused = began(error(Code::InvalidArgument, "cwd '/no' does not exist")).await.unwrap_err();
    assert_eq!(refused.kind(), ClientErrorKind::Rpc(Code::InvalidArgument));
    assert_eq!(refused.to_string(), "start process: invalid_argument: cwd '/no' does not exist");
    assert_eq!(began(envd::encode_end(None)).await.unwrap_err().kind(), ClientErrorKind::Decode);
    assert_eq!(began(event(ProcessEvent::End(exit(0)))).await.unwrap_err().kind(), ClientErrorKind::Decode);

    let late = ended([start(), error(Code::DeadlineExceeded, "too late")].concat()).await.unwrap_err();
    assert_eq!(late.kind(), ClientErrorKind::Rpc(Code::DeadlineExceeded));
    let cut = ended(start()).await.unwrap_err();
    assert_eq!(cut.kind(), ClientErrorKind::Transport(TransportKind::RemoteProtocol));
    let unended = ended([start(), envd::encode_end(None)].concat()).await.unwrap_err();
    assert_eq!(unended.kind(), ClientErrorKind::Decode);
    let compressed = ended([start(), vec![1, 0, 0, 0, 0]].concat()).await.unwrap_err();
    assert_eq!(compressed.kind(), ClientErrorKind::Decode);
    let nonsense = ended([start(), vec![0, 0, 0, 0, 1, b'{']].concat()).await.unwrap_err();
    assert_eq!(nonsense.kind(), ClientErrorKind::Decode);

    let (_server, sandbox) =
        sandbox_on([Step::json(401, r#"{"code":"unauthenticated","message":"invalid username: 'x'"}"#)]).await;
    let refused = sandbox.start(&ProcessSpec::new("x").user("x")).await.unwrap_err();
    assert_eq!(refused.kind(), ClientErrorKind::Rpc(Code::Unauthenticated));
}

#[tokio::test]
async fn input_signals_and_sizes_reach_the_process() {
    let (server, sandbox) = sandbox_on([
        Step::pieces("application/connect+json", [whole_stream()]),
        Step::json(200, "{}"),
        Step::json(200, "{}"),
        Step::json(200, "{}"),
        Step::json(200, "{}"),
        Step::json(200, "{}"),
        Step::json(200, r#"{"processes":[{"config":{"cmd":"cat"},"pid":7,"tag":"t"}]}"#),
        Step::json(404, r#"{"code":"not_found","message":"process with pid 9 not found"}"#),
    ])
    .await;
    let process = sandbox.processes().connect(Selector::Tag("t".to_owned())).await.unwrap();
    let input = process.input();
    input.send_stdin(b"hi").await.unwrap();
    input.send_pty(b"hi").await.unwrap();
    input.close_stdin().await.unwrap();
    input.signal(Signal::Sigkill).await.unwrap();
    input.resize(PtySize { cols: 1, rows: 2 }).await.unwrap();
    assert_eq!(sandbox.processes().list().await.unwrap()[0].tag.as_deref(), Some("t"));
    let gone = sandbox.processes().signal(&Selector::Pid(9), Signal::Sigterm).await.unwrap_err();
    assert!(gone.is_not_found());
    let seen: Vec<_> = server.seen()[1..]
        .iter()
        .map(|seen| (seen.target.clone(), String::from_utf8_lossy(&seen.body).into_owned()))
        .collect();
    assert_eq!(seen[0].0, "/process.Process/Connect");
    assert!(seen[0].1.ends_with(r#"{"process":{"tag":"t"}}"#));
    let seen: Vec<_> = seen[1..].iter().map(|(target, body)| format!("{target} {body}")).collect();
    assert_eq!(
        seen,
        [
            r#"/process.Process/SendInput {"process":{"pid":7},"input":{"stdin":"aGk="}}"#,
            r#"/process.Process/SendInput {"process":{"pid":7},"input":{"pty":"aGk="}}"#,
            r#"/process.Process/CloseStdin {"process":{"pid":7}}"#,
            r#"/process.Process/SendSignal {"process":{"pid":7},"signal":"SIGNAL_SIGKILL"}"#,
            r#"/process.Process/Update {"process":{"pid":7},"pty":{"size":{"cols":1,"rows":2}}}"#,
            "/process.Process/List {}",
            r#"/process.Process/SendSignal {"process":{"pid":9},"signal":"SIGNAL_SIGTERM"}"#,
        ]
    );
}

#[tokio::test]
async fn large_input_travels_in_pieces() {
    let (server, sandbox) = sandbox_on([Step::json(200, "{}")]).await;
    let sent = vec![b'x'; (64 << 10) * 2 + 1];
    sandbox.processes().send_stdin(&Selector::Pid(7), &sent).await.unwrap();
    assert_eq!(server.seen().len(), 1 + 3);
}

#[tokio::test]
async fn a_unix_socket_carries_everything_however_long_its_path() {
    let directory = tempfile::tempdir().unwrap();
    let deep = directory.path().join("d".repeat(100));
    std::fs::create_dir(&deep).unwrap();
    // The listener has the same limit; it binds through the open directory.
    let open = std::fs::File::open(&deep).unwrap();
    let short = format!("/proc/self/fd/{}/host.sock", std::os::fd::AsRawFd::as_raw_fd(&open));
    let entry = r#"{"entry":{"name":"x","path":"/x"}}"#;
    let server = Server::start_unix(short.as_ref(), [Step::json(201, &sandbox_json("abc")), Step::json(200, entry)]);
    let client = Client::builder().unix_socket(deep.join("host.sock")).build().unwrap();
    let sandbox = client.create(&NewSandbox::new("base")).await.unwrap();
    assert!(sandbox.files().exists("/x").await.unwrap());
    let seen = server.seen();
    assert_eq!(seen[0].header("host"), Some("localhost"));
    assert_eq!(seen[0].header("x-api-key"), None);
    assert_eq!(seen[1].header("e2b-sandbox-id"), Some("abc"));
    drop(server);
    let error = client.kill("abc").await.unwrap_err();
    assert_eq!(error.kind(), ClientErrorKind::Transport(TransportKind::Connect), "{error}");
}

#[tokio::test]
async fn the_drivers_pause_says_whether_memory_stays() {
    use leasehold_e2b::ProviderSandbox;
    use leasehold_e2b::driver::{Memory, Sandbox as _};

    let (server, sandbox) = sandbox_on([Step::no_content(), Step::no_content(), Step::json(409, "{}")]).await;
    let sandbox = ProviderSandbox::from(sandbox);
    sandbox.pause(Memory::Keep).await.unwrap();
    sandbox.pause(Memory::Drop).await.unwrap();
    sandbox.pause(Memory::Keep).await.unwrap();
    let bodies: Vec<_> = server.seen()[1..3].iter().map(|seen| seen.text().to_owned()).collect();
    assert_eq!(bodies, [r#"{"memory":true}"#, r#"{"memory":false}"#]);
}
