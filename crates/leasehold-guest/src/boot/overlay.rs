//! The root file system: an overlay made inside the sandbox's user namespace.
//!
//! It is always mounted there, also when the host is root: overlayfs then works with the mapped root's rights (never the host's) and keeps its marks in
//! `user.overlay.*` attributes, so a writable layer means the same to a host that is root and to one that is not.

use std::os::fd::{AsRawFd, OwnedFd};

use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsconfig_set_flag, fsconfig_set_string, fsmount, fsopen,
};

use super::failure::{During, Failure};

/// The directories of an overlay, opened.
pub(super) struct Layers {
    /// Topmost first.
    pub(super) lowers: Vec<OwnedFd>,
    pub(super) upper: OwnedFd,
    pub(super) work: OwnedFd,
}

const STAGE: &str = "overlay";

/// `fsconfig` copies at most this many bytes of a value (`strndup_user(_value, 256)` in fs/fsopen.c, the NUL included).
const LONGEST_VALUE: usize = 255;

/// Makes the overlay as a detached mount.
pub(super) fn mount(layers: &Layers) -> Result<OwnedFd, Failure> {
    let context = fsopen("overlay", FsOpenFlags::FSOPEN_CLOEXEC).during(STAGE, "the kernel has no overlayfs")?;
    configure(&context, layers).map_err(|errno| {
        let log = kernel_log(&context);
        Failure::os(STAGE, format_args!("cannot stack {} layers{log}", layers.lowers.len()), errno)
    })?;
    let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV;
    fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, attributes).during(STAGE, "cannot make the root mount")
}

fn configure(context: &OwnedFd, layers: &Layers) -> Result<(), Errno> {
    fsconfig_set_string(context, "source", "leasehold")?;
    fsconfig_set_flag(context, "userxattr")?;
    match append_lowers(context, &layers.lowers) {
        // Kernels before 6.5 have no `lowerdir+`; what fits into one value still works there.
        Err(Errno::INVAL) => fsconfig_set_string(context, "lowerdir", joined(&layers.lowers)?)?,
        other => other?,
    }
    fsconfig_set_string(context, "upperdir", path(&layers.upper))?;
    fsconfig_set_string(context, "workdir", path(&layers.work))?;
    fsconfig_create(context)
}

/// One `lowerdir+` per layer: no limit of a page on all of them together.
fn append_lowers(context: &OwnedFd, lowers: &[OwnedFd]) -> Result<(), Errno> {
    lowers.iter().try_for_each(|lower| fsconfig_set_string(context, "lowerdir+", path(lower)))
}

fn joined(lowers: &[OwnedFd]) -> Result<String, Errno> {
    let value = lowers.iter().map(path).collect::<Vec<_>>().join(":");
    if value.len() > LONGEST_VALUE { Err(Errno::TOOBIG) } else { Ok(value) }
}

/// A name of an opened directory that needs no permission on the way to it, and that is short and free of overlayfs's separators.
fn path(directory: &OwnedFd) -> String {
    format!("/proc/self/fd/{}", directory.as_raw_fd())
}

/// What the kernel has to say about a failed configuration, as `: message`.
fn kernel_log(context: &OwnedFd) -> String {
    let mut log = String::new();
    let mut buffer = [0u8; 512];
    while let Ok(length @ 1..) = rustix::io::read(context, &mut buffer) {
        let line = String::from_utf8_lossy(&buffer[..length]);
        log.push_str(": ");
        log.push_str(line.trim_start_matches("e ").trim_start_matches("w ").trim_end());
    }
    log
}
