//! The data directory: ours alone, and one host at a time.

use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Read as _, Seek as _, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use tokio::net::UnixListener;

use crate::error::HostError;
use crate::ids::random_secret;
use crate::secret::Secret;

/// How often the lock is tried. Whoever only looks whether it is held has it for a moment.
const LOCK_ATTEMPTS: u32 = 5;

/// Pause between two attempts at the lock.
const LOCK_WAIT: std::time::Duration = std::time::Duration::from_millis(10);

/// A data directory that this process holds. The lock goes with it.
#[derive(Debug)]
pub(crate) struct DataDir {
    path: PathBuf,
    _lock: File,
}

impl DataDir {
    /// Makes the directory if need be, checks that it is ours, and takes its lock.
    pub(crate) async fn take(path: &Path) -> Result<Self, HostError> {
        let path = std::path::absolute(path).map_err(failed(path, "is not a path"))?;
        make_private(&path)?;
        let owner = fs::metadata(&path).map_err(failed(&path, "cannot be read"))?.uid();
        if owner != rustix::process::geteuid().as_raw() {
            return Err(HostError::DataDir { path, step: "belongs to another user", source: None });
        }
        for part in ["run", "run/s", "sandboxes", "layers", "cache", "guests"] {
            make_private(&path.join(part))?;
        }
        let lock_path = path.join("lock");
        let mut lock = OpenOptions::new()
            .create(true)
            .truncate(false)
            .read(true)
            .write(true)
            .mode(0o600)
            .open(&lock_path)
            .map_err(failed(&lock_path, "cannot be opened"))?;
        let mut attempt = 1;
        while let Err(error) = lock.try_lock() {
            match error {
                TryLockError::Error(error) => return Err(failed(&lock_path, "cannot be locked")(error)),
                TryLockError::WouldBlock if attempt < LOCK_ATTEMPTS => {
                    attempt += 1;
                    tokio::time::sleep(LOCK_WAIT).await;
                }
                TryLockError::WouldBlock => {
                    let mut text = String::new();
                    let read = lock.read_to_string(&mut text);
                    return Err(HostError::Held {
                        data_dir: path,
                        pid: read.ok().and_then(|_| text.trim().parse().ok()),
                    });
                }
            }
        }
        let written =
            lock.set_len(0).and_then(|()| lock.rewind()).and_then(|()| writeln!(lock, "{}", std::process::id()));
        written.map_err(failed(&lock_path, "cannot be written"))?;
        Ok(Self { path, _lock: lock })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn ledger(&self) -> PathBuf {
        self.path.join("ledger.db")
    }

    /// The key of this host: the one that was made before, or a new one.
    pub(crate) fn api_key(&self) -> Result<Secret, HostError> {
        let path = self.path.join("api-key");
        match fs::read_to_string(&path) {
            Ok(text) if !text.trim().is_empty() => return Ok(Secret::new(text.trim())),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(failed(&path, "cannot be read")(error)),
        }
        let key = format!("e2b_{}", random_secret());
        let new = self.path.join("api-key.new");
        let write = || {
            let mut file = OpenOptions::new().create(true).write(true).truncate(true).mode(0o600).open(&new)?;
            file.set_permissions(fs::Permissions::from_mode(0o600))?;
            writeln!(file, "{key}")?;
            file.sync_all()?;
            fs::rename(&new, &path)?;
            File::open(&self.path)?.sync_all()
        };
        write().map_err(failed(&path, "cannot be written"))?;
        Ok(Secret::new(key))
    }

    /// Listens on `D/run/host.sock`. A socket that is there belongs to a dead host: we have the lock.
    ///
    /// Bound through a descriptor of its directory, because the address of a Unix socket holds at most 107 bytes.
    pub(crate) fn listen(&self) -> Result<UnixListener, HostError> {
        let run = self.path.join("run");
        let socket = run.join("host.sock");
        let bind = || {
            let dir = File::open(&run)?;
            match fs::remove_file(&socket) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
            let listener = UnixListener::bind(format!("/proc/self/fd/{}/host.sock", dir.as_raw_fd()))?;
            fs::set_permissions(&socket, fs::Permissions::from_mode(0o600))?;
            Ok(listener)
        };
        bind().map_err(failed(&socket, "cannot be listened on"))
    }

    /// Takes the socket away, so that nobody finds a host that is leaving.
    pub(crate) fn unlink_socket(&self) {
        let socket = self.path.join("run/host.sock");
        if let Err(error) = fs::remove_file(&socket)
            && error.kind() != io::ErrorKind::NotFound
        {
            tracing::warn!(error = %error, "the host's socket could not be removed");
        }
    }
}

fn make_private(path: &Path) -> Result<(), HostError> {
    DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(failed(path, "cannot be made"))?;
    let mode = fs::metadata(path).map_err(failed(path, "cannot be read"))?.mode() & 0o777;
    if mode != 0o700 {
        fs::set_permissions(path, fs::Permissions::from_mode(0o700)).map_err(failed(path, "cannot be made private"))?;
    }
    Ok(())
}

fn failed(path: &Path, step: &'static str) -> impl FnOnce(io::Error) -> HostError {
    let path = path.to_owned();
    move |source| HostError::DataDir { path, step, source: Some(source) }
}

/// Size of the file system that holds `path`, in MiB; 0 if it cannot be told.
pub(crate) fn disk_mib(path: &Path) -> u64 {
    rustix::fs::statvfs(path).map_or(0, |stat| (stat.f_blocks.saturating_mul(stat.f_frsize)) >> 20)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_second_holder_is_told_who_holds_it() {
        let dir = tempfile::tempdir().expect("a directory");
        let held = DataDir::take(dir.path()).await.expect("free");
        match DataDir::take(dir.path()).await {
            Err(error @ HostError::Held { pid, .. }) => {
                assert_eq!(pid, Some(std::process::id()));
                assert!(error.to_string().contains(&std::process::id().to_string()));
            }
            other => panic!("{other:?}"),
        }
        drop(held);
        DataDir::take(dir.path()).await.expect("free again");
    }

    #[tokio::test]
    async fn the_directory_is_private_and_the_key_is_made_once() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("d");
        fs::create_dir(&path).expect("made");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("set");
        let held = DataDir::take(&path).await.expect("free");
        assert_eq!(fs::metadata(&path).expect("there").mode() & 0o777, 0o700);
        let key = held.api_key().expect("made");
        assert_eq!(held.api_key().expect("read").expose(), key.expose());
        assert_eq!(fs::metadata(path.join("api-key")).expect("there").mode() & 0o777, 0o600);
        let hex = key.expose().strip_prefix("e2b_").expect("E2B's form");
        assert!(hex.len() == 40 && hex.bytes().all(|byte| byte.is_ascii_hexdigit()));
    }

    #[tokio::test]
    async fn a_directory_of_another_user_is_refused() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let dir = tempfile::tempdir().expect("a directory");
        std::os::unix::fs::chown(dir.path(), Some(1234), None).expect("root may");
        let error = DataDir::take(dir.path()).await.expect_err("not ours");
        assert!(error.to_string().contains("another user"), "{error}");
    }

    #[tokio::test]
    async fn a_long_directory_can_be_listened_in() {
        let dir = tempfile::tempdir().expect("a directory");
        let held = DataDir::take(&dir.path().join("x".repeat(150))).await.expect("free");
        drop(held.listen().expect("bound"));
        drop(held.listen().expect("bound over the dead one"));
        held.unlink_socket();
        assert!(!held.path().join("run/host.sock").exists());
    }
}
