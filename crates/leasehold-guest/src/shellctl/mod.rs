//! The shellctl face: jobs run by scripts, over HTTP, with output that is paged by byte offset.
//!
//! Wire types, limits and error codes are those of the crate [`shellctl`]. What is particular here:
//!
//! - **No polling.** Waits sleep on a condition variable that output and ends signal. `exited` is said after the last byte of output is in
//!   the file, or after the drain limit of [`crate::process::Drain`] when background processes hold the streams open; what they write later is
//!   appended, and a later read shows it.
//! - **A job is a process tree.** Terminate asks the whole tree (SIGTERM), returns as soon as nothing of it is left, and kills the rest
//!   after the grace. Without a tree left, its status is `terminated` with the leader's true exit code (128 + N after signal N).
//! - **Output is a file** in the job's directory, at most [`MAX_OUTPUT_BYTES`] per job and [`MAX_TOTAL_BYTES`] for all; readers' offsets
//!   stay true because nothing is ever taken from its start. When it is full the job goes on, a line at the end of the output says that the rest
//!   is discarded, and `discarded_bytes` counts it. Total space is first won back from the oldest finished jobs.
//! - **Finished jobs** are kept for [`KEPT_FOR`] and up to [`MAX_FINISHED`] of them. After a cold start of the same sandbox they are still
//!   there, and those that ran are `lost`; a sandbox made from a snapshot does not see its parent's.
//! - **A start that fails**: 127 when the interpreter is not there, 126 when it cannot be executed, 111 when the working directory cannot be
//!   entered, each `exited` with a line that says why (in mode `stdio` in `stderr.log`); `failed` for everything else.
//! - Jobs run as the sandbox's default user; their files belong to it, in directories of mode 0700.
//! - **Environment**: the sandbox's, then the request's; `TMPDIR`, `TMP` and `TEMP` are the working directory unless the request names
//!   them. `HOME` is made if it is missing. `~` in `cwd` is the job's `HOME`.
//! - **Terminal output** is cleaned of control sequences, see `sanitize`; text without a line end is shown after [`LINGER`] of quiet.

mod face;
mod job;
mod log;
mod run;
mod sanitize;
mod store;
mod table;
mod window;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::guest::Guest;
use crate::identity::AccessToken;
use store::Store;
use table::Table;

/// Most output kept of one job, in bytes; stdout and stderr of mode `stdio` count apart. Chosen: far above what an agent reads, far
/// below a disk.
pub const MAX_OUTPUT_BYTES: u64 = 256 << 20;

/// Most output kept of all jobs together, in bytes. Chosen.
pub const MAX_TOTAL_BYTES: u64 = 1 << 30;

/// How long finished jobs are kept. As the Python daemon does (2.4.1); the Go one's 300 s lose results of slow pollers.
pub const KEPT_FOR: Duration = Duration::from_secs(24 * 60 * 60);

/// Most finished jobs that are kept. Chosen: the most that one listing shows.
pub const MAX_FINISHED: usize = 1000;

/// Most jobs that run at once. Chosen: each is two processes and a thread, and a sandbox's limit of processes comes first.
pub const MAX_RUNNING: usize = 512;

/// How long a terminal must be quiet before text without a line end is shown. Chosen: progress bars are faster, people slower.
pub const LINGER: Duration = Duration::from_millis(50);

/// Bounds that tests make smaller.
#[derive(Debug, Clone, Copy)]
struct Bounds {
    output_bytes: u64,
    total_bytes: u64,
    kept_for: Duration,
    finished: usize,
    running: usize,
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            output_bytes: MAX_OUTPUT_BYTES,
            total_bytes: MAX_TOTAL_BYTES,
            kept_for: KEPT_FOR,
            finished: MAX_FINISHED,
            running: MAX_RUNNING,
        }
    }
}

/// The daemon: a [`Handler`](crate::http::Handler) for the server.
#[derive(Debug)]
pub struct Daemon {
    guest: Arc<Guest>,
    token: Option<AccessToken>,
    store: Store,
    table: Arc<Table>,
}

impl Daemon {
    /// Takes up the jobs that an earlier boot of this sandbox left in `state_dir`, which is made when the first job runs.
    #[must_use]
    pub fn new(guest: Arc<Guest>, state_dir: impl Into<PathBuf>) -> Self {
        let bounds = Bounds::default();
        let table = Arc::new(Table::new(bounds));
        let store = Store::new(state_dir.into());
        let identity = guest.identity();
        // Without its user nothing was ever run.
        if let Ok(user) = guest.users.by_name(&identity.default_user) {
            for job in store.recover(&user, &identity.sandbox_id, &table) {
                table.insert(job);
            }
        }
        Self { guest, token: None, store, table }
    }

    /// Demands `Authorization: Bearer <token>` of every request but `/healthz`. Not used in a sandbox, where the edge in front of it
    /// has its own token.
    #[must_use]
    pub fn with_token(self, token: AccessToken) -> Self {
        Self { token: Some(token), ..self }
    }
}

/// A request that is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}: {message}", code.as_str())]
struct Refusal {
    code: shellctl::ErrorCode,
    message: String,
}

impl Refusal {
    fn new(code: shellctl::ErrorCode, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }

    fn internal(doing: &str, error: &dyn std::fmt::Display) -> Self {
        Self::new(shellctl::ErrorCode::InternalError, format!("cannot {doing}: {error}"))
    }
}

impl From<shellctl::Invalid> for Refusal {
    fn from(invalid: shellctl::Invalid) -> Self {
        Self::new(shellctl::ErrorCode::ValidationError, invalid.to_string())
    }
}
