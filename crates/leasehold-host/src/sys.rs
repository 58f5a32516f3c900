//! The one place with `unsafe`.
#![expect(unsafe_code, reason = "tokio registers descriptors by number, and asks for a promise about them")]

use std::io;
use std::os::fd::OwnedFd;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// A process descriptor that can be waited for.
pub(crate) struct Watched(AsyncFd<OwnedFd>);

impl Watched {
    /// Registers `pidfd` with the runtime.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub(crate) fn new(pidfd: OwnedFd) -> io::Result<Self> {
        // SAFETY: an `OwnedFd` keeps its descriptor open until it is dropped and always gives the same number, and nobody
        // takes it out of the `AsyncFd`, which this type hides.
        let registered = unsafe { AsyncFd::register_with_interest(pidfd, Interest::READABLE) };
        registered.map(Self).map_err(|error| error.into_parts().1)
    }

    /// Waits until the process has ended. Cancel safe.
    pub(crate) async fn ended(&self) {
        // A descriptor that cannot be watched counts as ended: the work that follows verifies it.
        drop(self.0.readable().await);
    }
}
