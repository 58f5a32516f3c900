//! Lets go of the file systems of destroyed sandboxes without making their destroyer wait.
//!
//! When the last reference to an overlay goes, the kernel first writes back all of the file system that holds its writable layer, whoever dirtied
//! it (`sync_filesystem` in fs/super.c, `ovl_sync_fs`). A sandbox's first process would spend that time in its exit, milliseconds on an idle disk
//! and seconds on a busy one, for files that are deleted next. So its root is held over the exit and put down here.

use std::fmt;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread;

use rustix::fs::{Mode, OFlags};

use crate::error::{During, EngineError};

/// Roots that may wait. Chosen: a burst of kills passes, and with a disk that is slower than that the next kill waits as long as one write-back.
const WAITING: usize = 64;

/// The root of a sandbox that is about to end. Dropping it waits for the write-back.
pub(crate) struct Root(#[expect(dead_code, reason = "held, not used")] OwnedFd);

impl Root {
    /// Takes hold of the root of a process that lives, or of nothing.
    pub(crate) fn of(pid: u32) -> Option<Self> {
        let root = Path::new("/proc").join(pid.to_string()).join("root");
        // Only held, never walked: what is in it is the sandbox's.
        rustix::fs::open(root, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).ok().map(Self)
    }
}

/// A thread that drops roots. It ends after the last one, when this does.
pub(crate) struct Unmounter(SyncSender<Root>);

impl Unmounter {
    pub(crate) fn start() -> Result<Self, EngineError> {
        let (sender, roots) = sync_channel(WAITING);
        let work = move || roots.into_iter().for_each(drop);
        thread::Builder::new().name("unmount".to_owned()).spawn(work).during("unmount", "cannot start a thread")?;
        Ok(Self(sender))
    }

    pub(crate) fn put_down(&self, root: Root) {
        // If the thread were gone, the root would come back as the error and be dropped here.
        drop(self.0.send(root));
    }
}

impl fmt::Debug for Unmounter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Unmounter")
    }
}
