//! The engine: sandboxes from namespaces, control groups and an overlay.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::chown;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{FileType, Mode, OFlags};
use sha2::{Digest, Sha256};

use crate::cgroup::{CgroupReport, CgroupVersion, Cgroups, Group};
use crate::error::{During, EngineError, ErrorKind};
use crate::fault;
use crate::launch::Launch;
use crate::layer;
use crate::paths::{DataDir, IdMode, private_dir, set_mode};
use crate::plan::{self, HostFacts, ID_BASE, Request};
use crate::process;
use crate::record::{self, BootRecord};
use crate::removal::remove_all;
use crate::skeleton;
use crate::spec::{GuestSocket, LayerDigest, ProcessId, Running, StartSpec, Template, Usage, check_id, hex};
use crate::undo::Undo;
use crate::unmount::{Root, Unmounter};

/// Settings of an [`Engine`].
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct EngineConfig {
    /// Where everything is kept. Made if missing; refused if another user owns it.
    pub data_dir: PathBuf,
    /// How long a guest may take until it is ready. Default 10 s, chosen: about a thousand times what it takes on an idle machine.
    pub start_timeout: Duration,
    /// How long killed processes may take to be gone. Default 10 s, chosen: a process in an uninterruptible wait for a disk.
    pub stop_timeout: Duration,
    /// Most layers of one sandbox. Default 200, chosen: below overlayfs's own 500, and each costs a look-up for names that do not exist.
    pub max_layers: usize,
}

impl EngineConfig {
    /// Defaults for everything but the data directory.
    pub fn new(data_dir: impl Into<PathBuf>) -> Self {
        Self {
            data_dir: data_dir.into(),
            start_timeout: Duration::from_secs(10),
            stop_timeout: Duration::from_secs(10),
            max_layers: 200,
        }
    }
}

/// How strongly sandboxes are separated from the machine and from each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Isolation {
    /// One process' own restrictions.
    Weak,
    /// Namespaces and filters; the kernel is shared.
    Medium,
    /// A kernel of its own.
    Strong,
}

/// What this engine is and can do on this machine.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct EngineReport {
    /// `namespaces`.
    pub name: &'static str,
    /// This crate's version.
    pub version: &'static str,
    /// How strong the separation is.
    pub isolation: Isolation,
    /// How ids are mapped.
    pub id_mode: IdMode,
    /// Accounting, limits and freezing.
    pub cgroup: CgroupReport,
    /// What is weaker here than elsewhere, each a sentence for people. Nothing else is.
    pub degraded: Vec<String>,
    /// What callers may ask for.
    pub capabilities: Capabilities,
}

/// Which operations work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Capabilities {
    /// Stop all processes and let them go on, memory kept in RAM.
    pub pause: bool,
    /// Store the files of a paused or stopped sandbox.
    pub file_snapshot: bool,
    /// Store memory on disk.
    pub memory_snapshot: bool,
    /// Reach anything beyond the sandbox's own loopback interface.
    pub network: bool,
    /// Limit memory.
    pub limit_memory: bool,
    /// Limit processor time.
    pub limit_cpu: bool,
    /// Limit the number of processes.
    pub limit_pids: bool,
}

/// Sandboxes on this machine, below one data directory.
///
/// Calls block and may come from any thread; calls about one sandbox must not overlap, which its owner sees to.
#[derive(Debug)]
pub struct Engine {
    config: EngineConfig,
    data: DataDir,
    guest: PathBuf,
    facts: HostFacts,
    base: PathBuf,
    mode: IdMode,
    cgroups: Cgroups,
    report: EngineReport,
    unmounter: Unmounter,
}

impl Engine {
    /// Looks at the machine and prepares the data directory: the guest binary and the base layer.
    ///
    /// Only one process may have an engine open on a data directory, which the caller sees to (by a lock).
    ///
    /// # Errors
    /// `Unsupported` if sandboxes cannot work here, `InvalidInput` for a data directory that belongs to another user, else what the system said.
    pub fn open(config: EngineConfig) -> Result<Self, EngineError> {
        check_machine()?;
        let data = DataDir::open(&config.data_dir)?;
        layer::remove_unfinished(&data)?;
        let mode = IdMode::Range;
        let guest = crate::guest_binary::install(&data)?;
        let facts = HostFacts::read(Path::new("/"));
        let entries = skeleton::entries(&facts, skeleton::read_copies(Path::new("/")));
        let base = skeleton::install(&data, mode, &entries)?;
        let cgroups = Cgroups::open(&cgroup_name(data.root()));
        let report = report(mode, &cgroups);
        let unmounter = Unmounter::start()?;
        Ok(Self { config, data, guest, facts, base, mode, cgroups, report, unmounter })
    }

    /// What this engine is and can do on this machine.
    #[must_use]
    pub fn report(&self) -> &EngineReport {
        &self.report
    }

    /// Starts a sandbox, from its own files if it has any, and returns when its guest is ready.
    ///
    /// # Errors
    /// `InvalidInput`, `NotFound` (a layer), `Conflict` (it runs already), `Unsupported` (a limit this machine cannot set), `Guest`, `Timeout`, or what the
    /// system said. Nothing of the boot is left then; files of a sandbox that existed before stay.
    ///
    /// # Repeating
    /// A second call while the sandbox runs is a `Conflict`; after [`stop`](Self::stop) it boots again on the same files.
    pub fn start(&self, spec: &StartSpec) -> Result<Running, EngineError> {
        self.check(spec)?;
        if self.running(&spec.id)?.is_some() {
            return Err(
                EngineError::new(ErrorKind::Conflict, "start", "the sandbox runs already; stop it first").of(&spec.id)
            );
        }
        self.stop(&spec.id, None)?;
        let mut undo = Undo::new();
        self.boot(spec, &mut undo).map_err(|error| undo.unwind(error).of(&spec.id))
    }

    fn check(&self, spec: &StartSpec) -> Result<(), EngineError> {
        check_id(&spec.id)?;
        let refuse =
            |stage, message: String| Err(EngineError::new(ErrorKind::InvalidInput, stage, message).of(&spec.id));
        if spec.identity.sandbox_id != spec.id {
            return refuse("identity", format!("identity names sandbox {:?}", spec.identity.sandbox_id));
        }
        if let Err(error) = spec.identity.check() {
            return refuse("identity", error.to_string());
        }
        if spec.layers.len() > self.config.max_layers {
            return refuse(
                "layers",
                format!("{} layers exceed the limit of {}", spec.layers.len(), self.config.max_layers),
            );
        }
        match spec.template {
            Template::Host => Ok(()),
        }
    }

    fn boot<'a>(&'a self, spec: &'a StartSpec, undo: &mut Undo<'a>) -> Result<Running, EngineError> {
        let id = spec.id.as_str();
        let group = self.cgroups.plan(id, &spec.limits)?;
        let mut layers = vec![self.base.clone()];
        for digest in &spec.layers {
            layers.push(layer::unpacked(&self.data, digest, self.mode)?);
        }
        let sandbox = self.data.sandbox(id);
        if !sandbox.upper().exists() {
            undo.push(move || self.remove(id));
        }
        let boot_id = record::new_boot_id()?;
        fault::point("before files")?;
        make_sandbox_files(&sandbox, id, &boot_id)?;
        fault::point("before the run directory")?;
        undo.push(move || remove_all(&self.data.run(id)));
        self.make_run_directory(spec)?;
        fault::point("before the record")?;

        let record = BootRecord { boot_id, machine_boot_id: record::machine_boot_id()?, group, process: None };
        undo.push(move || remove_all(&self.data.sandbox(id).record()));
        record.write(&sandbox)?;
        fault::point("before the groups")?;
        let groups = record.group.clone();
        undo.push(move || groups.kill().and_then(|()| groups.remove()));
        record.group.create(&spec.limits)?;
        fault::point("before the launch")?;
        self.launch(spec, &layers, record)
    }

    fn launch(&self, spec: &StartSpec, layers: &[PathBuf], mut record: BootRecord) -> Result<Running, EngineError> {
        let sandbox = self.data.sandbox(&spec.id);
        let request = Request {
            id: &spec.id,
            layers,
            upper: sandbox.upper(),
            work: sandbox.work(),
            boot: sandbox.boot(),
            run: self.data.run(&spec.id),
            guest: self.guest.clone(),
            mountpoint: self.data.mountpoint(),
            empty: self.data.empty(),
            cgroups: record.group.entry(),
        };
        let log = sandbox.log();
        let plan = plan::boot_plan(&self.facts, request);
        let mut launch = Launch::begin(&self.guest, &plan, &log, self.config.start_timeout)?;
        let mut step = || {
            fault::point("launched, process not known")?;
            let process = launch.await_process(&log)?;
            fault::point("process known, not recorded")?;
            record.process = Some(process);
            record.write(&sandbox)?;
            fault::point("before the guest is ready")?;
            launch.await_ready(&log)?;
            fault::point("ready")?;
            Ok(process)
        };
        match step() {
            Ok(process) => Ok(Running { process, pidfd: launch.finish()?, boot_id: record.boot_id }),
            Err(error) => {
                let mut undo = Undo::new();
                undo.push(|| launch.abort(self.config.stop_timeout));
                Err(undo.unwind(error))
            }
        }
    }

    /// Fresh on every boot: whatever an earlier guest left in it is gone.
    fn make_run_directory(&self, spec: &StartSpec) -> Result<(), EngineError> {
        const STAGE: &str = "identity";
        let directory = self.data.run(&spec.id);
        remove_all(&directory)?;
        private_dir(&directory)?;
        let identity = serde_json::to_vec(&spec.identity).map_err(|error| {
            EngineError::new(ErrorKind::InvalidInput, STAGE, format!("cannot write the identity: {error}"))
        })?;
        let file = directory.join("identity.json");
        fs::write(&file, identity).during(STAGE, file.display())?;
        set_mode(&file, 0o600)?;
        for path in [&file, &directory] {
            give_to_root(path)?;
        }
        Ok(())
    }

    /// Stops all processes of a sandbox where they are; memory stays. Returns when every one has stopped.
    ///
    /// # Errors
    /// `NotFound` if it does not run, `Timeout` if a process does not stop.
    ///
    /// # Repeating
    /// Does nothing to a paused sandbox.
    pub fn pause(&self, id: &str) -> Result<(), EngineError> {
        let (record, process) = self.expect_running(id, "pause")?;
        if record.group.can_freeze() {
            return record.group.freeze().map_err(|error| error.of(id));
        }
        match process::stop_namespace(process.pid, self.config.stop_timeout)
            .during("pause", "cannot stop the processes")
        {
            Ok(true) => Ok(()),
            Ok(false) => Err(EngineError::new(ErrorKind::Timeout, "pause", "a process does not stop").of(id)),
            Err(error) => Err(error.of(id)),
        }
    }

    /// Lets the processes of a paused sandbox go on.
    ///
    /// # Errors
    /// `NotFound` if it does not run.
    ///
    /// # Repeating
    /// Does nothing to a running sandbox.
    pub fn resume(&self, id: &str) -> Result<(), EngineError> {
        let (record, process) = self.expect_running(id, "resume")?;
        if record.group.can_freeze() {
            return record.group.thaw().map_err(|error| error.of(id));
        }
        process::continue_namespace(process.pid)
            .during("resume", "cannot continue the processes")
            .map_err(|error| error.of(id))
    }

    /// Ends all processes of a sandbox, paused or not, and removes everything but its files. Returns when the last process is gone.
    ///
    /// `process` is a hint for when the engine's own record is lost; a number that now belongs to another process is left alone.
    ///
    /// # Errors
    /// `Timeout` if a process does not end; whatever could be removed is removed, and a second call goes on.
    ///
    /// # Repeating
    /// Does nothing to a stopped or unknown sandbox.
    pub fn stop(&self, id: &str, process: Option<&ProcessId>) -> Result<(), EngineError> {
        check_id(id)?;
        self.stop_all(id, process).map_err(|error| error.of(id))
    }

    fn stop_all(&self, id: &str, hint: Option<&ProcessId>) -> Result<(), EngineError> {
        const STAGE: &str = "stop";
        let sandbox = self.data.sandbox(id);
        let record = BootRecord::read(&sandbox)?;
        let mut pidfds: Vec<OwnedFd> = Vec::new();
        for known in [record.as_ref().and_then(|record| record.process.as_ref()), hint].into_iter().flatten() {
            pidfds.extend(process::open(known).during(STAGE, "cannot open the first process")?);
        }
        if pidfds.is_empty() && self.data.run(id).exists() {
            // A host that died between the launch and its note of it: the process is found by what it has mounted.
            for (_, pid) in
                process::guests_with_run_directory(&self.data.runs()).into_iter().filter(|(owner, _)| owner == id)
            {
                pidfds.extend(process::open_pid(pid).during(STAGE, "cannot open the first process")?);
            }
        }
        // Where it was put, and where this host would put it: they differ after a restart elsewhere.
        let mut groups: Vec<Group> = record.into_iter().map(|record| record.group).collect();
        let own = self.cgroups.everywhere(id);
        if !groups.contains(&own) {
            groups.push(own);
        }
        fault::point("before the kill")?;
        for group in &groups {
            group.kill()?;
        }
        fault::point("groups killed")?;
        for pidfd in &pidfds {
            process::kill_opened(pidfd.as_fd()).during(STAGE, "cannot kill the first process")?;
        }
        for pidfd in &pidfds {
            // The first process of a pid namespace ends after all others in it: the kernel sees to that.
            if !process::await_end(pidfd.as_fd(), self.config.stop_timeout)
                .during(STAGE, "cannot wait for the first process")?
            {
                return Err(EngineError::new(ErrorKind::Timeout, STAGE, "the first process does not end"));
            }
            process::reap(pidfd.as_fd()).during(STAGE, "cannot reap the first process")?;
        }
        fault::point("processes gone")?;
        for group in &groups {
            group.remove()?;
        }
        fault::point("groups gone")?;
        remove_all(&self.data.run(id))?;
        fault::point("run directory gone")?;
        remove_all(&sandbox.record())
    }

    /// Deletes the files of a stopped sandbox.
    ///
    /// # Errors
    /// `Conflict` if it runs.
    ///
    /// # Repeating
    /// Does nothing if they are gone.
    pub fn remove(&self, id: &str) -> Result<(), EngineError> {
        check_id(id)?;
        if self.running(id)?.is_some() {
            return Err(EngineError::new(ErrorKind::Conflict, "remove", "the sandbox runs; stop it first").of(id));
        }
        remove_all(self.data.sandbox(id).root()).map_err(|error| error.of(id))
    }

    /// [`stop`](Self::stop) and [`remove`](Self::remove) in one, for a sandbox whose files are of no use any more: nobody waits until they are on disk.
    ///
    /// # Errors
    /// As both.
    ///
    /// # Repeating
    /// Does nothing to an unknown sandbox.
    pub fn destroy(&self, id: &str, process: Option<&ProcessId>) -> Result<(), EngineError> {
        check_id(id)?;
        let root = self.running(id)?.and_then(|(_, running)| Root::of(running.process.pid));
        self.stop(id, process)?;
        self.remove(id)?;
        if let Some(root) = root {
            self.unmounter.put_down(root);
        }
        Ok(())
    }

    /// Stores the writable layer of a paused or stopped sandbox, on disk when this returns.
    ///
    /// The layer is what changed against the layers that the sandbox was started from; the caller keeps that list. The same tree has the same digest.
    ///
    /// # Errors
    /// `NotFound` for an unknown sandbox, `Exhausted` for a full disk. Nothing is left then.
    pub fn snapshot(&self, id: &str) -> Result<LayerDigest, EngineError> {
        check_id(id)?;
        let upper = self.data.sandbox(id).upper();
        if !upper.is_dir() {
            return Err(EngineError::new(ErrorKind::NotFound, "snapshot", "no such sandbox").of(id));
        }
        layer::store(&self.data, &upper, self.mode).map_err(|error| error.of(id))
    }

    /// Deletes a stored layer and what was unpacked from it. No sandbox may be using it.
    ///
    /// # Errors
    /// What the system said.
    ///
    /// # Repeating
    /// Does nothing if it is gone.
    pub fn delete_layer(&self, digest: &LayerDigest) -> Result<(), EngineError> {
        // The stored form first: without it nothing is unpacked again.
        remove_all(&self.data.layer(digest))
            .and_then(|()| remove_all(&self.data.cached(digest.hex(), self.mode)))
            .map_err(|error| error.of(&digest.to_string()))
    }

    /// Finds a sandbox that an earlier host process started.
    ///
    /// # Errors
    /// `Corrupt` for an unreadable boot record.
    pub fn adopt(&self, id: &str, process: &ProcessId) -> Result<Option<Running>, EngineError> {
        check_id(id)?;
        let running = self.running(id)?;
        Ok(running.filter(|(_, running)| running.process == *process).map(|(_, running)| running))
    }

    /// Ids of all sandboxes of which anything exists here: processes, control groups, directories.
    ///
    /// # Errors
    /// When a directory cannot be listed.
    pub fn leftovers(&self) -> Result<Vec<String>, EngineError> {
        let mut ids: BTreeSet<String> = self.cgroups.ids().into_iter().collect();
        for directory in [self.data.runs(), self.data.sandboxes()] {
            let listing = fs::read_dir(&directory).during("leftovers", directory.display())?;
            ids.extend(listing.filter_map(Result::ok).filter_map(|entry| entry.file_name().into_string().ok()));
        }
        Ok(ids.into_iter().filter(|id| check_id(id).is_ok()).collect())
    }

    /// Connects to a socket of the guest. Every byte that comes from it is under the sandbox's control.
    ///
    /// # Errors
    /// `NotFound` if the guest does not run, `ConnectionRefused` if it does not listen.
    pub fn connect(&self, id: &str, socket: GuestSocket) -> io::Result<UnixStream> {
        check_id(id).map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error.to_string()))?;
        // The sandbox's root can put anything into that directory, also a link to a socket of the host: no name in it is followed. And a name below the
        // data directory may be longer than an address can be.
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let directory = rustix::fs::open(self.data.run(id), flags | OFlags::DIRECTORY, Mode::empty())?;
        let found = rustix::fs::openat(&directory, socket.file_name(), flags, Mode::empty())?;
        if FileType::from_raw_mode(rustix::fs::fstat(&found)?.st_mode) != FileType::Socket {
            return Err(io::Error::new(io::ErrorKind::InvalidData, format!("{} is not a socket", socket.file_name())));
        }
        UnixStream::connect(format!("/proc/self/fd/{}", found.as_raw_fd()))
    }

    /// What a sandbox uses now.
    ///
    /// # Errors
    /// `NotFound` if it does not run.
    pub fn usage(&self, id: &str) -> Result<Usage, EngineError> {
        let (record, _) = self.expect_running(id, "usage")?;
        Ok(record.group.usage())
    }

    fn running(&self, id: &str) -> Result<Option<(BootRecord, Running)>, EngineError> {
        let Some(record) = BootRecord::read(&self.data.sandbox(id)).map_err(|error| error.of(id))? else {
            return Ok(None);
        };
        let Some(process) = record.process else { return Ok(None) };
        let open = |id| process::open(id).during("process", "cannot open the first process");
        let Some(pidfd) = open(&process)? else { return Ok(None) };
        if process::has_ended(pidfd.as_fd()).during("process", "cannot look at the first process")? {
            return Ok(None);
        }
        let boot_id = record.boot_id.clone();
        Ok(Some((record, Running { process, pidfd, boot_id })))
    }

    fn expect_running(&self, id: &str, stage: &'static str) -> Result<(BootRecord, ProcessId), EngineError> {
        check_id(id)?;
        match self.running(id)? {
            Some((record, running)) => Ok((record, running.process)),
            None => Err(EngineError::new(ErrorKind::NotFound, stage, "the sandbox does not run").of(id)),
        }
    }
}

impl Drop for Engine {
    /// Removes the parent control groups unless a sandbox is in them. Sandboxes go on.
    fn drop(&mut self) {
        self.cgroups.close();
    }
}

/// What can be known to be missing before the first start.
fn check_machine() -> Result<(), EngineError> {
    let refuse = |message: &str| Err(EngineError::new(ErrorKind::Unsupported, "machine", message));
    if !rustix::process::geteuid().is_root() {
        return refuse("this version needs to run as root: an ordinary user cannot map the ids of a sandbox by itself");
    }
    if !Path::new("/proc/self/ns/user").exists() {
        return refuse("the kernel has no user namespaces");
    }
    let filesystems = fs::read_to_string("/proc/filesystems").during("machine", "/proc/filesystems")?;
    if !filesystems.split_whitespace().any(|name| name == "overlay") {
        return refuse("the kernel has no overlayfs; try: modprobe overlay");
    }
    if fs::read_to_string("/proc/sys/user/max_user_namespaces").is_ok_and(|text| text.trim() == "0") {
        return refuse("user namespaces are switched off; try: sysctl user.max_user_namespaces=10000");
    }
    Ok(())
}

fn report(mode: IdMode, cgroups: &Cgroups) -> EngineReport {
    let cgroup = cgroups.report();
    let has = |version| version != CgroupVersion::None;
    EngineReport {
        name: "namespaces",
        version: env!("CARGO_PKG_VERSION"),
        isolation: Isolation::Medium,
        id_mode: mode,
        cgroup,
        degraded: cgroups.degraded().to_vec(),
        capabilities: Capabilities {
            pause: true,
            file_snapshot: true,
            memory_snapshot: false,
            network: false,
            limit_memory: has(cgroup.memory),
            limit_cpu: has(cgroup.cpu),
            limit_pids: has(cgroup.pids),
        },
    }
}

/// Different data directories have different parent groups.
fn cgroup_name(data_dir: &Path) -> String {
    use std::os::unix::ffi::OsStrExt;
    format!("leasehold-{}", &hex(&Sha256::digest(data_dir.as_os_str().as_bytes()))[..12])
}

fn make_sandbox_files(sandbox: &crate::paths::SandboxDir, id: &str, boot_id: &str) -> Result<(), EngineError> {
    private_dir(sandbox.root())?;
    for directory in [sandbox.upper(), sandbox.work()] {
        if !directory.exists() {
            private_dir(&directory)?;
            set_mode(&directory, 0o755)?;
            give_to_root(&directory)?;
        }
    }
    remove_all(&sandbox.boot())?;
    private_dir(&sandbox.boot())?;
    let hosts = format!("127.0.0.1 localhost\n::1 localhost ip6-localhost ip6-loopback\n127.0.1.1 {id}\n");
    for (name, content) in [("boot_id", format!("{boot_id}\n")), ("hostname", format!("{id}\n")), ("hosts", hosts)] {
        let file = sandbox.boot().join(name);
        fs::write(&file, content).during("boot files", file.display())?;
        set_mode(&file, 0o644)?;
        give_to_root(&file)?;
    }
    Ok(())
}

/// Makes the sandbox's root the owner.
fn give_to_root(path: &Path) -> Result<(), EngineError> {
    chown(path, Some(ID_BASE), Some(ID_BASE))
        .during("owner", format_args!("cannot set the owner of {}", path.display()))
}

#[cfg(test)]
mod tests;
