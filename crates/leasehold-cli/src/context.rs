//! What every command on sandboxes needs: the host, our session with it, the client and the driver.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use leasehold::{
    AgentId, BindingId, BindingRef, ExecutionBindingBackend as _, ExecutionBindingCreateSpec,
    ExecutionBindingDestroySpec, RuntimeLayout, SnapshotRef, TenantId, WorkspaceFate, WorkspaceId, WorkspaceRef,
};
use leasehold_e2b::driver::{Driver, DriverConfig, E2bLease};
use leasehold_e2b::{Client, ClientOptions, SandboxInfo, SandboxQuery};

use crate::host_api::{HostApi, Session};
use crate::host_process;
use crate::name_lock::NameLock;

/// Home and Workspace of the sandboxes that the command line makes.
pub(crate) const HOME: &str = "/home/user";
pub(crate) const WORKSPACE: &str = "/workspace";

/// The template that `run` starts from: this machine's own programs.
const TEMPLATE: &str = "base";

/// The tenant of everything that the command line makes.
const TENANT: &str = "local";

/// The label under which the driver stores a Binding's id, which for a kept sandbox is its name.
const NAME_LABEL: &str = "dify.binding_id";
const TENANT_LABEL: &str = "dify.tenant_id";

/// Names of sandboxes that nobody named begin with this.
const UNNAMED: &str = "run-";

/// How long our own clean-up may take before we leave it to the host.
const SHUTDOWN: Duration = Duration::from_secs(30);

/// A sandbox is either destroyed with this command or kept.
pub(crate) type Driven = Driver<Client>;

/// The host and the ways to it.
pub(crate) struct Context {
    pub(crate) data_dir: PathBuf,
    pub(crate) api: HostApi,
    pub(crate) client: Client,
    pub(crate) driver: Driven,
    // Last, so that the host hears of our end after everything else is gone.
    _session: Session,
}

impl Context {
    /// Finds or starts the host of `data_dir` and opens a session with it.
    pub(crate) async fn open(data_dir: PathBuf) -> anyhow::Result<Self> {
        let dir = data_dir.clone();
        let socket = tokio::task::spawn_blocking(move || {
            host_process::ensure(&dir)?;
            host_process::socket_path(&dir)
        })
        .await
        .context("starting the host was cut short")??;
        let api = HostApi::new(socket.clone());
        let session = api.open_session().await?;
        let client = ClientOptions::default().unix_socket(socket).header("Leasehold-Session", &session.id).build()?;
        let layout = RuntimeLayout::new(HOME, WORKSPACE)?;
        let config = DriverConfig::new(TEMPLATE)?.layout(layout);
        let driver = Driver::new(client.clone(), Arc::new(client.clone()), config);
        Ok(Self { data_dir, api, client, driver, _session: session })
    }

    /// Makes a Binding: named for good, or with a name of its own.
    pub(crate) async fn create(&self, name: Option<&str>, home: Option<&str>) -> anyhow::Result<BindingRef> {
        let name = match name {
            Some(name) => name.to_owned(),
            None => format!("{UNNAMED}{:08x}", random_number()?),
        };
        let spec = ExecutionBindingCreateSpec::new(
            TenantId::new(TENANT)?,
            AgentId::new(&name)?,
            BindingId::new(&name)?,
            WorkspaceId::new(&name)?,
        );
        let spec = match home {
            Some(home) => spec.with_home_snapshot(SnapshotRef::new(home)?),
            None => spec,
        };
        Ok(self.driver.create_binding(&spec).await?.binding_ref)
    }

    /// Takes a sandbox out of our session: it outlives this command.
    pub(crate) async fn keep(&self, binding: &BindingRef) -> anyhow::Result<()> {
        let path = format!("/leasehold/v1/sandboxes/{binding}/keep");
        self.api.call::<serde_json::Value>(http::Method::POST, &path).await.map(drop)
    }

    /// The sandbox of this name.
    ///
    /// # Errors
    /// When two have it, which only clients other than this one can bring about.
    pub(crate) async fn find_name(&self, name: &str) -> anyhow::Result<Option<BindingRef>> {
        let query = SandboxQuery::default().metadata(TENANT_LABEL, TENANT).metadata(NAME_LABEL, name);
        let found = self.client.list_all(&query).await?;
        match &found[..] {
            [] => Ok(None),
            [one] => Ok(Some(BindingRef::new(&one.sandbox_id)?)),
            many => {
                let ids: Vec<_> = many.iter().map(|info| info.sandbox_id.as_str()).collect();
                anyhow::bail!(
                    "{} sandboxes are called {name}: {}; remove all but one by id",
                    many.len(),
                    ids.join(", ")
                )
            }
        }
    }

    /// The sandbox of this name or id.
    pub(crate) async fn find(&self, binding: &str) -> anyhow::Result<BindingRef> {
        if let Some(found) = self.find_name(binding).await? {
            return Ok(found);
        }
        let all = self.client.list_all(&SandboxQuery::default()).await?;
        match all.iter().find(|info| info.sandbox_id == binding) {
            Some(info) => Ok(BindingRef::new(&info.sandbox_id)?),
            None => anyhow::bail!("no sandbox is called {binding:?} and none has that id; `leasehold ls` lists them"),
        }
    }

    /// Gives a lease on a shared sandbox back: the last one out pauses it.
    pub(crate) async fn give_back(&self, lease: E2bLease<Client>, lock: &NameLock) -> anyhow::Result<()> {
        if lock.is_last_out()? {
            self.driver.release(&lease).await?;
        } else {
            self.driver.detach(lease);
        }
        Ok(())
    }

    /// Destroys a sandbox; one that is gone already is fine.
    pub(crate) async fn destroy(&self, binding: &BindingRef) -> anyhow::Result<()> {
        let workspace = WorkspaceFate::Destroy(WorkspaceRef::new(binding.as_str())?);
        Ok(self.driver.destroy_binding(&ExecutionBindingDestroySpec::new(binding.clone(), workspace)).await?)
    }

    /// Finishes what the driver still has to clean up.
    pub(crate) async fn close(self) {
        let left = self.driver.shutdown(SHUTDOWN).await.unfinished;
        if left > 0 {
            crate::complain(&format!("{left} clean-up steps are left to the host"));
        }
    }
}

/// The name of a listed sandbox, unless nobody gave it one.
pub(crate) fn name_of(info: &SandboxInfo) -> Option<&str> {
    let ours = info.metadata.get(TENANT_LABEL).is_some_and(|tenant| tenant == TENANT);
    let name = info.metadata.get(NAME_LABEL).filter(|name| ours && !name.starts_with(UNNAMED));
    name.map(String::as_str)
}

/// A number that makes a name of ours unique.
pub(crate) fn random_number() -> anyhow::Result<u32> {
    getrandom::u32().map_err(|error| anyhow::anyhow!("no random numbers from this machine: {error}"))
}
