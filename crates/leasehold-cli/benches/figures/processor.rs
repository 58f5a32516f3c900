//! Processor time that processes have used.

use std::collections::BTreeMap;
use std::fs;
use std::time::Duration;

/// The unit of /proc/PID/stat, fixed in Linux's interface on all machines that Rust runs on.
const TICKS_PER_SECOND: u64 = 100;

/// Processor time at one moment, of one or several processes and of their children that ended.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Processor(u64);

/// The fields of /proc/PID/stat that matter here.
struct Stat {
    parent: u32,
    ticks: u64,
    /// When it started, in ticks since the machine did.
    start: u64,
}

fn stat(pid: u32) -> Option<Stat> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name before it may hold anything, also a parenthesis.
    let fields: Vec<_> = text.rsplit_once(") ")?.1.split(' ').collect();
    let number = |index: usize| fields.get(index)?.parse::<u64>().ok();
    let ticks = (11..15).filter_map(number).sum();
    Some(Stat { parent: u32::try_from(number(1)?).ok()?, ticks, start: number(19)? })
}

/// A process and all that descend from it.
fn tree(root: u32) -> BTreeMap<u32, Stat> {
    let pids = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let mut all: BTreeMap<u32, Stat> = pids.filter_map(|pid| Some((pid, stat(pid)?))).collect();
    let parents: BTreeMap<u32, u32> = all.iter().map(|(pid, stat)| (*pid, stat.parent)).collect();
    all.retain(|pid, _| {
        let mut at = Some(pid);
        while at.is_some_and(|pid| *pid != root) {
            at = at.and_then(|pid| parents.get(pid));
        }
        at.is_some()
    });
    all
}

/// What descends from a process, as pid and start time.
pub(crate) fn descendants(root: u32) -> Vec<(u32, u64)> {
    tree(root).into_iter().filter(|(pid, _)| *pid != root).map(|(pid, stat)| (pid, stat.start)).collect()
}

/// Whether this process, and no later one of the same number, is there. A zombie is.
pub(crate) fn is_there((pid, start): (u32, u64)) -> bool {
    stat(pid).is_some_and(|stat| stat.start == start)
}

impl Processor {
    pub(crate) fn of_process(pid: u32) -> Self {
        Self(stat(pid).map_or(0, |stat| stat.ticks))
    }

    /// A process and all that descend from it.
    pub(crate) fn of_tree(root: u32) -> Self {
        Self(tree(root).values().map(|stat| stat.ticks).sum())
    }

    pub(crate) fn since(self, then: Self) -> Duration {
        let ticks = self.0.saturating_sub(then.0);
        Duration::from_millis(ticks * 1000 / TICKS_PER_SECOND)
    }
}
