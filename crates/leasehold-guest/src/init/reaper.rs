//! The one place that takes exit statuses in PID 1: those of supervisors and of whatever was orphaned.
//!
//! Nobody waits for a status here. A supervisor's end is known from its socket, so no exit can be lost between two waiters.

use rustix::io::Errno;
use rustix::process::{WaitOptions, wait};

use crate::sys;

/// Reaps until the process is killed. SIGCHLD must be blocked in all threads.
pub(super) fn reap_for_ever() -> ! {
    loop {
        match wait(WaitOptions::NOHANG) {
            Ok(Some(_)) | Err(Errno::INTR) => {}
            // No child, or none that has ended. A SIGCHLD that came since then is pending, so the wait returns at once.
            Ok(None) | Err(_) => sys::wait_sigchld(),
        }
    }
}
