//! From a start request to a boot plan: pure.

use std::path::{Path, PathBuf};

use leasehold_guest::boot::plan::{Access, BootPlan, CgroupEntry, FsKind, IdRange, RootPlan, Step};

/// First host id of every sandbox. Chosen: above what systemd gives to containers (0x00080000 to 0x6FFFFFFF, systemd's UIDS-GIDS.md, seen 2026-12) and to
/// dynamic users, below 0x7FFFFFFF, from where on some programs go wrong.
pub(crate) const ID_BASE: u32 = 0x7000_0000;

/// How many ids a sandbox has. The usual number: `nobody` is 65534.
pub(crate) const ID_COUNT: u32 = 0x1_0000;

/// What a top-level name of the machine is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum HostRoot {
    /// A link, as `/bin` is on machines with a merged `/usr`: made anew in the sandbox.
    Link(PathBuf),
    /// A directory: shown read-only.
    Directory,
}

/// What template `host` needs to know about the machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct HostFacts {
    /// Of `usr`, `bin`, `sbin` and `lib*`, those that exist, sorted.
    pub(crate) roots: Vec<(String, HostRoot)>,
    /// Whether there is a `/usr/local` to hide.
    pub(crate) has_usr_local: bool,
}

impl HostFacts {
    /// Looks at the machine.
    pub(crate) fn read(root: &Path) -> Self {
        let mut roots: Vec<(String, HostRoot)> = ["usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32"]
            .into_iter()
            .filter_map(|name| {
                let path = root.join(name);
                let metadata = path.symlink_metadata().ok()?;
                let kind =
                    if metadata.is_symlink() { HostRoot::Link(path.read_link().ok()?) } else { HostRoot::Directory };
                Some((name.to_owned(), kind))
            })
            .collect();
        roots.sort_by(|one, other| one.0.cmp(&other.0));
        Self { roots, has_usr_local: root.join("usr/local").is_dir() }
    }
}

/// Everything the plan depends on besides the machine.
#[derive(Debug)]
pub(crate) struct Request<'a> {
    pub(crate) id: &'a str,
    /// Unpacked layers, lowest first; the base is the first.
    pub(crate) layers: &'a [PathBuf],
    pub(crate) upper: PathBuf,
    pub(crate) work: PathBuf,
    /// Per-boot files: `boot_id`, `hosts`, `hostname`.
    pub(crate) boot: PathBuf,
    /// Shared with the guest; holds `identity.json`.
    pub(crate) run: PathBuf,
    pub(crate) guest: PathBuf,
    pub(crate) mountpoint: PathBuf,
    pub(crate) empty: PathBuf,
    pub(crate) cgroups: CgroupEntry,
}

/// Devices that every program may expect; anything else does not exist inside.
const DEVICES: &[&str] = &["null", "zero", "full", "random", "urandom", "tty"];

/// Parts of `/proc` that tell about the whole machine or act on it.
const MASKED: &[&str] = &[
    "acpi",
    "asound",
    "kallsyms",
    "kcore",
    "key-users",
    "keys",
    "kmsg",
    "kpagecgroup",
    "kpagecount",
    "kpageflags",
    "latency_stats",
    "modules",
    "sched_debug",
    "scsi",
    "timer_list",
    "timer_stats",
    "vmallocinfo",
];

/// Parts of `/proc` that can be read but not written.
const READ_ONLY: &[&str] = &["bus", "driver", "fs", "irq", "mtrr", "sys", "sysrq-trigger"];

/// Chosen: room for the nodes and links, and no place to store data.
const DEV_SIZE: &str = "64k";
/// Chosen: a browser needs more than the 64 MiB that containers usually have.
const SHM_SIZE: &str = "256m";
/// Chosen: sockets, locks and pid files.
const RUN_SIZE: &str = "64m";

/// The guest binary, inside.
const GUEST: &str = "run/leasehold-guest";

/// Computes the plan.
pub(crate) fn boot_plan(facts: &HostFacts, request: Request<'_>) -> BootPlan {
    let mut steps = Vec::new();
    base(facts, &request.empty, &mut steps);
    devices(&mut steps);
    proc(&request, &mut steps);
    run(&request, &mut steps);
    for name in ["hosts", "hostname"] {
        // Both can be written inside, and are new on every boot.
        steps.push(bind(request.boot.join(name), Path::new("etc").join(name), Access::ReadWrite));
    }
    BootPlan {
        sandbox_id: request.id.to_owned(),
        ids: vec![IdRange { inside: 0, outside: ID_BASE, count: ID_COUNT }],
        cgroups: request.cgroups,
        root: RootPlan {
            lowers: request.layers.iter().rev().cloned().collect(),
            upper: request.upper,
            work: request.work,
            mountpoint: request.mountpoint,
        },
        steps,
        guest: Path::new("/").join(GUEST),
    }
}

fn bind(source: PathBuf, target: impl Into<PathBuf>, access: Access) -> Step {
    Step::Bind { source, target: target.into(), recursive: false, access, device: false }
}

fn base(facts: &HostFacts, empty: &Path, steps: &mut Vec<Step>) {
    for (name, _) in facts.roots.iter().filter(|(_, root)| *root == HostRoot::Directory) {
        steps.push(Step::Bind {
            source: Path::new("/").join(name),
            target: name.into(),
            recursive: true,
            access: Access::ReadOnly,
            device: false,
        });
    }
    if facts.has_usr_local {
        steps.push(Step::Mask { target: "usr/local".into(), empty: empty.to_owned() });
    }
}

fn mount(kind: FsKind, target: &str, options: &[(&str, &str)]) -> Step {
    let options = options.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
    Step::Mount { kind, target: target.into(), options, executable: false }
}

fn devices(steps: &mut Vec<Step>) {
    steps.push(mount(FsKind::Tmpfs, "dev", &[("mode", "755"), ("size", DEV_SIZE)]));
    for name in DEVICES {
        let target = Path::new("dev").join(name);
        steps.push(Step::File { target: target.clone() });
        let source = Path::new("/dev").join(name);
        steps.push(Step::Bind { source, target, recursive: false, access: Access::ReadWrite, device: true });
    }
    for name in ["dev/pts", "dev/shm"] {
        steps.push(Step::Directory { target: name.into(), mode: 0o755 });
    }
    steps.push(mount(FsKind::Devpts, "dev/pts", &[("mode", "620"), ("ptmxmode", "666"), ("gid", "5")]));
    steps.push(mount(FsKind::Tmpfs, "dev/shm", &[("mode", "1777"), ("size", SHM_SIZE)]));
    for (name, to) in [
        ("ptmx", "pts/ptmx"),
        ("fd", "/proc/self/fd"),
        ("stdin", "/proc/self/fd/0"),
        ("stdout", "/proc/self/fd/1"),
        ("stderr", "/proc/self/fd/2"),
    ] {
        steps.push(Step::Symlink { target: Path::new("dev").join(name), to: to.into() });
    }
}

fn proc(request: &Request<'_>, steps: &mut Vec<Step>) {
    steps.push(mount(FsKind::Proc, "proc", &[]));
    // The network is the sandbox's own, so its ports below 1024 guard nothing.
    steps.push(Step::Setting { target: "proc/sys/net/ipv4/ip_unprivileged_port_start".into(), value: "0".into() });
    let inside = |name: &&str| Path::new("proc").join(name);
    steps.extend(READ_ONLY.iter().map(inside).map(|target| Step::Freeze { target }));
    steps.extend(MASKED.iter().map(inside).map(|target| Step::Mask { target, empty: request.empty.clone() }));
    steps.push(bind(request.boot.join("boot_id"), "proc/sys/kernel/random/boot_id", Access::ReadOnly));
}

fn run(request: &Request<'_>, steps: &mut Vec<Step>) {
    steps.push(Step::Mount {
        kind: FsKind::Tmpfs,
        target: "run".into(),
        options: vec![("mode".into(), "755".into()), ("size".into(), RUN_SIZE.into())],
        executable: true,
    });
    steps.push(Step::Directory { target: "run/lock".into(), mode: 0o1777 });
    steps.push(Step::Directory { target: "run/leasehold".into(), mode: 0o700 });
    steps.push(Step::File { target: GUEST.into() });
    steps.push(bind(request.guest.clone(), GUEST, Access::ReadOnly));
    steps.push(bind(request.run.clone(), "run/leasehold", Access::ReadWrite));
    // On top of itself: the guest's root owns the file, and still cannot change it nor put another in its place.
    steps.push(bind(request.run.join("identity.json"), "run/leasehold/identity.json", Access::ReadOnly));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts() -> HostFacts {
        HostFacts {
            roots: vec![
                ("bin".into(), HostRoot::Link("usr/bin".into())),
                ("lib32".into(), HostRoot::Directory),
                ("usr".into(), HostRoot::Directory),
            ],
            has_usr_local: true,
        }
    }

    fn plan() -> BootPlan {
        let layers = ["/d/base", "/d/one", "/d/two"].map(PathBuf::from);
        let request = Request {
            id: "i1",
            layers: &layers,
            upper: "/d/upper".into(),
            work: "/d/work".into(),
            boot: "/d/boot".into(),
            run: "/d/run".into(),
            guest: "/d/guest".into(),
            mountpoint: "/d/root".into(),
            empty: "/d/empty".into(),
            cgroups: CgroupEntry::default(),
        };
        boot_plan(&facts(), request)
    }

    fn position(plan: &BootPlan, wanted: impl Fn(&Step) -> bool) -> usize {
        plan.steps.iter().position(wanted).unwrap()
    }

    #[test]
    fn the_topmost_layer_comes_first() {
        assert_eq!(plan().root.lowers, ["/d/two", "/d/one", "/d/base"].map(PathBuf::from));
    }

    #[test]
    fn the_hosts_root_is_never_mapped() {
        for range in plan().ids {
            assert!(range.outside > 0 && range.outside.checked_add(range.count).is_some());
        }
    }

    #[test]
    fn host_directories_are_read_only_and_links_are_not_mounted() {
        let plan = plan();
        let shown: Vec<_> = plan
            .steps
            .iter()
            .filter_map(|step| match step {
                Step::Bind { source, access, recursive: true, .. } => Some((source.to_str().unwrap(), *access)),
                _ => None,
            })
            .collect();
        assert_eq!(shown, [("/lib32", Access::ReadOnly), ("/usr", Access::ReadOnly)]);
    }

    #[test]
    fn only_named_sources_can_be_written_to() {
        let writable: Vec<_> = plan()
            .steps
            .into_iter()
            .filter_map(|step| match step {
                Step::Bind { source, access: Access::ReadWrite, device: false, .. } => Some(source),
                _ => None,
            })
            .collect();
        assert_eq!(writable, ["/d/run", "/d/boot/hosts", "/d/boot/hostname"].map(PathBuf::from));
    }

    #[test]
    fn settings_are_written_before_they_become_read_only_and_the_boot_id_is_laid_on_after() {
        let plan = plan();
        let proc = position(&plan, |step| matches!(step, Step::Mount { kind: FsKind::Proc, .. }));
        let setting = position(&plan, |step| matches!(step, Step::Setting { .. }));
        let frozen = position(&plan, |step| matches!(step, Step::Freeze { target } if target == Path::new("proc/sys")));
        let boot_id =
            position(&plan, |step| matches!(step, Step::Bind { source, .. } if source == Path::new("/d/boot/boot_id")));
        assert!(proc < setting && setting < frozen && frozen < boot_id);
    }

    #[test]
    fn everything_a_sandbox_can_fill_in_memory_is_bounded() {
        for step in plan().steps {
            if let Step::Mount { kind: FsKind::Tmpfs, options, .. } = step {
                assert!(options.iter().any(|(key, _)| key == "size"), "{options:?}");
            }
        }
    }

    #[test]
    fn the_guest_cannot_change_its_identity() {
        let plan = plan();
        let run = position(&plan, |step| matches!(step, Step::Bind { source, .. } if source == Path::new("/d/run")));
        let identity = position(
            &plan,
            |step| matches!(step, Step::Bind { source, access: Access::ReadOnly, .. } if source == Path::new("/d/run/identity.json")),
        );
        assert!(run < identity);
    }
}
