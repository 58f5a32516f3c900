//! Processes started through the guest's own binary as supervisor, outside any sandbox.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail by panicking, as tests do")]

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use leasehold_guest::Identity;
use leasehold_guest::environment::{self, Terminal};
use leasehold_guest::process::{
    Drain, Event, Exit, ExitInfo, Face, OutputEnd, Process, Processes, PtySize, Reaping, Sink, Source, Stage,
    StartSpec, Stdin, Stdio, Subscription,
};
use leasehold_guest::users::{User, Users};

const LONG: Option<Duration> = Some(Duration::from_secs(30));

fn processes() -> Processes {
    Processes::new(env!("CARGO_BIN_EXE_leasehold-guest"), Reaping::ByProcess)
}

fn own_user() -> User {
    let uid = rustix::process::geteuid().as_raw();
    let users = Users::default();
    users.by_name(&users.name_of(uid).expect("the tests' user has a name")).unwrap()
}

fn sh(script: &str) -> StartSpec {
    program("/bin/sh", &["-c", script])
}

fn program(program: &str, args: &[&str]) -> StartSpec {
    let user = own_user();
    StartSpec {
        program: program.into(),
        args: args.iter().map(Into::into).collect(),
        env: environment::build(&Identity::new("i", "host"), &user, Terminal::No, &BTreeMap::new()),
        cwd: "/".into(),
        user,
        stdio: Stdio::Pipes { stdin: Stdin::Null },
        tag: None,
        face: Face::Envd(envd::ProcessConfig::default()),
        sink: None,
        drain: Drain::default(),
        deadline: None,
    }
}

fn with_stdin(mut spec: StartSpec) -> StartSpec {
    spec.stdio = Stdio::Pipes { stdin: Stdin::Pipe };
    spec
}

/// Everything up to the end.
#[derive(Debug, Default)]
struct Seen {
    stdout: Vec<u8>,
    stderr: Vec<u8>,
    pty: Vec<u8>,
    exit: Option<ExitInfo>,
    lagged: bool,
}

impl Seen {
    fn add(&mut self, event: Event) {
        assert!(self.exit.is_none() && !self.lagged, "{event:?} came after the last event");
        match event {
            Event::Output(Source::Stdout, bytes) => self.stdout.extend_from_slice(&bytes),
            Event::Output(Source::Stderr, bytes) => self.stderr.extend_from_slice(&bytes),
            Event::Output(Source::Pty, bytes) => self.pty.extend_from_slice(&bytes),
            Event::End(exit) => self.exit = Some(exit),
            Event::Lagged => self.lagged = true,
        }
    }

    fn code(&self) -> Option<i32> {
        match self.exit?.exit {
            Exit::Code(code) => Some(code),
            _ => None,
        }
    }
}

fn follow_until(subscription: &Subscription, seen: &mut Seen, done: impl Fn(&Seen) -> bool) {
    let mut events = VecDeque::new();
    while !done(seen) {
        assert!(subscription.wait(LONG).unwrap(), "nothing more came; seen: {seen:?}");
        subscription.take(&mut events);
        events.drain(..).for_each(|event| seen.add(event));
    }
}

fn follow(subscription: &Subscription) -> Seen {
    let mut seen = Seen::default();
    follow_until(subscription, &mut seen, |seen| seen.exit.is_some() || seen.lagged);
    seen
}

fn run(spec: StartSpec) -> Seen {
    let (process, subscription) = processes().start(spec).unwrap();
    let seen = follow(&subscription);
    process.terminate(Duration::ZERO);
    assert!(process.wait_gone(LONG));
    seen
}

fn wait_for(what: &str, condition: impl Fn() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < Duration::from_secs(20), "waited in vain for {what}");
        std::thread::yield_now();
    }
}

fn alive(pid: &str) -> bool {
    std::fs::read_to_string(format!("/proc/{}/stat", pid.trim()))
        .is_ok_and(|stat| !stat.rsplit(')').next().unwrap_or_default().trim_start().starts_with('Z'))
}

#[test]
fn output_comes_before_the_exit_500_times() {
    let processes = processes();
    for _ in 0..500 {
        let (_, subscription) = processes.start(sh("printf x; printf y >&2; exit 3")).unwrap();
        let seen = follow(&subscription);
        assert_eq!((seen.stdout.as_slice(), seen.stderr.as_slice(), seen.code()), (&b"x"[..], &b"y"[..], Some(3)));
        assert_eq!(seen.exit.map(|exit| exit.output), Some(OutputEnd::Complete));
    }
}

#[test]
fn a_background_child_does_not_hold_the_end_up_and_lives_on() {
    let start = Instant::now();
    let (process, subscription) = processes().start(sh("sleep 30 & echo $!")).unwrap();
    let seen = follow(&subscription);
    assert!(start.elapsed() < Duration::from_secs(2));
    assert_eq!(seen.code(), Some(0));
    assert_eq!(seen.exit.unwrap().output, OutputEnd::MayContinue);
    let child = String::from_utf8(seen.stdout).unwrap();
    assert!(alive(&child));
    assert!(!process.wait_gone(Some(Duration::ZERO)));
    process.terminate(Duration::ZERO);
    assert!(process.wait_gone(LONG));
    assert!(!alive(&child));
}

#[test]
fn the_leaders_own_output_is_whole_even_beside_a_noisy_background_child() {
    let start = Instant::now();
    let seen = run(sh("head -c 60000 /dev/zero; (yes >&2) & exit 5"));
    assert!(start.elapsed() < Duration::from_secs(10));
    assert_eq!((seen.stdout.len(), seen.code()), (60_000, Some(5)));
}

#[test]
fn stdin_is_null_unless_asked_for() {
    assert_eq!(run(program("cat", &[])).code(), Some(0));
    let (process, _events) = processes().start(sh("cat")).unwrap();
    assert!(process.write_stdin(b"x").unwrap_err().to_string().contains("stdin"));
}

#[test]
fn all_bytes_pass_in_and_out_unchanged() {
    let (process, subscription) = processes().start(with_stdin(program("cat", &[]))).unwrap();
    let bytes: Vec<u8> = (0..=255).cycle().take(3 << 20).collect();
    let writer = std::thread::spawn({
        let (process, bytes) = (Arc::clone(&process), bytes.clone());
        move || {
            process.write_stdin(&bytes).unwrap();
            process.close_stdin().unwrap();
            assert!(process.close_stdin().is_err());
        }
    });
    let seen = follow(&subscription);
    writer.join().unwrap();
    assert!(seen.stdout == bytes, "{} bytes came back", seen.stdout.len());
}

#[test]
fn arguments_and_environment_are_bytes() {
    use std::os::unix::ffi::OsStringExt as _;
    let odd = std::ffi::OsString::from_vec(b"a\nb'\"$(id)\xff".to_vec());
    let mut spec = sh("printf %s \"$1\"; printf %s \"$ODD\" >&2; echo \"$#\"");
    spec.args.extend(["sh".into(), odd.clone(), "".into()]);
    spec.env.insert("ODD".into(), odd.clone());
    let seen = run(spec);
    assert_eq!(seen.stdout, [odd.clone().into_vec(), b"2\n".to_vec()].concat());
    assert_eq!(seen.stderr, odd.into_vec());
}

#[test]
fn a_huge_argument_is_refused_by_the_kernel_and_nothing_is_left() {
    let error = processes().start(program("true", &[&"x".repeat(1 << 20)])).unwrap_err();
    assert_eq!((error.stage, error.source.raw_os_error()), (Stage::Exec, Some(7 /* E2BIG */)));
}

#[test]
fn failed_starts_say_what_failed() {
    let fail = |spec: StartSpec| {
        let error = processes().start(spec).unwrap_err();
        (error.stage, error.source.kind())
    };
    assert_eq!(fail(program("no-such-program", &[])), (Stage::Exec, io::ErrorKind::NotFound));
    assert_eq!(fail(program("", &[])), (Stage::Exec, io::ErrorKind::NotFound));
    assert_eq!(fail(program("/etc", &[])), (Stage::Exec, io::ErrorKind::PermissionDenied));
    let mut nowhere = sh("true");
    nowhere.cwd = "/no/such/dir".into();
    assert_eq!(fail(nowhere), (Stage::Cwd, io::ErrorKind::NotFound));
}

#[test]
fn children_start_with_default_signals_no_mask_and_no_other_descriptors() {
    let seen = run(sh(
        "grep -E '^(SigBlk|SigIgn|SigCgt|NoNewPrivs|ShdPnd)' /proc/self/status; ls /proc/self/fd | tr '\\n' ' '; \
        umask; cat /proc/self/oom_score_adj; ps -o sid=,pgid= -p $$ | tr -s ' '; echo $$",
    ));
    let text = String::from_utf8(seen.stdout).unwrap();
    let line = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)).unwrap_or("absent").trim().to_owned();
    assert_eq!(line("SigBlk:"), "0".repeat(16));
    assert_eq!(line("SigIgn:"), "0".repeat(16));
    assert_eq!(line("NoNewPrivs:"), "1");
    // 3 is the directory that ls itself reads.
    assert!(text.contains("0 1 2 3 "), "{text}");
    assert!(text.contains("0022") && text.contains("\n100\n"), "{text}");
    let pid = text.lines().last().unwrap().to_owned();
    assert!(text.contains(&format!("{pid} {pid}\n")), "leads its own session and group: {text}");
}

#[test]
fn another_user_gets_its_groups_and_keeps_no_capability() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: only root can become another user");
        return;
    }
    let mut spec = sh("id -u; id -G; grep -E '^Cap' /proc/self/status");
    spec.user = User { name: "x".into(), uid: 54321, gid: 54322, groups: vec![54322, 54323], ..own_user() };
    let text = String::from_utf8(run(spec).stdout).unwrap();
    assert!(text.starts_with("54321\n54322 54323\n"), "{text}");
    assert_eq!(text.matches("0000000000000000").count(), 5, "{text}");
}

#[test]
fn signals_reach_the_leader_and_are_reported() {
    let (process, subscription) =
        processes().start(sh("trap 'echo got; exit 9' TERM; echo ready; sleep 30 & wait")).unwrap();
    let mut seen = Seen::default();
    follow_until(&subscription, &mut seen, |seen| seen.stdout == b"ready\n");
    process.signal(15);
    follow_until(&subscription, &mut seen, |seen| seen.exit.is_some());
    assert_eq!((seen.stdout.as_slice(), seen.code()), (&b"ready\ngot\n"[..], Some(9)));

    let (process, subscription) = processes().start(sh("exec sleep 30")).unwrap();
    process.signal(9);
    assert_eq!(follow(&subscription).exit.unwrap().exit, Exit::Signal { signal: 9, core_dumped: false });
}

#[test]
fn the_whole_tree_ends_also_what_detached_itself() {
    let dir = tempfile::tempdir().unwrap();
    let pids = dir.path().join("pids");
    // A child, one in a session of its own, one forked twice, one that ignores SIGTERM, and one that is stopped.
    let script = format!(
        "cd {dir}; sleep 100 & echo $! >>pids; setsid sh -c 'echo $$ >>pids; exec sleep 100' & \
        (setsid sh -c 'sh -c \"echo \\$\\$ >>pids; exec sleep 100\" &' &) ; \
        sh -c 'trap \"\" TERM; echo $$ >>pids; while :; do sleep 100; done' & \
        sh -c 'echo $$ >>pids; kill -STOP $$; sleep 100' & echo $$ >>pids; wait",
        dir = dir.path().display()
    );
    for grace in [Duration::ZERO, Duration::from_millis(200)] {
        let (process, _events) = processes().start(sh(&script)).unwrap();
        let listed =
            || std::fs::read_to_string(&pids).unwrap_or_default().lines().map(str::to_owned).collect::<Vec<_>>();
        wait_for("six processes", || listed().len() == 6);
        assert!(listed().iter().all(|pid| alive(pid)));
        process.terminate(grace);
        assert!(process.wait_gone(LONG));
        let left: Vec<_> = listed().into_iter().filter(|pid| alive(pid)).collect();
        assert!(left.is_empty(), "left after grace {grace:?}: {left:?}");
        std::fs::remove_file(&pids).unwrap();
    }
}

#[test]
fn a_deadline_ends_the_whole_tree_unless_the_leader_ended_before() {
    let mut spec = sh("setsid sleep 30 & echo $!; exec sleep 30");
    spec.deadline = Some(Duration::from_millis(100));
    let (process, subscription) = processes().start(spec).unwrap();
    let seen = follow(&subscription);
    assert_eq!(seen.exit.unwrap().exit, Exit::Signal { signal: 9, core_dumped: false });
    assert!(process.timed_out());
    assert!(process.wait_gone(LONG));
    assert!(!alive(&String::from_utf8(seen.stdout).unwrap()));

    let mut spec = sh("sleep 30 & echo $!");
    spec.deadline = Some(Duration::from_millis(400));
    let (process, subscription) = processes().start(spec).unwrap();
    let seen = follow(&subscription);
    assert!(!process.wait_gone(Some(Duration::from_millis(600))), "the deadline is the leader's");
    assert!(!process.timed_out() && alive(&String::from_utf8(seen.stdout).unwrap()));
    process.terminate(Duration::ZERO);
    assert!(process.wait_gone(LONG));
}

#[test]
fn a_tree_that_keeps_forking_is_ended() {
    let (process, _events) =
        processes().start(sh("f() { while :; do (setsid sh -c 'sleep 1 & sleep 1' &) ; done; }; f & f & f")).unwrap();
    wait_for("children", || !children_of_supervisor(&process).is_empty());
    process.terminate(Duration::ZERO);
    assert!(process.wait_gone(LONG));
}

fn children_of_supervisor(process: &Process) -> Vec<u32> {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", process.pid())).unwrap_or_default();
    let parent = stat.rsplit(')').next().and_then(|rest| rest.split_ascii_whitespace().nth(1).map(str::to_owned));
    let children = std::fs::read_to_string(format!("/proc/{0}/task/{0}/children", parent.unwrap_or_default()));
    children.unwrap_or_default().split_whitespace().filter_map(|pid| pid.parse().ok()).collect()
}

#[test]
fn three_hundred_at_once_leave_no_zombies() {
    let processes = Arc::new(processes());
    let workers: Vec<_> = (0..10)
        .map(|worker| {
            let processes = Arc::clone(&processes);
            std::thread::spawn(move || {
                for round in 0..30 {
                    let code = (worker * 30 + round) % 256;
                    let (process, subscription) = processes.start(sh(&format!("exit {code}"))).unwrap();
                    assert_eq!(follow(&subscription).code(), Some(code));
                    assert!(process.wait_gone(LONG));
                }
            })
        })
        .collect();
    workers.into_iter().for_each(|worker| worker.join().unwrap());
    assert!(processes.running().is_empty());
}

#[test]
fn without_subscribers_output_is_discarded_and_the_process_is_not_held_up() {
    // That memory stays flat is seen on the guest as a process of its own, see the tests of `guest`.
    let (process, events) = processes().start(sh("head -c 200000000 /dev/zero; exit 4")).unwrap();
    drop(events);
    assert_eq!(process.wait(LONG).unwrap().exit, Exit::Code(4));
}

#[test]
fn a_subscriber_that_never_reads_is_dropped_and_another_sees_everything() {
    let (process, stalled) = processes().start(sh("read x; head -c 8000000 /dev/zero")).unwrap();
    drop(process);
    drop(stalled);
    let (process, stalled) = processes().start(with_stdin(sh("read x; head -c 8000000 /dev/zero"))).unwrap();
    let diligent = process.subscribe().unwrap();
    process.write_stdin(b"go\n").unwrap();
    let seen = follow(&diligent);
    assert_eq!((seen.stdout.len(), seen.code()), (8_000_000, Some(0)));
    assert!(follow(&stalled).lagged);
}

#[test]
fn a_late_follower_learns_the_exit() {
    let processes = processes();
    let (process, subscription) = processes.start(sh("exit 6")).unwrap();
    follow(&subscription);
    let late = processes.by_pid(process.pid()).expect("remembered").subscribe().unwrap();
    assert_eq!(follow(&late).code(), Some(6));
    assert!(processes.running().is_empty());
}

#[test]
fn processes_are_found_by_their_tag() {
    let processes = processes();
    let mut spec = sh("exec sleep 30");
    spec.tag = Some("web".into());
    let (process, _events) = processes.start(spec).unwrap();
    assert_eq!(processes.by_tag("web").map(|found| found.pid()), Some(process.pid()));
    assert!(processes.by_tag("other").is_none());
    assert_eq!(processes.running().len(), 1);
    process.terminate(Duration::ZERO);
}

fn pty(script: &str, size: PtySize) -> StartSpec {
    let mut spec = sh(script);
    spec.env = environment::build(&Identity::new("i", "host"), &own_user(), Terminal::Yes, &BTreeMap::new());
    spec.stdio = Stdio::Pty(size);
    spec
}

#[test]
fn a_terminal_has_its_size_is_resized_and_ends_with_the_exit_code() {
    let script = "stty size; trap 'stty size; exit 7' WINCH; tty; echo $TERM; sleep 30 & wait";
    let (process, subscription) = processes().start(pty(script, PtySize { cols: 101, rows: 33 })).unwrap();
    let mut seen = Seen::default();
    let text = |seen: &Seen| String::from_utf8_lossy(&seen.pty).into_owned();
    follow_until(&subscription, &mut seen, |seen| text(seen).contains("xterm-256color"));
    assert!(text(&seen).starts_with("33 101\r\n/dev/pts/"), "{}", text(&seen));
    process.resize(PtySize { cols: 40, rows: 2 }).unwrap();
    follow_until(&subscription, &mut seen, |seen| seen.exit.is_some());
    assert!(text(&seen).contains("2 40\r\n"), "{}", text(&seen));
    assert_eq!(seen.code(), Some(7));
    let (pipes, _events) = processes().start(sh("sleep 30")).unwrap();
    assert!(pipes.resize(PtySize::default()).is_err());
}

#[test]
fn keystrokes_keep_their_order() {
    let script = "stty -echo -icanon; echo ready; exec head -c 20000 | cksum";
    let (process, subscription) = processes().start(pty(script, PtySize::default())).unwrap();
    let mut seen = Seen::default();
    follow_until(&subscription, &mut seen, |seen| seen.pty.starts_with(b"ready\r\n"));
    let keys: Vec<u8> = (0..10_000)
        .flat_map(|n: u32| [b'a' + u8::try_from(n % 26).unwrap(), b'0' + u8::try_from(n % 10).unwrap()])
        .collect();
    for pair in keys.chunks(2) {
        process.write_terminal(pair).unwrap();
    }
    follow_until(&subscription, &mut seen, |seen| seen.exit.is_some());
    let expected = run_cksum(&keys);
    assert!(
        String::from_utf8_lossy(&seen.pty).contains(&expected),
        "{expected} in {:?}",
        String::from_utf8_lossy(&seen.pty)
    );
}

fn run_cksum(bytes: &[u8]) -> String {
    let (process, subscription) = processes().start(with_stdin(program("cksum", &[]))).unwrap();
    process.write_stdin(bytes).unwrap();
    process.close_stdin().unwrap();
    String::from_utf8(follow(&subscription).stdout).unwrap().trim().to_owned()
}

#[derive(Debug)]
struct Collect(Arc<Mutex<(Vec<u8>, Option<ExitInfo>)>>);

impl Sink for Collect {
    fn output(&mut self, _source: Source, bytes: &[u8]) {
        self.0.lock().unwrap().0.extend_from_slice(bytes);
    }

    fn ended(&mut self, exit: &ExitInfo) {
        self.0.lock().unwrap().1 = Some(*exit);
    }
}

#[test]
fn a_sink_has_everything_before_anyone_hears_of_the_end() {
    let collected = Arc::new(Mutex::new((Vec::new(), None)));
    let mut spec = sh("head -c 3000000 /dev/zero; exit 2");
    spec.sink = Some(Box::new(Collect(Arc::clone(&collected))));
    let (process, events) = processes().start(spec).unwrap();
    drop(events);
    let exit = process.wait(LONG).unwrap();
    let collected = collected.lock().unwrap();
    assert_eq!((collected.0.len(), collected.1), (3_000_000, Some(exit)));
}

#[test]
fn a_killed_supervisor_is_reported_as_lost() {
    let (process, subscription) = processes().start(sh("exec sleep 30")).unwrap();
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", process.pid())).unwrap();
    let parent: i32 = stat.rsplit(')').next().unwrap().split_ascii_whitespace().nth(1).unwrap().parse().unwrap();
    let kill = |pid: i32| {
        let pid = rustix::process::Pid::from_raw(pid).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    };
    kill(parent);
    assert_eq!(follow(&subscription).exit.unwrap().exit, Exit::Lost);
    kill(i32::try_from(process.pid()).unwrap());
}

#[test]
fn dropping_the_set_ends_what_it_started() {
    let processes = processes();
    let (process, events) = processes.start(sh("exec sleep 30")).unwrap();
    let pid = process.pid().to_string();
    process.terminate(Duration::ZERO);
    drop((process, events, processes));
    wait_for("the end", || !Path::new(&PathBuf::from(format!("/proc/{pid}"))).exists());
}
