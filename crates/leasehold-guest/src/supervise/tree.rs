//! Finding and ending everything that descends from this process.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open, pidfd_send_signal};

/// Most rounds of stopping before killing starts anyway. Each round stops all that the one before started, so a tree that
/// outlives this many is met again at its next SIGCHLD.
const MAX_ROUNDS: usize = 64;

/// A process, told apart from a later one with the same number by its start time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Member {
    pid: i32,
    start_time: u64,
}

/// Asks every process of the tree to end.
pub(super) fn terminate() {
    for member in descendants() {
        signal(member, Signal::TERM);
        // A stopped process would not get to it.
        signal(member, Signal::CONT);
    }
}

/// Kills every process of the tree. They are stopped first, round by round, so that none can start another one unseen.
pub(super) fn kill() {
    let mut stopped = BTreeSet::new();
    for _ in 0..MAX_ROUNDS {
        let fresh: Vec<_> = descendants().into_iter().filter(|member| !stopped.contains(member)).collect();
        if fresh.is_empty() {
            break;
        }
        for member in fresh {
            signal(member, Signal::STOP);
            stopped.insert(member);
        }
    }
    for member in stopped {
        signal(member, Signal::KILL);
    }
}

/// Sends a signal if the number still means this process. One that is gone, or that became another user's by a set-uid
/// program where we lack the right, is left alone; the caller waits for its children and so notices what survives.
fn signal(member: Member, signal: Signal) {
    let Some(pid) = Pid::from_raw(member.pid) else { return };
    match pidfd_open(pid, PidfdFlags::empty()) {
        Ok(pidfd) => {
            if stat(member.pid).is_some_and(|(_, start_time)| start_time == member.start_time) {
                pidfd_send_signal(pidfd, signal).ok();
            }
        }
        // gVisor has no pidfds (seen with 20240729): between the look and the signal the number could only be reused if the pid space wrapped
        // around in that moment.
        Err(Errno::NOSYS) => {
            kill_process(pid, signal).ok();
        }
        Err(_) => {}
    }
}

/// All living descendants of this process.
fn descendants() -> Vec<Member> {
    let mut children: BTreeMap<i32, Vec<Member>> = BTreeMap::new();
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    for entry in entries.flatten() {
        if let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok())
            && let Some((parent, start_time)) = stat(pid)
        {
            children.entry(parent).or_default().push(Member { pid, start_time });
        }
    }
    let mut found = children.remove(&rustix::process::getpid().as_raw_pid()).unwrap_or_default();
    let mut next = 0;
    while let Some(member) = found.get(next) {
        let below = children.remove(&member.pid);
        found.extend(below.into_iter().flatten());
        next += 1;
    }
    found
}

/// Parent and start time of a process that is not a zombie.
fn stat(pid: i32) -> Option<(i32, u64)> {
    parse_stat(&fs::read(format!("/proc/{pid}/stat")).ok()?)
}

/// See proc_pid_stat(5). The name in parentheses may hold anything, so fields are counted from the last parenthesis.
fn parse_stat(stat: &[u8]) -> Option<(i32, u64)> {
    let end = stat.iter().rposition(|&byte| byte == b')')?;
    let mut fields = std::str::from_utf8(&stat[end + 1..]).ok()?.split_ascii_whitespace();
    let state = fields.next()?;
    let parent = fields.next()?.parse().ok()?;
    // Field 22, of which the state is the third.
    let start_time = fields.nth(17)?.parse().ok()?;
    (state != "Z" && state != "X").then_some((parent, start_time))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stat_lines_are_read_whatever_the_name_holds() {
        let line = b"42 (a) R 1 (b) S 7 42 42 0 -1 4194304 1 0 0 0 0 0 0 0 20 0 1 0 98765 1 1";
        assert_eq!(parse_stat(line), Some((7, 98765)));
        assert_eq!(parse_stat(b"42 (z) Z 7 42 42 0 -1 4194304 1 0 0 0 0 0 0 0 20 0 1 0 98765 1 1"), None);
        assert_eq!(parse_stat(b"42 (a"), None);
    }

    #[test]
    fn own_parent_and_start_time_are_found() {
        let own = stat(rustix::process::getpid().as_raw_pid()).unwrap();
        assert_eq!(Some(own.0), rustix::process::getppid().map(|pid| pid.as_raw_pid()));
        assert!(own.1 > 0);
    }
}
