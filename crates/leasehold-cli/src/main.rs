//! The `leasehold` command: the only place that picks drivers and engines.
mod args;
mod host_api;
mod host_process;
mod workspace;
fn main() {}
