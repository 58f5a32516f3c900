//! The daemon inside a Leasehold sandbox: PID 1, processes, files; speaks envd and shellctl. Linux only.
//!
//! Threads and blocking I/O throughout, no event loop: see `http` for why.

pub mod api;
pub mod boot;
pub mod clock;
pub mod environment;
pub mod files;
pub mod guest;
pub mod http;
mod identity;
pub mod init;
pub mod process;
pub mod rpc;
pub mod shellctl;
pub mod supervise;
mod sys;
pub mod users;

pub use identity::{AccessToken, Boot, Identity, IdentityError};
