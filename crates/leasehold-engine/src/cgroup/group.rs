//! The control groups of one sandbox.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{ErrorKind as IoKind, Read, Seek};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use leasehold_guest::boot::plan::CgroupEntry;
use rustix::event::{PollFd, PollFlags, Timespec};
use serde::{Deserialize, Serialize};

use crate::error::{During, EngineError, ErrorKind};
use crate::spec::{Limits, Usage};

/// Directories of one sandbox, also stored: after a restart the host may itself be elsewhere.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Group {
    pub(crate) unified: Option<PathBuf>,
    /// By controller; controllers mounted together share a directory.
    pub(crate) legacy: BTreeMap<String, PathBuf>,
}

/// The period of processor limits, in microseconds: the kernel's default.
const CPU_PERIOD: u64 = 100_000;

/// How long a version 1 freezer or an emptying group is asked again; each asking yields the processor. Chosen.
const PATIENCE: Duration = Duration::from_secs(5);

/// How soon a freeze is looked at again. Chosen: an idle sandbox stands still within some tens of microseconds.
const FIRST_LOOK: Duration = Duration::from_micros(50);

impl Group {
    /// Makes the groups. Repeatable.
    pub(crate) fn create(&self, limits: &Limits) -> Result<(), EngineError> {
        for directory in self.directories() {
            match fs::create_dir(directory) {
                Err(error) if error.kind() == IoKind::AlreadyExists => {}
                other => other.during("cgroup", format_args!("cannot make {}", directory.display()))?,
            }
        }
        for (file, value) in self.settings(limits) {
            fs::write(&file, &value).during("limits", format_args!("cannot write {value:?} to {}", file.display()))?;
        }
        Ok(())
    }

    /// What the limits mean here: files and values, in the order of writing.
    fn settings(&self, limits: &Limits) -> Vec<(PathBuf, String)> {
        let mut settings = Vec::new();
        if let Some(bytes) = limits.memory_bytes {
            match self.legacy.get("memory") {
                Some(directory) => settings.push((directory.join("memory.limit_in_bytes"), bytes.to_string())),
                None => settings.extend(self.in_unified("memory.max", bytes.to_string())),
            }
        }
        if let Some(millis) = limits.cpu_millis {
            let quota = millis.saturating_mul(CPU_PERIOD / 1000);
            match self.legacy.get("cpu") {
                Some(directory) => {
                    settings.push((directory.join("cpu.cfs_period_us"), CPU_PERIOD.to_string()));
                    settings.push((directory.join("cpu.cfs_quota_us"), quota.to_string()));
                }
                None => settings.extend(self.in_unified("cpu.max", format!("{quota} {CPU_PERIOD}"))),
            }
        }
        if let Some(count) = limits.pids {
            match self.legacy.get("pids") {
                Some(directory) => settings.push((directory.join("pids.max"), count.to_string())),
                None => settings.extend(self.in_unified("pids.max", count.to_string())),
            }
        }
        settings
    }

    fn in_unified(&self, file: &str, value: String) -> Option<(PathBuf, String)> {
        self.unified.as_ref().map(|directory| (directory.join(file), value))
    }

    pub(crate) fn entry(&self) -> CgroupEntry {
        CgroupEntry { unified: self.unified.clone(), legacy: self.legacy_directories().cloned().collect() }
    }

    fn legacy_directories(&self) -> impl Iterator<Item = &PathBuf> {
        let mut seen = Vec::new();
        self.legacy.values().filter(move |directory| {
            let new = !seen.contains(directory);
            seen.push(directory);
            new
        })
    }

    fn directories(&self) -> impl Iterator<Item = &PathBuf> {
        self.unified.iter().chain(self.legacy_directories())
    }

    /// Whether this group can stop and continue its processes.
    pub(crate) fn can_freeze(&self) -> bool {
        self.unified.is_some() || self.legacy.contains_key("freezer")
    }

    /// Stops all processes; returns when every one has stopped.
    pub(crate) fn freeze(&self) -> Result<(), EngineError> {
        match (&self.unified, self.legacy.get("freezer")) {
            (Some(group), _) => set_frozen(group, true),
            (None, Some(group)) => set_legacy_state(group, "FROZEN"),
            (None, None) => Ok(()),
        }
    }

    /// Lets all processes go on.
    pub(crate) fn thaw(&self) -> Result<(), EngineError> {
        match (&self.unified, self.legacy.get("freezer")) {
            (Some(group), _) => set_frozen(group, false),
            (None, Some(group)) => set_legacy_state(group, "THAWED"),
            (None, None) => Ok(()),
        }
    }

    /// Sends SIGKILL to every process, born or being born. Works on frozen ones. A group that is gone has nothing to kill.
    pub(crate) fn kill(&self) -> Result<(), EngineError> {
        if let Some(group) = &self.unified {
            match fs::write(group.join("cgroup.kill"), "1") {
                Ok(()) => return Ok(()),
                Err(error) if error.kind() == IoKind::NotFound && !group.exists() => {}
                // Before Linux 5.14 there is no such file: one by one, frozen so that none can have children meanwhile.
                Err(error) if error.kind() == IoKind::NotFound => {
                    set_frozen(group, true)?;
                    kill_members(group)?;
                    return set_frozen(group, false);
                }
                Err(error) => {
                    return Err(error).during("kill", format_args!("cannot kill the processes of {}", group.display()));
                }
            }
        }
        if let Some(group) = self.legacy.get("freezer").filter(|group| group.exists()) {
            set_legacy_state(group, "FROZEN")?;
            kill_members(group)?;
            return set_legacy_state(group, "THAWED");
        }
        self.legacy_directories().filter(|group| group.exists()).try_for_each(|group| kill_members(group))
    }

    /// Removes the groups, once they are empty. Repeatable.
    pub(crate) fn remove(&self) -> Result<(), EngineError> {
        self.directories().try_for_each(|directory| remove(directory))
    }

    /// What the processes use. Version 2 counts processor time always; the rest is counted by a controller if the sandbox is under one, else looked up
    /// process by process.
    pub(crate) fn usage(&self) -> Usage {
        let unified = |file: &str| self.unified.as_ref().and_then(|group| fs::read_to_string(group.join(file)).ok());
        let legacy = |controller: &str, file: &str| {
            self.legacy.get(controller).and_then(|group| fs::read_to_string(group.join(file)).ok())
        };
        let number = |text: String| text.trim().parse::<u64>().ok();
        let cpu = |text: String| text.lines().find_map(|line| line.strip_prefix("usage_usec ")?.parse().ok());
        let unshared = || {
            let group = self.unified.as_ref()?;
            Some(members(group).into_iter().filter_map(crate::process::unshared_memory).sum())
        };
        let threads = |text: String| u64::try_from(text.lines().count()).ok();
        Usage {
            memory_bytes: unified("memory.current")
                .or_else(|| legacy("memory", "memory.usage_in_bytes"))
                .and_then(number)
                .or_else(unshared),
            cpu_micros: unified("cpu.stat").and_then(cpu),
            pids: unified("pids.current")
                .or_else(|| legacy("pids", "pids.current"))
                .and_then(number)
                .or_else(|| unified("cgroup.threads").and_then(threads)),
        }
    }
}

fn members(group: &Path) -> Vec<u32> {
    let text = fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default();
    text.lines().filter_map(|line| line.parse().ok()).filter(|pid| *pid != 0).collect()
}

/// SIGKILL to each member, again until a look finds no new one.
fn kill_members(group: &Path) -> Result<(), EngineError> {
    let mut killed = Vec::new();
    loop {
        let new: Vec<u32> = members(group).into_iter().filter(|pid| !killed.contains(pid)).collect();
        if new.is_empty() {
            return Ok(());
        }
        for pid in &new {
            crate::process::kill(*pid)
                .during("kill", format_args!("cannot kill process {pid} of {}", group.display()))?;
        }
        killed.extend(new);
    }
}

/// Version 2: writes the wish and waits for the kernel's event that it came true.
fn set_frozen(group: &Path, frozen: bool) -> Result<(), EngineError> {
    const STAGE: &str = "freeze";
    let wish = if frozen { "1" } else { "0" };
    fs::write(group.join("cgroup.freeze"), wish)
        .during(STAGE, format_args!("cannot write cgroup.freeze of {}", group.display()))?;
    if !frozen {
        return Ok(()); // thawing takes effect before the write returns
    }
    await_event(group, "frozen", frozen, STAGE)
}

/// Waits until `cgroup.events` says `key` has `value`. The kernel signals a change of the file as a priority event, but holds an event back that comes less
/// than 10 ms after the one before (`CGROUP_FILE_NOTIFY_MIN_INTV`): a freeze soon after a thaw is there long before its event. So the file is also looked at
/// by itself, after [`FIRST_LOOK`] and then at doubling intervals.
fn await_event(group: &Path, key: &str, value: bool, stage: &'static str) -> Result<(), EngineError> {
    let what = || format!("cannot read cgroup.events of {}", group.display());
    let mut events = File::open(group.join("cgroup.events")).during(stage, what())?;
    let line = format!("{key} {}", u8::from(value));
    let deadline = Instant::now() + PATIENCE;
    let mut text = String::new();
    let mut look = FIRST_LOOK;
    loop {
        text.clear();
        events.rewind().during(stage, what())?;
        events.read_to_string(&mut text).during(stage, what())?;
        if text.lines().any(|found| found == line) {
            return Ok(());
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            let message = format!("{} did not reach {line:?} within {} s", group.display(), PATIENCE.as_secs());
            return Err(EngineError::new(ErrorKind::Timeout, stage, message));
        }
        let wait = Timespec::try_from(left.min(look)).expect("some seconds fit");
        look = look.saturating_mul(2);
        match rustix::event::poll(&mut [PollFd::new(&events.as_fd(), PollFlags::PRI)], Some(&wait)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(errno).during(stage, what()),
        }
    }
}

/// Version 1 has no event for this: reading the state also makes the kernel look again, so it is asked until it agrees.
fn set_legacy_state(group: &Path, state: &str) -> Result<(), EngineError> {
    const STAGE: &str = "freeze";
    let file = group.join("freezer.state");
    let deadline = Instant::now() + PATIENCE;
    loop {
        fs::write(&file, state).during(STAGE, format_args!("cannot write {}", file.display()))?;
        let now = fs::read_to_string(&file).during(STAGE, format_args!("cannot read {}", file.display()))?;
        if now.trim() == state {
            return Ok(());
        }
        if Instant::now() >= deadline {
            let message = format!("{} stayed {} instead of {state}", file.display(), now.trim());
            return Err(EngineError::new(ErrorKind::Timeout, STAGE, message));
        }
        std::thread::yield_now();
    }
}

fn remove(group: &Path) -> Result<(), EngineError> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match fs::remove_dir(group) {
            Ok(()) => return Ok(()),
            Err(error) if error.kind() == IoKind::NotFound => return Ok(()),
            Err(error) if error.kind() == IoKind::ResourceBusy && Instant::now() < deadline => {
                // Version 2 says when the last process is gone; version 1 says nothing, and a dying process leaves within microseconds.
                if group.join("cgroup.events").exists() {
                    await_event(group, "populated", false, "cgroup")?;
                }
                std::thread::yield_now();
            }
            Err(error) => {
                let left = members(group);
                return Err(error)
                    .during("cgroup", format_args!("cannot remove {}, processes {left:?} are left", group.display()));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(group: &Group, limits: Limits) -> Vec<(String, String)> {
        group.settings(&limits).into_iter().map(|(file, value)| (file.to_str().unwrap().to_owned(), value)).collect()
    }

    const ALL: Limits = Limits { memory_bytes: Some(1 << 30), cpu_millis: Some(1500), pids: Some(64) };

    #[test]
    fn limits_in_version_2() {
        let group = Group { unified: Some("/u".into()), legacy: BTreeMap::new() };
        let expected = [("/u/memory.max", "1073741824"), ("/u/cpu.max", "150000 100000"), ("/u/pids.max", "64")];
        assert_eq!(settings(&group, ALL), expected.map(|(file, value)| (file.to_owned(), value.to_owned())));
    }

    #[test]
    fn limits_in_version_1() {
        let legacy = ["memory", "cpu", "pids"].map(|name| (name.to_owned(), PathBuf::from(format!("/{name}/s"))));
        let group = Group { unified: Some("/u".into()), legacy: BTreeMap::from(legacy) };
        let expected = [
            ("/memory/s/memory.limit_in_bytes", "1073741824"),
            ("/cpu/s/cpu.cfs_period_us", "100000"),
            ("/cpu/s/cpu.cfs_quota_us", "150000"),
            ("/pids/s/pids.max", "64"),
        ];
        assert_eq!(settings(&group, ALL), expected.map(|(file, value)| (file.to_owned(), value.to_owned())));
    }

    #[test]
    fn no_limits_write_nothing() {
        let group = Group { unified: Some("/u".into()), legacy: BTreeMap::new() };
        assert_eq!(settings(&group, Limits::default()), []);
    }

    #[test]
    fn controllers_mounted_together_are_entered_once() {
        let legacy =
            BTreeMap::from([("cpu".to_owned(), PathBuf::from("/c")), ("cpuacct".to_owned(), PathBuf::from("/c"))]);
        let group = Group { unified: None, legacy };
        assert_eq!(group.entry().legacy, [PathBuf::from("/c")]);
    }
}
