//! What is remembered of a sandbox and of a snapshot: the rows of the ledger, and what the API shows.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::ids::SandboxId;
use crate::port::{Identity, Limits, ProcessId, StartSpec};
use crate::secret::Secret;
use crate::transition::{Lifecycle, Memory, OnTimeout, Paused, State};
use crate::wall::Wall;

/// What a sandbox was made with; never changes.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Origin {
    pub(crate) id: SandboxId,
    /// `templateID` as it was given.
    pub(crate) template_id: String,
    /// Layers it starts from, lowest first.
    pub(crate) layers: Vec<String>,
    pub(crate) metadata: BTreeMap<String, String>,
    pub(crate) envs: BTreeMap<String, String>,
    /// envd's access token, unless it was made unsecured.
    pub(crate) access_token: Option<Secret>,
    /// What requests to its ports must carry, unless they are public.
    pub(crate) traffic_token: Option<Secret>,
    pub(crate) limits: Limits,
    pub(crate) timeout_s: i64,
    pub(crate) pause_on_timeout: bool,
    pub(crate) pause_keeps_memory: bool,
    pub(crate) auto_resume: bool,
}

impl Origin {
    pub(crate) fn on_timeout(&self) -> OnTimeout {
        match (self.pause_on_timeout, self.pause_keeps_memory) {
            (false, _) => OnTimeout::Kill,
            (true, true) => OnTimeout::Pause(Memory::Keep),
            (true, false) => OnTimeout::Pause(Memory::Drop),
        }
    }

    /// What the engine needs for the boot number `generation`.
    pub(crate) fn start_spec(&self, generation: u64) -> StartSpec {
        StartSpec {
            id: self.id.as_str().to_owned(),
            layers: self.layers.clone(),
            limits: self.limits,
            identity: Identity {
                sandbox_id: self.id.as_str().to_owned(),
                template_id: self.template_id.clone(),
                generation,
                access_token: self.access_token.clone(),
                envs: self.envs.clone(),
            },
        }
    }
}

/// The states that the ledger knows. Each says what a restart of the host has to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stage {
    /// Being made: a restart removes it.
    Creating,
    /// Runs: a restart adopts it.
    Running,
    /// Frozen, or about to be: a restart adopts and freezes it.
    Frozen,
    /// Being stopped with its files kept: a restart finishes that.
    Stopping,
    /// Files only.
    Cold,
    /// Being booted from its files: a restart stops it again.
    Booting,
    /// Being destroyed: a restart finishes that.
    Killing,
}

impl Stage {
    pub(crate) const ALL: [Self; 7] =
        [Self::Creating, Self::Running, Self::Frozen, Self::Stopping, Self::Cold, Self::Booting, Self::Killing];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Creating => "creating",
            Self::Running => "running",
            Self::Frozen => "frozen",
            Self::Stopping => "stopping",
            Self::Cold => "cold",
            Self::Booting => "booting",
            Self::Killing => "killing",
        }
    }

    pub(crate) fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|stage| stage.name() == text)
    }

    /// The stage of a lifecycle at rest.
    pub(crate) fn at_rest(state: &State) -> Self {
        match state {
            State::Creating => Self::Creating,
            State::Running | State::Snapshotting | State::Pausing { .. } => Self::Running,
            State::Paused(Paused::Frozen) => Self::Frozen,
            State::Paused(Paused::Cold { .. }) => Self::Cold,
            State::Resuming => Self::Booting,
            State::Killing { .. } | State::Gone(_) => Self::Killing,
        }
    }
}

/// One row of the ledger.
#[derive(Debug, Clone)]
pub(crate) struct Row {
    pub(crate) origin: Origin,
    pub(crate) stage: Stage,
    pub(crate) started_at: Wall,
    pub(crate) ends_at: Wall,
    pub(crate) generation: u64,
    pub(crate) process: Option<ProcessId>,
    pub(crate) boot_id: Option<String>,
    /// Why memory was lost, or why it is being killed.
    pub(crate) reason: Option<String>,
    pub(crate) kept: bool,
    /// Made for a client that must stay.
    pub(crate) session: bool,
}

/// What everybody but the owner sees of a sandbox.
#[derive(Debug, Clone)]
pub(crate) struct View {
    pub(crate) origin: std::sync::Arc<Origin>,
    pub(crate) life: Lifecycle,
    pub(crate) started_at: Wall,
    pub(crate) generation: u64,
    pub(crate) boot_id: Option<String>,
}

impl View {
    /// `running` or `paused`, as the API says it; `None` for a sandbox that is on its way out or not up yet.
    pub(crate) fn shown_state(&self) -> Option<&'static str> {
        match self.life.state {
            State::Running | State::Snapshotting => Some("running"),
            State::Pausing { .. } | State::Paused(_) | State::Resuming => Some("paused"),
            State::Creating | State::Killing { .. } | State::Gone(_) => None,
        }
    }

    /// When a sandbox found at `stage` after a restart lives on, this is its life.
    pub(crate) fn lifecycle(row: &Row, state: State) -> Lifecycle {
        Lifecycle {
            state,
            ends_at: row.ends_at,
            on_timeout: row.origin.on_timeout(),
            auto_resume: row.origin.auto_resume,
            timeout_s: row.origin.timeout_s,
            kept: row.kept,
            doomed: None,
        }
    }
}

/// A stored snapshot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Snapshot {
    /// Our own id of it, used as name of an unnamed one.
    pub(crate) id: String,
    /// The sandbox it was taken of.
    pub(crate) source: String,
    pub(crate) created_at: Wall,
    /// Lowest first.
    pub(crate) layers: Vec<String>,
    /// Name and tag, if it was given one.
    pub(crate) name: Option<(String, String)>,
}

impl Snapshot {
    /// What clients call it: `snapshotID`.
    pub(crate) fn public_id(&self) -> String {
        match &self.name {
            Some((name, tag)) => format!("{}/{name}:{tag}", crate::ids::NAMESPACE),
            None => format!("{}:{}", self.id, crate::ids::DEFAULT_TAG),
        }
    }
}
