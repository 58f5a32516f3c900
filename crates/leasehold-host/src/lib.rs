//! E2B-compatible sandbox host of Leasehold: API, edge proxy, sandbox state machine, ledger.
//!
//! One [`Host`] owns one data directory: it holds `D/lock`, keeps its records in `D/ledger.db`, and listens on
//! `D/run/host.sock` and, if asked, on TCP. Requests for the control plane and for ports inside sandboxes come through the same
//! listeners and are told apart by headers or by the first label of the host name.
//!
//! What differs from E2B, and why:
//!
//! - **Network**: sandboxes have a loopback interface only. `allow_internet_access` may be absent, `false` (which is the case) or
//!   `true` (older SDKs always send it): it is accepted and reaches nothing, and the detail says `allowInternetAccess: false`, as
//!   `GET /leasehold/v1/info` does in words.
//! - **Snapshots** hold files: what is made from one boots cold. Deleting one that sandboxes were made from is allowed; layers go
//!   with their last user.
//! - **What is not built is refused by name** with 400 (network rules, `volumeMounts`, `mcp`, `iam`, `Idempotency-Key`,
//!   `requireHealthyGuest`, snapshots with memory), and unknown fields too. A route that is not there is 501 and not 404, because
//!   404 with a JSON body means that a sandbox is gone.
//! - **Timeouts** are bounded per request ([`HostConfig::max_timeout`]), not over a sandbox's whole life.
//! - **`startedAt`** is the time of creation, over all pauses.
//! - **Memory that is lost** (a crash of the machine, a clean stop of the host) does not lose the sandbox if it was paused, kept, or
//!   made to pause at its timeout: connect boots it from its files, with a new boot id and the reason in
//!   `GET /leasehold/v1/sandboxes/{id}`.
//! - **A pause that keeps memory** freezes the processes and writes one row. Files are as durable as the kernel's page cache makes
//!   them; a pause with `memory: false` flushes first and then stops.

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
