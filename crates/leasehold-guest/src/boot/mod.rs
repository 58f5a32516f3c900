//! Starting a sandbox: the launcher (mode `launch` of the guest binary) and what the sandbox's first process does before it becomes the guest.
//!
//! ```text
//! engine ── spawns ──► launcher (host root, one thread)
//!                        │ clone3(every namespace, CLONE_PARENT, CLONE_INTO_CGROUP)
//!                        ├────────────► first process: waits
//!                        │ says its pid
//!                        │ writes id maps ───────────► opens host paths, becomes the mapped root,
//!                        │ writes v1 cgroups           builds the root, pivots, drops rights
//!                        │ ──────────────────────────► executes the guest, which says "ready"
//!                        └ exits
//! ```
//!
//! The launcher is a process of its own because `clone3` into new namespaces is only safe from a single thread, and the engine's process has many.
//! `CLONE_PARENT` makes the sandbox a child of the engine's process, which can so wait for it without anyone in between.

mod capabilities;
mod failure;
mod furnish;
mod launcher;
mod overlay;
pub mod plan;
mod seccomp;
mod stage;
mod sys;

pub use launcher::launch;
