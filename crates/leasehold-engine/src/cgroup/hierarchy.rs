//! Which control group hierarchies this machine has, and where we are in each: pure parsing.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Our own place in every hierarchy.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Hierarchies {
    /// Our directory in version 2.
    pub(crate) unified: Option<Place>,
    /// Our directory in version 1, by controller.
    pub(crate) legacy: BTreeMap<String, Place>,
}

/// A directory and the root of its hierarchy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Place {
    /// Where the hierarchy is mounted.
    pub(crate) mount: PathBuf,
    /// Our directory, `mount` itself or below it.
    pub(crate) own: PathBuf,
}

impl Hierarchies {
    /// Reads `/proc/self/cgroup` and `/proc/self/mountinfo`.
    pub(crate) fn parse(cgroup: &str, mountinfo: &str) -> Self {
        let mut found = Self::default();
        for line in cgroup.lines() {
            let mut fields = line.splitn(3, ':');
            let (Some(_), Some(controllers), Some(path)) = (fields.next(), fields.next(), fields.next()) else {
                continue;
            };
            if controllers.is_empty() {
                found.unified = place(mountinfo, "cgroup2", None, path);
                continue;
            }
            for controller in controllers.split(',').filter(|name| !name.starts_with("name=")) {
                if let Some(place) = place(mountinfo, "cgroup", Some(controller), path) {
                    found.legacy.insert(controller.to_owned(), place);
                }
            }
        }
        found
    }
}

/// Finds where the hierarchy is mounted and our directory below that.
fn place(mountinfo: &str, kind: &str, controller: Option<&str>, path: &str) -> Option<Place> {
    mountinfo.lines().find_map(|line| {
        // 36 35 98:0 /root /mount options [optional ...] - type source superoptions
        let (left, right) = line.split_once(" - ")?;
        let left: Vec<&str> = left.split(' ').collect();
        let right: Vec<&str> = right.split(' ').collect();
        let (root, mount) = (left.get(3)?, PathBuf::from(unescape(left.get(4)?)));
        let matches = right.first() == Some(&kind)
            && controller
                .is_none_or(|name| right.get(2).is_some_and(|options| options.split(',').any(|option| option == name)));
        if !matches {
            return None;
        }
        // In a container the mount may show only a part of the hierarchy; what is not below that part cannot be reached.
        let below = Path::new(path).strip_prefix(unescape(root)).unwrap_or(Path::new(""));
        let own = if below.as_os_str().is_empty() { mount.clone() } else { mount.join(below) };
        Some(Place { mount, own })
    })
}

/// Undoes the kernel's octal escapes of blanks in mountinfo.
fn unescape(text: &str) -> String {
    text.replace("\\040", " ").replace("\\011", "\t").replace("\\012", "\n").replace("\\134", "\\")
}

#[cfg(test)]
mod tests {
    use super::*;

    const HYBRID_MOUNTS: &str = "30 25 0:26 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu,cpuacct\n\
        35 25 0:31 / /sys/fs/cgroup/memory rw,relatime shared:9 - cgroup cgroup rw,memory\n\
        39 25 0:36 / /sys/fs/cgroup/systemd rw,relatime - cgroup cgroup rw,name=systemd\n\
        40 25 0:37 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n";

    #[test]
    fn a_hybrid_machine_has_both() {
        let found = Hierarchies::parse("9:name=systemd:/\n4:memory:/a/b\n1:cpu,cpuacct:/\n0::/\n", HYBRID_MOUNTS);
        assert_eq!(found.unified.unwrap().own, Path::new("/sys/fs/cgroup/unified"));
        assert_eq!(found.legacy["memory"].own, Path::new("/sys/fs/cgroup/memory/a/b"));
        assert_eq!(found.legacy["cpu"], found.legacy["cpuacct"]);
        assert_eq!(found.legacy.len(), 3, "named hierarchies control nothing");
    }

    #[test]
    fn a_unified_machine_has_one_with_our_path_in_it() {
        let found = Hierarchies::parse(
            "0::/user.slice/run-1.scope\n",
            "40 25 0:37 / /sys/fs/cgroup rw shared:4 - cgroup2 cgroup2 rw\n",
        );
        let unified = found.unified.unwrap();
        assert_eq!(unified.mount, Path::new("/sys/fs/cgroup"));
        assert_eq!(unified.own, Path::new("/sys/fs/cgroup/user.slice/run-1.scope"));
        assert!(found.legacy.is_empty());
    }

    #[test]
    fn a_container_sees_a_part() {
        let found =
            Hierarchies::parse("0::/docker/abc/x\n", "1 2 0:3 /docker/abc /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n");
        assert_eq!(found.unified.unwrap().own, Path::new("/sys/fs/cgroup/x"));
    }

    #[test]
    fn no_hierarchy_mounted_is_none() {
        assert_eq!(Hierarchies::parse("0::/\n", "1 2 0:3 / /proc rw - proc proc rw\n"), Hierarchies::default());
    }
}
