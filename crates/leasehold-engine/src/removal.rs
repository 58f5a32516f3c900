//! Deleting trees that somebody else has shaped.
//!
//! A sandbox can nest directories deeper than a stack or the table of open files has room for. So a tree is never descended into: a directory that is not
//! empty is moved up to the top and deleted from there. Whatever the shape, two descriptors are open.

use std::ffi::CString;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags};
use rustix::io::Errno;

use crate::error::{During, EngineError};

/// Removes a file or a whole tree; what is not there is removed already. Links are removed and never followed. There must be no mount in it.
pub(crate) fn remove_all(path: &Path) -> Result<(), EngineError> {
    let result = match rustix::fs::unlink(path) {
        Err(Errno::ISDIR | Errno::PERM) => remove_directory(path),
        other => other,
    };
    match result {
        Err(Errno::NOENT) => Ok(()),
        other => other.during("remove", format_args!("cannot remove {}", path.display())),
    }
}

const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

fn remove_directory(path: &Path) -> Result<(), Errno> {
    let top = rustix::fs::openat(CWD, path, DIRECTORY, Mode::empty())?;
    let mut moved = 0u64;
    let mut pending = empty(&top, &top, &mut moved)?;
    while let Some(name) = pending.pop() {
        let directory = rustix::fs::openat(&top, &name, DIRECTORY, Mode::empty())?;
        pending.extend(empty(&directory, &top, &mut moved)?);
        rustix::fs::unlinkat(&top, &name, AtFlags::REMOVEDIR)?;
    }
    drop(top);
    rustix::fs::rmdir(path)
}

/// Deletes what is in `directory`; directories in it that are not empty are moved to `top`. Returns their names there.
fn empty(directory: &OwnedFd, top: &OwnedFd, moved: &mut u64) -> Result<Vec<CString>, Errno> {
    let mut directories = Vec::new();
    for entry in Dir::read_from(directory)? {
        let entry = entry?;
        let name = entry.file_name();
        if name == c"." || name == c".." {
            continue;
        }
        if entry.file_type() == FileType::Directory {
            directories.push(name.to_owned());
            continue;
        }
        match rustix::fs::unlinkat(directory, name, AtFlags::empty()) {
            Err(Errno::ISDIR) => directories.push(name.to_owned()), // a file system that does not tell types in listings
            Err(Errno::NOENT) => {}
            other => other?,
        }
    }
    let mut left = Vec::new();
    for name in directories {
        match rustix::fs::unlinkat(directory, &name, AtFlags::REMOVEDIR) {
            Err(Errno::NOTEMPTY | Errno::EXIST) => left.push(lift(directory, &name, top, moved)?),
            Err(Errno::NOENT) => {}
            other => other?,
        }
    }
    Ok(left)
}

/// Moves a directory to the top under a name that nothing there has.
fn lift(directory: &OwnedFd, name: &CString, top: &OwnedFd, moved: &mut u64) -> Result<CString, Errno> {
    loop {
        *moved += 1;
        let new = CString::new(format!(".leasehold-removed-{moved}")).expect("digits hold no NUL");
        match rustix::fs::renameat_with(directory, name, top, &new, rustix::fs::RenameFlags::NOREPLACE) {
            Ok(()) => return Ok(new),
            Err(Errno::EXIST) => {}
            Err(errno) => return Err(errno),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn removing_what_is_not_there_is_fine() {
        let parent = tempfile::tempdir().unwrap();
        remove_all(&parent.path().join("nothing")).unwrap();
    }

    #[test]
    fn links_are_not_followed() {
        let parent = tempfile::tempdir().unwrap();
        let (kept, doomed) = (parent.path().join("kept"), parent.path().join("doomed"));
        fs::create_dir_all(&kept).unwrap();
        fs::write(kept.join("file"), "x").unwrap();
        fs::create_dir_all(doomed.join("a/b")).unwrap();
        std::os::unix::fs::symlink(&kept, doomed.join("a/link")).unwrap();
        std::os::unix::fs::symlink(&kept, parent.path().join("link")).unwrap();
        remove_all(&doomed).unwrap();
        remove_all(&parent.path().join("link")).unwrap();
        assert!(!doomed.exists() && kept.join("file").exists());
    }

    #[test]
    fn a_tree_deeper_than_there_are_descriptors_is_removed() {
        let parent = tempfile::tempdir().unwrap();
        let doomed = parent.path().join("doomed");
        fs::create_dir(&doomed).unwrap();
        let mut at = rustix::fs::open(&doomed, DIRECTORY, Mode::empty()).unwrap();
        for _ in 0..1500 {
            rustix::fs::mkdirat(&at, "deeper", Mode::from_raw_mode(0o700)).unwrap();
            rustix::fs::openat(
                &at,
                "file",
                OFlags::CREATE | OFlags::WRONLY | OFlags::CLOEXEC,
                Mode::from_raw_mode(0o600),
            )
            .unwrap();
            at = rustix::fs::openat(&at, "deeper", DIRECTORY, Mode::empty()).unwrap();
        }
        drop(at);
        remove_all(&doomed).unwrap();
        assert!(!doomed.exists());
    }

    #[test]
    fn names_that_look_like_ours_are_no_trap() {
        let parent = tempfile::tempdir().unwrap();
        let doomed = parent.path().join("doomed");
        for number in 0..4 {
            fs::create_dir_all(doomed.join(format!("x/y/.leasehold-removed-{number}/z/w"))).unwrap();
            fs::create_dir_all(doomed.join(format!(".leasehold-removed-{number}/z"))).unwrap();
        }
        remove_all(&doomed).unwrap();
        assert!(!doomed.exists());
    }
}
