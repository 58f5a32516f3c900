//! Applies a plan's steps to the new root.
//!
//! The new root holds whatever an earlier boot or a stored layer put there, so a name in it is looked up without ever following a symbolic link or
//! leaving the root: a link called `proc` must not decide where a mount goes.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags, OpenTreeFlags};

use super::failure::{During, Failure};
use super::plan::{Access, Step};
use super::stage::{NULL, Sources};
use super::sys::{self, MountAttributes};

/// The root that is being furnished.
pub(super) struct Root<'a> {
    pub(super) directory: OwnedFd,
    pub(super) sources: &'a Sources,
}

impl Root<'_> {
    pub(super) fn apply(&self, step: &Step) -> Result<(), Failure> {
        match step {
            Step::Bind { source, target, recursive, access, device } => {
                let attributes =
                    MountAttributes { read_only: *access == Access::ReadOnly, no_devices: !device, private: false };
                let tree =
                    clone_tree(self.sources.get(source)?, *recursive, attributes).at("bind", "cannot show", source)?;
                self.attach(&tree, target)
            }
            Step::Mount { kind, target, options, executable } => {
                let filesystem = self.filesystem(kind.name(), options, *executable).at(
                    "mount",
                    &format!("cannot mount {} on", kind.name()),
                    target,
                )?;
                self.attach(&filesystem, target)
            }
            Step::Freeze { target } => self.freeze(target),
            Step::Mask { target, empty } => self.mask(target, empty),
            Step::Directory { target, mode } => self.directory(target, *mode),
            Step::File { target } => self.file(target),
            Step::Symlink { target, to } => {
                rustix::fs::symlinkat(to, self.parent(target)?, name(target)?).at("symlink", "cannot make", target)
            }
            Step::Setting { target, value } => self.setting(target, value),
        }
    }

    fn filesystem(&self, kind: &str, options: &[(String, String)], executable: bool) -> Result<OwnedFd, Errno> {
        let context = rustix::mount::fsopen(kind, FsOpenFlags::FSOPEN_CLOEXEC)?;
        for (key, value) in options {
            rustix::mount::fsconfig_set_string(&context, key.as_str(), value.as_str())?;
        }
        rustix::mount::fsconfig_create(&context)?;
        let mut attributes = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV;
        if kind == "devpts" {
            attributes.remove(MountAttrFlags::MOUNT_ATTR_NODEV); // terminals are devices
        }
        if !executable {
            attributes |= MountAttrFlags::MOUNT_ATTR_NOEXEC;
        }
        rustix::mount::fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, attributes)
    }

    fn attach(&self, tree: &OwnedFd, target: &Path) -> Result<(), Failure> {
        let place = self.lookup(target).at("mount", "cannot find the mount point", target)?;
        let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
        rustix::mount::move_mount(tree, "", &place, "", flags).at("mount", "cannot mount on", target)
    }

    fn freeze(&self, target: &Path) -> Result<(), Failure> {
        let place = match self.lookup(target) {
            Err(Errno::NOENT) => return Ok(()),
            other => other.at("freeze", "cannot find", target)?,
        };
        let attributes = MountAttributes { read_only: true, no_devices: true, private: false };
        let tree = clone_tree(&place, true, attributes).at("freeze", "cannot make read-only", target)?;
        self.attach(&tree, target)
    }

    fn mask(&self, target: &Path, empty: &Path) -> Result<(), Failure> {
        let place = match self.lookup(target) {
            Err(Errno::NOENT) => return Ok(()),
            other => other.at("mask", "cannot find", target)?,
        };
        let kind = rustix::fs::fstat(&place).map(|stat| FileType::from_raw_mode(stat.st_mode)).at(
            "mask",
            "cannot look at",
            target,
        )?;
        let cover = if kind == FileType::Directory { empty } else { Path::new(NULL) };
        let attributes = MountAttributes { read_only: true, no_devices: kind == FileType::Directory, private: false };
        let tree = clone_tree(self.sources.get(cover)?, false, attributes).at("mask", "cannot hide", target)?;
        self.attach(&tree, target)
    }

    fn directory(&self, target: &Path, mode: u32) -> Result<(), Failure> {
        let parent = self.parent(target)?;
        match rustix::fs::mkdirat(&parent, name(target)?, Mode::from_raw_mode(mode)) {
            Ok(()) => {}
            Err(Errno::EXIST) => return Ok(()),
            Err(errno) => return Err(errno).at("directory", "cannot make", target),
        }
        // mkdir's mode is cut by the umask and never has the sticky bit everywhere; say it again.
        rustix::fs::chmodat(&parent, name(target)?, Mode::from_raw_mode(mode), AtFlags::empty()).at(
            "directory",
            "cannot set the mode of",
            target,
        )
    }

    fn file(&self, target: &Path) -> Result<(), Failure> {
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        match rustix::fs::openat(self.parent(target)?, name(target)?, flags, Mode::from_raw_mode(0o644)) {
            Ok(_) | Err(Errno::EXIST) => Ok(()),
            Err(errno) => Err(errno).at("file", "cannot make", target),
        }
    }

    fn setting(&self, target: &Path, value: &str) -> Result<(), Failure> {
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
        match rustix::fs::openat2(&self.directory, target, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty(), resolve) {
            Err(Errno::NOENT) => Ok(()),
            opened => rustix::io::write(opened.at("setting", "cannot open", target)?, value.as_bytes()).map(drop).at(
                "setting",
                "cannot write",
                target,
            ),
        }
    }

    fn parent(&self, target: &Path) -> Result<OwnedFd, Failure> {
        self.lookup(target.parent().unwrap_or(Path::new(""))).at("lookup", "cannot find the directory of", target)
    }

    /// A descriptor that only names what is at `target`.
    fn lookup(&self, target: &Path) -> Result<OwnedFd, Errno> {
        let target = if target.as_os_str().is_empty() { Path::new(".") } else { target };
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
        rustix::fs::openat2(
            &self.directory,
            target,
            OFlags::PATH | OFlags::CLOEXEC | OFlags::NOFOLLOW,
            Mode::empty(),
            resolve,
        )
    }

    /// Makes this root the root of the mount namespace and lets go of the old one.
    pub(super) fn enter(&self) -> Result<(), Failure> {
        const STAGE: &str = "pivot";
        rustix::process::fchdir(&self.directory).during(STAGE, "cannot enter the new root")?;
        // With both arguments the same, the old root ends up stacked on top of the new one and is what "." names then: no directory for it is needed.
        rustix::process::pivot_root(".", ".").during(STAGE, "cannot exchange the root")?;
        rustix::mount::unmount(".", rustix::mount::UnmountFlags::DETACH)
            .during(STAGE, "cannot let go of the host's root")?;
        rustix::process::chdir("/").during(STAGE, "cannot enter /")
    }
}

fn name(target: &Path) -> Result<&std::ffi::OsStr, Failure> {
    target.file_name().ok_or_else(|| Failure::new("plan", format!("{} names nothing", target.display())))
}

/// A detached copy of a mount tree with more restrictions than the original; it never exists without them.
fn clone_tree(source: impl AsFd, recursive: bool, attributes: MountAttributes) -> Result<OwnedFd, Errno> {
    let mut flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_EMPTY_PATH;
    if recursive {
        flags |= OpenTreeFlags::AT_RECURSIVE;
    }
    let tree = rustix::mount::open_tree(source.as_fd(), "", flags)?;
    sys::set_mount_attributes(tree.as_fd(), attributes)?;
    Ok(tree)
}

/// Puts a detached root on `mountpoint`, since mounts cannot be put on one that is not in a mount namespace (before Linux 6.15).
pub(super) fn attach_root(root: &OwnedFd, mountpoint: &OwnedFd) -> Result<(), Failure> {
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    rustix::mount::move_mount(root, "", mountpoint, "", flags)
        .during("overlay", &format!("cannot attach the root to descriptor {}", mountpoint.as_raw_fd()))
}
