//! `leasehold run` and what belongs to it, on a real host.

#![expect(clippy::unwrap_used, reason = "a test ends at the first surprise")]

mod support;

use std::io::{BufRead as _, BufReader, Read as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::process::ExitStatusExt as _;
use std::time::Duration;

use rustix::process::Signal;
use support::{Place, signal, text, until};

#[test]
fn a_command_runs_in_a_fresh_sandbox_and_nothing_is_left() {
    let place = Place::new();
    assert_eq!(place.ok(["run", "--", "echo", "hi"]), "hi\n");
    assert!(place.ids().is_empty());
}

#[test]
fn stdout_stderr_and_exit_code_are_the_commands_own() {
    let place = Place::new();
    let output = place.output(["run", "--", "sh", "-c", "echo out; echo err >&2; exit 7"]);
    assert_eq!((text(&output.stdout), text(&output.stderr)), ("out\n".into(), "err\n".into()));
    assert_eq!(output.status.code(), Some(7));
    assert_eq!(place.output(["run", "--", "sh", "-c", "kill -KILL $$"]).status.code(), Some(137));
}

#[test]
fn a_kept_sandbox_keeps_its_home_between_commands() {
    let place = Place::new();
    place.ok(["run", "--as", "me", "--", "sh", "-c", "echo yesterday >> ~/diary"]);
    assert_eq!(place.ok(["run", "--as", "me", "--", "sh", "-c", "cat ~/diary"]), "yesterday\n");
    assert_eq!(
        place.ok(["exec", "me", "--", "sh", "-c", "cat ~/diary; pwd; echo $HOME; id -un"]),
        "yesterday\n/workspace\n/home/user\nuser\n"
    );
    assert_eq!(place.ids().len(), 1);
    // The Home also outlives the host, whose end takes the memory of paused sandboxes with it.
    assert!(place.ok(["ls"]).contains("me "));
}

#[test]
fn input_reaches_the_command_byte_for_byte_and_ends() {
    let place = Place::new();
    let input: Vec<u8> = (0..=255).cycle().take(300_000).collect();
    let output = place.with_input(["run", "--", "cat"], &input);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(output.stdout == input, "{} bytes came back of {}", output.stdout.len(), input.len());
}

#[test]
fn without_input_a_command_reads_an_end_of_file() {
    let place = Place::new();
    assert_eq!(place.ok(["run", "--", "sh", "-c", "cat; echo done"]), "done\n");
}

#[test]
fn output_comes_while_the_command_runs() {
    let place = Place::new();
    let mut child = place
        .command(["run", "--", "sh", "-c", "echo first; read line; echo second $line"])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut output = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    output.read_line(&mut line).unwrap();
    assert_eq!(line, "first\n");
    std::io::Write::write_all(child.stdin.as_mut().unwrap(), b"go\n").unwrap();
    output.read_to_string(&mut line).unwrap();
    assert_eq!(line, "first\nsecond go\n");
    assert!(child.wait().unwrap().success());
}

#[test]
fn environment_directory_and_user_are_as_asked() {
    let place = Place::new();
    let script = "printf '%s|' \"$A\" \"$B\"; pwd; id -un";
    assert_eq!(
        place.ok(["run", "-e", "A=x=y", "--env", "B=", "--cwd", "/tmp", "--user", "root", "--", "sh", "-c", script]),
        "x=y||/tmp\nroot\n"
    );
}

#[test]
fn json_tells_the_life_of_a_command_line_by_line() {
    let place = Place::new();
    let output = place.output(["run", "--json", "--", "sh", "-c", "printf 'a\\377'; exit 3"]);
    assert_eq!(output.status.code(), Some(3));
    let lines: Vec<serde_json::Value> =
        text(&output.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines[0]["event"], "start");
    assert_eq!((&lines[1]["event"], &lines[1]["base64"]), (&"stdout".into(), &"Yf8=".into()));
    assert_eq!((&lines[2]["event"], &lines[2]["exit_code"]), (&"end".into(), &3.into()));
}

#[test]
fn a_command_that_cannot_start_has_the_code_of_a_shell() {
    let place = Place::new();
    let missing = place.output(["run", "--", "no-such-command"]);
    assert_eq!(missing.status.code(), Some(127), "{}", text(&missing.stderr));
    assert!(text(&missing.stderr).contains("no-such-command"), "{}", text(&missing.stderr));
    let plain = place.output(["run", "--", "/etc/passwd"]);
    assert_eq!(plain.status.code(), Some(126), "{}", text(&plain.stderr));
    let nowhere = place.output(["run", "--cwd", "/nowhere", "--", "true"]);
    assert_eq!(nowhere.status.code(), Some(125));
    assert!(text(&nowhere.stderr).contains("/nowhere"), "{}", text(&nowhere.stderr));
}

#[test]
fn a_time_limit_ends_the_command() {
    let place = Place::new();
    assert_eq!(place.output(["run", "--timeout", "1", "--", "sleep", "100"]).status.code(), Some(124));
    assert_eq!(place.output(["run", "--timeout", "0", "--", "true"]).status.code(), Some(2));
}

#[test]
fn arguments_are_passed_on_exactly_or_refused() {
    let place = Place::new();
    let odd = ["a b", "c\nd", "$(id)", "\"'", "", "ü"];
    let output = place.ok(["run", "--", "printf", "<%s>"].into_iter().chain(odd));
    assert_eq!(output, odd.map(|argument| format!("<{argument}>")).concat());
    let bytes = std::ffi::OsStr::from_bytes(b"\xff");
    let refused = place.output(["run", "--", "echo"].map(std::ffi::OsStr::new).into_iter().chain([bytes]));
    assert_eq!(refused.status.code(), Some(125));
    assert!(text(&refused.stderr).contains("argument 1"), "{}", text(&refused.stderr));
    // The kernel takes at most 128 KiB in one argument: more is refused by the command line already, or by the sandbox.
    let long = "x".repeat(120 << 10);
    assert_eq!(place.ok(["run", "--", "printf", "%s", &long]).len(), long.len());
}

#[test]
fn ctrl_c_ends_the_command_and_its_sandbox() {
    let place = Place::new();
    let mut child =
        place.spawn(["run", "--", "sh", "-c", "trap 'echo bye; exit 0' TERM; echo up; while :; do sleep 0.05; done"]);
    let mut output = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    output.read_line(&mut line).unwrap();
    assert_eq!(line, "up\n");
    signal(&child, Signal::INT);
    output.read_to_string(&mut line).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert_eq!(line, "up\nbye\n");
    assert!(place.ids().is_empty());
}

#[test]
fn a_killed_client_leaves_no_sandbox() {
    let place = Place::new();
    let mut child = place.spawn(["run", "--", "sh", "-c", "echo up; sleep 1000"]);
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    signal(&child, Signal::KILL);
    assert_eq!(child.wait().unwrap().signal(), Some(9));
    let ids = until(Duration::from_secs(10), || place.ids(), Vec::is_empty);
    assert!(ids.is_empty(), "{ids:?}");
}

#[test]
fn a_second_ctrl_c_does_not_wait_and_leaves_nothing() {
    let place = Place::new();
    let mut child = place.spawn(["run", "--", "sh", "-c", "trap '' TERM; echo up; while :; do sleep 0.05; done"]);
    let mut output = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    output.read_line(&mut line).unwrap();
    let started = std::time::Instant::now();
    // The second one counts only once the first has been taken; a few more do no harm.
    let ended = until(
        Duration::from_secs(8),
        || {
            signal(&child, Signal::INT);
            rustix::process::waitid(
                rustix::process::WaitId::Pid(rustix::process::Pid::from_child(&child)),
                rustix::process::WaitIdOptions::EXITED
                    | rustix::process::WaitIdOptions::NOHANG
                    | rustix::process::WaitIdOptions::NOWAIT,
            )
            .unwrap()
            .is_some()
        },
        |ended| *ended,
    );
    assert!(ended, "still waiting after {:?}", started.elapsed());
    assert_eq!(child.wait().unwrap().code(), Some(130));
    let ids = until(Duration::from_secs(10), || place.ids(), Vec::is_empty);
    assert!(ids.is_empty(), "{ids:?}");
}

/// The state that `ls` shows of the only sandbox.
fn state(place: &Place) -> String {
    let listed = place.ok(["ls", "--json"]);
    let row: serde_json::Value = serde_json::from_str(listed.trim()).unwrap();
    row["state"].as_str().unwrap().to_owned()
}

#[test]
fn a_killed_client_leaves_its_kept_sandbox_paused() {
    let place = Place::new();
    for _ in 0..2 {
        let mut child = place.spawn(["run", "--as", "me", "--", "sh", "-c", "echo up; sleep 1000"]);
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(state(&place), "running");
        signal(&child, Signal::KILL);
        child.wait().unwrap();
        assert_eq!(until(Duration::from_secs(10), || state(&place), |state| state == "paused"), "paused");
    }
}

#[test]
fn a_sandbox_that_dies_under_its_command_is_told_with_the_reason_and_keeps_its_files() {
    let place = Place::new();
    let mut child = place.spawn(["run", "--as", "me", "--", "sh", "-c", "echo kept > ~/f; echo up; sleep 1000"]);
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    for pid in place.guests() {
        rustix::process::kill_process(pid, Signal::KILL).unwrap();
    }
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(125));
    let complaint = text(&output.stderr);
    assert!(complaint.contains("the sandbox ended under the command"), "{complaint}");
    assert_eq!(place.ok(["exec", "me", "--", "sh", "-c", "cat ~/f"]), "kept\n");
}

#[test]
fn a_reader_that_leaves_ends_the_command() {
    let place = Place::new();
    let mut child = place.spawn(["run", "--", "yes"]);
    let mut some = [0; 100];
    child.stdout.take().unwrap().read_exact(&mut some).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(141));
}

#[test]
fn eight_runs_at_once_and_one_of_them_killed() {
    let place = Place::new();
    let mut victim = place.spawn(["run", "--", "sh", "-c", "echo up; sleep 1000"]);
    let others: Vec<_> =
        (0..7).map(|n| place.spawn(["run", "--", "sh", "-c", &format!("sleep 0.2; echo {n}")])).collect();
    let mut line = String::new();
    BufReader::new(victim.stdout.take().unwrap()).read_line(&mut line).unwrap();
    signal(&victim, Signal::KILL);
    victim.wait().unwrap();
    for (n, child) in others.into_iter().enumerate() {
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{n}: {}", text(&output.stderr));
        assert_eq!(text(&output.stdout), format!("{n}\n"));
    }
    let ids = until(Duration::from_secs(10), || place.ids(), Vec::is_empty);
    assert!(ids.is_empty(), "{ids:?}");
}

#[test]
fn commands_that_share_a_name_share_one_sandbox_and_do_not_pause_it_under_each_other() {
    let place = Place::new();
    let script = "echo $$ >> ~/pids; i=0; while [ $i -lt 20 ]; do sleep 0.05; i=$((i+1)); done; echo done";
    let children: Vec<_> = (0..4).map(|_| place.spawn(["run", "--as", "team", "--", "sh", "-c", script])).collect();
    let short = place.ok(["run", "--as", "team", "--", "echo", "short"]);
    assert_eq!(short, "short\n");
    for child in children {
        let output = child.wait_with_output().unwrap();
        assert_eq!(text(&output.stdout), "done\n", "{}", text(&output.stderr));
    }
    assert_eq!(place.ids().len(), 1);
    assert_eq!(place.ok(["exec", "team", "--", "sh", "-c", "wc -l < ~/pids"]).trim(), "4");
}

#[test]
fn a_snapshot_carries_the_home_to_new_sandboxes_but_not_the_workspace() {
    let place = Place::new();
    place.ok([
        "run",
        "--as",
        "me",
        "--",
        "sh",
        "-c",
        "echo v1 > ~/tool; echo w > /workspace/w; mkdir ~/d; touch ~/d/x",
    ]);
    let snapshot = place.ok(["snapshot", "create", "me"]).trim().to_owned();
    place.ok(["run", "--as", "me", "--", "sh", "-c", "echo v2 > ~/tool; rm -r ~/d"]);
    let seen = place.ok(["run", "--home", &snapshot, "--", "sh", "-c", "cat ~/tool; ls ~/d /workspace"]);
    assert_eq!(seen, "v1\n/home/user/d:\nx\n\n/workspace:\n");
    assert_eq!(place.ok(["snapshot", "ls"]).trim(), snapshot);
    place.ok(["snapshot", "rm", &snapshot]);
    assert_eq!(place.ok(["snapshot", "ls"]), "");
    let gone = place.output(["run", "--home", &snapshot, "--", "true"]);
    assert_eq!(gone.status.code(), Some(125));
}

#[test]
fn a_workspace_directory_goes_in_and_what_changed_comes_back() {
    let place = Place::new();
    let dir = place.beside("project");
    std::fs::write(dir.join("in"), "1\n").unwrap();
    std::fs::write(dir.join("stays"), "same\n").unwrap();
    let before = std::fs::metadata(dir.join("stays")).unwrap().modified().unwrap();
    let path = dir.to_str().unwrap();
    place.ok(["run", "--workspace", path, "--", "sh", "-c", "cat in > out; mkdir sub; echo 2 > sub/new; rm stays"]);
    assert_eq!(std::fs::read_to_string(dir.join("out")).unwrap(), "1\n");
    assert_eq!(std::fs::read_to_string(dir.join("sub/new")).unwrap(), "2\n");
    assert_eq!(std::fs::metadata(dir.join("stays")).unwrap().modified().unwrap(), before);
}

#[test]
fn a_workspace_edit_of_the_same_size_in_the_same_second_comes_back() {
    let place = Place::new();
    let dir = place.beside("project");
    std::fs::write(dir.join("f"), "OLD").unwrap();
    place.ok(["run", "--workspace", dir.to_str().unwrap(), "--", "sh", "-c", "printf NEW > f"]);
    assert_eq!(std::fs::read_to_string(dir.join("f")).unwrap(), "NEW");
}

#[test]
fn a_workspace_that_cannot_be_copied_back_whole_is_kept() {
    let place = Place::new();
    let dir = place.beside("project");
    std::fs::write(dir.join("out"), "x").unwrap();
    let script = "rm out; mkdir out; echo r > out/r; echo important > zz";
    let output = place.output(["run", "--workspace", dir.to_str().unwrap(), "--", "sh", "-c", script]);
    assert_eq!(output.status.code(), Some(125));
    assert_eq!(std::fs::read_to_string(dir.join("zz")).unwrap(), "important\n");
    let id = place.ids().pop().unwrap();
    assert!(text(&output.stderr).contains(&id), "{}", text(&output.stderr));
    assert_eq!(place.ok(["exec", &id, "--", "cat", "/workspace/out/r"]), "r\n");
}

#[test]
fn keep_leaves_a_paused_sandbox_and_says_which() {
    let place = Place::new();
    let output = place.output(["run", "--keep", "--", "sh", "-c", "echo kept > ~/f"]);
    assert!(output.status.success());
    let id = place.ids().pop().unwrap();
    assert!(text(&output.stderr).contains(&id), "{}", text(&output.stderr));
    assert_eq!(place.ok(["exec", &id, "--", "sh", "-c", "cat ~/f"]), "kept\n");
    place.ok(["rm", &id]);
    assert!(place.ids().is_empty());
}

#[test]
fn bad_names_and_references_are_refused_and_leave_nothing() {
    let place = Place::new();
    for args in [
        &["run", "--as", "../me", "--", "true"][..],
        &["run", "--as", "", "--", "true"],
        &["run", "--env", "=x", "--", "true"],
        &["run"],
    ] {
        assert_eq!(place.output(args).status.code(), Some(2), "{args:?}");
    }
    for args in [
        &["run", "--home", "no-such-snapshot", "--", "true"][..],
        &["run", "--home", "../../etc", "--", "true"],
        &["exec", "nobody", "--", "true"],
        &["rm", "nobody"],
        &["rm", "../x"],
        &["run", "--workspace", "/no/such/dir", "--", "true"],
    ] {
        let output = place.output(args);
        assert_eq!(output.status.code(), Some(125), "{args:?}: {}", text(&output.stderr));
        assert!(text(&output.stderr).starts_with("leasehold: "), "{args:?}: {}", text(&output.stderr));
    }
    assert!(place.ids().is_empty());
}
