//! Moving files and directories, also to where the kernel cannot rename them.
//!
//! `rename(2)` fails with EXDEV between file systems, and on an overlay for every directory that comes from a lower layer. Then the
//! tree is copied beside its destination, renamed into place, and the original removed: the destination appears whole or not
//! at all.

use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FileType, Mode, Timespec, Timestamps, UTIME_OMIT, mknodat, rename, utimensat};
use rustix::io::Errno;

use super::{path, tree};

/// Moves `source` to `destination`, replacing a file or an empty directory there, and making parents.
pub(super) fn relocate(source: &str, destination: &str) -> io::Result<()> {
    fs::symlink_metadata(source)?;
    tree::make_parents(destination)?;
    match rename(source, destination) {
        Err(Errno::XDEV) => {}
        result => return Ok(result?),
    }
    let staged = path::join(path::parent(destination), &format!(".leasehold-move-{:016x}", super::staging::random()));
    let result = copy(Path::new(source), Path::new(&staged)).and_then(|()| Ok(rename(&*staged, destination)?));
    if let Err(error) = result {
        // The first error is the one to report; what cannot be removed now was made by the same user a moment ago.
        tree::remove(&staged).ok();
        return Err(error);
    }
    Ok(tree::remove(source)?)
}

/// Copies a tree: content, modes, times, links. Owners become the acting user, hard links become files of their own.
fn copy(source: &Path, destination: &Path) -> io::Result<()> {
    let mut pending = vec![(source.to_owned(), destination.to_owned())];
    // Modes and times of directories are set when they are filled, the innermost first.
    let mut directories: Vec<(PathBuf, fs::Metadata)> = Vec::new();
    while let Some((from, to)) = pending.pop() {
        let metadata = fs::symlink_metadata(&from)?;
        let mode = Mode::from_raw_mode(metadata.mode());
        match FileType::from_raw_mode(metadata.mode()) {
            FileType::Directory => {
                rustix::fs::mkdir(&to, Mode::RWXU)?;
                for entry in fs::read_dir(&from)? {
                    let entry = entry?;
                    pending.push((entry.path(), to.join(entry.file_name())));
                }
                directories.push((to, metadata));
            }
            FileType::Symlink => {
                std::os::unix::fs::symlink(fs::read_link(&from)?, &to)?;
                set_times(&to, &metadata)?;
            }
            FileType::RegularFile => {
                fs::copy(&from, &to)?;
                set_times(&to, &metadata)?;
            }
            kind @ (FileType::Fifo | FileType::Socket) => mknodat(CWD, &to, kind, mode, 0)?,
            FileType::CharacterDevice | FileType::BlockDevice | FileType::Unknown => {
                return Err(io::Error::new(
                    io::ErrorKind::Unsupported,
                    format!("'{}' is a device, which cannot be moved to another file system", from.display()),
                ));
            }
        }
    }
    for (directory, metadata) in directories.iter().rev() {
        fs::set_permissions(directory, fs::Permissions::from_mode(metadata.mode() & 0o7777))?;
        set_times(directory, metadata)?;
    }
    Ok(())
}

fn set_times(at: &Path, metadata: &fs::Metadata) -> io::Result<()> {
    let omit = Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT };
    let modified = Timespec { tv_sec: metadata.mtime(), tv_nsec: metadata.mtime_nsec() };
    let times = Timestamps { last_access: omit, last_modification: modified };
    Ok(utimensat(CWD, at, &times, rustix::fs::AtFlags::SYMLINK_NOFOLLOW)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moves_between_file_systems_keep_content_modes_times_and_links() {
        let (here, there) = (tempfile::tempdir_in("/var/tmp").unwrap(), tempfile::tempdir_in("/dev/shm").unwrap());
        let source = here.path().join("tree");
        fs::create_dir_all(source.join("sub")).unwrap();
        fs::write(source.join("sub/script"), "#!/bin/sh\n").unwrap();
        fs::set_permissions(source.join("sub/script"), fs::Permissions::from_mode(0o751)).unwrap();
        std::os::unix::fs::symlink("sub/script", source.join("link")).unwrap();
        fs::set_permissions(source.join("sub"), fs::Permissions::from_mode(0o500)).unwrap();
        let written = fs::metadata(source.join("sub/script")).unwrap().modified().unwrap();
        let destination = there.path().join("new/parent/tree");
        assert_ne!(fs::metadata(here.path()).unwrap().dev(), fs::metadata(there.path()).unwrap().dev());
        relocate(source.to_str().unwrap(), destination.to_str().unwrap()).unwrap();
        assert!(!source.exists());
        let script = fs::metadata(destination.join("link")).unwrap();
        assert_eq!((script.mode() & 0o777, script.modified().unwrap()), (0o751, written));
        assert_eq!(fs::metadata(destination.join("sub")).unwrap().mode() & 0o777, 0o500);
        assert_eq!(fs::read_dir(destination.parent().unwrap()).unwrap().count(), 1);
    }

    #[test]
    fn a_missing_source_makes_no_parents() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
        assert_eq!(relocate(&at("absent"), &at("new/x")).unwrap_err().kind(), io::ErrorKind::NotFound);
        assert!(!dir.path().join("new").exists());
    }
}
