//! An E2B-compatible provider in memory: records every call of the driver's seams, fails and holds them on demand.

#![allow(dead_code, unreachable_pub, reason = "each test file uses its own part")]
#![allow(clippy::allow_attributes, reason = "`expect` would fail in a file that uses all of it")]

pub mod records;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use leasehold::{
    AgentId, BindingId, BindingRef, Commands, DeleteJob, ExecutionBindingCreateSpec, ExecutionBindingDestroySpec,
    FileEntry, FileKind, HomeSnapshotCreateSpec, HomeSnapshotId, JobId, JobOutput, JobState, JobStatus, RunCommand,
    RuntimeError, SnapshotRef, TenantId, WorkspaceFate, WorkspaceId, WorkspaceRef,
};
use leasehold_e2b::driver::{
    ControlPlane, CreateSandbox, DataPlane, DataPlaneFactory, DataPlaneTarget, Driver, DriverConfig, Memory, Sandbox,
    SandboxFiles, SeamError, SeamErrorKind, SeamStream,
};
use tokio::sync::Notify;

/// One recorded call of a seam.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    pub call: &'static str,
    pub subject: String,
}

/// Where a call is held: with its request not yet handled, or with its answer on the way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    BeforeEffect,
    AfterEffect,
}

/// What happens to one call, counted from [`World::plan`]'s time on.
#[derive(Debug, Clone)]
pub struct Plan {
    pub index: usize,
    pub phase: Phase,
    /// Wait here until [`World::let_go`].
    pub hold: bool,
    /// Then answer with this error. Before the effect, there is none.
    pub failure: Option<SeamError>,
    pub panic: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Life {
    Running,
    Paused,
}

#[derive(Debug, Clone)]
pub struct Machine {
    pub life: Life,
    pub template: String,
    pub paths: BTreeSet<String>,
    pub metadata: BTreeMap<String, String>,
    pub token: Option<String>,
}

#[derive(Default)]
pub struct State {
    pub seen: Vec<Seen>,
    pub boxes: BTreeMap<String, Machine>,
    /// ref → name
    pub snapshots: BTreeMap<String, String>,
    pub removed: Vec<String>,
    pub opened: Vec<DataPlaneTarget>,
    /// Open state by data plane.
    pub planes: Vec<bool>,
    pub requests: Vec<CreateSandbox>,
    pub runs: Vec<RunCommand>,
    /// The id that the next create gives.
    pub next_id: Option<String>,
    /// What was last looked for by metadata.
    pub looked_for: BTreeMap<String, String>,
    /// Errors that calls give one after the other, by name; no effect then.
    failures: BTreeMap<&'static str, VecDeque<SeamError>>,
    /// Errors that calls always give.
    always: BTreeMap<&'static str, SeamError>,
    plans: Vec<Plan>,
    plan_base: usize,
    made: usize,
    traffic_token: Option<String>,
}

/// The provider. Clones share it.
#[derive(Clone)]
pub struct World {
    state: Arc<Mutex<State>>,
    reached: Arc<Notify>,
    gate: Arc<Notify>,
}

pub fn seam(kind: SeamErrorKind, text: &str) -> SeamError {
    SeamError::new(kind, text)
}

/// A transport failure as the seed makes it.
pub fn transport(kind: SeamErrorKind) -> SeamError {
    SeamError::new(kind, "stale E2B connection")
}

impl World {
    pub fn new() -> Self {
        let state = State { traffic_token: Some("traffic-token".to_owned()), ..State::default() };
        Self { state: Arc::new(Mutex::new(state)), reached: Arc::default(), gate: Arc::default() }
    }

    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    /// A driver as the seed's `_binding_backend`.
    pub fn driver(&self) -> Driver<World> {
        Driver::new(self.clone(), Arc::new(self.clone()), DriverConfig::new("prepared-template").unwrap())
    }

    /// Puts a sandbox there, with a Workspace.
    pub fn put(&self, id: &str, life: Life) {
        let mut state = self.state();
        let token = state.traffic_token.clone();
        let made = Machine {
            life,
            template: "prepared-template".to_owned(),
            paths: BTreeSet::from(["/workspace".to_owned()]),
            metadata: BTreeMap::new(),
            token,
        };
        state.boxes.insert(id.to_owned(), made);
    }

    pub fn set_traffic_token(&self, token: Option<&str>) {
        let mut state = self.state();
        state.traffic_token = token.map(str::to_owned);
        for one in state.boxes.values_mut() {
            one.token = token.map(str::to_owned);
        }
    }

    /// A handle on a sandbox that was put there.
    pub fn handle(&self, id: &str) -> FakeSandbox {
        let token = self.state().boxes.get(id).and_then(|one| one.token.clone());
        FakeSandbox {
            world: self.clone(),
            id: id.to_owned(),
            token,
            files: FakeFiles { world: self.clone(), id: id.to_owned() },
        }
    }

    /// An open data plane that nobody asked the factory for.
    pub fn plane(&self) -> Arc<FakePlane> {
        let mut state = self.state();
        state.planes.push(true);
        Arc::new(FakePlane { world: self.clone(), index: state.planes.len() - 1 })
    }

    /// The next calls of this name fail so, one after the other.
    pub fn fail(&self, call: &'static str, errors: impl IntoIterator<Item = SeamError>) {
        self.state().failures.entry(call).or_default().extend(errors);
    }

    /// Every call of this name fails so, after those of [`World::fail`].
    pub fn always_fail(&self, call: &'static str, error: SeamError) {
        self.state().always.insert(call, error);
    }

    /// Plans what happens to calls from now on.
    pub fn plan(&self, plans: Vec<Plan>) {
        let mut state = self.state();
        state.plan_base = state.seen.len();
        state.plans = plans;
    }

    /// Waits until a held call is reached.
    pub async fn reached(&self) {
        self.reached.notified().await;
    }

    /// Lets the held call go on.
    pub fn let_go(&self) {
        self.gate.notify_one();
    }

    /// The names of the recorded calls.
    pub fn calls(&self) -> Vec<&'static str> {
        self.state().seen.iter().map(|seen| seen.call).collect()
    }

    /// How often a call was made.
    pub fn count(&self, call: &str) -> usize {
        self.state().seen.iter().filter(|seen| seen.call == call).count()
    }

    /// About what a call was made, in order.
    pub fn subjects(&self, call: &str) -> Vec<String> {
        self.state().seen.iter().filter(|seen| seen.call == call).map(|seen| seen.subject.clone()).collect()
    }

    async fn call<T>(
        &self,
        call: &'static str,
        subject: &str,
        effect: impl FnOnce(&mut State) -> Result<T, SeamError>,
    ) -> Result<T, SeamError> {
        let (plan, scripted) = {
            let mut state = self.state();
            let index = state.seen.len() - state.plan_base;
            state.seen.push(Seen { call, subject: subject.to_owned() });
            let plan = state.plans.iter().find(|plan| plan.index == index).cloned();
            let scripted = state.failures.get_mut(call).and_then(VecDeque::pop_front);
            let scripted = scripted.or_else(|| state.always.get(call).cloned());
            (plan, scripted)
        };
        if let Some(error) = scripted {
            return Err(error);
        }
        let Some(plan) = plan else { return effect(&mut self.state()) };
        let mut effect = Some(effect);
        let mut act = || effect.take().map(|effect| effect(&mut self.state()));
        let done = if plan.phase == Phase::AfterEffect { act() } else { None };
        if plan.hold {
            self.reached.notify_one();
            self.gate.notified().await;
        }
        assert!(!plan.panic, "planned panic in {call}");
        match plan.failure {
            Some(error) => Err(error),
            None => done.or_else(act).expect("an effect happens once"),
        }
    }
}

/// The provider's confirmed absence.
fn missing(what: &str) -> SeamError {
    SeamError::new(SeamErrorKind::NotFound, format!("{what} was not found"))
}

#[async_trait]
impl ControlPlane for World {
    type Sandbox = FakeSandbox;

    async fn create(&self, request: CreateSandbox) -> Result<FakeSandbox, SeamError> {
        let id = self
            .call("create", &request.template.clone(), |state| {
                state.made += 1;
                let id = state.next_id.take().unwrap_or_else(|| format!("sandbox-{}", state.made));
                let stale =
                    ["/workspace", "/workspace/stale-dir", "/workspace/stale-dir/nested.txt", "/workspace/stale.txt"];
                let made = Machine {
                    life: Life::Running,
                    template: request.template.clone(),
                    paths: stale.map(str::to_owned).into(),
                    metadata: request.metadata.clone(),
                    token: state.traffic_token.clone(),
                };
                state.requests.push(request);
                state.boxes.insert(id.clone(), made);
                Ok(id)
            })
            .await?;
        Ok(self.handle(&id))
    }

    async fn connect(&self, id: &str, _timeout: Duration) -> Result<FakeSandbox, SeamError> {
        self.call("connect", id, |state| {
            state.boxes.get_mut(id).ok_or_else(|| missing(id))?.life = Life::Running;
            Ok(())
        })
        .await?;
        Ok(self.handle(id))
    }

    async fn pause(&self, id: &str) -> Result<(), SeamError> {
        self.call("pause", id, |state| pause(state, id)).await
    }

    async fn kill(&self, id: &str) -> Result<(), SeamError> {
        self.call("kill", id, |state| state.boxes.remove(id).map(drop).ok_or_else(|| missing(id))).await
    }

    async fn delete_snapshot(&self, snapshot: &str) -> Result<(), SeamError> {
        self.call("delete_snapshot", snapshot, |state| {
            state.snapshots.remove(snapshot).map(drop).ok_or_else(|| missing(snapshot))
        })
        .await
    }

    async fn find_by_metadata(&self, pairs: &BTreeMap<String, String>) -> Result<Vec<String>, SeamError> {
        self.state().looked_for.clone_from(pairs);
        self.call("find_sandbox", &pairs["dify.binding_id"], |state| {
            let matches = |one: &Machine| pairs.iter().all(|(key, value)| one.metadata.get(key) == Some(value));
            Ok(state.boxes.iter().filter(|(_, one)| matches(one)).map(|(id, _)| id.clone()).collect())
        })
        .await
    }

    async fn find_snapshots_by_name(&self, name: &str) -> Result<Vec<String>, SeamError> {
        self.call("find_snapshot", name, |state| {
            Ok(state.snapshots.iter().filter(|(_, given)| *given == name).map(|(made, _)| made.clone()).collect())
        })
        .await
    }
}

fn pause(state: &mut State, id: &str) -> Result<(), SeamError> {
    state.boxes.get_mut(id).ok_or_else(|| missing(id))?.life = Life::Paused;
    Ok(())
}

pub struct FakeSandbox {
    world: World,
    id: String,
    token: Option<String>,
    files: FakeFiles,
}

#[async_trait]
impl Sandbox for FakeSandbox {
    fn id(&self) -> &str {
        &self.id
    }

    fn host_for(&self, port: u16) -> String {
        format!("{}-{port}.example.test", self.id)
    }

    fn traffic_token(&self) -> Option<&str> {
        self.token.as_deref()
    }

    fn files(&self) -> &dyn SandboxFiles {
        &self.files
    }

    async fn pause(&self, memory: Memory) -> Result<(), SeamError> {
        assert_eq!(memory, Memory::Keep, "the driver always keeps memory");
        self.world.call("pause", &self.id, |state| pause(state, &self.id)).await
    }

    async fn kill(&self) -> Result<(), SeamError> {
        self.world
            .call("kill_handle", &self.id, |state| state.boxes.remove(&self.id).map(drop).ok_or_else(|| missing("it")))
            .await
    }

    async fn create_snapshot(&self, name: &str) -> Result<String, SeamError> {
        self.world
            .call("create_snapshot", &self.id, |state| {
                let made = format!("snapshot-{}-{}", self.id, state.snapshots.len() + 1);
                state.snapshots.insert(made.clone(), name.to_owned());
                Ok(made)
            })
            .await
    }
}

pub struct FakeFiles {
    world: World,
    id: String,
}

impl FakeFiles {
    async fn on<T>(
        &self,
        call: &'static str,
        path: &str,
        effect: impl FnOnce(&mut BTreeSet<String>) -> Result<T, SeamError>,
    ) -> Result<T, SeamError> {
        self.world
            .call(call, path, |state| {
                effect(&mut state.boxes.get_mut(&self.id).ok_or_else(|| missing(&self.id))?.paths)
            })
            .await
    }
}

#[async_trait]
impl SandboxFiles for FakeFiles {
    async fn make_dir(&self, path: &str) -> Result<bool, SeamError> {
        self.on("make_dir", path, |paths| Ok(paths.insert(path.to_owned()))).await
    }

    async fn exists(&self, path: &str) -> Result<bool, SeamError> {
        self.on("exists", path, |paths| Ok(paths.contains(path))).await
    }

    async fn list(&self, path: &str) -> Result<Vec<FileEntry>, SeamError> {
        self.on("list", path, |paths| {
            let name = |entry: &String| {
                entry.strip_prefix(&format!("{path}/")).filter(|rest| !rest.contains('/')).map(str::to_owned)
            };
            Ok(paths
                .iter()
                .filter_map(|entry| name(entry).map(|name| (entry, name)))
                .map(|(entry, name)| FileEntry { name, path: entry.clone(), kind: FileKind::Other, size_bytes: None })
                .collect())
        })
        .await
    }

    async fn remove(&self, path: &str) -> Result<(), SeamError> {
        self.on("remove", path, |paths| {
            paths.retain(|entry| entry != path && !entry.starts_with(&format!("{path}/")));
            Ok(())
        })
        .await?;
        self.world.state().removed.push(path.to_owned());
        Ok(())
    }

    async fn read(&self, path: &str) -> Result<SeamStream, SeamError> {
        let piece = Bytes::copy_from_slice(path.as_bytes());
        self.on("read", path, |_| Ok(Box::pin(futures_util::stream::iter([Ok(piece)])) as SeamStream)).await
    }

    async fn write(&self, path: &str, mut body: SeamStream) -> Result<(), SeamError> {
        while let Some(piece) = futures_util::StreamExt::next(&mut body).await {
            piece?;
        }
        self.on("write", path, |paths| {
            paths.insert(path.to_owned());
            Ok(())
        })
        .await
    }
}

impl DataPlaneFactory for World {
    fn open(&self, target: DataPlaneTarget) -> Result<Arc<dyn DataPlane>, SeamError> {
        self.state().opened.push(target);
        Ok(self.plane())
    }
}

pub struct FakePlane {
    world: World,
    index: usize,
}

#[async_trait]
impl DataPlane for FakePlane {
    async fn health(&self) -> Result<(), SeamError> {
        self.world.call("health", "", |_| Ok(())).await
    }

    fn commands(&self) -> &dyn Commands {
        self
    }

    async fn close(&self) -> Result<(), SeamError> {
        self.world
            .call("close", "", |state| {
                state.planes[self.index] = false;
                Ok(())
            })
            .await
    }
}

#[async_trait]
impl Commands for FakePlane {
    async fn run(&self, command: RunCommand) -> Result<JobOutput, RuntimeError> {
        self.world.state().runs.push(command);
        self.tail(&JobId::new("job")).await
    }

    async fn wait(&self, job: &JobId, _offset: u64, _timeout: Duration) -> Result<JobOutput, RuntimeError> {
        self.tail(job).await
    }

    async fn read_output(&self, job: &JobId, _offset: u64) -> Result<JobOutput, RuntimeError> {
        self.tail(job).await
    }

    async fn input(
        &self,
        job: &JobId,
        _text: &str,
        _offset: u64,
        _timeout: Duration,
    ) -> Result<JobOutput, RuntimeError> {
        self.tail(job).await
    }

    async fn interrupt(&self, job: &JobId, _grace: Duration) -> Result<JobState, RuntimeError> {
        Ok(JobState { job_id: job.clone(), status: JobStatus::Terminated, done: true, exit_code: None, offset: 0 })
    }

    async fn tail(&self, job: &JobId) -> Result<JobOutput, RuntimeError> {
        Ok(JobOutput {
            job_id: job.clone(),
            status: JobStatus::Exited,
            done: true,
            exit_code: Some(0),
            output: String::new(),
            offset: 0,
            truncated: false,
            output_path: None,
        })
    }

    async fn delete(&self, _job: &JobId, _how: DeleteJob) -> Result<(), RuntimeError> {
        Ok(())
    }
}

pub fn create_spec(binding: &str, snapshot: Option<&str>) -> ExecutionBindingCreateSpec {
    let spec = ExecutionBindingCreateSpec::new(
        TenantId::new("tenant-1").unwrap(),
        AgentId::new("agent-1").unwrap(),
        BindingId::new(binding).unwrap(),
        WorkspaceId::new("workspace-1").unwrap(),
    );
    match snapshot {
        Some(snapshot) => spec.with_home_snapshot(SnapshotRef::new(snapshot).unwrap()),
        None => spec,
    }
}

pub fn binding(reference: &str) -> BindingRef {
    BindingRef::new(reference).unwrap()
}

pub fn destroy_spec(reference: &str) -> ExecutionBindingDestroySpec {
    ExecutionBindingDestroySpec::new(binding(reference), WorkspaceFate::Destroy(WorkspaceRef::new(reference).unwrap()))
}

pub fn snapshot_spec(id: &str) -> HomeSnapshotCreateSpec {
    HomeSnapshotCreateSpec::new(
        TenantId::new("tenant-1").unwrap(),
        AgentId::new("agent-1").unwrap(),
        HomeSnapshotId::new(id).unwrap(),
    )
}

pub fn status(code: u16, text: &str) -> SeamError {
    SeamError::new(SeamErrorKind::Status(code), text)
}

/// A plain failure that no retry set has.
pub fn other(text: &str) -> SeamError {
    SeamError::new(SeamErrorKind::Other, text)
}
