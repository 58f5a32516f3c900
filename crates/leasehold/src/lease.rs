//! Live access to one Binding, and the one way to use it that cannot forget to give it back.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::{BindingRef, Commands, ExecutionBindingBackend, Files, RuntimeError, RuntimeLayout};

/// One lease of this process. A backend knows its own leases by it and refuses others, without looking into their type.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct LeaseId(u64);

impl LeaseId {
    /// An id that no other lease of this process has.
    #[must_use]
    pub fn fresh() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

impl fmt::Display for LeaseId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "lease-{}", self.0)
    }
}

/// Live access to one Binding for the length of one operation. In memory only, never serialised.
///
/// A lease that is dropped unreleased (drop, panic, abort) is released by its backend in the background.
pub trait RuntimeLease: Send + Sync {
    /// This lease.
    fn id(&self) -> LeaseId;

    /// Where Home and Workspace are.
    fn layout(&self) -> &RuntimeLayout;

    /// Commands in the sandbox.
    fn commands(&self) -> &dyn Commands;

    /// Files in the sandbox.
    fn files(&self) -> &dyn Files;
}

/// A lease in the hands of [`with_lease`] and its body.
///
/// A type of its own, and not a reference, so that the future of [`with_lease`] can be sent to another thread: the compiler cannot show
/// that for an async closure over a borrowed trait object.
#[derive(Clone)]
pub struct Leased(Arc<dyn RuntimeLease>);

impl Deref for Leased {
    type Target = dyn RuntimeLease;

    fn deref(&self) -> &Self::Target {
        &*self.0
    }
}

impl fmt::Debug for Leased {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Leased").field(&self.0.id()).finish()
    }
}

/// Acquires a Binding, runs `body` with the lease, and always releases it.
///
/// A release failure after success is returned. After a failed body it is logged, and the body's error survives. A handle that the body
/// keeps beyond its end is of no use.
///
/// # Errors
/// The acquire's error, the body's, or the release's.
///
/// # Cancel safety
/// Dropping the future drops the body and then the lease, which the backend releases in the background; so does a panic in the body.
pub async fn with_lease<B, F, T, E>(backend: &B, binding: &BindingRef, body: F) -> Result<T, E>
where
    B: ExecutionBindingBackend + ?Sized,
    F: AsyncFnOnce(Leased) -> Result<T, E>,
    E: From<RuntimeError>,
{
    let lease = Leased(backend.acquire(binding).await?.into());
    let outcome = body(lease.clone()).await;
    match (outcome, backend.release(&*lease).await) {
        (Ok(value), Ok(())) => Ok(value),
        (Ok(_), Err(release)) => Err(release.into()),
        (Err(error), Ok(())) => Err(error),
        (Err(error), Err(release)) => {
            tracing::warn!(
                binding_ref = %binding,
                error.kind = release.kind().name(),
                error = &release as &dyn std::error::Error,
                "release failed after the body failed; the body's error is returned"
            );
            Err(error)
        }
    }
}

#[cfg(test)]
mod tests;
