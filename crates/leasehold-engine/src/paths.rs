//! Where things are below the data directory.

use std::fs::{self, DirBuilder};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use crate::error::{During, EngineError, ErrorKind};
use crate::spec::LayerDigest;

/// How ids of a sandbox are ids of the host. Unpacked layers exist per mode and are never mounted in another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum IdMode {
    /// 65536 ids of its own: several users inside.
    Range,
}

impl IdMode {
    /// The mode's name, part of cache paths.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Range => "range",
        }
    }
}

/// The data directory.
#[derive(Debug)]
pub(crate) struct DataDir {
    root: PathBuf,
}

impl DataDir {
    /// Makes what is missing, all of it closed to other users.
    pub(crate) fn open(path: &Path) -> Result<Self, EngineError> {
        const STAGE: &str = "data directory";
        private_dir(path)?;
        let root = fs::canonicalize(path).during(STAGE, path.display())?;
        let data = Self { root };
        data.check_owner()?;
        for directory in
            [data.runs(), data.sandboxes(), data.layers(), data.cache(), data.guests(), data.mountpoint(), data.empty()]
        {
            private_dir(&directory)?;
        }
        // Shown inside sandboxes as what hidden directories look like, so readable by everyone in there.
        set_mode(&data.empty(), 0o755)?;
        Ok(data)
    }

    /// Another user's directory could be changed under us.
    fn check_owner(&self) -> Result<(), EngineError> {
        let stat = rustix::fs::stat(&self.root).during("data directory", self.root.display())?;
        let me = rustix::process::geteuid().as_raw();
        if stat.st_uid != me {
            let message = format!(
                "{} belongs to user {}, not to {me}; choose another directory",
                self.root.display(),
                stat.st_uid
            );
            return Err(EngineError::new(ErrorKind::InvalidInput, "data directory", message));
        }
        if stat.st_mode & 0o077 != 0 {
            set_mode(&self.root, 0o700)?;
        }
        Ok(())
    }

    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    pub(crate) fn runs(&self) -> PathBuf {
        self.root.join("run/s")
    }

    /// Shared with the guest: sockets and its identity.
    pub(crate) fn run(&self, id: &str) -> PathBuf {
        self.runs().join(id)
    }

    pub(crate) fn mountpoint(&self) -> PathBuf {
        self.root.join("run/root")
    }

    pub(crate) fn empty(&self) -> PathBuf {
        self.root.join("run/empty")
    }

    pub(crate) fn sandboxes(&self) -> PathBuf {
        self.root.join("sandboxes")
    }

    pub(crate) fn sandbox(&self, id: &str) -> SandboxDir {
        SandboxDir { root: self.sandboxes().join(id) }
    }

    pub(crate) fn layers(&self) -> PathBuf {
        self.root.join("layers")
    }

    pub(crate) fn layer(&self, digest: &LayerDigest) -> PathBuf {
        self.layers().join(format!("{}.tar", digest.hex()))
    }

    pub(crate) fn cache(&self) -> PathBuf {
        self.root.join("cache")
    }

    pub(crate) fn cached(&self, name: &str, mode: IdMode) -> PathBuf {
        self.cache().join(format!("{name}-{}", mode.name()))
    }

    pub(crate) fn guests(&self) -> PathBuf {
        self.root.join("guests")
    }
}

/// The files of one sandbox.
#[derive(Debug)]
pub(crate) struct SandboxDir {
    root: PathBuf,
}

impl SandboxDir {
    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// The writable layer.
    pub(crate) fn upper(&self) -> PathBuf {
        self.root.join("upper")
    }

    pub(crate) fn work(&self) -> PathBuf {
        self.root.join("work")
    }

    /// Standard output and error of the guest.
    pub(crate) fn log(&self) -> PathBuf {
        self.root.join("guest.log")
    }

    /// What is different on every boot: host name, hosts, boot id.
    pub(crate) fn boot(&self) -> PathBuf {
        self.root.join("boot")
    }

    pub(crate) fn record(&self) -> PathBuf {
        self.root.join("boot.json")
    }
}

/// Makes a directory and its parents with mode 0700 unless it is there.
pub(crate) fn private_dir(path: &Path) -> Result<(), EngineError> {
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path)
        .during("directory", format_args!("cannot make {}", path.display()))
}

pub(crate) fn set_mode(path: &Path, mode: u32) -> Result<(), EngineError> {
    use std::os::unix::fs::PermissionsExt;
    fs::set_permissions(path, fs::Permissions::from_mode(mode))
        .during("directory", format_args!("cannot set the mode of {}", path.display()))
}

/// Makes a rename or a new file in `directory` survive a power failure.
pub(crate) fn sync_dir(directory: &Path) -> Result<(), EngineError> {
    fs::File::open(directory)
        .and_then(|file| file.sync_all())
        .during("sync", format_args!("cannot sync {}", directory.display()))
}
