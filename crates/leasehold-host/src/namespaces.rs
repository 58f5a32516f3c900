//! The engine of `leasehold-engine`, as a [`Sandboxes`].

use std::io;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;

use leasehold_engine::{Engine, EngineConfig, EngineError, ErrorKind, GuestSocket, Isolation, LayerDigest, Template};
use leasehold_guest::AccessToken;

use crate::port::{self, Door, EngineFacts, Failure, FailureKind, Sandboxes, Usage};

/// Opens the engine of a data directory. Blocks.
pub(crate) fn open(data_dir: &Path) -> Result<Arc<dyn Sandboxes>, String> {
    match Engine::open(EngineConfig::new(data_dir)) {
        Ok(engine) => Ok(Arc::new(engine)),
        Err(error) => Err(error.to_string()),
    }
}

impl From<EngineError> for Failure {
    fn from(error: EngineError) -> Self {
        let kind = match error.kind() {
            ErrorKind::InvalidInput => FailureKind::Invalid,
            ErrorKind::Unsupported => FailureKind::Unsupported,
            // Disk, memory or processes ran out: trouble of the machine, not the limit that 429 speaks of.
            _ => FailureKind::Internal,
        };
        Self { kind, message: error.to_string() }
    }
}

fn digest(text: &str) -> Result<LayerDigest, Failure> {
    Ok(text.parse::<LayerDigest>()?)
}

fn process(id: port::ProcessId) -> leasehold_engine::ProcessId {
    leasehold_engine::ProcessId { pid: id.pid, start_time: id.start_time }
}

fn running(running: leasehold_engine::Running) -> port::Running {
    let process = port::ProcessId { pid: running.process.pid, start_time: running.process.start_time };
    port::Running { process, pidfd: running.pidfd, boot_id: running.boot_id }
}

fn identity(identity: &port::Identity) -> leasehold_guest::Identity {
    let mut made = leasehold_guest::Identity::new(identity.sandbox_id.clone(), identity.template_id.clone());
    made.generation = identity.generation;
    made.access_token = identity.access_token.as_ref().map(|token| AccessToken::new(token.expose()));
    made.envs.clone_from(&identity.envs);
    made
}

impl Sandboxes for Engine {
    fn facts(&self) -> EngineFacts {
        let report = self.report();
        EngineFacts {
            name: report.name.to_owned(),
            version: report.version.to_owned(),
            isolation: match report.isolation {
                Isolation::Weak => "weak",
                Isolation::Medium => "medium",
                Isolation::Strong => "strong",
                _ => "unknown",
            }
            .to_owned(),
            id_mode: report.id_mode.name().to_owned(),
            cgroup: format!("{:?}", report.cgroup),
            degraded: report.degraded.clone(),
        }
    }

    fn start(&self, spec: &port::StartSpec) -> Result<port::Running, Failure> {
        let spec = leasehold_engine::StartSpec {
            id: spec.id.clone(),
            template: Template::Host,
            layers: spec.layers.iter().map(|layer| digest(layer)).collect::<Result<_, _>>()?,
            limits: leasehold_engine::Limits {
                memory_bytes: spec.limits.memory_bytes,
                cpu_millis: spec.limits.cpu_millis,
                pids: spec.limits.pids,
            },
            identity: identity(&spec.identity),
        };
        Ok(running(Self::start(self, &spec)?))
    }

    fn pause(&self, id: &str) -> Result<(), Failure> {
        Ok(Self::pause(self, id)?)
    }

    fn resume(&self, id: &str) -> Result<(), Failure> {
        Ok(Self::resume(self, id)?)
    }

    fn stop(&self, id: &str, known: Option<port::ProcessId>) -> Result<(), Failure> {
        Ok(Self::stop(self, id, known.map(process).as_ref())?)
    }

    fn remove(&self, id: &str) -> Result<(), Failure> {
        Ok(Self::remove(self, id)?)
    }

    fn destroy(&self, id: &str, known: Option<port::ProcessId>) -> Result<(), Failure> {
        Ok(Self::destroy(self, id, known.map(process).as_ref())?)
    }

    fn snapshot(&self, id: &str) -> Result<String, Failure> {
        Ok(Self::snapshot(self, id)?.to_string())
    }

    fn delete_layer(&self, layer: &str) -> Result<(), Failure> {
        Ok(Self::delete_layer(self, &digest(layer)?)?)
    }

    fn adopt(&self, id: &str, known: port::ProcessId) -> Result<Option<port::Running>, Failure> {
        Ok(Self::adopt(self, id, &process(known))?.map(running))
    }

    fn leftovers(&self) -> Result<Vec<String>, Failure> {
        Ok(Self::leftovers(self)?)
    }

    fn connect(&self, id: &str, door: Door) -> io::Result<UnixStream> {
        let socket = match door {
            Door::Envd => GuestSocket::Envd,
            Door::Shellctl => GuestSocket::Shellctl,
            Door::Control => GuestSocket::Control,
        };
        Self::connect(self, id, socket)
    }

    fn usage(&self, id: &str) -> Result<Usage, Failure> {
        let usage = Self::usage(self, id)?;
        Ok(Usage { memory_bytes: usage.memory_bytes, cpu_micros: usage.cpu_micros, pids: usage.pids })
    }
}
