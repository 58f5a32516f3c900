//! The contract on the fake's world.

use std::collections::HashMap;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use leasehold::{
    BindingRef, Capabilities, Commands, ErrorKind, ExecutionBindingAllocation, ExecutionBindingBackend,
    ExecutionBindingCreateSpec, ExecutionBindingDestroySpec, Files, HomeSnapshotBackend, HomeSnapshotCreateSpec,
    LeaseId, RuntimeError, RuntimeLayout, RuntimeLease, SnapshotRef, WorkspaceFate, WorkspaceRef,
};
use tokio::task::yield_now;

use super::commands::FakeCommands;
use super::files::FakeFiles;
use super::room::{Plan, Room};
use super::world::{Snapshot, World, copy_content, empty, remove_tree};
use super::{Fault, capabilities};

/// The name in every error.
const DRIVER: &str = "fake";

pub(super) fn failure(kind: ErrorKind, operation: &'static str, message: impl AsRef<str>) -> RuntimeError {
    RuntimeError::new(kind, operation, DRIVER, message)
}

pub(super) struct FakeBackend {
    world: Arc<World>,
    capabilities: Capabilities,
    leases: Arc<Mutex<Leases>>,
}

/// Every lease that was given out.
#[derive(Default)]
struct Leases(HashMap<LeaseId, Given>);

/// What is known of one lease.
struct Given {
    room: String,
    held: bool,
    closed: Arc<AtomicBool>,
}

impl Leases {
    /// Ends a lease; false = it is not held.
    fn end(&mut self, lease: LeaseId) -> bool {
        self.0.get_mut(&lease).is_some_and(|given| std::mem::take(&mut given.held))
    }

    fn is_held(&self, lease: LeaseId) -> bool {
        self.0.get(&lease).is_some_and(|given| given.held)
    }

    fn room(&self, lease: LeaseId) -> Option<String> {
        self.0.get(&lease).map(|given| given.room.clone())
    }

    fn close(&self, lease: LeaseId) {
        if let Some(given) = self.0.get(&lease) {
            given.closed.store(true, Ordering::SeqCst);
        }
    }
}

struct FakeLease {
    id: LeaseId,
    layout: RuntimeLayout,
    commands: FakeCommands,
    files: FakeFiles,
    room: Arc<Room>,
    leases: Arc<Mutex<Leases>>,
    world: Arc<World>,
    closed: Arc<AtomicBool>,
}

impl RuntimeLease for FakeLease {
    fn id(&self) -> LeaseId {
        self.id
    }

    fn layout(&self) -> &RuntimeLayout {
        &self.layout
    }

    fn commands(&self) -> &dyn Commands {
        &self.commands
    }

    fn files(&self) -> &dyn Files {
        &self.files
    }
}

impl Drop for FakeLease {
    fn drop(&mut self) {
        let held = self.leases.lock().unwrap_or_else(PoisonError::into_inner).end(self.id);
        if held && !self.world.breaks(Fault::DroppedLeaseIsForgotten) {
            self.closed.store(true, Ordering::SeqCst);
            self.room.suspend();
        }
        if held && self.world.breaks(Fault::DroppedLeaseDestroys) {
            self.world.take_room(self.room.name());
            remove_tree(self.room.directory()).ok();
        }
    }
}

/// Undoes what a call did when its future is dropped or fails.
struct Undo<F: FnOnce()>(Option<F>);

impl<F: FnOnce()> Undo<F> {
    fn new(undo: F) -> Self {
        Self(Some(undo))
    }

    fn keep(mut self) {
        self.0 = None;
    }
}

impl<F: FnOnce()> Drop for Undo<F> {
    fn drop(&mut self) {
        if let Some(undo) = self.0.take() {
            undo();
        }
    }
}

impl FakeBackend {
    pub(super) fn new(world: Arc<World>) -> Self {
        let capabilities = capabilities(world.options());
        Self { world, capabilities, leases: Arc::default() }
    }

    fn breaks(&self, fault: Fault) -> bool {
        self.world.breaks(fault)
    }

    fn leases(&self) -> std::sync::MutexGuard<'_, Leases> {
        self.leases.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Checks what can be checked before anything is made.
    fn admit(&self, spec: &ExecutionBindingCreateSpec) -> Result<Option<Snapshot>, RuntimeError> {
        let create = |message: String| failure(ErrorKind::BindingCreate, "create_binding", message).without_effect();
        if let Some(workspace) = &spec.existing_workspace_ref {
            if !self.capabilities.shared_workspace && !self.breaks(Fault::ExistingWorkspaceIsIgnored) {
                let kind = ErrorKind::SharedWorkspaceUnsupported;
                return Err(failure(kind, "create_binding", "workspaces cannot be shared").without_effect());
            }
            if self.capabilities.shared_workspace && self.world.workspace(workspace.as_str()).is_none() {
                return Err(create(format!("workspace {workspace} is not there")));
            }
        }
        match &spec.home_snapshot_ref {
            None => Ok(None),
            Some(wanted) => match self.world.snapshot(wanted.as_str()) {
                None if self.breaks(Fault::MissingSnapshotFallsBack) => Ok(None),
                None if self.breaks(Fault::FailedCreateLeaves) => {
                    self.make_room(spec, None, &self.world.fresh("room")).ok();
                    Err(create(format!("snapshot {wanted} is not there")))
                }
                None => Err(create(format!("snapshot {wanted} is not there"))),
                found => Ok(found),
            },
        }
    }

    fn make_room(
        &self,
        spec: &ExecutionBindingCreateSpec,
        snapshot: Option<&Snapshot>,
        name: &str,
    ) -> io::Result<Arc<Room>> {
        let directory = self.world.directory().join("rooms").join(name);
        let shared = self.capabilities.shared_workspace;
        let (workspace_ref, workspace) = match &spec.existing_workspace_ref {
            Some(existing) if shared => {
                let path = self.world.workspace(existing.as_str()).ok_or(io::ErrorKind::NotFound)?;
                (existing.to_string(), path)
            }
            None if shared => self.world.add_workspace()?,
            _ => (name.to_owned(), directory.join("workspace")),
        };
        let home = match snapshot {
            _ if self.breaks(Fault::HomesAreShared) => self.world.directory().join("rooms/home"),
            Some(snapshot) if self.breaks(Fault::SnapshotSharesItsStorage) => snapshot.directory.join("home"),
            _ => directory.join("home"),
        };
        let made_from = spec.home_snapshot_ref.as_ref().map(ToString::to_string);
        let plan = Plan { name: name.to_owned(), directory, home, workspace, workspace_ref, made_from };
        let room = Arc::new(Room::new(plan)?);
        self.furnish(spec, snapshot, &room)?;
        Ok(room)
    }

    /// Fills Home and empties a new Workspace.
    fn furnish(&self, spec: &ExecutionBindingCreateSpec, snapshot: Option<&Snapshot>, room: &Room) -> io::Result<()> {
        match snapshot {
            None => room.write_default_home()?,
            Some(snapshot) => {
                if !self.breaks(Fault::SnapshotSharesItsStorage) {
                    copy_content(&snapshot.directory.join("home"), room.home())?;
                }
                if snapshot.directory.join("workspace").is_dir() {
                    copy_content(&snapshot.directory.join("workspace"), room.workspace())?;
                }
                if self.breaks(Fault::SnapshotGetsTheDefaultsBack) {
                    room.write_default_home()?;
                }
            }
        }
        let attached = spec.existing_workspace_ref.is_some();
        let leaks = snapshot.is_some() && self.breaks(Fault::SnapshotLeaksTheWorkspace);
        if (!attached && !leaks) || self.breaks(Fault::AttachClearsTheWorkspace) {
            empty(room.workspace())?;
        }
        if self.breaks(Fault::NewWorkspaceHasContent) {
            std::fs::write(room.workspace().join("lost+found"), "")?;
        }
        if self.breaks(Fault::WorkspaceIsNotMade) {
            std::fs::remove_dir(room.workspace())?;
        }
        Ok(())
    }

    fn lease(&self, room: Arc<Room>) -> Result<FakeLease, RuntimeError> {
        let text = |path: &Path| path.to_string_lossy().into_owned();
        let layout = RuntimeLayout::new(text(room.home()), text(room.workspace()))?;
        let closed = Arc::new(AtomicBool::new(false));
        let world = self.world.clone();
        let commands =
            FakeCommands { world: world.clone(), room: room.clone(), layout: layout.clone(), closed: closed.clone() };
        let files = FakeFiles { world: world.clone(), closed: closed.clone() };
        let id = LeaseId::fresh();
        let given = Given { room: room.name().to_owned(), held: true, closed: closed.clone() };
        self.leases().0.insert(id, given);
        Ok(FakeLease { id, layout, commands, files, room, leases: self.leases.clone(), world, closed })
    }

    /// Removes a room whose processes are to go first.
    fn demolish(&self, room: &Room) -> io::Result<()> {
        if !self.breaks(Fault::DestroyLeavesProcesses) {
            room.kill_processes();
        }
        if !self.breaks(Fault::DestroyLeavesFiles) {
            remove_tree(room.directory())?;
        }
        if !self.breaks(Fault::DestroyedBindingIsListed) {
            self.world.take_room(room.name());
        }
        Ok(())
    }
}

#[async_trait]
impl ExecutionBindingBackend for FakeBackend {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    async fn create_binding(
        &self,
        spec: &ExecutionBindingCreateSpec,
    ) -> Result<ExecutionBindingAllocation, RuntimeError> {
        let failed = |error: io::Error| failure(ErrorKind::BindingCreate, "create_binding", error.to_string());
        let snapshot = self.admit(spec)?;
        yield_now().await;
        let mut name = self.world.fresh("room");
        if self.breaks(Fault::SameSpecSameBinding) {
            name = format!("room-{}", spec.binding_id);
        }
        if self.breaks(Fault::ParallelCreatesCollide) {
            // Looks for a free name, gives way, and takes it: check, then act.
            name = format!("room-of-{}", self.world.alive().len());
            yield_now().await;
        }
        let room = self.make_room(spec, snapshot.as_ref(), &name).map_err(failed)?;
        self.world.add_room(room.clone());
        let undo = Undo::new(|| {
            if !self.breaks(Fault::DroppedCreateLeaves) {
                // What cannot be removed here is found by the leftover check.
                self.demolish(&room).ok();
                self.world.remove_workspace(room.workspace_ref()).ok();
            }
        });
        yield_now().await;
        let refs = BindingRef::new(room.name()).and_then(|binding_ref| {
            Ok(ExecutionBindingAllocation { binding_ref, workspace_ref: WorkspaceRef::new(room.workspace_ref())? })
        });
        let mut refs = refs.map_err(|error| failure(ErrorKind::BindingCreate, "create_binding", error.to_string()))?;
        if self.breaks(Fault::CoupledRefsDiffer) && !self.capabilities.shared_workspace {
            refs.workspace_ref = WorkspaceRef::new(format!("workspace-of-{}", room.name())).expect("it is not empty");
        }
        if self.breaks(Fault::CreateLeavesTheBindingActive) {
            room.resume();
        }
        yield_now().await;
        undo.keep();
        Ok(refs)
    }

    async fn acquire(&self, binding: &BindingRef) -> Result<Box<dyn RuntimeLease>, RuntimeError> {
        let lost = |message: String| {
            let kind =
                if self.breaks(Fault::LossIsNotTold) { ErrorKind::BindingAcquire } else { ErrorKind::BindingLost };
            failure(kind, "acquire", message)
        };
        let mut room = self.world.room(binding.as_str());
        if room.is_none() && self.breaks(Fault::AcquireRecreates) {
            let ids = |_| failure(ErrorKind::BindingAcquire, "acquire", "cannot recreate");
            let spec: ExecutionBindingCreateSpec = ExecutionBindingCreateSpec::new(
                leasehold::TenantId::new("recreated").map_err(ids)?,
                leasehold::AgentId::new("recreated").map_err(ids)?,
                leasehold::BindingId::new("recreated").map_err(ids)?,
                leasehold::WorkspaceId::new("recreated").map_err(ids)?,
            );
            room = self.make_room(&spec, None, binding.as_str()).ok();
            room.iter().for_each(|room| self.world.add_room(room.clone()));
        }
        let room = room.ok_or_else(|| lost(format!("binding {binding} is not there")))?;
        yield_now().await;
        room.resume();
        let undo = Undo::new(|| {
            if !self.breaks(Fault::DroppedAcquireStaysActive) {
                room.suspend();
            }
        });
        yield_now().await;
        if self.breaks(Fault::AcquireRestoresTheWorkspace) {
            std::fs::create_dir_all(room.workspace()).ok();
        }
        if !room.workspace().is_dir() || !room.home().is_dir() {
            return Err(lost(format!("the workspace or the home of {binding} is gone")));
        }
        let lease = self.lease(room.clone())?;
        undo.keep();
        Ok(Box::new(lease))
    }

    async fn release(&self, lease: &dyn RuntimeLease) -> Result<(), RuntimeError> {
        let room = self.leases().room(lease.id()).and_then(|room| self.world.room(&room));
        let held = self.leases().end(lease.id());
        if !held {
            let known = room.is_some();
            if (known && self.breaks(Fault::SecondReleaseIsAccepted))
                || (!known && self.breaks(Fault::ForeignLeaseIsAccepted))
            {
                return Ok(());
            }
            let message = format!("{} is not held from this backend", lease.id());
            return Err(failure(ErrorKind::ForeignLease, "release", message).without_effect());
        }
        let Some(room) = room else {
            // Destroyed under the lease.
            return Ok(());
        };
        if !self.breaks(Fault::ReleasedLeaseStillRuns) {
            self.leases().close(lease.id());
        }
        yield_now().await;
        if self.breaks(Fault::ReleaseEndsProcesses) {
            room.kill_processes();
        }
        if self.breaks(Fault::ReleaseLosesTheWorkspace) {
            empty(room.workspace()).ok();
        }
        if self.breaks(Fault::ReleaseLosesTheLastWrite) {
            newest(room.home()).map(std::fs::remove_file);
        }
        if self.breaks(Fault::ReleaseLosesOddFiles) {
            std::fs::remove_file(room.workspace().join("tree/second")).ok();
        }
        if self.breaks(Fault::ReleaseDeletes) {
            self.demolish(&room).ok();
        } else if !self.breaks(Fault::ReleaseDoesNotSuspend) {
            room.suspend();
        }
        Ok(())
    }

    async fn destroy_binding(&self, spec: &ExecutionBindingDestroySpec) -> Result<(), RuntimeError> {
        let failed = |message: String| failure(ErrorKind::BindingDestroy, "destroy_binding", message);
        let keeps = !spec.destroys_workspace();
        if keeps && !self.capabilities.binding_only_destroy && !self.breaks(Fault::KeepingTheWorkspaceDestroysIt) {
            let kind = ErrorKind::WorkspacePreservationUnsupported;
            return Err(failure(kind, "destroy_binding", "the two are one").without_effect());
        }
        let Some(room) = self.world.room(spec.binding_ref().as_str()) else {
            if self.breaks(Fault::DestroyIsNotRepeatable) {
                return Err(failed(format!("binding {} is not there", spec.binding_ref())));
            }
            return Ok(());
        };
        if let WorkspaceFate::Destroy(workspace) = spec.workspace()
            && workspace.as_str() != room.workspace_ref()
            && !self.breaks(Fault::WorkspaceRefIsNotChecked)
            && !self.breaks(Fault::CoupledRefsDiffer)
        {
            return Err(failed(format!("workspace {workspace} is not that of {}", room.name())));
        }
        if self.breaks(Fault::DestroyTakesTheSnapshots) {
            for snapshot in self.world.snapshots_of(room.name()) {
                self.world.take_snapshot(&snapshot);
                remove_tree(&self.world.directory().join("snapshots").join(&snapshot)).ok();
            }
        }
        if self.breaks(Fault::DroppedDestroyForgets) {
            self.world.take_room(room.name());
        }
        yield_now().await;
        if self.breaks(Fault::DestroyEndsEverybodysProcesses) {
            super::processes::kill_all(&self.world.directory().to_string_lossy());
        }
        self.demolish(&room).map_err(|error| failed(error.to_string()))?;
        yield_now().await;
        if !keeps || self.breaks(Fault::KeepingTheWorkspaceDestroysIt) {
            self.world.remove_workspace(room.workspace_ref()).map_err(|error| failed(error.to_string()))?;
        }
        Ok(())
    }
}

#[async_trait]
impl HomeSnapshotBackend for FakeBackend {
    async fn create_from_runtime(
        &self,
        _: &HomeSnapshotCreateSpec,
        source: &dyn RuntimeLease,
    ) -> Result<SnapshotRef, RuntimeError> {
        let failed = |message: String| failure(ErrorKind::HomeSnapshotCreate, "create_from_runtime", message);
        let known = self.leases().room(source.id());
        let held = self.leases().is_held(source.id());
        let accepts = if known.is_some() {
            held || self.breaks(Fault::SnapshotOfAReleasedLease)
        } else {
            self.breaks(Fault::SnapshotOfAForeignLease)
        };
        if !accepts {
            let message = format!("{} is not held from this backend", source.id());
            return Err(failure(ErrorKind::ForeignLease, "create_from_runtime", message).without_effect());
        }
        let (home, workspace) = (Path::new(source.layout().home_dir()), Path::new(source.layout().workspace_dir()));
        let source_name = known.unwrap_or_default();
        let name = self.world.fresh("snapshot");
        let directory = self.world.directory().join("snapshots").join(&name);
        let undo = Undo::new(|| {
            if !self.breaks(Fault::DroppedSnapshotLeaves) {
                self.world.take_snapshot(&name);
                // What cannot be removed here is found by the leftover check.
                remove_tree(&directory).ok();
            }
        });
        yield_now().await;
        copy_content(home, &directory.join("home")).map_err(|error| failed(error.to_string()))?;
        if !self.capabilities.snapshot_excludes_workspace {
            copy_content(workspace, &directory.join("workspace")).map_err(|error| failed(error.to_string()))?;
        }
        self.spoil_snapshot(&directory, home, &source_name);
        self.world.add_snapshot(&name, Snapshot { directory: directory.clone(), source: source_name });
        yield_now().await;
        undo.keep();
        SnapshotRef::new(name).map_err(|error| failed(error.to_string()))
    }

    async fn delete(&self, snapshot: &SnapshotRef) -> Result<(), RuntimeError> {
        let failed = |message: String| failure(ErrorKind::BindingDestroy, "delete", message);
        let Some(found) = self.world.take_snapshot(snapshot.as_str()) else {
            if self.breaks(Fault::SnapshotDeleteIsNotRepeatable) {
                return Err(failed(format!("snapshot {snapshot} is not there")));
            }
            return Ok(());
        };
        if self.breaks(Fault::SnapshotDeleteTakesDerived) {
            for room in self.world.rooms_made_from(snapshot.as_str()) {
                self.demolish(&room).map_err(|error| failed(error.to_string()))?;
            }
        }
        if self.breaks(Fault::SnapshotDeleteOnlyHides) {
            self.world.add_snapshot(snapshot.as_str(), found);
            return Ok(());
        }
        remove_tree(&found.directory).map_err(|error| failed(error.to_string()))
    }
}

impl FakeBackend {
    /// What faulty snapshots do.
    fn spoil_snapshot(&self, directory: &Path, home: &Path, source: &str) {
        let copy = directory.join("home");
        if self.breaks(Fault::SnapshotLosesOddFiles) {
            std::fs::remove_file(copy.join("tree/dangling")).ok();
        }
        if self.breaks(Fault::SnapshotIsLive) {
            remove_tree(&copy).ok();
            std::os::unix::fs::symlink(home, &copy).ok();
        }
        if self.breaks(Fault::SnapshotForgetsDeletions) {
            // Lays an older snapshot's files under the new one's.
            let older = self.world.room(source).and_then(|room| room.made_from().map(str::to_owned));
            if let Some(older) = older.and_then(|older| self.world.snapshot(&older)) {
                let layered = directory.join("layered");
                copy_content(&older.directory.join("home"), &layered).ok();
                copy_content(&copy, &layered).ok();
                remove_tree(&copy).ok();
                std::fs::rename(&layered, &copy).ok();
            }
        }
        if self.breaks(Fault::SnapshotReleasesTheSource)
            && let Some(room) = self.world.room(source)
        {
            room.kill_processes();
            room.suspend();
        }
    }
}

fn newest(directory: &Path) -> Option<std::path::PathBuf> {
    let files = std::fs::read_dir(directory).ok()?.flatten().filter(|entry| entry.path().is_file());
    files.max_by_key(|entry| entry.metadata().and_then(|data| data.modified()).ok()).map(|entry| entry.path())
}
