//! The guest's binary as a whole: `init` as an ordinary process in a directory of its own, driven over its sockets.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail by panicking, as tests do")]

mod client;
mod control;
mod envd_process;
mod envd_rest;
mod files;
mod shellctl;
