//! Defaults and limits of the protocol. Inclusive on both ends unless said otherwise.

/// The port on which the daemon is reachable from outside a sandbox.
pub const DEFAULT_PORT: u16 = 5004;

/// Output returned by one call when the request doesn't say, in bytes (the Python daemon's value; the Go one has 16 KiB).
pub const DEFAULT_OUTPUT_LIMIT: u64 = 8 * 1024;
/// Smallest output limit, in bytes.
pub const MIN_OUTPUT_LIMIT: u64 = 1;
/// Largest output limit, in bytes.
pub const MAX_OUTPUT_LIMIT: u64 = 1024 * 1024;

/// How long run, wait and input wait when the request doesn't say, in seconds.
pub const DEFAULT_WAIT_SECONDS: f64 = 30.0;
/// Longest wait, in seconds.
pub const MAX_WAIT_SECONDS: f64 = 300.0;

/// How long output must have been quiet before a wait returns it, in seconds.
pub const DEFAULT_IDLE_FLUSH_SECONDS: f64 = 0.5;
/// Longest idle flush, in seconds.
pub const MAX_IDLE_FLUSH_SECONDS: f64 = 30.0;

/// Time between SIGTERM and SIGKILL when the request doesn't say, in seconds. The Go daemon's value (the Python one has 5):
/// here the grace is a maximum, so the longer one costs only jobs that need it.
pub const DEFAULT_GRACE_SECONDS: f64 = 10.0;
/// Longest grace, in seconds.
pub const MAX_GRACE_SECONDS: f64 = 300.0;

/// Width of a job's terminal when the request doesn't say, in characters (the Go daemon's value).
pub const DEFAULT_TERMINAL_COLS: u16 = 200;
/// Height of a job's terminal when the request doesn't say, in characters (the Go daemon's value).
pub const DEFAULT_TERMINAL_ROWS: u16 = 50;
/// Largest width and height of a terminal, in characters; the smallest is 1.
pub const MAX_TERMINAL_SIDE: u16 = 4096;

/// Jobs in one listing when the request doesn't say.
pub const DEFAULT_LIST_LIMIT: u64 = 100;
/// Most jobs in one listing.
pub const MAX_LIST_LIMIT: u64 = 1000;

/// Largest request body, in bytes. Chosen: scripts with inlined files pass, a daemon that reads bodies into memory stays small.
pub const MAX_BODY_BYTES: usize = 8 * 1024 * 1024;
