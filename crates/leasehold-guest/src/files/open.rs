//! Opening files that callers name, as the acting user.
//!
//! The kernel checks the user's permissions, with one exception that matters: `/proc/self` is the *guest* here, and a process may always
//! look at itself. So links of /proc to open files are not followed (`openat2` with RESOLVE_NO_MAGICLINKS; gVisor has no `openat2`, and
//! there the next rule still holds), and what a user opens in the guest's own directories of /proc is refused afterwards.

use std::fs::{self, File};
use std::os::fd::{AsRawFd as _, OwnedFd};

use rustix::fs::{CWD, Mode, OFlags, PROC_SUPER_MAGIC, ResolveFlags, fstatfs, open, openat2};
use rustix::io::Errno;

use crate::users::User;

/// Opens a regular file for reading.
///
/// # Errors
/// `ISDIR` and `NODEV` when it is something else; what the kernel says.
pub(super) fn for_reading(absolute: &str, user: &User) -> Result<File, Errno> {
    // Without NONBLOCK, opening a pipe would wait for its writer.
    let file = File::from(resolve(absolute, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC)?);
    check_kind(&file)?;
    if user.uid != 0 && is_own_process(&file) {
        return Err(Errno::ACCESS);
    }
    Ok(file)
}

/// Opens a regular file, which is there and is no link, for writing. Does not change it.
pub(super) fn existing_for_writing(absolute: &str) -> Result<OwnedFd, Errno> {
    let flags = OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = File::from(resolve(absolute, flags)?);
    check_kind(&file)?;
    if is_own_process(&file) {
        return Err(Errno::ACCESS);
    }
    Ok(file.into())
}

fn resolve(absolute: &str, flags: OFlags) -> Result<OwnedFd, Errno> {
    loop {
        match openat2(CWD, absolute, flags, Mode::empty(), ResolveFlags::NO_MAGICLINKS) {
            Err(Errno::INTR | Errno::AGAIN) => {}
            // Not there (gVisor), or kept back by a filter of system calls.
            Err(Errno::NOSYS | Errno::PERM) => return open(absolute, flags, Mode::empty()),
            result => return result,
        }
    }
}

fn check_kind(file: &File) -> Result<(), Errno> {
    let metadata = file.metadata().map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
    if metadata.is_dir() {
        Err(Errno::ISDIR)
    } else if metadata.is_file() {
        Ok(())
    } else {
        Err(Errno::NODEV)
    }
}

/// Whether an open file lies in this process's, or one of its threads', directory of /proc.
fn is_own_process(file: &File) -> bool {
    if fstatfs(file).map_or(true, |found| found.f_type != PROC_SUPER_MAGIC) {
        return false;
    }
    let Ok(path) = fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())) else { return true };
    let owner = path.components().find_map(|part| part.as_os_str().to_str()?.parse::<u32>().ok());
    owner.is_some_and(|number| fs::metadata(format!("/proc/self/task/{number}")).is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user(uid: u32) -> User {
        User { name: "u".into(), uid, gid: uid, groups: vec![uid], home: "/".into(), shell: "/bin/sh".into() }
    }

    #[test]
    fn the_guests_own_corner_of_proc_is_closed_to_users() {
        for path in [
            "/proc/self/maps",
            "/proc/thread-self/maps",
            &format!("/proc/{}/maps", std::process::id()),
            "/proc/self/comm",
        ] {
            assert_eq!(for_reading(path, &user(1000)).unwrap_err(), Errno::ACCESS, "{path}");
            assert!(for_reading(path, &user(0)).is_ok(), "{path}");
        }
        assert!(for_reading("/proc/version", &user(1000)).is_ok());
        assert!(for_reading("/proc/sys/kernel/ostype", &user(1000)).is_ok());
        assert_eq!(existing_for_writing("/proc/self/comm").unwrap_err(), Errno::ACCESS);
    }

    #[test]
    fn links_to_open_files_are_not_followed() {
        let file = tempfile::tempfile().unwrap();
        assert_eq!(for_reading(&format!("/proc/self/fd/{}", file.as_raw_fd()), &user(0)).unwrap_err(), Errno::LOOP);
    }

    #[test]
    fn only_regular_files_are_opened_and_pipes_do_not_block() {
        let dir = tempfile::tempdir().unwrap();
        let pipe = dir.path().join("pipe");
        rustix::fs::mknodat(CWD, &pipe, rustix::fs::FileType::Fifo, Mode::RWXU, 0).unwrap();
        assert_eq!(for_reading(pipe.to_str().unwrap(), &user(0)).unwrap_err(), Errno::NODEV);
        assert_eq!(for_reading("/dev/null", &user(0)).unwrap_err(), Errno::NODEV);
        assert_eq!(for_reading(dir.path().to_str().unwrap(), &user(0)).unwrap_err(), Errno::ISDIR);
    }
}
