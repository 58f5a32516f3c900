//! Control groups: where sandboxes are accounted, limited, frozen and killed.
//!
//! Decided per controller, as machines are mixed: version 2 where the controller is there, else version 1, else nothing, which is then reported. Freezing
//! and killing need no controller in version 2.

mod group;
mod hierarchy;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

pub(crate) use group::Group;
use hierarchy::{Hierarchies, Place};

use crate::error::{During, EngineError, ErrorKind};
use crate::spec::Limits;

/// How a controller is available.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CgroupVersion {
    /// In the unified hierarchy.
    V2,
    /// In a hierarchy of its own.
    V1,
    /// Not at all.
    None,
}

/// What control groups do for sandboxes on this machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct CgroupReport {
    /// Limits and figures of memory.
    pub memory: CgroupVersion,
    /// Limits of processor time.
    pub cpu: CgroupVersion,
    /// Limits of processes.
    pub pids: CgroupVersion,
    /// Pausing. Without it pausing is done by signals, which processes inside can notice.
    pub freezer: CgroupVersion,
}

/// Controllers of version 2 that sandboxes use.
const WANTED: [&str; 3] = ["memory", "cpu", "pids"];

/// Where sandboxes' groups are made.
#[derive(Debug)]
pub(crate) struct Cgroups {
    /// Parent of all our groups in version 2, with the controllers that are on in it.
    unified: Option<(PathBuf, Vec<String>)>,
    /// The same in version 1, by controller.
    legacy: BTreeMap<String, PathBuf>,
    degraded: Vec<String>,
}

impl Cgroups {
    /// Finds and makes the parent groups. `name` tells the groups of different data directories apart.
    pub(crate) fn open(name: &str) -> Self {
        let read = |path| fs::read_to_string(path).unwrap_or_default();
        Self::among(Hierarchies::parse(&read("/proc/self/cgroup"), &read("/proc/self/mountinfo")), name)
    }

    /// Does without version 2, as a machine that has none, and without some controllers of version 1.
    #[cfg(test)]
    pub(crate) fn open_legacy(name: &str, controllers: &[&str]) -> Self {
        let read = |path| fs::read_to_string(path).unwrap_or_default();
        let mut hierarchies = Hierarchies::parse(&read("/proc/self/cgroup"), &read("/proc/self/mountinfo"));
        hierarchies.unified = None;
        hierarchies.legacy.retain(|controller, _| controllers.contains(&controller.as_str()));
        Self::among(hierarchies, name)
    }

    fn among(hierarchies: Hierarchies, name: &str) -> Self {
        let mut degraded = Vec::new();
        let unified = hierarchies.unified.and_then(|place| match open_unified(&place, name) {
            Ok(opened) => Some(opened),
            Err(error) => {
                degraded.push(format!("cgroup v2 cannot be used: {error}"));
                None
            }
        });
        let taken = |controller: &str| {
            unified
                .as_ref()
                .is_some_and(|(_, controllers): &(PathBuf, Vec<String>)| controllers.iter().any(|on| on == controller))
        };
        let mut legacy = BTreeMap::new();
        for (controller, use_it) in [
            ("memory", !taken("memory")),
            ("cpu", !taken("cpu")),
            ("pids", !taken("pids")),
            ("freezer", unified.is_none()),
        ] {
            let Some(place) = hierarchies.legacy.get(controller).filter(|_| use_it) else { continue };
            let parent = place.own.join(name);
            match make(&parent) {
                Ok(()) => drop(legacy.insert(controller.to_owned(), parent)),
                Err(error) => degraded.push(format!("cgroup v1 {controller} cannot be used: {error}")),
            }
        }
        let mut cgroups = Self { unified, legacy, degraded };
        cgroups.note_missing();
        cgroups
    }

    fn note_missing(&mut self) {
        let report = self.report();
        for (version, text) in [
            (report.memory, "no memory controller: memory cannot be limited or measured"),
            (report.cpu, "no cpu controller: processor time cannot be limited"),
            (report.pids, "no pids controller: the number of processes cannot be limited"),
            (report.freezer, "no freezer: pausing is done by signals, which processes inside can notice"),
        ] {
            if version == CgroupVersion::None {
                self.degraded.push(text.to_owned());
            }
        }
    }

    pub(crate) fn degraded(&self) -> &[String] {
        &self.degraded
    }

    pub(crate) fn report(&self) -> CgroupReport {
        let version = |controller: &str| {
            let on = |(_, controllers): &(PathBuf, Vec<String>)| controllers.iter().any(|name| name == controller);
            if self.unified.as_ref().is_some_and(on) {
                CgroupVersion::V2
            } else if self.legacy.contains_key(controller) {
                CgroupVersion::V1
            } else {
                CgroupVersion::None
            }
        };
        let freezer = if self.unified.is_some() { CgroupVersion::V2 } else { version("freezer") };
        CgroupReport { memory: version("memory"), cpu: version("cpu"), pids: version("pids"), freezer }
    }

    /// Names the groups of one sandbox; nothing is made yet.
    ///
    /// A sandbox is put only into those hierarchies of version 1 that it needs: a process cannot be born in one, and moving it there takes 5 to 13 ms
    /// (measured; the kernel waits until all processors have passed a quiet point, `percpu_down_write` of `cgroup_threadgroup_rwsem`).
    pub(crate) fn plan(&self, id: &str, limits: &Limits) -> Result<Group, EngineError> {
        let report = self.report();
        for (wanted, version, what) in [
            (limits.memory_bytes.is_some(), report.memory, "memory"),
            (limits.cpu_millis.is_some(), report.cpu, "processor time"),
            (limits.pids.is_some(), report.pids, "processes"),
        ] {
            if wanted && version == CgroupVersion::None {
                let message = format!(
                    "{what} cannot be limited on this machine: it has no such cgroup controller; leave the limit out"
                );
                return Err(EngineError::new(ErrorKind::Unsupported, "limits", message));
            }
        }
        let mut group = self.everywhere(id);
        group.legacy.retain(|controller, _| match controller.as_str() {
            "memory" => limits.memory_bytes.is_some(),
            "cpu" => limits.cpu_millis.is_some(),
            "pids" => limits.pids.is_some(),
            other => other == "freezer",
        });
        Ok(group)
    }

    /// Names the groups that a sandbox has at most.
    pub(crate) fn everywhere(&self, id: &str) -> Group {
        Group {
            unified: self.unified.as_ref().map(|(parent, _)| parent.join(id)),
            legacy: self.legacy.iter().map(|(controller, parent)| (controller.clone(), parent.join(id))).collect(),
        }
    }

    /// Ids that have a group in any hierarchy.
    pub(crate) fn ids(&self) -> Vec<String> {
        let parents = self.unified.iter().map(|(parent, _)| parent).chain(self.legacy.values());
        let mut ids: Vec<String> = parents
            .filter_map(|parent| fs::read_dir(parent).ok())
            .flatten()
            .filter_map(Result::ok)
            .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
            .filter_map(|entry| entry.file_name().into_string().ok())
            .collect();
        ids.sort();
        ids.dedup();
        ids
    }

    /// Removes the parent groups if no sandbox is in them.
    pub(crate) fn close(&self) {
        for parent in self.unified.iter().map(|(parent, _)| parent).chain(self.legacy.values()) {
            if let Err(error) = fs::remove_dir(parent) {
                tracing::debug!(path = %parent.display(), %error, "parent cgroup stays");
            }
        }
    }
}

/// Finds a place in version 2 whose children can have the wanted controllers.
///
/// A group with processes cannot pass controllers on, except the root; a host that was started from a login session is in such a one. So we climb until
/// there is one that can, and stay where we are when there is nothing to pass on or nothing better above.
fn open_unified(place: &Place, name: &str) -> Result<(PathBuf, Vec<String>), EngineError> {
    let mut base = place.own.as_path();
    while !pass_on(base) {
        match base.parent().filter(|_| base != place.mount) {
            Some(above) => base = above,
            None => {
                base = &place.own;
                break;
            }
        }
    }
    let parent = base.join(name);
    make(&parent)?;
    let available = words(&parent.join("cgroup.controllers"));
    let mut on = Vec::new();
    for controller in WANTED {
        let switch = parent.join("cgroup.subtree_control");
        if available.iter().any(|name| name == controller) && fs::write(&switch, format!("+{controller}")).is_ok() {
            on.push(controller.to_owned());
        }
    }
    Ok((parent, on))
}

/// Whether all wanted controllers that `group` has can be passed on to its children.
fn pass_on(group: &Path) -> bool {
    let available = words(&group.join("cgroup.controllers"));
    let on = words(&group.join("cgroup.subtree_control"));
    WANTED
        .iter()
        .filter(|wanted| available.iter().any(|name| name == *wanted) && !on.iter().any(|name| name == *wanted))
        .all(|wanted| fs::write(group.join("cgroup.subtree_control"), format!("+{wanted}")).is_ok())
}

fn words(file: &Path) -> Vec<String> {
    fs::read_to_string(file).unwrap_or_default().split_whitespace().map(str::to_owned).collect()
}

fn make(directory: &Path) -> Result<(), EngineError> {
    match fs::create_dir(directory) {
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => Ok(()),
        other => other.during("cgroup", format_args!("cannot make {}", directory.display())),
    }
}
