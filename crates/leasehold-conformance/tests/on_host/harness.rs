//! The E2B driver on a host of its own.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use async_trait::async_trait;
use leasehold::{BindingRef, Capabilities, ExecutionBindingBackend, HomeSnapshotBackend};
use leasehold_conformance::{Harness, Inventory, Ours, Profile, Separation, State};
use leasehold_e2b::{
    Client, ClientErrorKind, ClientOptions, Driver, DriverConfig, NewSandbox, PauseMode, SandboxQuery, SandboxState,
    SnapshotQuery,
};
use leasehold_host::{Host, HostConfig};

/// How long the host and the driver may take to stop.
const STOPPING: Duration = Duration::from_secs(20);

pub(crate) struct HostHarness {
    host: Host,
    client: Client,
    driver: Driver<Client>,
    ours: Ours,
    before: Inventory,
    /// Dropped last: the host's data directory.
    directory: tempfile::TempDir,
}

impl HostHarness {
    pub(crate) const NAME: &str = "e2b-on-host";

    /// What the driver on our host can do; the same before any host is up.
    pub(crate) fn profile() -> Profile {
        let mut capabilities = Capabilities::minimal();
        capabilities.home_snapshots = true;
        capabilities.memory_kept_on_release = true;
        capabilities.files = true;
        Profile { capabilities, separation: Separation::Processes }
    }

    pub(crate) async fn start() -> anyhow::Result<Arc<Self>> {
        let directory = tempfile::Builder::new().prefix("leasehold-conformance-").tempdir()?;
        let mut ours = Ours {
            root: std::process::id(),
            data_dir: directory.path().to_owned(),
            // The ledger and the log grow; the guest and the base are the installation, not a sandbox.
            may_change: vec!["ledger.db", "host.log"],
            cgroup_marks: Vec::new(),
            interfaces: true,
        };
        let before = Inventory::of_machine(&ours);
        let host = Host::start(HostConfig::new(directory.path())).await.context("cannot start the host")?;
        let client = ClientOptions::default().unix_socket(directory.path().join("run/host.sock")).build()?;

        // The first sandbox installs what all share, and shows where the host makes control groups.
        let sandbox = client.create(&NewSandbox::new("base")).await.context("cannot create a first sandbox")?;
        let groups = ours.control_groups();
        let parts = groups.iter().flat_map(|group| group.split('/')).filter(|part| part.starts_with("leasehold-"));
        ours.cgroup_marks = parts.map(str::to_owned).collect();
        ours.cgroup_marks.sort();
        ours.cgroup_marks.dedup();
        sandbox.kill().await?;

        let driver = Driver::new(client.clone(), Arc::new(client.clone()), DriverConfig::new("base")?);
        ensure!(
            *driver.capabilities() == Self::profile().capabilities,
            "the driver's capabilities are not those of the page"
        );
        Ok(Arc::new(Self { host, client, driver, ours, before, directory }))
    }

    /// Kills every sandbox.
    pub(crate) async fn kill_all(&self) -> anyhow::Result<()> {
        for info in self.client.list_all(&SandboxQuery::default()).await? {
            self.client.kill(&info.sandbox_id).await?;
        }
        Ok(())
    }

    /// Stops driver and host, and looks at what is left then. Repeatable.
    pub(crate) async fn stop(&self) -> anyhow::Result<()> {
        let unfinished = self.driver.shutdown(STOPPING).await.unfinished;
        self.host.shutdown(STOPPING).await;
        ensure!(unfinished == 0, "{unfinished} tasks of the driver did not end");
        // What the directory keeps between two runs of a host is not left behind; the directory itself goes with the harness.
        let mut left = Inventory::of_machine(&self.ours).left_since(&self.before);
        left.retain(|line| !line.starts_with("file "));
        ensure!(left.is_empty(), "after the host's end: {}", left.join("\n  "));
        for nothing in ["run/s", "sandboxes", "layers", "cache"] {
            let entries = std::fs::read_dir(self.directory.path().join(nothing)).into_iter().flatten().flatten();
            let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
            // The unpacked base of this machine is kept for the next host.
            let names: Vec<_> = names.filter(|name| !name.starts_with("host-")).collect();
            ensure!(names.is_empty(), "after the host's end {nothing} has {names:?}");
        }
        Ok(())
    }
}

#[async_trait]
impl Harness for HostHarness {
    fn name(&self) -> &str {
        Self::NAME
    }

    fn profile(&self) -> Profile {
        Self::profile()
    }

    fn bindings(&self) -> &dyn ExecutionBindingBackend {
        &self.driver
    }

    fn snapshots(&self) -> &dyn HomeSnapshotBackend {
        &self.driver
    }

    async fn alive(&self) -> anyhow::Result<Vec<String>> {
        let sandboxes = self.client.list_all(&SandboxQuery::default()).await?;
        let snapshots = self.client.list_all_snapshots(&SnapshotQuery::default()).await?;
        let sandboxes = sandboxes.into_iter().map(|info| format!("sandbox {}", info.sandbox_id));
        Ok(sandboxes.chain(snapshots.into_iter().map(|info| format!("snapshot {}", info.snapshot_id))).collect())
    }

    async fn state(&self, binding: &BindingRef) -> anyhow::Result<State> {
        match self.client.get(binding.as_str()).await {
            Ok(info) if info.state == SandboxState::Running => Ok(State::Active),
            Ok(_) => Ok(State::Idle),
            Err(error) if error.kind() == ClientErrorKind::NotFound => Ok(State::Gone),
            Err(error) => Err(error.into()),
        }
    }

    async fn lose_workspace(&self, binding: &BindingRef) -> anyhow::Result<()> {
        let sandbox = self.client.connect(binding.as_str(), self.patience()).await?;
        sandbox.files().as_user("root").remove(leasehold_e2b::driver::DEFAULT_WORKSPACE).await?;
        Ok(sandbox.pause(PauseMode::Full).await?)
    }

    async fn settle(&self) -> anyhow::Result<()> {
        let settled = tokio::time::timeout(STOPPING, self.driver.settled()).await;
        settled.context("the driver has had work under way for too long")
    }

    fn ours(&self) -> Option<Ours> {
        Some(self.ours.clone())
    }

    fn patience(&self) -> Duration {
        // Chosen: a machine that is busy with other builds still answers within it.
        Duration::from_secs(20)
    }
}
