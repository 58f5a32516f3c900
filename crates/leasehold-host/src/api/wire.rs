//! The JSON of the control plane.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::record::{Origin, Snapshot, View};
use crate::transition::{Memory, OnTimeout, Paused, State};
use crate::world::Settings;

/// The version of envd whose protocol our guest speaks; clients switch features by it.
pub(crate) const ENVD_VERSION: &str = "0.6.13";

/// There is one client of everything here.
const CLIENT_ID: &str = "leasehold";

/// Body of a create. Fields that this host cannot honour are read so that they can be refused by name; unknown ones are
/// refused too.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct NewSandbox {
    #[serde(rename = "templateID")]
    pub(crate) template_id: String,
    pub(crate) timeout: Option<i64>,
    pub(crate) auto_pause: Option<bool>,
    pub(crate) auto_pause_memory: Option<bool>,
    pub(crate) auto_resume: Option<AutoResume>,
    #[serde(rename = "allow_internet_access")]
    pub(crate) allow_internet_access: Option<bool>,
    pub(crate) network: Option<Network>,
    pub(crate) metadata: Option<BTreeMap<String, String>>,
    pub(crate) env_vars: Option<BTreeMap<String, String>>,
    pub(crate) mcp: Option<Value>,
    pub(crate) iam: Option<Value>,
    pub(crate) volume_mounts: Option<Value>,
    pub(crate) secure: Option<bool>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct AutoResume {
    pub(crate) enabled: bool,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Network {
    pub(crate) allow_public_traffic: Option<bool>,
    pub(crate) allow_out: Option<Value>,
    pub(crate) deny_out: Option<Value>,
    pub(crate) dns_servers: Option<Value>,
    pub(crate) egress_proxy: Option<Value>,
    pub(crate) mask_request_host: Option<Value>,
    pub(crate) https_ports: Option<Value>,
    pub(crate) rules: Option<Value>,
}

/// Body of connect and resume.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Attach {
    pub(crate) timeout: Option<i64>,
    pub(crate) memory: Option<bool>,
    /// Deprecated in E2B; the timeout action is set at creation.
    pub(crate) auto_pause: Option<bool>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct PauseRequest {
    pub(crate) memory: Option<bool>,
    pub(crate) require_healthy_guest: Option<bool>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct TimeoutRequest {
    pub(crate) timeout: i64,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RefreshRequest {
    pub(crate) duration: Option<i64>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SnapshotRequest {
    pub(crate) name: Option<String>,
    pub(crate) memory: Option<bool>,
}

/// Answer to create, connect and resume.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Sandbox {
    #[serde(rename = "templateID")]
    template_id: String,
    #[serde(rename = "sandboxID")]
    sandbox_id: String,
    #[serde(rename = "clientID")]
    client_id: &'static str,
    envd_version: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    alias: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    envd_access_token: Option<String>,
    traffic_access_token: Option<String>,
    domain: String,
}

impl Sandbox {
    pub(crate) fn of(origin: &Origin, settings: &Settings) -> Self {
        Self {
            template_id: origin.template_id.clone(),
            sandbox_id: origin.id.to_string(),
            client_id: CLIENT_ID,
            envd_version: ENVD_VERSION,
            alias: alias(origin),
            envd_access_token: origin.access_token.as_ref().map(|token| token.expose().to_owned()),
            traffic_access_token: origin.traffic_token.as_ref().map(|token| token.expose().to_owned()),
            domain: settings.domain.clone(),
        }
    }
}

/// The name of a built-in template; snapshots have none.
fn alias(origin: &Origin) -> Option<String> {
    origin.layers.is_empty().then(|| origin.template_id.clone())
}

/// An entry of the list; the detail has it too.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Listed {
    #[serde(rename = "templateID")]
    template_id: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    alias: Option<String>,
    #[serde(rename = "sandboxID")]
    sandbox_id: String,
    #[serde(rename = "clientID")]
    client_id: &'static str,
    started_at: String,
    end_at: String,
    cpu_count: u64,
    #[serde(rename = "memoryMB")]
    memory_mb: u64,
    #[serde(rename = "diskSizeMB")]
    disk_size_mb: u64,
    state: &'static str,
    envd_version: &'static str,
    metadata: BTreeMap<String, String>,
}

impl Listed {
    /// `None` for a sandbox that is not up yet, or on its way out.
    pub(crate) fn of(view: &View, settings: &Settings) -> Option<Self> {
        let (origin, machine) = (&view.origin, settings.machine);
        Some(Self {
            template_id: origin.template_id.clone(),
            alias: alias(origin),
            sandbox_id: origin.id.to_string(),
            client_id: CLIENT_ID,
            started_at: view.started_at.to_string(),
            end_at: view.life.ends_at.to_string(),
            cpu_count: origin.limits.cpu_millis.map_or(machine.cores, |millis| millis.div_ceil(1000)),
            memory_mb: origin.limits.memory_bytes.map_or(machine.memory_mib, |bytes| bytes >> 20),
            disk_size_mb: machine.disk_mib,
            state: view.shown_state()?,
            envd_version: ENVD_VERSION,
            metadata: origin.metadata.clone(),
        })
    }
}

/// Answer to `GET /sandboxes/{id}`.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Detail {
    #[serde(flatten)]
    listed: Listed,
    #[serde(skip_serializing_if = "Option::is_none")]
    envd_access_token: Option<String>,
    domain: String,
    /// Always false: sandboxes have loopback only.
    allow_internet_access: bool,
    network: ShownNetwork,
    lifecycle: ShownLifecycle,
    #[serde(skip_serializing_if = "Option::is_none")]
    pause_mode: Option<&'static str>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct ShownNetwork {
    allow_public_traffic: bool,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct ShownLifecycle {
    auto_resume: bool,
    on_timeout: &'static str,
}

impl Detail {
    pub(crate) fn of(view: &View, settings: &Settings) -> Option<Self> {
        let origin = &view.origin;
        Some(Self {
            listed: Listed::of(view, settings)?,
            envd_access_token: origin.access_token.as_ref().map(|token| token.expose().to_owned()),
            domain: settings.domain.clone(),
            allow_internet_access: false,
            network: ShownNetwork { allow_public_traffic: origin.traffic_token.is_none() },
            lifecycle: ShownLifecycle {
                auto_resume: view.life.auto_resume,
                on_timeout: match view.life.on_timeout {
                    OnTimeout::Kill => "kill",
                    OnTimeout::Pause(Memory::Keep | Memory::Drop) => "pause",
                },
            },
            pause_mode: match view.life.state {
                State::Paused(Paused::Frozen) => Some("full"),
                State::Paused(Paused::Cold { .. }) => Some("filesystem"),
                _ => None,
            },
        })
    }
}

#[derive(Debug, Serialize)]
pub(crate) struct SnapshotInfo {
    #[serde(rename = "snapshotID")]
    snapshot_id: String,
    names: Vec<String>,
}

impl From<&Snapshot> for SnapshotInfo {
    fn from(snapshot: &Snapshot) -> Self {
        let snapshot_id = snapshot.public_id();
        let names = snapshot.name.iter().map(|_| snapshot_id.clone()).collect();
        Self { snapshot_id, names }
    }
}
