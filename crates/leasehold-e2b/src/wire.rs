//! Bodies of the control plane.

use std::collections::BTreeMap;
use std::time::Duration;

use leasehold_http::Secret;
use serde::{Deserialize, Deserializer, Serialize};

/// What is kept of a paused sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PauseMode {
    /// Files, memory and processes.
    Full,
    /// Files only; the next connect boots it anew.
    FilesOnly,
}

impl PauseMode {
    pub(crate) fn keeps_memory(self) -> bool {
        self == Self::Full
    }
}

/// What a new sandbox shall be: the body of `POST /v2/sandboxes`. What is not set is not sent, and the endpoint's default
/// applies.
#[derive(Debug, Clone, Serialize)]
#[must_use]
pub struct NewSandbox {
    #[serde(rename = "templateID")]
    template_id: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    timeout: Option<u64>,
    #[serde(rename = "autoPause", skip_serializing_if = "Option::is_none")]
    auto_pause: Option<bool>,
    #[serde(rename = "autoPauseMemory", skip_serializing_if = "Option::is_none")]
    auto_pause_memory: Option<bool>,
    #[serde(rename = "autoResume", skip_serializing_if = "Option::is_none")]
    auto_resume: Option<AutoResume>,
    // The one field that E2B spells with underscores.
    #[serde(skip_serializing_if = "Option::is_none")]
    allow_internet_access: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    network: Option<Network>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    metadata: BTreeMap<String, String>,
    #[serde(rename = "envVars", skip_serializing_if = "BTreeMap::is_empty")]
    envs: BTreeMap<String, String>,
}

#[derive(Debug, Clone, Serialize)]
struct AutoResume {
    enabled: bool,
}

#[derive(Debug, Clone, Default, Serialize)]
struct Network {
    #[serde(rename = "allowPublicTraffic", skip_serializing_if = "Option::is_none")]
    allow_public_traffic: Option<bool>,
}

impl NewSandbox {
    /// A sandbox from a template or a snapshot.
    pub fn new(template: impl Into<String>) -> Self {
        Self {
            template_id: template.into(),
            timeout: None,
            auto_pause: None,
            auto_pause_memory: None,
            auto_resume: None,
            allow_internet_access: None,
            network: None,
            metadata: BTreeMap::new(),
            envs: BTreeMap::new(),
        }
    }

    /// How long it runs until it is killed or paused, rounded up to whole seconds. E2B's default is 300 s.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(whole_seconds(timeout));
        self
    }

    /// Pause it instead of killing it when the timeout passes.
    pub fn pause_on_timeout(mut self, mode: PauseMode) -> Self {
        self.auto_pause = Some(true);
        self.auto_pause_memory = Some(mode.keeps_memory());
        self
    }

    /// Whether traffic to it resumes it when it is paused.
    pub fn auto_resume(mut self, enabled: bool) -> Self {
        self.auto_resume = Some(AutoResume { enabled });
        self
    }

    /// Whether its ports are open without a traffic token. When false, the answer carries the token.
    pub fn public_traffic(mut self, allowed: bool) -> Self {
        self.network.get_or_insert_default().allow_public_traffic = Some(allowed);
        self
    }

    /// Whether it can reach the internet.
    pub fn internet_access(mut self, allowed: bool) -> Self {
        self.allow_internet_access = Some(allowed);
        self
    }

    /// A label, by which it can be listed.
    pub fn metadata(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.metadata.insert(key.into(), value.into());
        self
    }

    /// A variable for every process in it.
    pub fn env(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.envs.insert(name.into(), value.into());
        self
    }
}

pub(crate) fn whole_seconds(duration: Duration) -> u64 {
    duration.as_secs() + u64::from(duration.subsec_nanos() > 0)
}

/// Body of connect.
#[derive(Debug, Serialize)]
pub(crate) struct ConnectBody {
    pub(crate) timeout: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) memory: Option<bool>,
}

#[derive(Debug, Serialize)]
pub(crate) struct PauseBody {
    pub(crate) memory: bool,
}

#[derive(Debug, Serialize)]
pub(crate) struct TimeoutBody {
    pub(crate) timeout: u64,
}

#[derive(Debug, Serialize)]
pub(crate) struct SnapshotBody<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) name: Option<&'a str>,
}

/// Answer of create and connect.
#[derive(Debug, Deserialize)]
pub(crate) struct SandboxBody {
    #[serde(rename = "sandboxID")]
    pub(crate) sandbox_id: String,
    #[serde(rename = "templateID", default)]
    pub(crate) template_id: String,
    #[serde(rename = "envdVersion", default)]
    pub(crate) envd_version: String,
    #[serde(rename = "envdAccessToken", default, deserialize_with = "optional_secret")]
    pub(crate) envd_access_token: Option<Secret>,
    #[serde(rename = "trafficAccessToken", default, deserialize_with = "optional_secret")]
    pub(crate) traffic_access_token: Option<Secret>,
    #[serde(default)]
    pub(crate) domain: Option<String>,
}

/// Null and empty both mean that there is none.
fn optional_secret<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Secret>, D::Error> {
    let text = Option::<String>::deserialize(deserializer)?;
    Ok(text.filter(|text| !text.is_empty()).map(Secret::new))
}

/// Whether a sandbox runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SandboxState {
    /// It runs.
    Running,
    /// It is paused.
    Paused,
}

impl SandboxState {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Paused => "paused",
        }
    }
}

/// A sandbox as `get` and `list` report it.
#[derive(Debug, Clone, Deserialize)]
#[non_exhaustive]
pub struct SandboxInfo {
    /// Its id.
    #[serde(rename = "sandboxID")]
    pub sandbox_id: String,
    /// What it was made from.
    #[serde(rename = "templateID", default)]
    pub template_id: String,
    /// The template's alias.
    #[serde(default)]
    pub alias: Option<String>,
    /// Whether it runs.
    pub state: SandboxState,
    /// When it started, RFC 3339 as the endpoint wrote it.
    #[serde(rename = "startedAt", default)]
    pub started_at: String,
    /// When its timeout passes, RFC 3339 as the endpoint wrote it.
    #[serde(rename = "endAt", default)]
    pub end_at: String,
    /// Its labels.
    #[serde(default, deserialize_with = "null_as_default")]
    pub metadata: BTreeMap<String, String>,
    /// The version of its envd.
    #[serde(rename = "envdVersion", default)]
    pub envd_version: String,
    /// Its processors.
    #[serde(rename = "cpuCount", default)]
    pub cpu_count: u32,
    /// Its memory in MiB.
    #[serde(rename = "memoryMB", default)]
    pub memory_mb: u64,
    /// Its disk in MiB.
    #[serde(rename = "diskSizeMB", default)]
    pub disk_size_mb: u64,
}

/// A snapshot.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[non_exhaustive]
pub struct SnapshotInfo {
    /// Its id, usable as a template.
    #[serde(rename = "snapshotID")]
    pub snapshot_id: String,
    /// Its names.
    #[serde(default, deserialize_with = "null_as_default")]
    pub names: Vec<String>,
}

fn null_as_default<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(deserializer: D) -> Result<T, D::Error> {
    Ok(Option::<T>::deserialize(deserializer)?.unwrap_or_default())
}

/// One page of a listing.
#[derive(Debug, Clone)]
pub struct Page<T> {
    /// Its items, newest first.
    pub items: Vec<T>,
    /// Asks for the next page; `None` after the last.
    pub next: Option<String>,
}

/// Which sandboxes to list. The default is all, running and paused.
#[derive(Debug, Clone, Default)]
#[must_use]
pub struct SandboxQuery {
    pub(crate) metadata: BTreeMap<String, String>,
    pub(crate) states: Vec<SandboxState>,
    pub(crate) limit: Option<u32>,
    pub(crate) next: Option<String>,
}

impl SandboxQuery {
    /// Only those that carry this label; all given labels must match.
    pub fn metadata(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.metadata.insert(key.into(), value.into());
        self
    }

    /// Only those in this state; may be given twice.
    pub fn state(mut self, state: SandboxState) -> Self {
        self.states.push(state);
        self
    }

    /// At most this many per page, 1 to 100.
    pub fn limit(mut self, limit: u32) -> Self {
        self.limit = Some(limit);
        self
    }

    /// The page that [`Page::next`] asks for.
    pub fn after(mut self, next: Option<String>) -> Self {
        self.next = next;
        self
    }

    pub(crate) fn pairs(&self) -> Vec<(&'static str, String)> {
        let mut pairs = Vec::new();
        if !self.metadata.is_empty() {
            pairs.push(("metadata", encode_metadata(&self.metadata)));
        }
        if !self.states.is_empty() {
            let states: Vec<_> = self.states.iter().map(|state| state.as_str()).collect();
            pairs.push(("state", states.join(",")));
        }
        pairs.extend(self.limit.map(|limit| ("limit", limit.to_string())));
        pairs.extend(self.next.clone().map(|next| ("nextToken", next)));
        pairs
    }
}

/// Which snapshots to list. The default is all.
#[derive(Debug, Clone, Default)]
#[must_use]
pub struct SnapshotQuery {
    pub(crate) sandbox_id: Option<String>,
    pub(crate) name: Option<String>,
    pub(crate) limit: Option<u32>,
    pub(crate) next: Option<String>,
}

impl SnapshotQuery {
    /// Only those taken of this sandbox.
    pub fn sandbox(mut self, id: impl Into<String>) -> Self {
        self.sandbox_id = Some(id.into());
        self
    }

    /// Only those of this name.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// At most this many per page, 1 to 100.
    pub fn limit(mut self, limit: u32) -> Self {
        self.limit = Some(limit);
        self
    }

    /// The page that [`Page::next`] asks for.
    pub fn after(mut self, next: Option<String>) -> Self {
        self.next = next;
        self
    }

    pub(crate) fn pairs(&self) -> Vec<(&'static str, String)> {
        let mut pairs = Vec::new();
        pairs.extend(self.sandbox_id.clone().map(|id| ("sandboxID", id)));
        pairs.extend(self.name.clone().map(|name| ("name", name)));
        pairs.extend(self.limit.map(|limit| ("limit", limit.to_string())));
        pairs.extend(self.next.clone().map(|next| ("nextToken", next)));
        pairs
    }
}

/// The metadata filter is encoded three times: each key and value by percent, the pairs as a form, and the result (by the caller)
/// as a query value. E2B's SDKs do so and its server undoes exactly that.
fn encode_metadata(metadata: &BTreeMap<String, String>) -> String {
    use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};

    // What JavaScript's encodeURIComponent leaves alone, as far as Python's quote does too.
    const COMPONENT: &percent_encoding::AsciiSet =
        &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');
    let component = |text: &str| utf8_percent_encode(text, COMPONENT).to_string();
    let mut form = form_urlencoded::Serializer::new(String::new());
    for (key, value) in metadata {
        form.append_pair(&component(key), &component(value));
    }
    form.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metadata_is_encoded_as_the_sdks_do() {
        let query = SandboxQuery::default().metadata("a b", "c&d");
        let mut url = leasehold_http::Url::parse("http://x/").unwrap();
        for (name, value) in query.pairs() {
            url.query_pairs_mut().append_pair(name, &value);
        }
        // Seen on the wire from the Python and JavaScript SDKs.
        assert_eq!(url.query(), Some("metadata=a%252520b%3Dc%252526d"));
    }

    #[test]
    fn what_is_not_set_is_not_sent() {
        let text = serde_json::to_string(&NewSandbox::new("base")).unwrap();
        assert_eq!(text, r#"{"templateID":"base"}"#);
    }

    #[test]
    fn durations_are_rounded_up() {
        assert_eq!(whole_seconds(Duration::from_millis(1)), 1);
        assert_eq!(whole_seconds(Duration::from_secs(3600)), 3600);
        assert_eq!(whole_seconds(Duration::ZERO), 0);
    }

    #[test]
    fn empty_and_null_tokens_are_none() {
        let body = r#"{"sandboxID":"a","envdAccessToken":"","trafficAccessToken":null}"#;
        let body: SandboxBody = serde_json::from_str(body).unwrap();
        assert!(body.envd_access_token.is_none() && body.traffic_access_token.is_none());
    }
}
