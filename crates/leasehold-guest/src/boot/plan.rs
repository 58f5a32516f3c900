//! The boot plan: everything the launcher needs to know, as plain data.
//!
//! The engine computes a plan (a pure function of the start request and the machine), the launcher reads it as one JSON document on its standard
//! input and applies it without taking decisions of its own. Paths on the host are absolute; paths inside the sandbox are relative to its root.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// A whole sandbox boot, in the order in which it is applied.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BootPlan {
    /// The sandbox, for messages; also its host name.
    pub sandbox_id: String,
    /// User and group ids: the same ranges for both.
    pub ids: Vec<IdRange>,
    /// Where the sandbox's processes are accounted and frozen.
    pub cgroups: CgroupEntry,
    /// The root file system.
    pub root: RootPlan,
    /// Mounts and files on top of the root, in order.
    pub steps: Vec<Step>,
    /// The guest binary's path inside, absolute: executed as `<guest> init`.
    pub guest: PathBuf,
}

/// `count` ids starting at `inside` are ids starting at `outside` on the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct IdRange {
    /// First id as the sandbox sees it.
    pub inside: u32,
    /// First id as the host sees it.
    pub outside: u32,
    /// How many ids.
    pub count: u32,
}

impl std::fmt::Display for IdRange {
    /// One line of `/proc/PID/uid_map`.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        writeln!(f, "{} {} {}", self.inside, self.outside, self.count)
    }
}

/// How the first process enters its control groups.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CgroupEntry {
    /// The cgroup v2 directory the process is born in (`CLONE_INTO_CGROUP`), so that not even its first instruction runs outside.
    pub unified: Option<PathBuf>,
    /// Version 1 directories: the launcher writes the process id to each one's `cgroup.procs` before user code can run.
    pub legacy: Vec<PathBuf>,
}

/// An overlay: read-only layers below, one writable directory on top.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RootPlan {
    /// Read-only layers, topmost first, as overlayfs wants them.
    pub lowers: Vec<PathBuf>,
    /// The writable layer.
    pub upper: PathBuf,
    /// Overlayfs's scratch directory, on the file system of `upper`.
    pub work: PathBuf,
    /// An empty directory to put the new root on; only the sandbox's own mount namespace sees that mount.
    pub mountpoint: PathBuf,
}

/// One step of furnishing the root.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "step", rename_all = "snake_case", deny_unknown_fields)]
pub enum Step {
    /// Shows a file or directory of the host. Never set-user-id, never devices unless `device`.
    Bind {
        /// What, on the host.
        source: PathBuf,
        /// Where, inside.
        target: PathBuf,
        /// Whether mounts below `source` come along.
        recursive: bool,
        /// Whether it can be written to.
        access: Access,
        /// Whether it is a device node.
        device: bool,
    },
    /// A file system of this sandbox alone.
    Mount {
        /// Which kind.
        kind: FsKind,
        /// Where, inside.
        target: PathBuf,
        /// Options of the kind, as `name=value`.
        options: Vec<(String, String)>,
        /// Whether programs in it can be executed.
        executable: bool,
    },
    /// Makes what is already mounted at `target` read-only.
    Freeze {
        /// Where, inside. Skipped if it does not exist.
        target: PathBuf,
    },
    /// Hides a file behind the null device, or a directory behind an empty read-only one. Skipped if there is nothing to hide.
    Mask {
        /// Where, inside.
        target: PathBuf,
        /// An empty directory on the host.
        empty: PathBuf,
    },
    /// Makes a directory unless it is there.
    Directory {
        /// Where, inside.
        target: PathBuf,
        /// Permission bits.
        mode: u32,
    },
    /// Makes an empty file unless it is there, to mount something on.
    File {
        /// Where, inside.
        target: PathBuf,
    },
    /// Makes a symbolic link.
    Symlink {
        /// Where, inside.
        target: PathBuf,
        /// What it says.
        to: PathBuf,
    },
    /// Writes a kernel setting of the sandbox's own namespaces. Skipped if this kernel has no such setting.
    Setting {
        /// The file, inside.
        target: PathBuf,
        /// The value.
        value: String,
    },
}

/// Whether a bind mount can be written to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Access {
    /// Read-only, together with everything mounted below.
    ReadOnly,
    /// Writable.
    ReadWrite,
}

/// File systems the kernel lets a user namespace mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FsKind {
    /// Memory.
    Tmpfs,
    /// Processes of the sandbox's own pid namespace.
    Proc,
    /// Pseudo terminals of its own.
    Devpts,
}

impl FsKind {
    /// The kernel's name of it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Tmpfs => "tmpfs",
            Self::Proc => "proc",
            Self::Devpts => "devpts",
        }
    }
}

/// One line on the launcher's standard output, and then from the sandbox on the same pipe.
///
/// The order is: [`Launched`](Report::Launched) from the launcher, then either [`Ready`](Report::Ready) from the guest, or
/// [`Failed`](Report::Failed) from whoever could not go on. End of file without a last word means that the sandbox died.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Report {
    /// The sandbox's first process exists.
    Launched {
        /// Its process id in the launcher's pid namespace.
        pid: u32,
    },
    /// The guest's listeners are up.
    Ready {
        /// Always true.
        ready: bool,
    },
    /// Something went wrong; the process that says so exits.
    Failed {
        /// What, for people.
        error: String,
        /// The step, a short constant word; `guest` when absent.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        stage: Option<String>,
        /// The system's error number, if one stands behind it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        errno: Option<i32>,
    },
}

/// File descriptor on which the guest (`init`) finds the ready pipe. One line of [`Report`] is expected there, then it should be closed.
pub const READY_FD: i32 = 3;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_three_reports_are_told_apart() {
        let read = |text: &str| serde_json::from_str::<Report>(text).unwrap();
        assert_eq!(read(r#"{"pid":7}"#), Report::Launched { pid: 7 });
        assert_eq!(read(r#"{"ready":true}"#), Report::Ready { ready: true });
        assert_eq!(
            read(r#"{"error":"port 49983 is taken"}"#),
            Report::Failed { error: "port 49983 is taken".into(), stage: None, errno: None }
        );
    }

    #[test]
    fn a_plan_with_an_unknown_field_is_refused() {
        let text = r#"{"inside":0,"outside":1,"count":1,"extra":1}"#;
        assert!(serde_json::from_str::<IdRange>(text).is_err());
    }
}
