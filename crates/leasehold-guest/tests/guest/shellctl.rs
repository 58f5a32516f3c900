//! Jobs through the guest's shellctl socket.

use std::fs;
use std::io::{Read as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::client::{Client, TestGuest, identity, wait_for};

struct Shell<'g> {
    guest: &'g TestGuest,
}

/// A refusal: status, code, message.
type Refused = (u16, String, String);

impl<'g> Shell<'g> {
    fn of(guest: &'g TestGuest) -> Self {
        Self { guest }
    }

    fn client(&self) -> Client {
        self.guest.client_of("shellctl.sock")
    }

    fn request(&self, method: &str, path: &str, body: &[u8]) -> Result<Value, Refused> {
        let answer = self.client().request(method, path, "application/json", body);
        let body = answer.json();
        if answer.status == 200 {
            return Ok(body);
        }
        let text = |name: &str| body["error"][name].as_str().unwrap_or_else(|| panic!("{body}")).to_owned();
        Err((answer.status, text("code"), text("message")))
    }

    fn post(&self, path: &str, body: Value) -> Result<Value, Refused> {
        self.request("POST", path, body.to_string().as_bytes())
    }

    fn run(&self, body: Value) -> Value {
        self.post("/v1/jobs/run", body).unwrap()
    }

    /// Runs a script to its end.
    fn sh(&self, script: &str) -> Value {
        let job = self.run(json!({ "script": script, "idle_flush_seconds": 30 }));
        assert_eq!(job["done"], true, "{job}");
        job
    }

    fn wait(&self, job: &Value, offset: u64, extra: Value) -> Value {
        let mut body = json!({ "offset": offset });
        for (name, value) in extra.as_object().into_iter().flatten() {
            body[name] = value.clone();
        }
        self.post(&format!("/v1/jobs/{}/wait", id(job)), body).unwrap()
    }

    fn view(&self, job: &Value) -> Value {
        self.request("GET", &format!("/v1/jobs/{}", id(job)), b"").unwrap()
    }

    fn terminate(&self, job: &Value, grace: f64) -> Value {
        self.post(&format!("/v1/jobs/{}/terminate", id(job)), json!({ "grace_seconds": grace })).unwrap()
    }
}

fn id(job: &Value) -> &str {
    job["job_id"].as_str().unwrap()
}

fn is_alive(pid: &str) -> bool {
    fs::read_to_string(format!("/proc/{}/stat", pid.trim())).is_ok_and(|stat| !stat.contains(") Z"))
}

#[test]
fn a_job_answers_with_exactly_the_protocols_fields() {
    let guest = TestGuest::start();
    let shell = Shell::of(&guest);
    assert_eq!(shell.request("GET", "/healthz", b"").unwrap(), json!({ "status": "ok" }));
    let job = shell.run(json!({ "script": "echo hi; exit 3" }));
    let path = job["output_path"].as_str().unwrap();
    assert_eq!(fs::read_to_string(path).unwrap(), "hi\n");
    assert_eq!(
        job,
        json!({ "job_id": id(&job), "done": true, "status": "exited", "exit_code": 3, "output_path": path,
                "output": "hi\n", "offset": 3, "truncated": false })
    );
    let view = shell.view(&job);
    for time in ["created_at", "started_at", "ended_at"] {
        let text = view[time].as_str().unwrap();
        assert!(text.len() == 20 && text.ends_with('Z'), "{view}");
    }
    assert_eq!((&view["offset"], &view["exit_code"], &view["status"]), (&json!(3), &json!(3), &json!("exited")));
    assert_eq!(view.as_object().unwrap().len(), 8, "{view}");
    let list = shell.request("GET", "/v1/jobs?status=exited&limit=1", b"").unwrap();
    assert_eq!(list["jobs"][0]["job_id"], job["job_id"]);
    assert_eq!(shell.request("GET", "/v1/jobs?status=lost", b"").unwrap(), json!({ "jobs": [] }));
}

#[test]
fn hundreds_of_short_jobs_have_their_output_and_their_code() {
    let guest = TestGuest::start();
    std::thread::scope(|scope| {
        for worker in 0..4 {
            let guest = &guest;
            scope.spawn(move || {
                let shell = Shell::of(guest);
                for round in 0..75 {
                    let mode = if round % 2 == 0 { "pty" } else { "stdio" };
                    let job = shell.run(json!({ "script": "printf x; exit 3", "mode": mode }));
                    let seen = (&job["status"], &job["exit_code"], &job["output"]);
                    assert_eq!(seen, (&json!("exited"), &json!(3), &json!("x")), "worker {worker}, round {round}");
                }
            });
        }
    });
    let list = Shell::of(&guest).request("GET", "/v1/jobs?limit=1000", b"").unwrap();
    assert_eq!(list["jobs"].as_array().unwrap().len(), 300);
    // The last trees may be going just now.
    let descriptors = || fs::read_dir(format!("/proc/{}/fd", guest.pid())).unwrap().count();
    wait_for("finished jobs to hold no descriptors", || descriptors() < 30);
    let oldest = &list["jobs"][299];
    assert_eq!(Shell::of(&guest).wait(oldest, 0, json!({}))["output"], "x");
}

#[test]
fn output_is_paged_by_byte_offset_and_nothing_is_lost() {
    let guest = TestGuest::start();
    let shell = Shell::of(&guest);
    let job = shell.run(json!({ "script": "seq 1 5000; printf ä€", "output_limit": 1000, "idle_flush_seconds": 30 }));
    assert_eq!((&job["truncated"], &job["offset"]), (&json!(true), &json!(1000)));
    let (mut text, mut offset) = (job["output"].as_str().unwrap().to_owned(), job["offset"].as_u64().unwrap());
    loop {
        let next = shell.wait(&job, offset, json!({ "output_limit": 777 }));
        text.push_str(next["output"].as_str().unwrap());
        offset = next["offset"].as_u64().unwrap();
        if next["done"] == true && next["truncated"] == false {
            break;
        }
    }
    let expected: String = (1..=5000).map(|number| format!("{number}\n")).chain(["ä€".to_owned()]).collect();
    assert!(text == expected, "{} bytes instead of {}", text.len(), expected.len());
    let tail = |limit: u64| {
        let path = format!("/v1/jobs/{}/log/tail?output_limit={limit}", id(&job));
        let tail = shell.request("GET", &path, b"").unwrap();
        assert_eq!((&tail["truncated"], &tail["offset"]), (&json!(false), &json!(offset)));
        tail["output"].as_str().unwrap().to_owned()
    };
    assert_eq!((tail(3), tail(4), tail(8)), ("€".into(), "€".into(), "00\nä€".into()));
    let beyond = shell.post(&format!("/v1/jobs/{}/wait", id(&job)), json!({ "offset": offset + 1 })).unwrap_err();
    assert_eq!((beyond.0, beyond.1.as_str()), (400, "invalid_offset"));
}

#[test]
fn a_prompt_is_seen_and_answered_while_the_job_runs() {
    let guest = TestGuest::start();
    let shell = Shell::of(&guest);
    let script = "printf 'name? '; read name; echo \"hello $name\"; read -r last";
    let job = shell.run(json!({ "script": script, "idle_flush_seconds": 0 }));
    assert_eq!((&job["output"], &job["done"]), (&json!("name? "), &json!(false)));
    let input = format!("/v1/jobs/{}/input", id(&job));
    let answer =
        shell.post(&input, json!({ "text": "wörld\n", "offset": job["offset"], "idle_flush_seconds": 0.3 })).unwrap();
    assert_eq!((&answer["output"], &answer["done"]), (&json!("wörld\nhello wörld\n"), &json!(false)));
    let end =
        shell.post(&input, json!({ "text": "\n", "offset": answer["offset"], "idle_flush_seconds": 30 })).unwrap();
    assert_eq!((&end["done"], &end["exit_code"], &end["output"]), (&json!(true), &json!(0), &json!("\n")));
    let late = shell.post(&input, json!({ "text": "x", "offset": 0 })).unwrap_err();
    assert_eq!((late.0, late.1.as_str()), (409, "job_not_running"));
}

#[test]
fn mode_stdio_gives_bare_stdout_and_reads_from_nowhere() {
    let guest = TestGuest::start();
    let shell = Shell::of(&guest);
    let script = r"cat; printf '\033[31mred\033[0m\r\n'; echo private >&2; test -t 0 || echo no terminal";
    let job = shell.run(json!({ "script": script, "mode": "stdio", "idle_flush_seconds": 30 }));
    assert_eq!(job["output"], "\u{1b}[31mred\u{1b}[0m\r\nno terminal\n");
    let errors = Path::new(job["output_path"].as_str().unwrap()).with_file_name("stderr.log");
    assert_eq!(fs::read_to_string(errors).unwrap(), "private\n");
    let running = shell.run(json!({ "script": "sleep 60", "mode": "stdio", "timeout": 0.01 }));
    let refused =
        shell.post(&format!("/v1/jobs/{}/input", id(&running)), json!({ "text": "x", "offset": 0 })).unwrap_err();
    assert_eq!((refused.0, refused.1.as_str()), (409, "input_unsupported"));
    shell.terminate(&running, 0.0);
}

#[test]
fn a_terminal_job_has_a_terminal_of_the_asked_size_and_clean_output() {
    let guest = TestGuest::start();
    let shell = Shell::of(&guest);
    let script = r"stty size; printf '\033[1mbold\033[0m \033]0;title\007\n10%%\r20%%\r30%%\n'";
    let job = shell.run(json!({ "script": script, "terminal": { "cols": 77, "rows": 33 }, "idle_flush_seconds": 30 }));
    assert_eq!(job["output"], "33 77\nbold \n30%\n");
    assert_eq!(shell.sh("stty size")["output"], "50 200\n");
}

#[test]
fn waits_end_at_the_event_and_not_before() {
    let guest = TestGuest::start();
    let shell = Shell::of(&guest);
    let start = Instant::now();
    let job = shell.run(json!({ "script": "sleep 0.3", "timeout": 30 }));
    assert_eq!(job["done"], true);
    assert!((300..2000).contains(&start.elapsed().as_millis()), "{:?}", start.elapsed());
    let job = shell.run(json!({ "script": "echo now; sleep 60", "idle_flush_seconds": 0 }));
    assert_eq!((&job["output"], &job["status"]), (&json!("now\n"), &json!("running")));
    let start = Instant::now();
    let poll = shell.wait(&job, 4, json!({ "timeout": 0 }));
    assert_eq!((&poll["output"], &poll["done"], &poll["offset"]), (&json!(""), &json!(false), &json!(4)));
    let timed = shell.wait(&job, 4, json!({ "timeout": 0.2 }));
    assert_eq!(timed["done"], false);
    assert!(start.elapsed() >= Duration::from_millis(200));
    // Somebody waits while the job is ended by another: both learn it at once.
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| shell.wait(&job, 4, json!({ "timeout": 60 })));
        assert_eq!(shell.terminate(&job, 5.0)["status"], "terminated");
        assert_eq!(waiter.join().unwrap()["status"], "terminated");
    });
}

#[test]
fn terminate_ends_the_whole_tree_and_returns_when_it_is_gone() {
    let guest = TestGuest::start();
    let shell = Shell::of(&guest);
    let script =
        "sleep 1000 & echo $!; setsid sleep 1000 & echo $!; (setsid sh -c 'sleep 1000 & echo $!; wait' &) ; sleep 1000";
    let job = shell.run(json!({ "script": script, "mode": "stdio", "timeout": 5, "idle_flush_seconds": 0.5 }));
    let pids: Vec<_> = job["output"].as_str().unwrap().lines().map(str::to_owned).collect();
    assert_eq!(pids.len(), 3, "{job}");
    assert!(pids.iter().all(|pid| is_alive(pid)));
    let start = Instant::now();
    let view = shell.terminate(&job, 30.0);
    assert!(start.elapsed() < Duration::from_secs(5), "the grace is a maximum: {:?}", start.elapsed());
    assert!(!pids.iter().any(|pid| is_alive(pid)));
    assert_eq!((&view["status"], &view["done"], &view["exit_code"]), (&json!("terminated"), &json!(true), &json!(143)));
    assert_eq!(shell.terminate(&job, 30.0)["status"], "terminated", "repeating it is fine");
    assert_eq!(shell.terminate(&shell.sh("exit 4"), 0.0)["status"], "exited", "an end by itself stays one");
}

#[test]
fn traps_run_and_what_ignores_the_request_is_killed_after_the_grace() {
    let guest = TestGuest::start();
    let shell = Shell::of(&guest);
    let polite = shell.run(json!({ "script": "trap 'echo bye; exit 7' TERM; echo up; while :; do sleep 0.05; done", "idle_flush_seconds": 0 }));
    let view = shell.terminate(&polite, 20.0);
    assert_eq!((&view["status"], &view["exit_code"]), (&json!("terminated"), &json!(7)));
    assert!(shell.wait(&polite, 0, json!({}))["output"].as_str().unwrap().ends_with("bye\n"));
    let stubborn = shell
        .run(json!({ "script": "trap '' TERM HUP; echo up; while :; do sleep 0.05; done", "idle_flush_seconds": 0 }));
    let start = Instant::now();
    let view = shell.terminate(&stubborn, 0.3);
    assert_eq!((&view["status"], &view["exit_code"]), (&json!("terminated"), &json!(137)));
    assert!((300..5000).contains(&start.elapsed().as_millis()), "{:?}", start.elapsed());
}

#[test]
fn deletion_takes_finished_jobs_and_running_ones_only_by_force() {
    let guest = TestGuest::start();
    let shell = Shell::of(&guest);
    let delete = |job: &Value, query: &str| shell.request("DELETE", &format!("/v1/jobs/{}{query}", id(job)), b"");
    let done = shell.sh("echo x");
    let directory = Path::new(done["output_path"].as_str().unwrap()).parent().unwrap().to_owned();
    assert_eq!(delete(&done, "").unwrap(), json!({ "job_id": id(&done), "deleted": true }));
    assert!(!directory.exists());
    let again = delete(&done, "").unwrap_err();
    assert_eq!((again.0, again.1.as_str()), (404, "job_not_found"));
    let running = shell.run(json!({ "script": "echo $$; sleep 1000", "idle_flush_seconds": 0 }));
    let refused = delete(&running, "?force=false").unwrap_err();
    assert_eq!((refused.0, refused.1.as_str()), (409, "job_running"));
    let pid = running["output"].as_str().unwrap();
    assert!(is_alive(pid));
    assert_eq!(delete(&running, "?force=true&grace_seconds=5").unwrap()["deleted"], true);
    assert!(!is_alive(pid));
    assert_eq!(shell.request("GET", "/v1/jobs", b"").unwrap(), json!({ "jobs": [] }));
}

#[test]
fn refusals_have_their_status_and_code() {
    let guest = TestGuest::start();
    let shell = Shell::of(&guest);
    let job = shell.sh("true");
    let at = |suffix: &str| format!("/v1/jobs/{}{suffix}", id(&job));
    let run = "/v1/jobs/run".to_owned();
    let cases = [
        ("POST", run.clone(), "{", 400, "invalid_request", "request body"),
        ("POST", run.clone(), "{}", 400, "invalid_request", "missing field `script`"),
        ("POST", run.clone(), r#"{"script":"x","extra":1}"#, 400, "invalid_request", "unknown field `extra`"),
        ("POST", run.clone(), r#"{"script":"x","mode":"tty"}"#, 400, "invalid_request", "unknown variant `tty`"),
        ("POST", run.clone(), r#"{"script":"x","timeout":301}"#, 422, "validation_error", "timeout is 301"),
        ("POST", run.clone(), r#"{"script":"x","env":{"A=B":"c"}}"#, 422, "validation_error", "\"A=B\""),
        ("POST", run.clone(), r#"{"script":"x","cwd":"/nonexistent"}"#, 400, "invalid_cwd", "does not exist"),
        ("POST", run.clone(), r#"{"script":"x","cwd":"/etc/passwd"}"#, 400, "invalid_cwd", "is not a directory"),
        ("GET", run, "", 405, "method_not_allowed", "takes POST"),
        ("GET", at(""), "", 200, "", ""),
        ("GET", "/v1/jobs/unknown".into(), "", 404, "job_not_found", "unknown"),
        ("GET", "/v1/jobs/..%2Fx".into(), "", 400, "invalid_job_id", "malformed"),
        ("GET", "/v1/nope".into(), "", 404, "not_found", "/v1/nope"),
        ("GET", "/v1/jobs?limit=1001".into(), "", 422, "validation_error", "limit is 1001"),
        ("GET", "/v1/jobs?x=1".into(), "", 422, "validation_error", "unknown parameter"),
        ("GET", at("/log/tail?output_limit=0"), "", 422, "validation_error", "output_limit is 0"),
        ("POST", at("/wait"), "{}", 400, "invalid_request", "missing field `offset`"),
        ("POST", at("/wait"), r#"{"offset":1}"#, 400, "invalid_offset", "has 0 bytes"),
        ("POST", at("/input"), r#"{"offset":0,"text":"x"}"#, 409, "job_not_running", "has ended"),
        ("POST", at("/terminate"), r#"{"grace_seconds":301}"#, 422, "validation_error", "grace_seconds is 301"),
        ("POST", at("/terminate"), "", 200, "", ""),
        ("DELETE", at("?force=maybe"), "", 422, "validation_error", "force"),
    ];
    for (method, path, body, status, code, text) in cases {
        match shell.request(method, &path, body.as_bytes()) {
            Ok(_) => assert_eq!(status, 200, "{method} {path} {body}"),
            Err(refused) => {
                assert_eq!((refused.0, refused.1.as_str()), (status, code), "{method} {path} {body}: {}", refused.2);
                assert!(refused.2.contains(text), "{method} {path} {body}: {}", refused.2);
            }
        }
    }
    // The length alone is enough to refuse.
    let mut connection = guest.connect("shellctl.sock");
    let head = format!("POST /v1/jobs/run HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n", 9 << 20);
    connection.write_all(head.as_bytes()).unwrap();
    let mut answer = String::new();
    connection.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 413 ") && answer.contains("\"request_too_large\""), "{answer}");
}

#[test]
fn jobs_that_do_not_start_end_like_in_a_shell() {
    let guest = TestGuest::start();
    let shell = Shell::of(&guest);
    for (script, code, text) in [
        ("#!/nonexistent/interpreter\n", 127, "No such file"),
        ("#!/etc/passwd\n", 126, "Permission denied"),
        ("#!\n", 126, "names no interpreter"),
    ] {
        for mode in ["pty", "stdio"] {
            let job = shell.run(json!({ "script": script, "mode": mode }));
            assert_eq!((&job["status"], &job["exit_code"]), (&json!("exited"), &json!(code)), "{script:?}");
            let file = if mode == "pty" { "output.log" } else { "stderr.log" };
            let said =
                fs::read_to_string(Path::new(job["output_path"].as_str().unwrap()).with_file_name(file)).unwrap();
            assert!(said.starts_with("leasehold: ") && said.contains(text), "{said:?}");
        }
    }
    assert_eq!(shell.sh("#!/bin/cat\nitself\n")["output"], "#!/bin/cat\nitself\n");
    assert_eq!(shell.sh("")["exit_code"], 0);
    assert_eq!(shell.sh("kill -9 $$")["exit_code"], 137);
}

#[test]
fn environment_and_directory_follow_the_rules() {
    let guest = TestGuest::start();
    let shell = Shell::of(&guest);
    let home = guest.path("new-home");
    let script = "pwd; echo \"$HOME|$TMPDIR|$TMP|$TEMP|$A|$FROM_IDENTITY|$E2B_SANDBOX_ID\"";
    let env = json!({ "HOME": home, "A": "a\nb=$c", "TMP": "/own" });
    let job = shell.run(json!({ "script": script, "cwd": "~", "env": env, "mode": "stdio" }));
    let home = home.to_str().unwrap();
    assert_eq!(job["output"], format!("{home}\n{home}|{home}|/own|{home}|a\nb=$c|yes|i0123\n"));
    assert_eq!(fs::metadata(home).unwrap().mode() & 0o777, 0o755);
    fs::create_dir(guest.path("new-home/sub")).unwrap();
    for cwd in ["~/sub", "sub", "./x/../sub"] {
        let job = shell.post("/v1/jobs/run", json!({ "script": "pwd -P", "cwd": cwd, "env": { "HOME": home } }));
        if cwd.contains('x') {
            assert_eq!(job.unwrap_err().1, "invalid_cwd", "what is not there cannot be passed through");
        } else {
            let expected = format!("{}\n", fs::canonicalize(format!("{home}/sub")).unwrap().display());
            assert_eq!(job.unwrap()["output"], expected, "{cwd}");
        }
    }
}

#[test]
fn jobs_and_their_files_are_the_default_users() {
    let mut identity = identity();
    identity.default_user = "nobody".into();
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    fs::write(dir.path().join("identity.json"), serde_json::to_vec(&identity).unwrap()).unwrap();
    let guest = TestGuest::launch(dir, &["--envd-port", "0", "--shellctl-port", "0"]).unwrap();
    let shell = Shell::of(&guest);
    let job = shell.run(
        json!({ "script": "id -u; grep CapEff /proc/self/status; cat \"$0\" | wc -l", "cwd": "/tmp", "mode": "stdio" }),
    );
    assert_eq!(job["output"], "65534\nCapEff:\t0000000000000000\n0\n");
    for (path, mode) in [("state/shellctl", 0o700), ("state/shellctl/jobs", 0o700)] {
        let found = fs::metadata(guest.path(path)).unwrap();
        assert_eq!((found.uid(), found.mode() & 0o777), (65534, mode), "{path}");
    }
    let refused = shell.post("/v1/jobs/run", json!({ "script": "x", "cwd": "/root" })).unwrap_err();
    assert!(refused.2.contains("by user 'nobody'"), "{}", refused.2);
}

#[test]
fn background_processes_do_not_hold_up_the_end_and_their_output_follows() {
    let guest = TestGuest::start();
    let shell = Shell::of(&guest);
    let go = guest.path("go");
    let script = format!("(while ! test -e {}; do sleep 0.02; done; echo late) & echo early", go.display());
    let start = Instant::now();
    let job = shell.run(json!({ "script": script, "mode": "stdio", "idle_flush_seconds": 30 }));
    assert!(start.elapsed() < Duration::from_secs(5));
    assert_eq!((&job["done"], &job["exit_code"], &job["output"]), (&json!(true), &json!(0), &json!("early\n")));
    assert!(shell.view(&job)["reason"].as_str().unwrap().contains("output may continue"));
    fs::write(go, "").unwrap();
    wait_for("the late output", || shell.wait(&job, 6, json!({}))["output"] == "late\n");
}

#[test]
fn a_cold_start_keeps_finished_jobs_and_says_which_are_lost() {
    let dir = tempfile::tempdir().unwrap();
    let state = dir.path().join("kept");
    let launch = |identity: &leasehold_guest::Identity| {
        let own = tempfile::tempdir_in(dir.path()).unwrap();
        fs::write(own.path().join("identity.json"), serde_json::to_vec(identity).unwrap()).unwrap();
        let args = ["--envd-port", "0", "--shellctl-port", "0", "--state", state.to_str().unwrap()];
        TestGuest::launch(own, &args).unwrap()
    };
    let (done, running) = {
        let guest = launch(&identity());
        let shell = Shell::of(&guest);
        (shell.sh("echo kept; exit 5"), shell.run(json!({ "script": "echo up; sleep 1000", "idle_flush_seconds": 0 })))
    };
    let guest = launch(&identity());
    let shell = Shell::of(&guest);
    let again = shell.wait(&done, 0, json!({}));
    assert_eq!(
        (&again["status"], &again["exit_code"], &again["output"]),
        (&json!("exited"), &json!(5), &json!("kept\n"))
    );
    let lost = shell.wait(&running, 0, json!({}));
    assert_eq!((&lost["status"], &lost["done"], &lost["exit_code"]), (&json!("lost"), &json!(true), &json!(null)));
    assert_eq!(lost["output"], "up\n");
    drop(guest);
    let clone = launch(&leasehold_guest::Identity { sandbox_id: "another".into(), ..identity() });
    assert_eq!(Shell::of(&clone).request("GET", "/v1/jobs", b"").unwrap(), json!({ "jobs": [] }));
    assert_eq!(fs::read_dir(state.join("shellctl/jobs")).unwrap().count(), 0);
}
