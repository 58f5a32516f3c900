//! How a host is set up.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

pub use crate::port::Limits;
use crate::secret::Secret;

/// Sandboxes that may run at once, unless set. Chosen: a laptop runs out of memory before that, a test suite does not.
pub const DEFAULT_MAX_RUNNING: usize = 100;

/// Longest timeout that a request may ask for, unless set: E2B's largest plan, so that scripts behave the same.
pub const DEFAULT_MAX_TIMEOUT: Duration = Duration::from_secs(24 * 3600);

/// Settings of a host. Start from [`HostConfig::new`].
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct HostConfig {
    /// Where everything is kept. Made (0700) if it is not there; refused if it belongs to another user.
    pub data_dir: PathBuf,
    /// A TCP address to listen on besides the Unix socket. Default: none. Port 0 takes a free one; see
    /// [`crate::Host::local_addr`].
    pub listen: Option<SocketAddr>,
    /// Permits an address that other machines can reach. Default: no, because there is no TLS here.
    pub allow_public_listen: bool,
    /// The key that TCP clients must send. Default: the one in `D/api-key`, which is made if it is not there.
    pub api_key: Option<Secret>,
    /// The domain that answers name, `PORT-ID.DOMAIN` being a sandbox's port; it may have a port of its own. Default:
    /// `localhost`, with the TCP port if there is one.
    pub domain: Option<String>,
    /// Sandboxes that may run at once. Default: [`DEFAULT_MAX_RUNNING`]. One more is refused with 429.
    pub max_running: usize,
    /// Longest timeout that a request may ask for. Default: [`DEFAULT_MAX_TIMEOUT`].
    pub max_timeout: Duration,
    /// Bounds of each sandbox. Default: none.
    pub limits: Limits,
    /// When the host ends by itself. Default: never.
    pub lifetime: Lifetime,
    /// What becomes of processes when the host ends in good order. Default: they are stopped.
    pub at_shutdown: AtShutdown,
}

impl HostConfig {
    /// Defaults for a data directory.
    pub fn new(data_dir: impl Into<PathBuf>) -> Self {
        Self {
            data_dir: data_dir.into(),
            listen: None,
            allow_public_listen: false,
            api_key: None,
            domain: None,
            max_running: DEFAULT_MAX_RUNNING,
            max_timeout: DEFAULT_MAX_TIMEOUT,
            limits: Limits::default(),
            lifetime: Lifetime::Forever,
            at_shutdown: AtShutdown::Stop,
        }
    }
}

/// When a host ends by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Lifetime {
    /// Only when it is told.
    Forever,
    /// When nobody needs it: no request under way, no session open, nothing running.
    Embedded {
        /// How long a new host waits for its first client.
        first_client: Duration,
        /// How long it stays when there is nothing at all.
        empty: Duration,
        /// How long it stays when only paused sandboxes are left.
        paused_only: Duration,
    },
}

impl Lifetime {
    /// The rule of an embedded host: 10 s for the first client to come, a quarter of a second with nothing left (chosen: the
    /// next command of a script finds it still there), 60 s with paused sandboxes only.
    #[must_use]
    pub const fn embedded() -> Self {
        Self::Embedded {
            first_client: Duration::from_secs(10),
            empty: Duration::from_millis(250),
            paused_only: Duration::from_secs(60),
        }
    }
}

/// What becomes of processes when the host ends in good order. (After a crash they live on, and the next host adopts them.)
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum AtShutdown {
    /// Nothing stays behind that nobody watches: sandboxes that were kept, or pause at their timeout, keep their files and start
    /// cold next time; the others end.
    Stop,
    /// They run on, unwatched, until the next host adopts them: for replacing the program.
    Leave,
}
