//! E2B-compatible sandbox host of Leasehold: API, edge proxy, sandbox state machine, ledger.
//!
//! One [`Host`] owns one data directory: it holds `D/lock`, keeps its records in `D/ledger.db`, and listens on
//! `D/run/host.sock` and, if asked, on TCP. Requests for the control plane and for ports inside sandboxes come through the same
//! listeners and are told apart by headers or by the first label of the host name.
//!
//! What differs from E2B, and why, stands at the routes in `api`; in short: snapshots hold files only, sandboxes have a
//! loopback network only, a snapshot in use may be deleted, and whatever is not built is refused by name.

mod api;
mod config;
mod datadir;
mod edge;
mod error;
mod guest_control;
mod host;
mod ids;
mod ledger;
mod listen;
mod namespaces;
mod owner;
mod port;
mod presence;
mod reconcile;
mod record;
mod secret;
mod sessions;
mod shelf;
mod sys;
#[cfg(test)]
mod tests;
mod transition;
mod wall;
mod work;
mod world;

pub use config::{AtShutdown, DEFAULT_MAX_RUNNING, DEFAULT_MAX_TIMEOUT, HostConfig, Lifetime, Limits};
pub use error::HostError;
pub use host::Host;
pub use ledger::LedgerError;
pub use secret::Secret;
