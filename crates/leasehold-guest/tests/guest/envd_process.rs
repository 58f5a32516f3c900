//! `process.Process` as E2B's SDKs use it.

use std::time::{Duration, Instant};

use base64::Engine as _;
use envd::Code;
use serde_json::{Value, json};

use super::client::{Said, TestGuest, own_name, wait_for};

fn base64(bytes: &[u8]) -> String {
    base64::engine::general_purpose::STANDARD.encode(bytes)
}

fn selector(pid: u32) -> Value {
    json!({ "pid": pid })
}

#[test]
fn the_end_comes_after_the_last_byte_500_times() {
    let guest = TestGuest::start();
    for _ in 0..500 {
        let said = guest.sh("printf x; exit 3", json!({})).finish();
        assert_eq!(said.stdout, b"x");
        let end = said.end.unwrap();
        assert_eq!((end.exit_code, end.exited, end.status.as_str()), (3, true, "exit status 3"));
        assert_eq!(end.error.as_deref(), Some("exit status 3"));
        assert_eq!(said.error, None);
    }
}

#[test]
fn streams_are_separate_and_blank_lines_survive() {
    let said = TestGuest::start().sh("printf 'a\\n\\nb\\r\\n\\n'; printf e >&2", json!({})).finish();
    assert_eq!((said.stdout.as_slice(), said.stderr.as_slice()), (&b"a\n\nb\r\n\n"[..], &b"e"[..]));
}

#[test]
fn a_background_process_does_not_hold_the_command_up() {
    let start = Instant::now();
    let said = TestGuest::start().sh("sleep 30 & echo hi", json!({})).finish();
    assert_eq!(said.stdout, b"hi\n");
    assert!(start.elapsed() < Duration::from_secs(2));
}

#[test]
fn environment_and_working_directory_follow_the_request() {
    let guest = TestGuest::start();
    let script = "pwd; echo $FROM_IDENTITY $MINE $E2B_SANDBOX $E2B_SANDBOX_ID $E2B_TEMPLATE_ID $USER $LOGNAME; id -un";
    let process = json!({ "cmd": "sh", "args": ["-c", script], "cwd": "/usr", "envs": { "MINE": "a=b" } });
    let said = guest.sh("", json!({ "process": process })).finish();
    let name = own_name();
    let expected = format!("/usr\nyes a=b true i0123 host {name} {name}\n{name}\n");
    assert_eq!(String::from_utf8(said.stdout).unwrap(), expected);
    assert_eq!(guest.sh("pwd", json!({})).finish().stdout, b"/\n", "the sandbox's working directory is the default");
}

#[test]
fn failed_starts_have_their_code_and_text() {
    let guest = TestGuest::start();
    let fail = |process: Value| {
        let error = guest.sh("", json!({ "process": process })).finish().error.unwrap();
        (error.code, error.message)
    };
    let (code, message) = fail(json!({ "cmd": "sh", "cwd": "/no/such" }));
    assert_eq!((code, message.as_str()), (Code::InvalidArgument, "cwd '/no/such' does not exist"));
    let (code, message) = fail(json!({ "cmd": "no-such-command" }));
    assert_eq!((code, message.as_str()), (Code::NotFound, "command not found: 'no-such-command'"));
    assert_eq!(fail(json!({ "cmd": "/etc" })).0, Code::PermissionDenied);
    assert_eq!(fail(json!({ "cmd": "sh", "args": ["a\0b"] })).0, Code::InvalidArgument);
    assert!(fail(json!({ "cmd": "sh", "envs": { "A=B": "c" } })).1.contains("\"A=B\""));
    assert_eq!(fail(json!({ "cmd": "sh", "args": ["x".repeat(1 << 20)] })).0, Code::InvalidArgument);
    let stranger = guest.client().header("Authorization", "Basic bm9ib2R5LWhlcmU6").sh("true", json!({})).finish();
    let error = stranger.error.unwrap();
    assert_eq!((error.code, error.message.as_str()), (Code::Unauthenticated, "invalid username: 'nobody-here'"));
    let bad = guest.client().header("Connect-Timeout-Ms", "soon").sh("true", json!({})).finish();
    assert_eq!(bad.error.unwrap().code, Code::InvalidArgument);
    // Each has reported, and leaves by itself.
    wait_for("the supervisors of failed starts to leave", || guest.children().is_empty());
}

#[test]
fn another_user_is_chosen_by_basic_credentials() {
    if !rustix::process::geteuid().is_root() || leasehold_guest::users::Users::default().by_name("nobody").is_err() {
        eprintln!("skipped: needs root and a user called nobody");
        return;
    }
    let guest = TestGuest::start();
    let said =
        guest.client().header("Authorization", "Basic bm9ib2R5Og==").sh("id -un; echo $USER", json!({})).finish();
    assert_eq!(said.stdout, b"nobody\nnobody\n");
}

#[test]
fn all_bytes_pass_in_and_out() {
    let guest = TestGuest::start();
    let mut stream = guest.sh("echo ready >&2; exec cat", json!({ "stdin": true }));
    let mut said = Said::default();
    stream.until(&mut said, |said| said.stderr == b"ready\n");
    let bytes: Vec<u8> = (0..=255).cycle().take(100_000).collect();
    let pid = stream.pid;
    let mut client = guest.client();
    for piece in bytes.chunks(30_000) {
        let input = json!({ "process": selector(pid), "input": { "stdin": base64(piece) } });
        assert_eq!(client.call("/process.Process/SendInput", input), Ok(json!({})));
    }
    let process = json!({ "process": selector(pid) });
    assert_eq!(client.call("/process.Process/CloseStdin", process.clone()), Ok(json!({})));
    stream.until(&mut said, |_| false);
    assert!(said.stdout == bytes);
    assert_eq!(client.call("/process.Process/CloseStdin", process).unwrap_err().code, Code::NotFound);
}

#[test]
fn input_that_cannot_be_given_is_refused() {
    let guest = TestGuest::start();
    let stream = guest.sh("exec sleep 30", json!({}));
    let pid = stream.pid;
    let input =
        |input: Value| guest.call("/process.Process/SendInput", json!({ "process": selector(pid), "input": input }));
    let error = input(json!({ "stdin": base64(b"x") })).unwrap_err();
    assert_eq!(error.code, Code::Internal);
    assert!(error.message.starts_with("error writing to stdin: "), "{error}");
    assert_eq!(input(json!({ "pty": base64(b"x") })).unwrap_err().code, Code::Internal);
    assert_eq!(input(Value::Null).unwrap_err().code, Code::Unimplemented);
    let close = guest.call("/process.Process/CloseStdin", json!({ "process": selector(pid) }));
    assert_eq!(close.unwrap_err().code, Code::Unknown);
    let resize = json!({ "process": selector(pid), "pty": { "size": { "cols": 1, "rows": 1 } } });
    assert_eq!(guest.call("/process.Process/Update", resize).unwrap_err().code, Code::Internal);
    let signal = json!({ "process": selector(pid), "signal": "SIGNAL_UNSPECIFIED" });
    assert_eq!(guest.call("/process.Process/SendSignal", signal).unwrap_err().code, Code::Unimplemented);
    assert_eq!(guest.call("/process.Process/Nope", json!({})).unwrap_err().code, Code::Unimplemented);
}

#[test]
fn unknown_processes_are_not_found() {
    let guest = TestGuest::start();
    for (process, text) in [
        (json!({ "pid": 999_999_999 }), "process with pid 999999999 not found"),
        (json!({ "tag": "web" }), "process with tag web not found"),
    ] {
        let signal = json!({ "process": process, "signal": "SIGNAL_SIGKILL" });
        let error = guest.call("/process.Process/SendSignal", signal).unwrap_err();
        assert_eq!((error.code, error.message.as_str()), (Code::NotFound, text));
        let said = guest.client().stream("/process.Process/Connect", &[json!({ "process": process })]).finish();
        assert_eq!(said.error.unwrap().message, text);
    }
}

#[test]
fn signals_end_commands_and_kill_takes_the_whole_tree() {
    let guest = TestGuest::start();
    let signal = |pid: u32, signal: &str| {
        guest.call("/process.Process/SendSignal", json!({ "process": selector(pid), "signal": signal })).unwrap();
    };
    let stream = guest.sh("exec sleep 30", json!({}));
    signal(stream.pid, "SIGNAL_SIGTERM");
    let end = stream.finish().end.unwrap();
    assert_eq!((end.exit_code, end.exited, end.status.as_str()), (-1, false, "signal: terminated"));

    let mut stream = guest.sh("(setsid sleep 30 &) ; setsid sh -c 'sleep 30 & wait' & echo up; wait", json!({}));
    let mut said = Said::default();
    stream.until(&mut said, |said| said.stdout == b"up\n");
    signal(stream.pid, "SIGNAL_SIGKILL");
    stream.until(&mut said, |_| false);
    assert_eq!(said.end.unwrap().status, "signal: killed");
    // The supervisor leaves when its tree is empty.
    wait_for("the supervisor's end", || guest.children().is_empty());
}

#[test]
fn the_deadline_of_start_kills_and_is_reported_once() {
    let guest = TestGuest::start();
    let client = || guest.client().header("Connect-Timeout-Ms", "300");
    let said = client().sh("echo a; setsid sleep 30 & exec sleep 30", json!({})).finish();
    assert_eq!((said.stdout.as_slice(), said.end), (&b"a\n"[..], None));
    let error = said.error.unwrap();
    assert_eq!(error.code, Code::DeadlineExceeded);
    wait_for("the end of the tree", || guest.children().is_empty());

    // Also when the client has left in the meantime.
    drop(client().sh("exec sleep 30", json!({})));
    wait_for("the end of the abandoned command", || guest.children().is_empty());
    let quick = client().sh("exit 2", json!({})).finish();
    assert_eq!(quick.end.unwrap().exit_code, 2);
    let unlimited = guest.client().header("Connect-Timeout-Ms", "0").sh("sleep 0.4; echo b", json!({})).finish();
    assert_eq!(unlimited.stdout, b"b\n");
}

#[test]
fn the_deadline_of_connect_ends_only_its_stream() {
    let guest = TestGuest::start();
    let mut stream = guest.sh("read x; exit 4", json!({ "stdin": true }));
    let process = json!({ "process": selector(stream.pid) });
    let visitor = guest
        .client()
        .header("Connect-Timeout-Ms", "100")
        .stream("/process.Process/Connect", std::slice::from_ref(&process));
    assert_eq!(visitor.finish().error.unwrap().code, Code::DeadlineExceeded);
    let mut listed = guest.call("/process.Process/List", json!({})).unwrap();
    let listed = listed["processes"].take();
    assert_eq!(listed[0]["pid"], stream.pid);
    assert_eq!(listed[0]["config"], json!({ "cmd": "/bin/sh", "args": ["-c", "read x; exit 4"] }));
    let input = json!({ "process": selector(stream.pid), "input": { "stdin": base64(b"\n") } });
    guest.call("/process.Process/SendInput", input).unwrap();
    let mut said = Said::default();
    stream.until(&mut said, |_| false);
    assert_eq!(said.end.unwrap().exit_code, 4);
    assert_eq!(guest.call("/process.Process/List", json!({})), Ok(json!({})));
    // It has ended, and a late follower still learns how.
    let late = guest.client().stream("/process.Process/Connect", &[process]).finish();
    assert_eq!(late.end.unwrap().exit_code, 4);
}

#[test]
fn leaving_a_stream_does_not_end_the_process_and_tags_find_it_again() {
    let guest = TestGuest::start();
    let stream = guest.sh("read x; echo got $x", json!({ "stdin": true, "tag": "job" }));
    let pid = stream.pid;
    drop(stream);
    let process = json!({ "tag": "job" });
    let mut again = guest.client().stream("/process.Process/Connect", &[json!({ "process": process })]);
    let first = again.next_message().unwrap();
    assert_eq!(first, json!({ "event": { "start": { "pid": pid } } }));
    guest
        .call("/process.Process/SendInput", json!({ "process": process, "input": { "stdin": base64(b"it\n") } }))
        .unwrap();
    let said = again.finish();
    assert_eq!(said.stdout, b"got it\n");
}

#[test]
fn quiet_streams_send_keepalives() {
    let guest = TestGuest::start();
    let said = guest.client().header("Keepalive-Ping-Interval", "1").sh("sleep 2.5", json!({})).finish();
    assert!((1..=2).contains(&said.keepalives), "{} keepalives in 2.5 seconds, one due each", said.keepalives);
}

#[test]
fn a_terminal_is_sized_resized_typed_into_and_ends_with_its_code() {
    let guest = TestGuest::start();
    let pty = json!({ "pty": { "size": { "cols": 100, "rows": 30 } } });
    let mut stream = guest.sh("stty size; read x; stty size; echo \"got $x\"; exit 7", pty);
    let mut said = Said::default();
    stream.until(&mut said, |said| said.pty.ends_with(b"30 100\r\n"));
    let resize = json!({ "process": selector(stream.pid), "pty": { "size": { "cols": 40, "rows": 2 } } });
    guest.call("/process.Process/Update", resize).unwrap();
    let input = json!({ "process": selector(stream.pid), "input": { "pty": base64("ö\n".as_bytes()) } });
    guest.call("/process.Process/SendInput", input).unwrap();
    stream.until(&mut said, |_| false);
    let text = String::from_utf8(said.pty).unwrap();
    assert!(text.contains("2 40\r\n") && text.contains("got ö\r\n"), "{text:?}");
    assert_eq!((said.end.unwrap().exit_code, said.error), (7, None));
}

#[test]
fn streamed_input_keeps_its_order() {
    let guest = TestGuest::start();
    let mut stream = guest.sh("echo ready >&2; exec cat", json!({ "stdin": true }));
    let mut said = Said::default();
    stream.until(&mut said, |said| said.stderr == b"ready\n");
    let mut messages = vec![json!({ "start": { "process": selector(stream.pid) } }), json!({ "keepalive": {} })];
    let mut expected = Vec::new();
    for number in 0..10_000 {
        let key = format!("{number},").into_bytes();
        messages.push(json!({ "data": { "input": { "stdin": base64(&key) } } }));
        expected.extend(key);
    }
    let mut answer = guest.client().stream("/process.Process/StreamInput", &messages);
    assert_eq!(answer.next_message(), Some(json!({})));
    assert_eq!(answer.next_message(), None);
    assert_eq!(answer.end.unwrap().error, None);
    guest.call("/process.Process/CloseStdin", json!({ "process": selector(stream.pid) })).unwrap();
    stream.until(&mut said, |_| false);
    assert!(said.stdout == expected);
    let bad = guest.client().stream("/process.Process/StreamInput", &[json!({ "keepalive": {} })]).finish();
    assert_eq!(bad.error.unwrap().code, Code::InvalidArgument);
}

#[test]
fn three_hundred_commands_at_once_all_end_right_and_leave_no_zombies() {
    let guest = TestGuest::start();
    std::thread::scope(|scope| {
        for worker in 0..30 {
            let guest = &guest;
            scope.spawn(move || {
                for round in 0..10 {
                    let code = (worker * 10 + round) % 256;
                    let said = guest.sh(&format!("exit {code}"), json!({})).finish();
                    assert_eq!(said.end.unwrap().exit_code, code);
                }
            });
        }
    });
    wait_for("no children", || guest.children().is_empty());
}

#[test]
fn orphans_of_a_lost_supervisor_are_reaped() {
    let guest = TestGuest::start();
    let stream = guest.sh("sleep 0.2", json!({}));
    let [(supervisor, _)] = guest.children()[..] else { panic!("one supervisor") };
    let pid = rustix::process::Pid::from_raw(i32::try_from(supervisor).unwrap()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    assert_eq!(stream.finish().end.unwrap().exit_code, -1);
    wait_for("the supervisor to be reaped", || guest.children().is_empty());
}

#[test]
fn a_killed_spawner_is_replaced_and_its_commands_live_on() {
    let guest = TestGuest::start();
    let stream = guest.sh("read x; exit 8", json!({ "stdin": true }));
    let spawner = guest.spawner().expect("a spawner");
    let pid = rustix::process::Pid::from_raw(i32::try_from(spawner).unwrap()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    wait_for("its end", || guest.spawner() != Some(spawner));
    assert_eq!(guest.sh("exit 9", json!({})).finish().end.unwrap().exit_code, 9);
    let close = json!({ "process": selector(stream.pid) });
    guest.call("/process.Process/CloseStdin", close).unwrap();
    assert_eq!(stream.finish().end.unwrap().exit_code, 8);
}

#[test]
fn one_that_never_reads_does_not_stall_the_others() {
    let guest = TestGuest::start();
    let mut stream = guest.sh("read x; head -c 20000000 /dev/zero; exit 1", json!({ "stdin": true }));
    let process = json!({ "process": selector(stream.pid) });
    let mut stalled = guest.client().stream("/process.Process/Connect", &[process]);
    stalled.next().unwrap();
    let input = json!({ "process": selector(stream.pid), "input": { "stdin": base64(b"\n") } });
    guest.call("/process.Process/SendInput", input).unwrap();
    let mut said = Said::default();
    stream.until(&mut said, |_| false);
    assert_eq!((said.stdout.len(), said.end.unwrap().exit_code), (20_000_000, 1));
    // The stalled one is told, and never that all went well.
    let late = stalled.finish();
    assert_eq!((late.end, late.error.unwrap().code), (None, Code::ResourceExhausted));
}

#[test]
fn output_that_nobody_follows_does_not_grow_the_guest() {
    let guest = TestGuest::start();
    let resident = || {
        let status = std::fs::read_to_string(format!("/proc/{}/status", guest.pid())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap().trim().to_owned();
        line.trim_end_matches(" kB").parse::<usize>().unwrap()
    };
    let stream = guest.sh("read x; head -c 300000000 /dev/zero; exit 5", json!({ "stdin": true }));
    let pid = stream.pid;
    drop(stream);
    let before = resident();
    let input = json!({ "process": selector(pid), "input": { "stdin": base64(b"\n") } });
    guest.call("/process.Process/SendInput", input).unwrap();
    wait_for("the end", || guest.call("/process.Process/List", json!({})) == Ok(json!({})));
    assert!(resident() < before + 4096, "{before} kB before, {} kB after", resident());
}

#[test]
fn the_guest_has_no_event_loop() {
    let guest = TestGuest::start();
    guest.sh("true", json!({})).finish();
    for entry in std::fs::read_dir(format!("/proc/{}/fd", guest.pid())).unwrap() {
        let target = std::fs::read_link(entry.unwrap().path()).unwrap_or_default();
        assert!(!target.to_string_lossy().contains("eventpoll"));
    }
}
