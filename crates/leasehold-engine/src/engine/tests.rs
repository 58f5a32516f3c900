//! Operations that fail half way, and machines with less than this one.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use leasehold_guest::Identity;

use super::*;
use crate::plan::HostRoot;
use crate::spec::Limits;

struct Machine {
    engine: Option<Engine>,
    _directory: tempfile::TempDir,
}

impl Machine {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let engine = Engine::open(EngineConfig::new(directory.path().join("data"))).unwrap();
        Self { engine: Some(engine), _directory: directory }
    }

    fn engine(&mut self) -> &mut Engine {
        self.engine.as_mut().unwrap()
    }

    fn nothing_is_left(&mut self) {
        let engine = self.engine();
        assert_eq!(engine.leftovers().unwrap(), Vec::<String>::new());
        let data = engine.data.root().to_str().unwrap();
        for entry in fs::read_dir("/proc").unwrap().filter_map(Result::ok) {
            let mounts = fs::read_to_string(entry.path().join("mountinfo")).unwrap_or_default();
            assert!(!mounts.contains(data), "{:?} still runs", entry.path());
        }
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        let Some(engine) = self.engine.take() else { return };
        for id in engine.leftovers().unwrap() {
            engine.stop(&id, None).unwrap();
            engine.remove(&id).unwrap();
        }
    }
}

fn spec() -> StartSpec {
    StartSpec {
        id: "i1".into(),
        template: Template::Host,
        layers: Vec::new(),
        limits: Limits::default(),
        identity: Identity::new("i1", "host"),
    }
}

#[test]
fn a_start_that_fails_between_any_two_steps_leaves_nothing() {
    let mut machine = Machine::new();
    let mut points = Vec::new();
    loop {
        fault::fail_at(points.len());
        match machine.engine().start(&spec()) {
            Err(error) => {
                assert_eq!((error.kind(), error.stage()), (ErrorKind::Io, "fault"));
                points.push(error.message().to_owned());
            }
            Ok(running) => {
                fault::fail_at(usize::MAX);
                assert_ne!(running.process.pid, 0);
                break;
            }
        }
        machine.nothing_is_left();
    }
    // Five of them are in the stop before the start, which finds nothing to do.
    assert_eq!(points.len(), 14, "{points:?}");
    machine.engine().stop("i1", None).unwrap();
    machine.engine().remove("i1").unwrap();
    machine.nothing_is_left();
}

#[test]
fn a_start_that_fails_keeps_the_files_of_a_sandbox_that_had_some() {
    let mut machine = Machine::new();
    machine.engine().start(&spec()).unwrap();
    machine.engine().stop("i1", None).unwrap();
    let note = machine.engine().data.sandbox("i1").upper().join("note");
    fs::write(&note, "mine").unwrap();
    for point in 0..14 {
        fault::fail_at(point);
        machine.engine().start(&spec()).unwrap_err();
        assert_eq!(fs::read_to_string(&note).unwrap(), "mine");
    }
    fault::fail_at(usize::MAX);
}

#[test]
fn a_stop_that_fails_between_any_two_steps_is_finished_by_the_next() {
    let mut machine = Machine::new();
    for point in 0..5 {
        machine.engine().start(&spec()).unwrap();
        machine.engine().pause("i1").unwrap();
        fault::fail_at(point);
        machine.engine().stop("i1", None).unwrap_err();
        machine.engine().stop("i1", None).unwrap();
        machine.engine().remove("i1").unwrap();
        machine.nothing_is_left();
    }
}

#[test]
fn what_the_first_process_cannot_do_is_told_and_undone() {
    let mut machine = Machine::new();
    machine.engine().facts.roots.push(("no-such-directory".into(), HostRoot::Directory));
    let error = machine.engine().start(&spec()).unwrap_err();
    assert_eq!((error.stage(), error.kind()), ("launch", ErrorKind::Io));
    assert!(error.message().contains("/no-such-directory"), "{error}");
    machine.nothing_is_left();
}

/// Puts a script in the guest's place.
fn replace_guest(machine: &mut Machine, script: &str) {
    let path = machine.engine().data.root().join("script");
    fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    machine.engine().guest = path;
}

#[test]
fn launchers_that_die_hang_or_babble_are_told_apart_and_ended() {
    let mut machine = Machine::new();
    machine.engine().config.start_timeout = Duration::from_millis(500);
    for (script, kind, text) in [
        ("echo oh no >&2", ErrorKind::Guest, "its log ends with \"oh no\""),
        ("exec sleep 1000", ErrorKind::Timeout, "not ready in time"),
        ("cat >/dev/null; yes | tr -d '\\n'", ErrorKind::Guest, "has no end"),
        ("echo hello", ErrorKind::Guest, "\"hello\\n\" is not a report"),
        ("echo '{\"ready\":true}'", ErrorKind::Guest, "unexpected report"),
        ("echo '{\"pid\":0}'", ErrorKind::Guest, "gone at once"),
        ("echo '{\"error\":\"port 49983 is taken\"}'", ErrorKind::Guest, "port 49983 is taken"),
        ("echo '{\"error\":\"x\",\"stage\":\"clone\",\"errno\":28}'", ErrorKind::Unsupported, "clone: x"),
    ] {
        replace_guest(&mut machine, script);
        let error = machine.engine().start(&spec()).unwrap_err();
        assert_eq!(error.kind(), kind, "{script}: {error}");
        assert!(error.message().contains(text), "{script}: {error}");
        machine.nothing_is_left();
    }
}

fn state(pid: u32) -> char {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    stat.rsplit_once(") ").unwrap().1.chars().next().unwrap()
}

#[test]
fn without_any_cgroup_pausing_is_done_by_signals_and_stopping_by_the_pid_namespace() {
    let mut machine = Machine::new();
    let name = cgroup_name(machine.engine().data.root());
    machine.engine().cgroups.close();
    machine.engine().cgroups = Cgroups::open_legacy(&name, &[]);
    assert_eq!(machine.engine().cgroups.degraded().len(), 4);
    let mut limited = spec();
    limited.limits.pids = Some(10);
    assert_eq!(machine.engine().start(&limited).unwrap_err().kind(), ErrorKind::Unsupported);

    let running = machine.engine().start(&spec()).unwrap();
    let pid = running.process.pid;
    for _ in 0..2 {
        machine.engine().pause("i1").unwrap();
        assert_eq!(state(pid), 'T');
    }
    assert_eq!(machine.engine().usage("i1").unwrap(), Usage::default());
    machine.engine().resume("i1").unwrap();
    assert_ne!(state(pid), 'T');
    machine.engine().pause("i1").unwrap();
    machine.engine().stop("i1", None).unwrap();
    machine.engine().remove("i1").unwrap();
    machine.nothing_is_left();
}

#[test]
fn with_version_1_alone_its_freezer_pauses_and_its_groups_kill() {
    let mut machine = Machine::new();
    let name = cgroup_name(machine.engine().data.root());
    machine.engine().cgroups.close();
    machine.engine().cgroups = Cgroups::open_legacy(&name, &["freezer", "pids"]);
    if machine.engine().cgroups.report().freezer == CgroupVersion::None {
        return; // a machine with version 2 alone
    }
    let mut limited = spec();
    limited.limits.pids = Some(100);
    let running = machine.engine().start(&limited).unwrap();
    let frozen = |machine: &mut Machine| {
        let group = machine.engine().cgroups.everywhere("i1").legacy["freezer"].clone();
        fs::read_to_string(group.join("freezer.state")).unwrap().trim().to_owned()
    };
    for _ in 0..2 {
        machine.engine().pause("i1").unwrap();
        assert_eq!(frozen(&mut machine), "FROZEN");
    }
    machine.engine().resume("i1").unwrap();
    assert_eq!(frozen(&mut machine), "THAWED");
    assert!(machine.engine().usage("i1").unwrap().pids.unwrap() > 0);
    machine.engine().pause("i1").unwrap();
    // Also when the record is lost, and with it the process id: the group has the processes.
    remove_all(&machine.engine().data.sandbox("i1").record()).unwrap();
    machine.engine().stop("i1", None).unwrap();
    assert!(process::has_ended(running.pidfd.as_fd()).unwrap());
    machine.engine().remove("i1").unwrap();
    machine.nothing_is_left();
}
