//! A small backend on plain directories and processes of this machine: it keeps every promise, and breaks one when told to.
//!
//! A *room* is a directory with a Home, a Workspace, and jobs. Jobs are real `sh` processes; they are told apart by a variable in their environment, so
//! that they can be stopped, continued and killed with everything they started. Home and Workspace have real paths, hence the layout differs per Binding.
//! With [`FakeOptions::own_processes`] each room also has a PID namespace of its own, by `unshare` and `nsenter`.

mod backend;
mod commands;
mod fault;
mod files;
mod job;
mod processes;
mod room;
mod world;

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use async_trait::async_trait;
use leasehold::{BindingRef, Capabilities, ExecutionBindingBackend, HomeSnapshotBackend, WorkspaceMode};

use crate::{Harness, Ours, Profile, Separation, State};
use backend::FakeBackend;
pub use fault::{FAULTS, Fault, FaultInfo};
use world::World;

/// How the fake is composed.
#[derive(Debug, Clone, Copy, Default)]
pub struct FakeOptions {
    /// Workspaces are apart from Bindings and can be shared. Off = coupled, as in E2B.
    pub shared_workspaces: bool,
    /// Each room has a process table of its own. Needs root, `unshare` and `nsenter`.
    pub own_processes: bool,
    /// The promise to break. None = healthy.
    pub fault: Option<Fault>,
}

/// The fake as a harness.
pub struct FakeHarness {
    name: &'static str,
    options: FakeOptions,
    backend: FakeBackend,
    world: Arc<World>,
}

impl FakeHarness {
    /// Makes a fake in a temporary directory, which goes with it.
    ///
    /// # Errors
    /// The directory cannot be made, or own process tables were asked for and this machine doesn't give them.
    pub fn new(options: FakeOptions) -> anyhow::Result<Self> {
        if options.own_processes {
            Self::can_separate_processes()?;
        }
        let world = Arc::new(World::new(options).context("cannot make the fake's directory")?);
        let name = match (options.shared_workspaces, options.own_processes) {
            (false, false) => "fake",
            (true, false) => "fake-shared",
            (false, true) => "fake-separate",
            (true, true) => "fake-shared-separate",
        };
        Ok(Self { name, options, backend: FakeBackend::new(world.clone()), world })
    }

    /// Whether this machine gives rooms a process table of their own.
    ///
    /// # Errors
    /// What is missing.
    pub fn can_separate_processes() -> anyhow::Result<()> {
        let tried = std::process::Command::new("unshare")
            .args(["--pid", "--fork", "--mount-proc", "nsenter", "--version"])
            .output()
            .context("unshare (util-linux) is not installed")?;
        ensure!(tried.status.success(), "no PID namespaces: {}", String::from_utf8_lossy(&tried.stderr).trim());
        Ok(())
    }
}

#[async_trait]
impl Harness for FakeHarness {
    fn name(&self) -> &str {
        self.name
    }

    fn profile(&self) -> Profile {
        let separation = if self.options.own_processes { Separation::Processes } else { Separation::FilesOnly };
        Profile { capabilities: self.backend.capabilities().clone(), separation }
    }

    fn bindings(&self) -> &dyn ExecutionBindingBackend {
        &self.backend
    }

    fn snapshots(&self) -> &dyn HomeSnapshotBackend {
        &self.backend
    }

    async fn alive(&self) -> anyhow::Result<Vec<String>> {
        Ok(self.world.alive())
    }

    async fn state(&self, binding: &BindingRef) -> anyhow::Result<State> {
        Ok(match self.world.room(binding.as_str()) {
            None => State::Gone,
            Some(room) if room.is_active() => State::Active,
            Some(_) => State::Idle,
        })
    }

    async fn lose_workspace(&self, binding: &BindingRef) -> anyhow::Result<()> {
        let room = self.world.room(binding.as_str()).with_context(|| format!("binding {binding} is not there"))?;
        Ok(std::fs::remove_dir_all(room.workspace())?)
    }

    async fn settle(&self) -> anyhow::Result<()> {
        // Everything is done when a call returns or its future is dropped.
        Ok(())
    }

    fn ours(&self) -> Option<Ours> {
        Some(Ours {
            // Many fakes live in one test process; only their directories tell their processes apart.
            root: u32::MAX,
            data_dir: self.world.directory().to_owned(),
            may_change: Vec::new(),
            cgroup_marks: Vec::new(),
            interfaces: false,
        })
    }

    fn patience(&self) -> Duration {
        // A fault that makes something never happen costs this much; a healthy fake needs milliseconds.
        Duration::from_secs(if self.options.fault.is_some() { 2 } else { 20 })
    }
}

/// What the fake says of itself.
fn capabilities(options: FakeOptions) -> Capabilities {
    let mut capabilities = Capabilities::minimal();
    if options.shared_workspaces {
        capabilities.workspace_mode = WorkspaceMode::Volume;
        capabilities.shared_workspace = true;
        capabilities.binding_only_destroy = true;
        capabilities.snapshot_excludes_workspace = true;
    }
    capabilities.home_snapshots = true;
    capabilities.memory_kept_on_release = true;
    capabilities.files = true;
    capabilities
}
