//! The host on the real engine. Needs root, like the engine.

#[path = "support/client.rs"]
#[expect(dead_code, reason = "tests on the double use more of it")]
mod client;
#[path = "support/real.rs"]
mod real;

use std::time::{Duration, Instant};

use client::request;
use real::{create, names, on_real, run};
use serde_json::{Value, json};

#[test]
fn l1_twenty_cycles_are_the_same_as_one() {
    on_real(async |real| {
        let (id, token) = create(&real.client, json!({"templateID": "base"})).await;
        for n in 0..20 {
            let written =
                run(&real.client, &id, &token, &format!("echo {n} >>/home/user/count; wc -l </home/user/count")).await;
            assert_eq!(written.trim(), (n + 1).to_string());
            let memory = n % 4 != 3;
            real.client.post(&format!("/sandboxes/{id}/pause"), json!({"memory": memory})).await.expect(204);
            real.client.post(&format!("/sandboxes/{id}/connect"), json!({"timeout": 60})).await.expect(201);
        }
    });
}

#[test]
fn boot_id_is_new_with_every_cold_boot_only() {
    on_real(async |real| {
        let (id, token) = create(&real.client, json!({"templateID": "base"})).await;
        let boot_id =
            async || run(&real.client, &id, &token, "cat /proc/sys/kernel/random/boot_id").await.trim().to_owned();
        let first = boot_id().await;
        let known = real.client.get(&format!("/leasehold/v1/sandboxes/{id}")).await.expect(200).json();
        assert_eq!(known["bootID"], first);
        for (memory, same) in [(true, true), (false, false)] {
            real.client.post(&format!("/sandboxes/{id}/pause"), json!({"memory": memory})).await.expect(204);
            real.client.post(&format!("/sandboxes/{id}/connect"), json!({"timeout": 60})).await.expect(201);
            assert_eq!(boot_id().await == first, same);
        }
    });
}

#[test]
fn a_snapshot_is_the_files_of_its_source() {
    on_real(async |real| {
        let (id, token) = create(&real.client, json!({"templateID": "base"})).await;
        run(&real.client, &id, &token, "echo kept >/home/user/f").await;
        let snapshot =
            real.client.post(&format!("/sandboxes/{id}/snapshots"), json!({"name": "home"})).await.expect(201);
        run(&real.client, &id, &token, "echo later >/home/user/f").await;
        real.client.delete(&format!("/sandboxes/{id}")).await.expect(204);
        let (child, token) = create(&real.client, json!({"templateID": snapshot.json()["snapshotID"]})).await;
        assert_eq!(run(&real.client, &child, &token, "cat /home/user/f").await, "kept\n");
        real.client.delete("/templates/leasehold%2Fhome").await.expect(204);
        assert_eq!(names(&real.dir.path().join("layers")).len(), 1);
        real.client.delete(&format!("/sandboxes/{child}")).await.expect(204);
        assert!(names(&real.dir.path().join("layers")).is_empty());
    });
}

#[test]
fn a_server_inside_is_reached_by_its_port() {
    on_real(async |real| {
        let (id, token) = create(&real.client, json!({"templateID": "base"})).await;
        let closed = real.client.inside(&id, 8000, "GET", "/", &[]).await.expect(502).json();
        assert_eq!(closed["message"], "The sandbox is running but port is not open");
        run(
            &real.client,
            &id,
            &token,
            "cd /home/user; echo served >x; (python3 -m http.server --bind 127.0.0.1 8000 >log 2>&1 &) ; \
         until python3 -c 'import socket; socket.create_connection((\"127.0.0.1\", 8000))' 2>/dev/null; do :; done",
        )
        .await;
        let served = real.client.inside(&id, 8000, "GET", "/x", &[]).await.expect(200);
        assert_eq!(served.text(), "served\n");
        real.client.inside(&id, 5004, "GET", "/healthz", &[]).await.expect(200);
    });
}

#[test]
fn a_guest_that_is_killed_ends_its_sandbox() {
    on_real(async |real| {
        let (id, _) = create(&real.client, json!({"templateID": "base"})).await;
        let ledger = real.dir.path().join("run/s").join(&id);
        assert!(ledger.exists());
        // The process is found the way a stranger would: by what it has open.
        let pid = guest_of(&id).expect("a guest");
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).expect("root may");
        let deadline = Instant::now() + Duration::from_secs(10);
        loop {
            let known = real.client.get(&format!("/leasehold/v1/sandboxes/{id}")).await.expect(200).json();
            if known["state"] == "ended" {
                assert_eq!(known["reason"], "its first process ended by itself");
                break;
            }
            assert!(Instant::now() < deadline, "{known}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    });
}

/// The outermost process whose host name is `id`: PID 1 of the sandbox.
fn guest_of(id: &str) -> Option<rustix::process::Pid> {
    let mut found: Vec<i32> = Vec::new();
    for entry in std::fs::read_dir("/proc").expect("proc") {
        let name = entry.expect("an entry").file_name();
        let Some(pid) = name.to_str().and_then(|name| name.parse::<i32>().ok()) else { continue };
        let Ok(status) = std::fs::read_to_string(format!("/proc/{pid}/status")) else { continue };
        let first = status.lines().find_map(|line| line.strip_prefix("NSpid:"))?.split_whitespace().last() == Some("1");
        let mounts = std::fs::read_to_string(format!("/proc/{pid}/mountinfo")).unwrap_or_default();
        if first && mounts.contains(id) {
            found.push(pid);
        }
    }
    rustix::process::Pid::from_raw(*found.first()?)
}

#[test]
fn latency_of_create_pause_and_connect() {
    on_real(async |real| {
        let mut creates = Vec::new();
        let (mut pauses, mut connects) = (Vec::new(), Vec::new());
        let mut sender = real.client.open().await;
        let mut timed = async |method: &str, path: String, body: Value, status: u16| {
            sender.ready().await.expect("the connection stays");
            let begun = Instant::now();
            let response = sender.send_request(request(method, &path, &[], body)).await.expect("an answer");
            assert_eq!(response.status(), status);
            let body = http_body_util::BodyExt::collect(response.into_body()).await.expect("read").to_bytes();
            (begun.elapsed(), body)
        };
        for _ in 0..20 {
            let (took, body) = timed("POST", "/v2/sandboxes".to_owned(), json!({"templateID": "base"}), 201).await;
            creates.push(took);
            let made: Value = serde_json::from_slice(&body).expect("JSON");
            let id = made["sandboxID"].as_str().expect("an id");
            for _ in 0..10 {
                pauses.push(timed("POST", format!("/sandboxes/{id}/pause"), json!({}), 204).await.0);
                connects.push(timed("POST", format!("/v2/sandboxes/{id}/connect"), json!({}), 201).await.0);
            }
            timed("DELETE", format!("/sandboxes/{id}"), Value::Null, 204).await;
        }
        for (what, mut times) in [("create", creates), ("pause", pauses), ("connect", connects)] {
            times.sort();
            let at = |part: usize| times[times.len() * part / 100];
            println!(
                "{what}: p5 {:?}, p50 {:?}, p90 {:?}, max {:?}, n {}",
                at(5),
                at(50),
                at(90),
                times[times.len() - 1],
                times.len()
            );
            // Far above what is promised, so that a busy machine does not fail the test; the figures are printed.
            assert!(at(50) < Duration::from_millis(500), "{what}");
        }
    });
}
