//! Typed async client for E2B-compatible endpoints, and Leasehold's driver for them.
//!
//! [`Client`] speaks E2B's control plane (routes of its second generation) and, through [`Sandbox`], the daemon inside a sandbox
//! (files and processes). It works with E2B's cloud, with any compatible server and with `leasehold serve`, and it is useful
//! without the rest of Leasehold.
//!
//! # Features
//! | name | default | what it adds |
//! | --- | --- | --- |
//! | `hickory-dns` | no | names are looked up by hickory, needed in a static glibc binary |

mod client;
mod dataplane;
pub mod driver;
mod error;
mod files;
mod options;
mod process;
mod provider;
mod rpc;
mod sandbox;
mod wire;

pub use client::Client;
pub use driver::{Driver, DriverConfig, E2bLease};
pub use error::{ClientError, ClientErrorKind};
pub use files::{FileReader, Files};
pub use options::{ClientOptions, DEFAULT_DOMAIN};
pub use process::{
    EndEvent, Output, Process, ProcessInfo, ProcessInput, ProcessSpec, Processes, PtySize, Selector, Signal,
};
pub use provider::ProviderSandbox;
pub use sandbox::{Endpoint, Sandbox, TRAFFIC_TOKEN_HEADER};
pub use wire::{NewSandbox, Page, PauseMode, SandboxInfo, SandboxQuery, SandboxState, SnapshotInfo, SnapshotQuery};

#[doc(no_inline)]
pub use envd::{Code, EntryInfo, FileType};
#[doc(no_inline)]
pub use leasehold_http::{Secret, Timeouts, TransportKind, Url};
