//! Linux engines and snapshot storage of Leasehold: namespaces, overlay layers, cgroups.
//!
//! One engine now, [`Engine`]: a sandbox is a set of namespaces of every kind, owned by a user namespace in which the host's root does not exist, on an
//! overlay whose lowest layers never change. It needs Linux 5.14, root, and nothing else: no daemon, no image, no network.
//!
//! The life of a sandbox: [`Engine::start`] makes its directories, its control groups and, through a small launcher, its first process, and waits until the
//! guest in it is ready; [`Engine::pause`] and [`Engine::resume`] stop and continue it in memory; [`Engine::stop`] ends it and checks that nothing is left;
//! [`Engine::snapshot`] stores its files as a layer from which others can start; [`Engine::remove`] deletes them, [`Engine::destroy`] does both.
//!
//! What survives the death of the process that holds the engine: everything. Sandboxes run on, each with a record that says what belongs to it;
//! [`Engine::leftovers`], [`Engine::adopt`] and [`Engine::stop`] are for whoever comes next.
#![cfg(target_os = "linux")]

mod cgroup;
mod engine;
mod error;
mod fault;
mod guest_binary;
mod launch;
mod layer;
mod paths;
mod plan;
mod process;
mod record;
mod removal;
mod skeleton;
mod spec;
mod undo;
mod unmount;

pub use cgroup::{CgroupReport, CgroupVersion};
pub use engine::{Capabilities, Engine, EngineConfig, EngineReport, Isolation};
pub use error::{EngineError, ErrorKind};
pub use paths::IdMode;
pub use spec::{GuestSocket, LayerDigest, Limits, ProcessId, Running, StartSpec, Template, Usage};
