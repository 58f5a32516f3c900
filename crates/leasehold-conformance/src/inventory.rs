//! What is on this machine because of us: the sets that are compared before and after every case.
//!
//! Other builds and other hosts run on the same machine, so every set is limited to *ours*. A process is ours when
//! - it descends from the process that embeds the host (a sandbox's PID 1 is a child of it, and orphans inside a PID namespace go to that namespace's PID 1), or
//! - its executable lies under our data directory (the guest binary is installed there), or
//! - its arguments or its environment name our data directory (helpers that were re-parented to the machine's init).
//!
//! Namespaces are ours when one of our processes is in them, or when we hold a descriptor of them. Mounts are ours when they mention our data directory,
//! control groups when their name carries one of the marks the harness gives. Interfaces are all of the machine's: nothing else here makes any.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Which machine objects belong to a harness.
#[derive(Debug, Clone)]
pub struct Ours {
    /// The process that embeds the host; its descendants are ours.
    pub root: u32,
    /// The data directory: its files are listed, and whatever names it is ours.
    pub data_dir: PathBuf,
    /// Paths under the data directory that may grow or change: each entry covers itself and what is below it.
    pub may_change: Vec<&'static str>,
    /// A control group is ours when its path contains one of these.
    pub cgroup_marks: Vec<String>,
    /// Whether the machine's network interfaces are looked at.
    pub interfaces: bool,
}

impl Ours {
    /// The control groups that our processes are in now, as `/proc/PID/cgroup` names them: a way to learn the marks.
    #[must_use]
    pub fn control_groups(&self) -> BTreeSet<String> {
        let groups = |process: Process| fs::read_to_string(format!("/proc/{}/cgroup", process.pid)).unwrap_or_default();
        let path = |line: &str| line.splitn(3, ':').nth(2).map(str::to_owned);
        our_processes(self)
            .into_iter()
            .flat_map(|process| groups(process).lines().filter_map(path).collect::<Vec<_>>())
            .collect()
    }
}

/// The kinds of things that can be left behind, in the order they are printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// A sandbox, a snapshot, or what else the provider itself lists.
    Resource,
    /// A process, by pid and start time; a zombie counts.
    Process,
    /// A namespace that one of our processes is in.
    Namespace,
    /// A descriptor of a namespace or of a process, held by the embedding process.
    Descriptor,
    /// A mount in the embedding process's mount namespace.
    Mount,
    /// A control group, in any hierarchy.
    Cgroup,
    /// A network interface.
    Interface,
    /// A file or directory under the data directory.
    File,
}

impl Kind {
    const fn name(self) -> &'static str {
        match self {
            Self::Resource => "resource",
            Self::Process => "process",
            Self::Namespace => "namespace",
            Self::Descriptor => "descriptor",
            Self::Mount => "mount",
            Self::Cgroup => "cgroup",
            Self::Interface => "interface",
            Self::File => "file",
        }
    }
}

/// What exists at one moment. The value is a label for people; only the key identifies.
#[derive(Debug, Clone, Default)]
pub struct Inventory {
    things: BTreeMap<(Kind, String), String>,
}

impl Inventory {
    /// Takes the machine's part of the inventory.
    #[must_use]
    pub fn of_machine(ours: &Ours) -> Self {
        let mut inventory = Self::default();
        let processes = our_processes(ours);
        for process in &processes {
            inventory.add(Kind::Process, process.identity(), process.label());
            for namespace in &process.namespaces {
                inventory.add(Kind::Namespace, namespace.clone(), format!("of pid {}", process.pid));
            }
        }
        for (descriptor, target) in held_descriptors(ours.root) {
            inventory.add(Kind::Descriptor, format!("{descriptor} {target}"), String::new());
        }
        for mount in our_mounts(&ours.data_dir) {
            inventory.add(Kind::Mount, mount, String::new());
        }
        for group in our_cgroups(&ours.cgroup_marks) {
            inventory.add(Kind::Cgroup, group, String::new());
        }
        let interfaces = if ours.interfaces { names_in(Path::new("/sys/class/net")) } else { Vec::new() };
        for interface in interfaces {
            inventory.add(Kind::Interface, interface, String::new());
        }
        let mut files = BTreeSet::new();
        list_files(&ours.data_dir, Path::new(""), 0, &ours.may_change, &mut files);
        for file in files {
            inventory.add(Kind::File, file, String::new());
        }
        inventory
    }

    /// Adds what the provider lists as alive.
    pub fn add_resources(&mut self, resources: impl IntoIterator<Item = String>) {
        for resource in resources {
            self.add(Kind::Resource, resource, String::new());
        }
    }

    fn add(&mut self, kind: Kind, key: String, label: String) {
        self.things.entry((kind, key)).or_insert(label);
    }

    /// Lists what is here and was not in `before`, one line each.
    #[must_use]
    pub fn left_since(&self, before: &Self) -> Vec<String> {
        self.difference(before, "")
    }

    /// Lists what was in `before` and is gone: a case must not take away what it didn't make. Processes and their namespaces may end by themselves.
    #[must_use]
    pub fn taken_since(&self, before: &Self) -> Vec<String> {
        let mut taken = before.difference(self, "gone: ");
        taken.retain(|line| {
            !line.starts_with("gone: process")
                && !line.starts_with("gone: namespace")
                && !line.starts_with("gone: descriptor")
        });
        taken
    }

    fn difference(&self, other: &Self, prefix: &str) -> Vec<String> {
        self.things
            .iter()
            .filter(|(thing, _)| !other.things.contains_key(thing))
            .map(|((kind, key), label)| {
                let gap = if label.is_empty() { "" } else { " " };
                format!("{prefix}{} {key}{gap}{label}", kind.name())
            })
            .collect()
    }
}

#[derive(Debug)]
struct Process {
    pid: u32,
    parent: u32,
    start: u64,
    state: char,
    name: String,
    arguments: String,
    namespaces: Vec<String>,
}

impl Process {
    fn identity(&self) -> String {
        format!("{} started {}", self.pid, self.start)
    }

    fn label(&self) -> String {
        format!("({}, state {}, parent {}) {}", self.name, self.state, self.parent, self.arguments)
    }
}

fn our_processes(ours: &Ours) -> Vec<Process> {
    let mut all = BTreeMap::new();
    for entry in names_in(Path::new("/proc")) {
        if let Some(process) = entry.parse().ok().and_then(read_process) {
            all.insert(process.pid, process);
        }
    }
    let parents: BTreeMap<u32, u32> = all.values().map(|process| (process.pid, process.parent)).collect();
    let own = namespaces_of(ours.root);
    all.into_values()
        .filter(|process| process.pid != ours.root)
        .filter(|process| {
            descends_from(process.pid, ours.root, &parents) || names_directory(process.pid, &ours.data_dir)
        })
        .map(|mut process| {
            process.namespaces =
                namespaces_of(process.pid).into_iter().filter(|namespace| !own.contains(namespace)).collect();
            process
        })
        .collect()
}

fn descends_from(pid: u32, root: u32, parents: &BTreeMap<u32, u32>) -> bool {
    let mut current = pid;
    // A chain longer than the process table would be a loop made by a reused pid.
    for _ in 0..parents.len() {
        match parents.get(&current) {
            Some(&parent) if parent == root => return true,
            Some(&parent) if parent != 0 => current = parent,
            _ => return false,
        }
    }
    false
}

fn names_directory(pid: u32, directory: &Path) -> bool {
    let process = PathBuf::from(format!("/proc/{pid}"));
    if fs::read_link(process.join("exe")).is_ok_and(|exe| exe.starts_with(directory)) {
        return true;
    }
    let needle = directory.as_os_str().as_encoded_bytes();
    ["cmdline", "environ"].iter().any(|file| {
        fs::read(process.join(file)).is_ok_and(|bytes| bytes.windows(needle.len()).any(|window| window == needle))
    })
}

fn read_process(pid: u32) -> Option<Process> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name is in parentheses and may contain spaces and parentheses itself; the last one closes it.
    let (head, tail) = stat.rsplit_once(')')?;
    let name = head.split_once('(')?.1.to_owned();
    let fields: Vec<&str> = tail.split_whitespace().collect();
    let arguments = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let arguments: Vec<_> = arguments.split(|byte| *byte == 0).map(String::from_utf8_lossy).collect();
    Some(Process {
        pid,
        state: fields.first()?.chars().next()?,
        parent: fields.get(1)?.parse().ok()?,
        // Field 22 of proc_pid_stat(5); two stand before the closing parenthesis.
        start: fields.get(19)?.parse().ok()?,
        name,
        arguments: arguments.join(" ").chars().take(160).collect(),
        namespaces: Vec::new(),
    })
}

fn namespaces_of(pid: u32) -> Vec<String> {
    ["pid", "mnt", "net", "user", "uts", "ipc", "cgroup"]
        .iter()
        .filter_map(|kind| fs::read_link(format!("/proc/{pid}/ns/{kind}")).ok())
        .map(|target| target.to_string_lossy().into_owned())
        .collect()
}

/// Descriptors that keep a namespace or a dead process's entry alive. Sockets and files are not listed: pools may keep them.
fn held_descriptors(pid: u32) -> Vec<(String, String)> {
    let directory = PathBuf::from(format!("/proc/{pid}/fd"));
    names_in(&directory)
        .into_iter()
        .filter_map(|name| {
            let target = fs::read_link(directory.join(&name)).ok()?.to_string_lossy().into_owned();
            let holds = target.contains("[pidfd]")
                || ["pid:[", "mnt:[", "net:[", "user:["].iter().any(|kind| target.starts_with(kind));
            holds.then_some((name, target))
        })
        .collect()
}

fn our_mounts(data_dir: &Path) -> Vec<String> {
    let needle = data_dir.to_string_lossy();
    fs::read_to_string("/proc/self/mountinfo")
        .unwrap_or_default()
        .lines()
        .filter(|line| line.contains(&*needle))
        // Without the two leading ids, which number the mount and its parent.
        .map(|line| line.splitn(3, ' ').last().unwrap_or(line).to_owned())
        .collect()
}

fn our_cgroups(marks: &[String]) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut open = if marks.is_empty() { Vec::new() } else { vec![PathBuf::from("/sys/fs/cgroup")] };
    while let Some(directory) = open.pop() {
        for entry in fs::read_dir(&directory).into_iter().flatten().flatten() {
            if !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                continue;
            }
            let path = entry.path();
            let text = path.to_string_lossy();
            if marks.iter().any(|mark| text.contains(mark.as_str())) {
                found.insert(text.into_owned());
            }
            open.push(path);
        }
    }
    found
}

fn list_files(root: &Path, below: &Path, depth: usize, may_change: &[&str], found: &mut BTreeSet<String>) {
    // Chosen: deep enough to name a sandbox's, a layer's and a cache entry's own directory, without walking their contents.
    const DEPTH: usize = 3;
    for name in names_in(&root.join(below)) {
        let path = below.join(&name);
        let text = path.to_string_lossy().into_owned();
        if may_change.iter().any(|allowed| path.starts_with(allowed) || text.starts_with(&format!("{allowed}-"))) {
            continue;
        }
        let is_directory = fs::symlink_metadata(root.join(&path)).is_ok_and(|data| data.is_dir());
        if is_directory && depth + 1 < DEPTH {
            list_files(root, &path, depth + 1, may_change, found);
        }
        found.insert(text);
    }
}

fn names_in(directory: &Path) -> Vec<String> {
    fs::read_dir(directory)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    fn ours(data_dir: &Path) -> Ours {
        Ours {
            root: std::process::id(),
            data_dir: data_dir.to_owned(),
            may_change: vec!["log"],
            cgroup_marks: Vec::new(),
            interfaces: false,
        }
    }

    #[test]
    fn a_child_process_is_left_until_it_is_reaped() {
        let directory = tempfile::tempdir().unwrap();
        let ours = ours(directory.path());
        let before = Inventory::of_machine(&ours);
        let mut child = Command::new("sleep").arg("1000").stdin(Stdio::null()).spawn().unwrap();
        let line = format!("process {} started", child.id());
        let left = Inventory::of_machine(&ours).left_since(&before);
        assert!(left.iter().any(|left| left.starts_with(&line)), "{left:?}");
        child.kill().unwrap();
        child.wait().unwrap();
        let left = Inventory::of_machine(&ours).left_since(&before);
        assert!(!left.iter().any(|left| left.starts_with(&line)), "{left:?}");
    }

    #[test]
    fn a_stranger_is_ours_when_its_environment_names_the_directory() {
        let directory = tempfile::tempdir().unwrap();
        // Root of nothing: only the directory can tell.
        let ours = Ours { root: u32::MAX, ..ours(directory.path()) };
        let before = Inventory::of_machine(&ours);
        let mut child =
            Command::new("sleep").arg("1000").env("ROOM", directory.path()).stdin(Stdio::null()).spawn().unwrap();
        let left = Inventory::of_machine(&ours).left_since(&before);
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(left.iter().any(|left| left.contains(&format!("process {} ", child.id()))), "{left:?}");
    }

    #[test]
    fn a_held_descriptor_of_a_process_or_a_namespace_is_left() {
        let directory = tempfile::tempdir().unwrap();
        let ours = ours(directory.path());
        let before = Inventory::of_machine(&ours);
        let held = (
            rustix::process::pidfd_open(rustix::process::getpid(), rustix::process::PidfdFlags::empty()).unwrap(),
            fs::File::open("/proc/self/ns/net").unwrap(),
        );
        let left = Inventory::of_machine(&ours).left_since(&before);
        for sign in ["pidfd", "net:["] {
            assert!(left.iter().any(|line| line.starts_with("descriptor") && line.contains(sign)), "{left:?}");
        }
        drop(held);
    }

    #[test]
    fn files_are_left_or_taken_and_a_log_may_change() {
        let directory = tempfile::tempdir().unwrap();
        let ours = ours(directory.path());
        fs::create_dir_all(directory.path().join("layers")).unwrap();
        fs::write(directory.path().join("layers/old"), "").unwrap();
        let before = Inventory::of_machine(&ours);
        fs::write(directory.path().join("log"), "more").unwrap();
        fs::write(directory.path().join("layers/new"), "").unwrap();
        fs::remove_file(directory.path().join("layers/old")).unwrap();
        let after = Inventory::of_machine(&ours);
        let files = |lines: Vec<String>| lines.into_iter().filter(|line| line.contains("file ")).collect::<Vec<_>>();
        assert_eq!(files(after.left_since(&before)), ["file layers/new"]);
        assert_eq!(files(after.taken_since(&before)), ["gone: file layers/old"]);
    }

    #[test]
    fn a_parent_chain_that_loops_ends() {
        let parents = BTreeMap::from([(2, 3), (3, 2), (5, 4), (4, 1)]);
        assert!(!descends_from(2, 9, &parents));
        assert!(descends_from(5, 1, &parents));
        assert!(!descends_from(7, 1, &parents));
    }
}
