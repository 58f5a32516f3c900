//! Finding and signalling processes by a variable in their environment.

use std::fs;

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

/// The variable that names a process's room and job, `<room directory>#<job>`.
pub(super) const VARIABLE: &str = "LEASEHOLD_FAKE";

/// Sends a signal to every process whose mark starts with `mark`; the number of processes it reached.
///
/// A descriptor is opened before the environment is read, so the one that is signalled is the one that was looked at.
pub(super) fn signal(mark: &str, signal: Signal) -> usize {
    matching(mark).filter(|descriptor| pidfd_send_signal(descriptor, signal).is_ok()).count()
}

/// Kills until there is no process with this mark.
pub(super) fn kill_all(mark: &str) {
    // A process may be forking while we look: only a round that finds nothing ends it.
    while signal(mark, Signal::KILL) > 0 {
        std::thread::yield_now();
    }
}

/// Whether there is a process with this mark.
pub(super) fn any(mark: &str) -> bool {
    matching(mark).next().is_some()
}

fn matching(mark: &str) -> impl Iterator<Item = std::os::fd::OwnedFd> {
    let needle = format!("{VARIABLE}={mark}");
    fs::read_dir("/proc").into_iter().flatten().flatten().filter_map(move |entry| {
        let pid: i32 = entry.file_name().to_str()?.parse().ok()?;
        let environment = || fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        let marked = |bytes: &[u8]| bytes.split(|byte| *byte == 0).any(|pair| pair.starts_with(needle.as_bytes()));
        if !marked(&environment()) {
            return None;
        }
        let descriptor = pidfd_open(Pid::from_raw(pid)?, PidfdFlags::empty()).ok()?;
        // Again, now that the pid cannot be another process's; a zombie has no environment.
        marked(&environment()).then_some(descriptor)
    })
}
