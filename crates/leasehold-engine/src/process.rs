//! Processes of the host: named so that they cannot be confused, signalled through descriptors, waited for without polling.

use std::fs;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, WaitId, WaitIdOptions};

use crate::spec::ProcessId;

/// Opens the process that `id` names, if it is still that one.
pub(crate) fn open(id: &ProcessId) -> Result<Option<OwnedFd>, Errno> {
    let Some(pidfd) = open_pid(id.pid)? else { return Ok(None) };
    // Looked at after opening: if the number has been given to another process, its start time is another.
    Ok((start_time(id.pid) == Some(id.start_time)).then_some(pidfd))
}

pub(crate) fn open_pid(pid: u32) -> Result<Option<OwnedFd>, Errno> {
    let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) else { return Ok(None) };
    match rustix::process::pidfd_open(pid, PidfdFlags::empty()) {
        Ok(pidfd) => Ok(Some(pidfd)),
        Err(Errno::SRCH) => Ok(None),
        Err(errno) => Err(errno),
    }
}

/// Start time in clock ticks since boot: field 22 of `/proc/PID/stat`, counted after the last parenthesis as a name may contain anything.
pub(crate) fn start_time(pid: u32) -> Option<u64> {
    let stat = fs::read(format!("/proc/{pid}/stat")).ok()?;
    let stat = String::from_utf8_lossy(&stat);
    stat.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()
}

/// Memory of a process that no file stands behind, in bytes.
pub(crate) fn unshared_memory(pid: u32) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let kib = |line: &str| line.trim().trim_end_matches(" kB").parse::<u64>().ok();
    Some(
        status
            .lines()
            .filter_map(|line| line.strip_prefix("RssAnon:").or_else(|| line.strip_prefix("RssShmem:")))
            .filter_map(kib)
            .sum::<u64>()
            << 10,
    )
}

/// Whether it has ended. A zombie has.
pub(crate) fn has_ended(pidfd: BorrowedFd<'_>) -> Result<bool, Errno> {
    await_end(pidfd, Duration::ZERO)
}

/// Waits until the process has ended, reaps it if it is our child, and says whether it ended in time.
pub(crate) fn await_end(pidfd: BorrowedFd<'_>, limit: Duration) -> Result<bool, Errno> {
    let deadline = Instant::now() + limit;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let left = Timespec::try_from(left).map_err(|_| Errno::INVAL)?;
        match rustix::event::poll(&mut [PollFd::new(&pidfd, PollFlags::IN)], Some(&left)) {
            Ok(0) => return Ok(false),
            Ok(_) => return Ok(true),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
}

/// Takes an ended child's status, so that it does not stay a zombie. Somebody else's child, or one that was reaped, is none of our business.
pub(crate) fn reap(pidfd: BorrowedFd<'_>) -> Result<(), Errno> {
    match rustix::process::waitid(WaitId::PidFd(pidfd), WaitIdOptions::EXITED | WaitIdOptions::NOHANG) {
        Ok(_) | Err(Errno::CHILD) => Ok(()),
        Err(errno) => Err(errno),
    }
}

/// SIGKILL; a process that has ended is killed already.
pub(crate) fn kill_opened(pidfd: BorrowedFd<'_>) -> Result<(), Errno> {
    signal_opened(pidfd, Signal::KILL)
}

fn signal_opened(pidfd: BorrowedFd<'_>, signal: Signal) -> Result<(), Errno> {
    match rustix::process::pidfd_send_signal(pidfd, signal) {
        Ok(()) | Err(Errno::SRCH) => Ok(()),
        Err(errno) => Err(errno),
    }
}

/// SIGKILL by number, for members of a control group that has just been read.
pub(crate) fn kill(pid: u32) -> Result<(), Errno> {
    open_pid(pid)?.map_or(Ok(()), |pidfd| kill_opened(pidfd.as_fd()))
}

/// Stops every process in the pid namespace of `init`, for machines without a freezer, and says whether all have stopped in time.
///
/// Processes that appear while this runs are found by the next look; with all others stopped there is soon no one left to start any. There is no event for
/// "has stopped" of a process that is not our child, so their state is looked at, yielding the processor in between.
///
/// A process that waits for its `vfork` child to execute something cannot be stopped (kernel_clone waits uninterruptibly), and never gets on once that child
/// has stopped. So when a round does not end, all may go on for a moment, which grows, before the next.
pub(crate) fn stop_namespace(init: u32, limit: Duration) -> Result<bool, Errno> {
    const ROUND: Duration = Duration::from_millis(20);
    let deadline = Instant::now() + limit;
    let mut round_ends = Instant::now() + ROUND;
    let mut respite = Duration::from_millis(1);
    loop {
        let moving: Vec<u32> = namespace_members(init)?.into_iter().filter(|pid| !has_stopped(*pid)).collect();
        if moving.is_empty() {
            return Ok(true);
        }
        if Instant::now() >= deadline {
            return Ok(false);
        }
        if Instant::now() >= round_ends {
            continue_namespace(init)?;
            std::thread::sleep(respite);
            respite *= 2;
            round_ends = Instant::now() + ROUND;
        }
        signal_all(&moving, Signal::STOP)?;
        std::thread::yield_now();
    }
}

/// Lets every process in the pid namespace of `init` go on.
pub(crate) fn continue_namespace(init: u32) -> Result<(), Errno> {
    signal_all(&namespace_members(init)?, Signal::CONT)
}

fn signal_all(pids: &[u32], signal: Signal) -> Result<(), Errno> {
    pids.iter().try_for_each(|pid| open_pid(*pid)?.map_or(Ok(()), |pidfd| signal_opened(pidfd.as_fd(), signal)))
}

/// Whether no thread of a process runs. A process that is gone or a zombie does not.
fn has_stopped(pid: u32) -> bool {
    let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else { return true };
    threads.filter_map(Result::ok).all(|thread| {
        let stat = fs::read(thread.path().join("stat")).unwrap_or_default();
        let state = stat.iter().rposition(|byte| *byte == b')').and_then(|at| stat.get(at + 2));
        state.is_none_or(|state| b"TtZX".contains(state))
    })
}

/// All processes in the pid namespace of `init`, in our numbers.
fn namespace_members(init: u32) -> Result<Vec<u32>, Errno> {
    let namespace = |pid: u32| fs::read_link(format!("/proc/{pid}/ns/pid")).ok();
    let Some(wanted) = namespace(init) else { return Ok(Vec::new()) };
    let listing = fs::read_dir("/proc").map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
    let pids = listing.filter_map(Result::ok).filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    Ok(pids.filter(|pid| namespace(*pid).as_ref() == Some(&wanted)).collect())
}

/// Guests whose files are in the data directory, by what is mounted at `/run/leasehold` in them: found even when every record is lost.
pub(crate) fn guests_with_run_directory(runs: &std::path::Path) -> Vec<(String, u32)> {
    use std::os::unix::fs::MetadataExt;
    let known: Vec<(String, (u64, u64))> = fs::read_dir(runs)
        .into_iter()
        .flatten()
        .filter_map(Result::ok)
        .filter_map(|entry| {
            let metadata = entry.metadata().ok()?;
            Some((entry.file_name().into_string().ok()?, (metadata.dev(), metadata.ino())))
        })
        .collect();
    if known.is_empty() {
        return Vec::new();
    }
    fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .filter_map(Result::ok)
        .filter_map(|entry| {
            let pid: u32 = entry.file_name().to_str()?.parse().ok()?;
            let name = fs::read_to_string(entry.path().join("comm")).ok()?;
            if name.trim_end() != "leasehold-guest" {
                return None;
            }
            let metadata = fs::symlink_metadata(entry.path().join("root/run/leasehold")).ok()?;
            let found = (metadata.dev(), metadata.ino());
            known.iter().find(|(_, id)| *id == found).map(|(id, _)| (id.clone(), pid))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_recycled_number_is_not_the_process() {
        let me = std::process::id();
        let start_time = start_time(me).unwrap();
        assert!(open(&ProcessId { pid: me, start_time }).unwrap().is_some());
        assert!(open(&ProcessId { pid: me, start_time: start_time + 1 }).unwrap().is_none());
        assert!(open(&ProcessId { pid: 0, start_time }).unwrap().is_none());
    }

    #[test]
    #[expect(clippy::zombie_processes, reason = "reaping it is what is tested")]
    fn an_ended_child_is_seen_and_reaped_once() {
        let child = std::process::Command::new("true").spawn().unwrap();
        let pidfd = open_pid(child.id()).unwrap().unwrap();
        assert!(await_end(pidfd.as_fd(), Duration::from_secs(10)).unwrap());
        reap(pidfd.as_fd()).unwrap();
        reap(pidfd.as_fd()).unwrap();
        assert_eq!(start_time(child.id()), None, "no zombie is left");
    }

    #[test]
    fn a_running_process_has_not_ended() {
        let pidfd = open_pid(std::process::id()).unwrap().unwrap();
        assert!(!has_ended(pidfd.as_fd()).unwrap());
    }
}
