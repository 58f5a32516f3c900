//! The contract of Leasehold as a list of named cases that every backend runs.
//!
//! A [`Case`] is one promise. It says what a backend must be able to do for it to apply, and it is run through a [`Stage`], which keeps account of
//! what the case made. A backend takes part by a [`Harness`]; [`run_case`] runs one case on it, cleans up behind the case, and fails when
//! *anything* is left: what the provider itself lists, and on this machine processes, namespaces, mounts, control groups, interfaces and files
//! ([`Inventory`]).
//!
//! The cases are themselves tested: [`FakeHarness`] is a small backend on plain directories and processes that passes all of them, and that can be told
//! to break one promise at a time ([`Fault`]). A case that no fault can fail would prove nothing, so there is none.
//!
//! ```
//! use leasehold_conformance::{FakeHarness, FakeOptions, cases, run_case};
//! use std::sync::Arc;
//!
//! # tokio::runtime::Runtime::new()?.block_on(async {
//! let fake = Arc::new(FakeHarness::new(FakeOptions::default())?);
//! let case = cases().find(|case| case.name == "bindings::destroy_is_repeatable").expect("a case of the list");
//! run_case(case, fake).await
//! # })?;
//! # Ok::<(), anyhow::Error>(())
//! ```

mod case;
mod cases;
mod fake;
mod inventory;
mod matrix;
mod stage;
mod suite;

pub use case::{Case, Harness, Profile, Separation, State};
pub use cases::cases;
pub use fake::{FAULTS, FakeHarness, FakeOptions, Fault, FaultInfo};
pub use inventory::{Inventory, Kind, Ours};
pub use matrix::{Column, matrix_document, unfailed_cases};
pub use stage::{Held, Ran, Stage};
pub use suite::run_case;
