//! The life of a sandbox, on sandboxes that really run.
#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, reason = "helpers of tests fail by panicking, as tests do")]

mod support;

use std::fs;
use std::os::fd::AsFd;
use std::os::unix::net::UnixListener;

use leasehold_engine::{Engine, EngineConfig, ErrorKind, GuestSocket, Limits, ProcessId};
use rustix::event::{PollFd, PollFlags, Timespec};
use support::{Machine, User, spec};

#[test]
fn a_stopped_sandbox_boots_again_on_its_files_with_another_boot_id() {
    let machine = Machine::new();
    let first = machine.start("i1", &[]);
    let seen = machine.sh("i1", User::User, "cat /proc/sys/kernel/random/boot_id; echo kept > ~/note; hostname");
    assert_eq!(seen, format!("{}\ni1\n", first.boot_id));
    machine.engine().stop("i1", None).unwrap();
    let second = machine.start("i1", &[]);
    assert_ne!(first.boot_id, second.boot_id);
    assert_eq!(machine.sh("i1", User::User, "cat ~/note; id -un; pwd"), "kept\nuser\n/home/user\n");
}

#[test]
fn starting_a_running_sandbox_is_a_conflict_and_does_not_disturb_it() {
    let machine = Machine::new();
    machine.start("i1", &[]);
    let error = machine.engine().start(&spec("i1", &[])).unwrap_err();
    assert_eq!((error.kind(), error.id()), (ErrorKind::Conflict, Some("i1")));
    assert_eq!(machine.engine().remove("i1").unwrap_err().kind(), ErrorKind::Conflict);
    assert_eq!(machine.sh("i1", User::User, "echo alive"), "alive\n");
}

#[test]
fn stop_and_remove_can_be_repeated_and_know_nothing_of_strangers() {
    let machine = Machine::new();
    machine.start("i1", &[]);
    for _ in 0..2 {
        machine.engine().stop("i1", None).unwrap();
    }
    for _ in 0..2 {
        machine.engine().remove("i1").unwrap();
    }
    // A stale note that now names a process of somebody else: us.
    let stale = ProcessId { pid: std::process::id(), start_time: 1 };
    machine.engine().stop("i1", Some(&stale)).unwrap();
    assert!(machine.engine().leftovers().unwrap().is_empty());
}

#[test]
fn a_paused_sandbox_does_nothing_until_it_is_resumed() {
    let machine = Machine::new();
    machine.start("i1", &[]);
    let count_up = "(i=0; while :; do i=$((i+1)); echo $i > /tmp/count; done) >/dev/null 2>&1 & disown";
    machine.sh("i1", User::User, &format!("{count_up}; until [ -e /tmp/count ]; do sleep 0.01; done"));
    let count = || fs::read_to_string(machine.data.join("sandboxes/i1/upper/tmp/count")).unwrap();
    for _ in 0..2 {
        machine.engine().pause("i1").unwrap();
    }
    let cpu = || machine.engine().usage("i1").unwrap().cpu_micros;
    let (stopped, used) = (count(), cpu());
    // Nothing to wait for: that nothing happens is what is tested. Work of our own passes the time.
    let mut sum = 0u64;
    for number in 0..20_000_000u64 {
        sum = std::hint::black_box(sum.wrapping_add(number));
    }
    assert_eq!((count(), cpu()), (stopped, used));
    for _ in 0..2 {
        machine.engine().resume("i1").unwrap();
    }
    assert_eq!(machine.sh("i1", User::User, "echo on"), "on\n");
}

#[test]
fn a_paused_sandbox_can_be_stopped() {
    let machine = Machine::new();
    machine.start("i1", &[]);
    machine.sh(
        "i1",
        User::User,
        "setsid sleep 1000 >/dev/null 2>&1 & setsid sh -c 'sleep 1001 & sleep 1002' >/dev/null 2>&1 &",
    );
    machine.engine().pause("i1").unwrap();
    machine.engine().stop("i1", None).unwrap();
    assert_eq!(machine.engine().pause("i1").unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(machine.engine().resume("i1").unwrap_err().kind(), ErrorKind::NotFound);
}

#[test]
fn the_end_of_a_sandbox_is_an_event_and_stop_cleans_up_after_it() {
    let machine = Machine::new();
    let running = machine.start("i1", &[]);
    // From outside: PID 1 of a pid namespace ignores what comes from within.
    let pid = rustix::process::Pid::from_raw(running.process.pid.try_into().unwrap()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    let limit = Timespec { tv_sec: 10, tv_nsec: 0 };
    let ready = rustix::event::poll(&mut [PollFd::new(&running.pidfd.as_fd(), PollFlags::IN)], Some(&limit)).unwrap();
    assert_eq!(ready, 1, "the descriptor tells of the end");
    assert_eq!(machine.engine().usage("i1").unwrap_err().kind(), ErrorKind::NotFound);
    machine.start("i1", &[]);
    assert_eq!(machine.sh("i1", User::User, "echo again"), "again\n");
}

#[test]
fn another_host_process_adopts_or_reaps_what_runs() {
    let mut machine = Machine::new();
    let (one, two) = (machine.start("i1", &[]), machine.start("i2", &[]));
    machine.engine = None; // as if the host had died: sandboxes have no tie to the engine's value
    machine.engine = Some(Engine::open(EngineConfig::new(&machine.data)).unwrap());
    assert_eq!(machine.engine().leftovers().unwrap(), ["i1", "i2"]);
    let adopted = machine.engine().adopt("i1", &one.process).unwrap().unwrap();
    assert_eq!((adopted.process, adopted.boot_id), (one.process, one.boot_id));
    let other = ProcessId { start_time: two.process.start_time + 1, ..two.process };
    assert!(machine.engine().adopt("i2", &other).unwrap().is_none());
    assert_eq!(machine.sh("i1", User::User, "echo mine"), "mine\n");
    machine.engine().stop("i2", Some(&two.process)).unwrap();
    assert!(machine.engine().adopt("i2", &two.process).unwrap().is_none());
}

#[test]
fn a_sandbox_whose_record_is_lost_is_still_found_and_ended() {
    let machine = Machine::new();
    let running = machine.start("i1", &[]);
    fs::remove_file(machine.data.join("sandboxes/i1/boot.json")).unwrap();
    machine.engine().stop("i1", None).unwrap();
    let left =
        rustix::event::poll(&mut [PollFd::new(&running.pidfd.as_fd(), PollFlags::IN)], Some(&Timespec::default()))
            .unwrap();
    assert_eq!(left, 1, "it has ended");
}

#[test]
fn a_start_that_fails_leaves_nothing() {
    let machine = Machine::new();
    let missing = format!("sha256:{}", "0".repeat(64)).parse().unwrap();
    let error = machine.engine().start(&spec("i1", &[missing])).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);

    let mut foreign = spec("i2", &[]);
    foreign.identity.sandbox_id = "i3".into();
    assert_eq!(machine.engine().start(&foreign).unwrap_err().kind(), ErrorKind::InvalidInput);
    for id in ["", "..", "a/b", "A"] {
        assert_eq!(machine.engine().start(&spec(id, &[])).unwrap_err().kind(), ErrorKind::InvalidInput);
    }

    // The guest itself cannot start: its place in the base is taken by a file.
    machine.start("i4", &[]);
    machine.engine().stop("i4", None).unwrap();
    let run = machine.data.join("sandboxes/i4/upper/run");
    fs::write(&run, "in the way").unwrap();
    let error = machine.engine().start(&spec("i4", &[])).unwrap_err();
    assert_eq!((error.stage(), error.id()), ("launch", Some("i4")), "{error}");
    assert!(error.message().contains("mount"), "{error}");
    assert!(machine.data.join("sandboxes/i4/upper").is_dir(), "files of an existing sandbox stay");
    assert_eq!(support::leftovers(&machine.data).len(), 1, "its files only");
}

#[test]
fn a_link_in_place_of_a_mount_point_is_not_followed() {
    let machine = Machine::new();
    machine.start("i1", &[]);
    machine.engine().stop("i1", None).unwrap();
    let upper = machine.data.join("sandboxes/i1/upper");
    let outside = machine.data.join("outside");
    fs::create_dir(&outside).unwrap();
    std::os::unix::fs::symlink(&outside, upper.join("dev")).unwrap();
    assert!(machine.engine().start(&spec("i1", &[])).is_err());
    assert_eq!(fs::read_dir(&outside).unwrap().count(), 0);
}

#[test]
fn the_engine_does_not_follow_a_guests_links_to_sockets_of_the_host() {
    let machine = Machine::new();
    machine.start("i1", &[]);
    let target = machine.data.join("host.sock");
    let _listener = UnixListener::bind(&target).unwrap();
    let socket = machine.data.join("run/s/i1/ctl.sock");
    fs::remove_file(&socket).unwrap();
    std::os::unix::fs::symlink(&target, &socket).unwrap();
    assert!(machine.engine().connect("i1", GuestSocket::Control).is_err());
    assert!(machine.engine().connect("i9", GuestSocket::Control).is_err());
}

#[test]
fn limits_are_kept() {
    let machine = Machine::new();
    let report = machine.engine().report().clone();
    let mut limited = spec("i1", &[]);
    limited.limits = Limits { memory_bytes: Some(64 << 20), cpu_millis: Some(500), pids: Some(40) };
    if !(report.capabilities.limit_memory && report.capabilities.limit_cpu && report.capabilities.limit_pids) {
        assert_eq!(machine.engine().start(&limited).unwrap_err().kind(), ErrorKind::Unsupported);
        return;
    }
    machine.engine().start(&limited).unwrap();
    let forks = machine.try_sh("i1", User::User, "for i in $(seq 100); do sleep 100 & done; wait");
    assert!(forks.text.contains("fork") || forks.text.contains("Resource temporarily unavailable"), "{}", forks.text);
    machine.engine().stop("i1", None).unwrap();
    machine.engine().start(&limited).unwrap();
    let memory = machine.try_sh("i1", User::User, "head -c 200M /dev/zero | tail | wc -c");
    assert!(!memory.text.contains("209715200"), "{}", memory.text);
    let usage = machine.engine().usage("i1").unwrap();
    assert!(usage.memory_bytes.unwrap() <= 64 << 20 && usage.pids.unwrap() <= 40 && usage.cpu_micros.is_some());
}

#[test]
fn many_sandboxes_start_at_once() {
    let machine = Machine::new();
    std::thread::scope(|scope| {
        for number in 0..16 {
            let machine = &machine;
            scope.spawn(move || {
                let id = format!("i{number}");
                machine.start(&id, &[]);
                assert_eq!(machine.sh(&id, User::User, "hostname"), format!("{id}\n"));
                machine.engine().stop(&id, None).unwrap();
            });
        }
    });
}

#[test]
fn a_data_directory_of_another_user_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let data = directory.path().join("data");
    fs::create_dir(&data).unwrap();
    std::os::unix::fs::chown(&data, Some(12345), Some(12345)).unwrap();
    let error = Engine::open(EngineConfig::new(&data)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    assert_eq!(fs::read_dir(&data).unwrap().count(), 0, "nothing was put into it");
}

/// Not a test of its own: a host process for the next one. It starts a sandbox over and over until it is killed.
#[test]
fn helper_that_starts_sandboxes_until_it_is_killed() {
    let Ok(data) = std::env::var("LEASEHOLD_TEST_VICTIM_DATA") else { return };
    let engine = Engine::open(EngineConfig::new(data)).unwrap();
    println!("open");
    loop {
        engine.start(&spec("i1", &[])).unwrap();
        engine.stop("i1", None).unwrap();
    }
}

#[test]
fn whatever_a_killed_host_was_doing_the_next_one_clears_it_away() {
    use std::io::{BufRead, BufReader};
    let mut machine = Machine::new();
    machine.engine = None;
    for round in 0..20 {
        let mut victim = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "helper_that_starts_sandboxes_until_it_is_killed", "--nocapture"])
            .env("LEASEHOLD_TEST_VICTIM_DATA", &machine.data)
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(victim.stdout.take().unwrap()).lines();
        assert!(lines.any(|line| line.unwrap().contains("open")));
        // Another moment of a cycle of some milliseconds each time.
        let end = std::time::Instant::now() + std::time::Duration::from_micros(500 * round);
        while std::time::Instant::now() < end {
            std::hint::spin_loop();
        }
        victim.kill().unwrap();
        victim.wait().unwrap();
        let engine = Engine::open(EngineConfig::new(&machine.data)).unwrap();
        for id in engine.leftovers().unwrap() {
            engine.stop(&id, None).unwrap();
            engine.remove(&id).unwrap();
        }
        drop(engine);
        assert_eq!(support::leftovers(&machine.data), Vec::<String>::new(), "round {round}");
    }
    machine.engine = Some(Engine::open(EngineConfig::new(&machine.data)).unwrap());
}
