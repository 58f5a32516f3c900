//! The driver: Leasehold's contract on any E2B-compatible endpoint, by the rules of the seed.

mod failure;
mod seams;

pub use failure::{SeamError, SeamErrorKind};
pub use seams::{
    ControlPlane, CreateSandbox, DataPlane, DataPlaneFactory, DataPlaneTarget, Memory, Sandbox, SandboxFiles,
    SeamStream,
};
