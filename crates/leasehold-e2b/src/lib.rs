//! Typed async client for E2B-compatible endpoints, and Leasehold's driver for them.

pub mod driver;
