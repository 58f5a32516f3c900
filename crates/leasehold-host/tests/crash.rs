//! A host that is killed, and the one after it. Needs root, like the engine.
//!
//! This program starts itself again as the host: `crash host DIR`.

#[path = "support/client.rs"]
#[expect(dead_code, reason = "tests on the double use more of it")]
mod client;
#[path = "support/real.rs"]
mod real;

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::Duration;

use client::{Client, request};
use leasehold_host::{Host, HostConfig};
use libtest_mimic::{Arguments, Trial};
use real::{Real, create, on_real_in, run};
use serde_json::{Value, json};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().collect();
    if let [_, role, dir] = &arguments[..]
        && role == "host"
    {
        host(Path::new(dir));
        return ExitCode::SUCCESS;
    }
    let trials = vec![
        Trial::test("o5_a_killed_host_leaves_what_the_next_adopts_or_reaps", || passes(adopted_or_reaped)),
        Trial::test("a_host_killed_in_the_middle_of_anything_leaves_nothing_unowned", || passes(killed_in_the_middle)),
        Trial::test("o1_a_client_that_is_killed_leaves_nothing", || passes(client_killed)),
    ];
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}

#[expect(clippy::unnecessary_wraps, reason = "what a trial must return; the test panics when it fails")]
fn passes(test: fn()) -> Result<(), libtest_mimic::Failed> {
    test();
    Ok(())
}

/// Runs until it is killed.
fn host(dir: &Path) {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let host = Host::start(HostConfig::new(dir)).await.expect("starts");
        let mut parent = std::io::stdout();
        parent.write_all(b"ready\n").and_then(|()| parent.flush()).expect("the parent reads");
        host.wait().await;
    });
}

/// A host in a process of its own; killed when dropped.
struct Other(Child);

impl Other {
    fn start(dir: &Path) -> Self {
        let mut child = Command::new(std::env::current_exe().expect("this program"))
            .arg("host")
            .arg(dir)
            .stdout(Stdio::piped())
            .spawn()
            .expect("starts");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("piped")).read_line(&mut line).expect("read");
        assert_eq!(line, "ready\n");
        Self(child)
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        self.0.kill().expect("it is ours");
        self.0.wait().expect("it is ours");
    }
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Runtime::new().expect("a runtime")
}

fn adopted_or_reaped() {
    let dir = tempfile::tempdir().expect("a directory");
    let other = Other::start(dir.path());
    let client = Client::unix(dir.path());
    let (running, paused, cold, owned, token) = runtime().block_on(async {
        let (running, token) = create(&client, json!({"templateID": "base", "timeout": 600})).await;
        run(&client, &running, &token, "sleep 1000 >/dev/null 2>&1 & echo $! >/home/user/pid").await;
        let (paused, _) = create(&client, json!({"templateID": "base"})).await;
        client.post(&format!("/sandboxes/{paused}/pause"), json!({})).await.expect(204);
        let (cold, _) = create(&client, json!({"templateID": "base"})).await;
        client.post(&format!("/sandboxes/{cold}/pause"), json!({"memory": false})).await.expect(204);
        let session = client.start(request("POST", "/leasehold/v1/sessions", &[], Value::Null)).await;
        let mut body = session.into_body();
        let line =
            http_body_util::BodyExt::frame(&mut body).await.expect("a line").expect("read").into_data().expect("data");
        let session: Value = serde_json::from_slice(&line).expect("JSON");
        let session = session["session"].as_str().expect("an id");
        let body_of = json!({"templateID": "base"});
        let made = client.send(request("POST", "/v2/sandboxes", &[("leasehold-session", session)], body_of)).await;
        let owned = made.expect(201).json()["sandboxID"].as_str().expect("an id").to_owned();
        // The session is open until the host dies.
        drop(other);
        drop(body);
        (running, paused, cold, owned, token)
    });
    on_real_in(dir, async |real: &Real| {
        let known = async |id: &str| real.client.get(&format!("/leasehold/v1/sandboxes/{id}")).await.expect(200).json();
        assert_eq!(
            (known(&running).await["state"].clone(), known(&running).await["memory"].clone()),
            (json!("running"), json!("live"))
        );
        let alive = run(&real.client, &running, &token, "kill -0 $(cat /home/user/pid) && echo alive").await;
        assert_eq!(alive, "alive\n");
        assert_eq!(known(&paused).await["memory"], "frozen");
        assert_eq!(known(&cold).await["memory"], "gone");
        for id in [&paused, &cold] {
            real.client.post(&format!("/sandboxes/{id}/connect"), json!({"timeout": 60})).await.expect(201);
            real.client.inside(id, 49983, "GET", "/health", &[]).await.expect(204);
        }
        assert_eq!(known(&owned).await["reason"], "the client that made it lost its host");
    });
}

fn killed_in_the_middle() {
    let dir = tempfile::tempdir().expect("a directory");
    let client = Client::unix(dir.path());
    // Different moments of a create (and of the kill, pause and snapshot that follow it) are hit.
    for wait_ms in [0, 3, 8, 15, 30, 60] {
        let other = Other::start(dir.path());
        let client = client.clone();
        let runtime = runtime();
        runtime.block_on(async {
            let mut lives = tokio::task::JoinSet::new();
            for n in 0..6 {
                let client = client.clone();
                lives.spawn(async move {
                    let mut sender = client.try_open().await?;
                    let mut send = async |method: &str, path: String, body: Value| {
                        sender.ready().await.ok()?;
                        let response = sender.send_request(request(method, &path, &[], body)).await.ok()?;
                        let body = http_body_util::BodyExt::collect(response.into_body()).await.ok()?.to_bytes();
                        Some(serde_json::from_slice(&body).unwrap_or(Value::Null))
                    };
                    let made = send("POST", "/v2/sandboxes".to_owned(), json!({"templateID": "base"})).await?;
                    let id = made["sandboxID"].as_str()?.to_owned();
                    match n % 3 {
                        0 => send("POST", format!("/sandboxes/{id}/pause"), json!({"memory": n == 0})).await,
                        1 => send("POST", format!("/sandboxes/{id}/snapshots"), json!({})).await,
                        _ => send("DELETE", format!("/sandboxes/{id}"), Value::Null).await,
                    }
                });
            }
            tokio::time::sleep(Duration::from_millis(wait_ms)).await;
            drop(other);
            lives.join_all().await;
        });
    }
    on_real_in(dir, async |real: &Real| {
        for sandbox in real.client.get("/v2/sandboxes").await.expect(200).json().as_array().expect("a list") {
            let id = sandbox["sandboxID"].as_str().expect("an id");
            // Whatever is still there works.
            real.client.post(&format!("/sandboxes/{id}/connect"), json!({"timeout": 60})).await;
            real.client.inside(id, 49983, "GET", "/health", &[]).await.expect(204);
        }
        for snapshot in real.client.get("/snapshots").await.expect(200).json().as_array().expect("a list") {
            let id = snapshot["snapshotID"].as_str().expect("an id");
            let (child, _) = create(&real.client, json!({"templateID": id})).await;
            real.client.delete(&format!("/sandboxes/{child}")).await.expect(204);
            real.client.delete(&format!("/templates/{}", id.replace(':', "%3A"))).await.expect(204);
        }
        for sandbox in real.client.get("/v2/sandboxes").await.expect(200).json().as_array().expect("a list") {
            let id = sandbox["sandboxID"].as_str().expect("an id");
            real.client.delete(&format!("/sandboxes/{id}")).await.expect(204);
        }
        let layers = real::names(&real.dir.path().join("layers"));
        assert!(layers.is_empty(), "{layers:?}");
    });
}

/// The client is `sh` with an HTTP request in its hands, killed with SIGKILL.
fn client_killed() {
    real::on_real(async |real: &Real| {
        let socket = real.dir.path().join("run/host.sock");
        let script = "import socket,sys,json\n\
            def ask(path, extra, body):\n\
            \x20 s=socket.socket(socket.AF_UNIX); s.connect(sys.argv[1])\n\
            \x20 s.sendall(f'POST {path} HTTP/1.1\\r\\nhost: x\\r\\n{extra}content-length: {len(body)}\\r\\n\\r\\n{body}'.encode())\n\
            \x20 return s\n\
            a=ask('/leasehold/v1/sessions','','')\n\
            d=b''\n\
            while b'}' not in d: d+=a.recv(4096)\n\
            session=json.loads(d[d.index(b'{'):d.index(b'}')+1])['session']\n\
            b=ask('/v2/sandboxes',f'leasehold-session: {session}\\r\\n','{\"templateID\":\"base\"}')\n\
            b.recv(4096)\n\
            print('made',flush=True)\n\
            a.recv(1)\n";
        let mut child =
            Command::new("python3").args(["-c", script]).arg(socket).stdout(Stdio::piped()).spawn().expect("python3");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("piped")).read_line(&mut line).expect("read");
        assert_eq!(line, "made\n");
        let count =
            async || real.client.get("/v2/sandboxes").await.expect(200).json().as_array().expect("a list").len();
        assert_eq!(count().await, 1);
        child.kill().expect("it is ours");
        child.wait().expect("it is ours");
        while count().await > 0 || !real::names(&real.dir.path().join("sandboxes")).is_empty() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    });
}
