//! Directories: making, listing and removing them. All of it runs as the acting user.

use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::vec;

use envd::EntryInfo;
use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, mkdir, openat, renameat, unlink, unlinkat};
use rustix::io::Errno;

use super::entry::{Owners, describe};
use super::path;

/// Most entries in one listing. Chosen: about 40 MB of JSON; a client that wants more lists parts.
pub(super) const MAX_LISTED: usize = 100_000;

/// Makes the directories that lead to `absolute` and are missing. Many may do so at once.
pub(super) fn make_parents(absolute: &str) -> Result<(), Errno> {
    make_all(path::parent(absolute))
}

/// Makes a directory and those that lead to it; one that is there is fine.
fn make_all(absolute: &str) -> Result<(), Errno> {
    // From the deepest up to one that exists, then down again: so a directory that may not be written but exists is never in the way.
    let mut missing = Vec::new();
    let mut at = absolute;
    loop {
        match make(at) {
            Ok(()) => break,
            Err(Errno::NOENT) if at != "/" => {
                missing.push(at);
                at = path::parent(at);
            }
            Err(errno) => return Err(errno),
        }
    }
    missing.into_iter().rev().try_for_each(make)
}

fn make(absolute: &str) -> Result<(), Errno> {
    match mkdir(absolute, Mode::from_raw_mode(0o755)) {
        Err(Errno::EXIST) if Path::new(absolute).is_dir() => Ok(()),
        Err(Errno::EXIST) => Err(Errno::NOTDIR),
        result => result,
    }
}

/// Makes a directory that must be new, and those that lead to it.
///
/// # Errors
/// `EXIST` when it is there already, `NOTDIR` when something else is.
pub(super) fn make_new(absolute: &str) -> Result<(), Errno> {
    let mode = Mode::from_raw_mode(0o755);
    let result = match mkdir(absolute, mode) {
        Err(Errno::NOENT) => {
            make_parents(absolute)?;
            mkdir(absolute, mode)
        }
        result => result,
    };
    match result {
        Err(Errno::EXIST) if !Path::new(absolute).is_dir() => Err(Errno::NOTDIR),
        result => result,
    }
}

/// A listing that failed.
#[derive(Debug)]
pub(super) enum ListError {
    Io(io::Error),
    TooMany,
}

/// Lists a directory `depth` levels deep, each directory before its content, names in the order of their bytes. A link at the
/// root is followed, others aren't. What disappears meanwhile is left out; a directory below the root that may not be
/// read is listed without content.
pub(super) fn list(absolute: &str, depth: u32, owners: &mut Owners<'_>) -> Result<Vec<EntryInfo>, ListError> {
    struct Level {
        real: PathBuf,
        shown: String,
        names: vec::IntoIter<std::ffi::OsString>,
    }
    let enter = |real: PathBuf, shown: String| -> io::Result<Level> {
        let mut names =
            fs::read_dir(&real)?.map(|entry| entry.map(|entry| entry.file_name())).collect::<io::Result<Vec<_>>>()?;
        names.sort_unstable();
        Ok(Level { real, shown, names: names.into_iter() })
    };
    let mut found = Vec::new();
    let mut levels = vec![enter(PathBuf::from(absolute), absolute.to_owned()).map_err(ListError::Io)?];
    while let Some(level) = levels.last_mut() {
        let Some(name) = level.names.next() else {
            levels.pop();
            continue;
        };
        let (real, shown) = (level.real.join(&name), path::join(&level.shown, &name.to_string_lossy()));
        let entry = match describe(&real, &shown, owners) {
            Ok(entry) => entry,
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            // Beyond the longest path, or a directory that can be read but not searched.
            Err(error) if matches!(Errno::from_io_error(&error), Some(Errno::NAMETOOLONG | Errno::ACCESS)) => continue,
            Err(error) => return Err(ListError::Io(error)),
        };
        if found.len() >= MAX_LISTED {
            return Err(ListError::TooMany);
        }
        let descend = entry.file_type == envd::FileType::Directory && entry.symlink_target.is_none();
        found.push(entry);
        if descend
            && levels.len() < usize::try_from(depth).unwrap_or(usize::MAX)
            && let Ok(level) = enter(real, shown)
        {
            levels.push(level);
        }
    }
    Ok(found)
}

/// Directories that a removal holds open at once; what lies deeper is moved up first.
const MAX_OPEN: usize = 32;
/// Most passes over one directory that others keep filling.
const MAX_PASSES: usize = 100;

/// Removes whatever is at `absolute`, with all that is below, not following links; nothing there is fine. Every step names one
/// entry of a directory that is held open, so swapping a directory for a link meanwhile leads nowhere else. Goes on after a
/// failure and reports the first.
pub(crate) fn remove(absolute: &str) -> Result<(), Errno> {
    match unlink(absolute) {
        Ok(()) | Err(Errno::NOENT) => return Ok(()),
        // unlink(2) says EISDIR on Linux; POSIX allows EPERM.
        Err(Errno::ISDIR | Errno::PERM) => {}
        // A path that leads through a file: nothing is there.
        Err(Errno::NOTDIR) => return Ok(()),
        Err(errno) => return Err(errno),
    }
    let parent =
        openat(CWD, path::parent(absolute), OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    let name = path::name(absolute).as_bytes().to_vec();
    Removal { parent, open: Vec::new(), moved: 0, first_failure: None }.run(name)
}

struct Removal {
    parent: OwnedFd,
    open: Vec<Open>,
    /// How many deep directories were moved up.
    moved: u64,
    first_failure: Option<Errno>,
}

struct Open {
    /// Its name in the directory above.
    name: Vec<u8>,
    entries: Dir,
    passes: usize,
    /// Something in it could not be removed, so it will stay.
    stuck: bool,
}

impl Removal {
    fn run(mut self, name: Vec<u8>) -> Result<(), Errno> {
        match self.enter(name) {
            Err(Errno::NOENT) => return Ok(()),
            result => result?,
        }
        while !self.open.is_empty() {
            if let Err(errno) = self.step() {
                self.fail(errno);
            }
        }
        self.first_failure.map_or(Ok(()), Err)
    }

    fn fail(&mut self, errno: Errno) {
        self.first_failure.get_or_insert(errno);
        if let Some(open) = self.open.last_mut() {
            open.stuck = true;
        }
    }

    /// The directory that holds the one at `index`.
    fn above(&self, index: usize) -> Result<rustix::fd::BorrowedFd<'_>, Errno> {
        match index.checked_sub(1) {
            None => Ok(self.parent.as_fd()),
            Some(index) => self.open[index].entries.fd(),
        }
    }

    fn enter(&mut self, name: Vec<u8>) -> Result<(), Errno> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = openat(self.above(self.open.len())?, name.as_slice(), flags, Mode::empty())?;
        self.open.push(Open { name, entries: Dir::new(fd)?, passes: 0, stuck: false });
        Ok(())
    }

    fn step(&mut self) -> Result<(), Errno> {
        let innermost = self.open.len() - 1;
        let Some(entry) = self.open[innermost].entries.read() else { return self.leave() };
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if name == b"." || name == b".." {
            return Ok(());
        }
        let name = name.to_vec();
        let directory = self.open[innermost].entries.fd()?;
        if entry.file_type() != FileType::Directory {
            match unlinkat(directory, name.as_slice(), AtFlags::empty()) {
                Err(Errno::ISDIR) => {}
                Err(Errno::NOENT) => return Ok(()),
                result => return result,
            }
        }
        match unlinkat(directory, name.as_slice(), AtFlags::REMOVEDIR) {
            Err(Errno::NOTEMPTY | Errno::EXIST) => {}
            Err(Errno::NOENT) => return Ok(()),
            result => return result,
        }
        if self.open.len() < MAX_OPEN {
            return self.enter(name);
        }
        self.move_up(&name)
    }

    /// Moves a deep directory into the outermost one, where it is met again.
    fn move_up(&mut self, name: &[u8]) -> Result<(), Errno> {
        loop {
            self.moved += 1;
            let new_name = format!(".leasehold-removed-{}-{}", std::process::id(), self.moved);
            let (from, to) = (self.open[self.open.len() - 1].entries.fd()?, self.open[0].entries.fd()?);
            match renameat(from, name, to, new_name.as_str()) {
                Err(Errno::NOTEMPTY | Errno::EXIST | Errno::NOTDIR) => {}
                result => return result,
            }
        }
    }

    /// The innermost directory was read to its end: removes it, or reads it again if entries came or were skipped.
    fn leave(&mut self) -> Result<(), Errno> {
        let index = self.open.len() - 1;
        let above = self.above(index)?;
        let result = unlinkat(above, self.open[index].name.as_slice(), AtFlags::REMOVEDIR);
        let open = &mut self.open[index];
        if matches!(result, Err(Errno::NOTEMPTY | Errno::EXIST)) && !open.stuck && open.passes < MAX_PASSES {
            open.passes += 1;
            open.entries.rewind();
            return Ok(());
        }
        let stuck = open.stuck;
        self.open.pop();
        match result {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            // What it holds has failed before, and that is the failure to report.
            Err(_) if stuck => {
                if let Some(open) = self.open.last_mut() {
                    open.stuck = true;
                }
                Ok(())
            }
            Err(errno) => Err(errno),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::users::Users;

    fn scratch() -> (tempfile::TempDir, String) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().to_str().unwrap().to_owned();
        (dir, path)
    }

    fn names(root: &str, depth: u32) -> Vec<String> {
        let users = Users::at("/nonexistent", "/nonexistent");
        let entries = list(root, depth, &mut Owners::new(&users)).unwrap();
        entries
            .into_iter()
            .map(|entry| entry.path.strip_prefix(root).unwrap().trim_start_matches('/').to_owned())
            .collect()
    }

    #[test]
    fn directories_are_made_with_their_parents_once() {
        let (_dir, root) = scratch();
        let deep = format!("{root}/a/b/c");
        make_new(&deep).unwrap();
        assert_eq!(make_new(&deep), Err(Errno::EXIST));
        fs::write(format!("{root}/file"), "").unwrap();
        assert_eq!(make_new(&format!("{root}/file")), Err(Errno::NOTDIR));
        assert_eq!(make_new(&format!("{root}/file/x")), Err(Errno::NOTDIR));
        std::os::unix::fs::symlink("a", format!("{root}/link")).unwrap();
        assert_eq!(make_new(&format!("{root}/link")), Err(Errno::EXIST));
        assert_eq!(make_new("/"), Err(Errno::EXIST));
    }

    #[test]
    fn parents_can_be_made_by_many_at_once() {
        let (_dir, root) = scratch();
        std::thread::scope(|scope| {
            let tasks: Vec<_> = (0..32)
                .map(|number| {
                    let path = format!("{root}/a/b/c/d/{number}");
                    scope.spawn(move || make_parents(&path))
                })
                .collect();
            assert!(tasks.into_iter().all(|task| task.join().unwrap().is_ok()));
        });
    }

    #[test]
    fn listings_are_in_lexical_order_and_as_deep_as_asked() {
        let (_dir, root) = scratch();
        make_new(&format!("{root}/b/y/z")).unwrap();
        for file in ["c", "a", "b/x", "b/y/w"] {
            fs::write(format!("{root}/{file}"), "").unwrap();
        }
        std::os::unix::fs::symlink("b", format!("{root}/d")).unwrap();
        assert_eq!(names(&root, 1), ["a", "b", "c", "d"]);
        assert_eq!(names(&root, 2), ["a", "b", "b/x", "b/y", "c", "d"]);
        assert_eq!(names(&root, u32::MAX), ["a", "b", "b/x", "b/y", "b/y/w", "b/y/z", "c", "d"]);
        assert_eq!(names(&format!("{root}/d"), 1), ["x", "y"]);
    }

    #[test]
    fn listing_what_is_no_directory_fails() {
        let (_dir, root) = scratch();
        fs::write(format!("{root}/file"), "").unwrap();
        let users = Users::at("/nonexistent", "/nonexistent");
        for (path, errno) in [(format!("{root}/file"), Errno::NOTDIR), (format!("{root}/absent"), Errno::NOENT)] {
            let Err(ListError::Io(error)) = list(&path, 1, &mut Owners::new(&users)) else {
                panic!("{path} was listed")
            };
            assert_eq!(Errno::from_io_error(&error), Some(errno));
        }
    }

    #[test]
    fn removal_takes_files_links_and_trees_and_spares_what_links_lead_to() {
        let (_dir, root) = scratch();
        let keep = format!("{root}/keep");
        make_new(&keep).unwrap();
        fs::write(format!("{keep}/file"), "").unwrap();
        make_new(&format!("{root}/tree/a/b")).unwrap();
        fs::write(format!("{root}/tree/a/file"), "").unwrap();
        std::os::unix::fs::symlink(&keep, format!("{root}/tree/a/link")).unwrap();
        std::os::unix::fs::symlink(&keep, format!("{root}/link")).unwrap();
        for path in ["link", "tree", "absent", "absent/below", "keep/file/below"] {
            assert_eq!(remove(&format!("{root}/{path}")), Ok(()), "{path}");
        }
        assert_eq!(names(&root, 9), ["keep", "keep/file"]);
    }

    #[test]
    fn trees_deeper_than_any_path_and_any_stack_are_removed() {
        let (_dir, root) = scratch();
        let mut at = openat(CWD, root.as_str(), OFlags::RDONLY, Mode::empty()).unwrap();
        for _ in 0..3000 {
            rustix::fs::mkdirat(&at, "deep", Mode::RWXU).unwrap();
            at = openat(&at, "deep", OFlags::RDONLY, Mode::empty()).unwrap();
        }
        drop(at);
        assert_eq!(remove(&format!("{root}/deep")), Ok(()));
        assert_eq!(names(&root, 1), Vec::<String>::new());
    }

    #[test]
    fn large_directories_are_removed_whole() {
        let (_dir, root) = scratch();
        make_new(&format!("{root}/many/sub")).unwrap();
        for number in 0..2000 {
            fs::write(format!("{root}/many/{number}"), "").unwrap();
        }
        assert_eq!(remove(&format!("{root}/many")), Ok(()));
    }
}
