//! Who uses a named sandbox, across commands.
//!
//! Every command on a named sandbox holds a shared lock on a file of that name; making the sandbox needs it exclusively, so a
//! name is made once; and the last one out takes it exclusively to pause the sandbox, so nobody pauses it under another. Locks
//! end with their process, however it ends.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::Path;

use anyhow::Context as _;

/// A shared lock on a name.
#[derive(Debug)]
pub(crate) struct NameLock {
    file: File,
}

impl NameLock {
    /// Waits while another command makes or pauses the sandbox of this name.
    pub(crate) async fn shared(data_dir: &Path, name: &str) -> anyhow::Result<Self> {
        let dir = data_dir.join("names");
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&dir)
            .with_context(|| format!("cannot make {}", dir.display()))?;
        let path = dir.join(format!("{name}.lock"));
        let file = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .mode(0o600)
            .open(&path)
            .with_context(|| format!("cannot open {}", path.display()))?;
        blocking(file, File::lock_shared).await
    }

    /// Waits until no other command uses the name.
    pub(crate) async fn into_exclusive(self) -> anyhow::Result<Self> {
        // Released first: two that hold it shared would wait for each other for ever.
        self.file.unlock().context("cannot release the name's lock")?;
        blocking(self.file, File::lock).await
    }

    /// Lets others use the name again.
    pub(crate) async fn into_shared(self) -> anyhow::Result<Self> {
        blocking(self.file, File::lock_shared).await
    }

    /// Whether this is the last user. If so the lock is exclusive from now on; if not it is gone.
    pub(crate) fn is_last_out(&self) -> anyhow::Result<bool> {
        match self.file.try_lock() {
            Ok(()) => Ok(true),
            Err(TryLockError::WouldBlock) => {
                // The kernel may have dropped ours when the conversion failed; make that certain.
                self.file.unlock().context("cannot release the name's lock")?;
                Ok(false)
            }
            Err(TryLockError::Error(error)) => Err(error).context("cannot lock the name"),
        }
    }
}

async fn blocking(file: File, lock: fn(&File) -> std::io::Result<()>) -> anyhow::Result<NameLock> {
    tokio::task::spawn_blocking(move || lock(&file).map(|()| NameLock { file }))
        .await
        .context("waiting for the name was cut short")?
        .context("cannot lock the name")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn only_the_last_of_several_users_is_last_out() {
        let dir = tempfile::Builder::new().prefix("leasehold-").tempdir().unwrap();
        let first = NameLock::shared(dir.path(), "me").await.unwrap();
        let second = NameLock::shared(dir.path(), "me").await.unwrap();
        assert!(!first.is_last_out().unwrap());
        assert!(second.is_last_out().unwrap());
        drop(second);
        assert!(
            NameLock::shared(dir.path(), "me").await.unwrap().into_exclusive().await.unwrap().is_last_out().unwrap()
        );
    }
}
