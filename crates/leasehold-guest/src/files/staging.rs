//! Writing a file so that nobody ever sees half of it under its name.
//!
//! The content goes into a nameless file (`O_TMPFILE`); when the last byte is there it gets its name. A writer that is killed leaves nothing
//! behind, since the kernel frees a file without a name. Where the file system has no nameless files, the content goes under a
//! name starting with [`TEMPORARY_PREFIX`] and is renamed.
//!
//! **What a watcher of the directory sees.** inotify tells of a nameless file too (as `#<inode>`, seen with Linux 6.18), so it is made in a
//! directory of ours ([`Workshop`]) when that lies on the same mount, else beside the destination. After the name is given, the file is opened
//! by it once, its mode is set again and a `fallocate` of what is there marks a write: inotify tells CREATE (or MOVED_TO for a file that
//! replaces another), ATTRIB, MODIFY. That is the CREATE, CHMOD, WRITE which E2B's SDKs expect of `files.write`, while the file is
//! complete from the first of them on.
//!
//! **In place.** Renaming over a file would break hard links, take a file from its owner, or fail in a directory that may not be written.
//! In these cases the existing file is truncated and written in place; a writer that is killed then leaves a part.

use std::collections::BTreeMap;
use std::fs::{self, File, Metadata};
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd as _};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::{
    Access, AtFlags, CWD, FallocateFlags, Mode, OFlags, StatxFlags, accessat, fallocate, fchmod, linkat, openat,
    rename, statx, unlink,
};
use rustix::io::Errno;

use super::{metadata, open, path, tree};
use crate::users::User;

/// How names of unfinished uploads start where the file system has no nameless files.
pub const TEMPORARY_PREFIX: &str = ".leasehold-upload-";

/// Where nameless files are made, if there is such a directory.
#[derive(Debug, Clone, Default)]
pub(super) struct Workshop(Option<PathBuf>);

impl Workshop {
    /// Makes the directory. Every user may make files in it and nobody may list it. Without it, uploads work all the same.
    pub(super) fn at(directory: PathBuf) -> Self {
        // Only if it is another: to set a mode that is there copies a directory of a lower layer into the sandbox's own, and so into snapshots.
        let made = fs::create_dir_all(&directory).and_then(|()| {
            let right = fs::metadata(&directory)?.mode() & 0o7777 == WORKSHOP_MODE;
            if right { Ok(()) } else { fs::set_permissions(&directory, fs::Permissions::from_mode(WORKSHOP_MODE)) }
        });
        Self(made.is_ok().then_some(directory))
    }

    /// The directory, if a file made there can be given a name in `other` without copying.
    fn beside(&self, other: &Path) -> Option<&Path> {
        let own = self.0.as_deref()?;
        let mount = |path: &Path| {
            let found = statx(CWD, path, AtFlags::empty(), StatxFlags::MNT_ID).ok()?;
            (found.stx_mask & StatxFlags::MNT_ID.bits() != 0).then_some(found.stx_mnt_id)
        };
        (mount(own)? == mount(other)?).then_some(own)
    }
}

/// Sticky, as /tmp is.
const WORKSHOP_MODE: u32 = 0o1733;

/// Mode of a new file: 0666 less the usual umask, as envd makes it.
const NEW_MODE: u32 = 0o644;
/// Most symbolic links followed to the destination; the kernel's own limit.
const MAX_LINKS: usize = 40;

/// A file in the course of being written. Dropped without [`Staged::commit`], it leaves the destination as it was (in place: cut).
#[derive(Debug)]
pub(super) struct Staged {
    file: File,
    /// Where it goes, links followed.
    destination: String,
    kind: Kind,
}

#[derive(Debug)]
enum Kind {
    /// No name yet, or a temporary one.
    Fresh {
        temporary: Option<Temporary>,
        mode: u32,
        /// Whether a file is there that it replaces.
        replaces: bool,
        /// Where temporary names are made.
        directory: PathBuf,
    },
    InPlace,
}

/// Removes the name when dropped.
#[derive(Debug)]
struct Temporary(PathBuf);

impl Drop for Temporary {
    fn drop(&mut self) {
        // After a rename there is nothing to remove.
        unlink(&self.0).ok();
    }
}

pub(super) fn random() -> u64 {
    let mut bytes = [0; 8];
    // Only uniqueness matters, and a collision is noticed by O_EXCL.
    match rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty()) {
        Ok(8) => u64::from_ne_bytes(bytes),
        _ => std::process::id().into(),
    }
}

impl Staged {
    /// Starts to write what will be `absolute`, as the acting user `user`. Makes missing parents.
    ///
    /// # Errors
    /// `ISDIR` and `NODEV` when something else than a file is there; what the kernel says otherwise.
    pub(super) fn begin(absolute: &str, user: &User, workshop: &Workshop) -> io::Result<Self> {
        tree::make_parents(absolute)?;
        let (destination, existing) = follow(absolute)?;
        let Some(existing) = existing else {
            tree::make_parents(&destination)?;
            let (file, kind) = stage(&destination, NEW_MODE, false, workshop)?;
            return Ok(Self { file, destination, kind });
        };
        // The right to write the file itself is needed either way; a running program may be replaced, not written.
        let writable = match open::existing_for_writing(&destination) {
            Err(Errno::TXTBSY) => None,
            result => Some(result?),
        };
        let owned = existing.uid() == user.uid || user.uid == 0;
        if existing.nlink() == 1 && owned {
            match stage(&destination, existing.mode() & 0o777, true, workshop) {
                Ok((file, kind)) => return Ok(Self { file, destination, kind }),
                Err(Errno::ACCESS | Errno::PERM | Errno::ROFS) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        let file = File::from(writable.ok_or(Errno::TXTBSY)?);
        file.set_len(0)?;
        Ok(Self { file, destination, kind: Kind::InPlace })
    }

    /// Where it goes, links followed.
    pub(super) fn destination(&self) -> &str {
        &self.destination
    }

    /// Gives it its name.
    ///
    /// # Errors
    /// What the kernel says; the destination is then as before, unless it is written in place.
    pub(super) fn commit(self, wanted: &BTreeMap<String, String>) -> io::Result<()> {
        metadata::replace(self.file.as_fd(), wanted)?;
        let Kind::Fresh { temporary, mode, replaces, directory } = self.kind else { return Ok(()) };
        let mode = Mode::from_raw_mode(mode);
        fchmod(&self.file, mode)?;
        let temporary = match temporary {
            Some(temporary) => temporary,
            None => {
                if !replaces {
                    match link(&self.file, Path::new(&self.destination)) {
                        Ok(()) => {
                            tell_watchers(&self.file, &self.destination, mode);
                            return Ok(());
                        }
                        // Somebody made it meanwhile: the later one wins, as with any two writers.
                        Err(Errno::EXIST) => {}
                        Err(errno) => return Err(errno.into()),
                    }
                }
                link_temporary(&self.file, &directory)?
            }
        };
        rename(&temporary.0, &*self.destination)?;
        tell_watchers(&self.file, &self.destination, mode);
        Ok(())
    }
}

impl Write for Staged {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Follows links at the end of a path. Also says what is there, if anything: a regular file.
fn follow(absolute: &str) -> io::Result<(String, Option<Metadata>)> {
    let mut at = absolute.to_owned();
    for _ in 0..MAX_LINKS {
        let found = match fs::symlink_metadata(&at) {
            Ok(found) => found,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok((at, None)),
            Err(error) => return Err(error),
        };
        if found.is_symlink() {
            let target = fs::read_link(&at)?.into_os_string().into_string();
            let target = target.map_err(|_| io::Error::from(Errno::INVAL))?;
            // Not cleaned lexically: `..` after a link to a directory is the kernel's to resolve.
            at = if target.starts_with('/') { target } else { path::join(path::parent(&at), &target) };
        } else if found.is_file() {
            return Ok((at, Some(found)));
        } else {
            return Err(if found.is_dir() { Errno::ISDIR } else { Errno::NODEV }.into());
        }
    }
    Err(Errno::LOOP.into())
}

/// Opens a file for content: nameless, or under a temporary name.
fn stage(destination: &str, mode: u32, replaces: bool, workshop: &Workshop) -> Result<(File, Kind), Errno> {
    let parent = Path::new(path::parent(destination));
    // What giving the name will need, asked before the content is taken. A kernel without the call asks later.
    match accessat(CWD, parent, Access::WRITE_OK | Access::EXEC_OK, AtFlags::EACCESS) {
        Ok(()) | Err(Errno::NOSYS) => {}
        Err(errno) => return Err(errno),
    }
    let directory = workshop.beside(parent).unwrap_or(parent);
    let fresh = |temporary| Kind::Fresh { temporary, mode, replaces, directory: directory.to_owned() };
    let flags = OFlags::WRONLY | OFlags::CLOEXEC;
    match openat(CWD, directory, flags | OFlags::TMPFILE, Mode::RUSR | Mode::WUSR) {
        Ok(file) => return Ok((file.into(), fresh(None))),
        // Not supported by the file system, or (ISDIR, NOENT) unknown to the kernel.
        Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::NOENT | Errno::INVAL | Errno::NOSYS) => {}
        Err(errno) => return Err(errno),
    }
    loop {
        let name = temporary_name(directory);
        match openat(CWD, &name, flags | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW, Mode::RUSR | Mode::WUSR) {
            Ok(file) => return Ok((file.into(), fresh(Some(Temporary(name))))),
            Err(Errno::EXIST) => {}
            Err(errno) => return Err(errno),
        }
    }
}

fn temporary_name(directory: &Path) -> PathBuf {
    directory.join(format!("{TEMPORARY_PREFIX}{:016x}", random()))
}

/// Gives a nameless file a name. By way of /proc: linking by descriptor alone takes a capability.
fn link(file: &File, name: &Path) -> Result<(), Errno> {
    linkat(CWD, format!("/proc/self/fd/{}", file.as_raw_fd()), CWD, name, AtFlags::SYMLINK_FOLLOW)
}

fn link_temporary(file: &File, directory: &Path) -> Result<Temporary, Errno> {
    loop {
        let name = temporary_name(directory);
        match link(file, &name) {
            Ok(()) => return Ok(Temporary(name)),
            Err(Errno::EXIST) => {}
            Err(errno) => return Err(errno),
        }
    }
}

/// Makes inotify tell of a mode and a write under the file's name, without changing either. What cannot be told (the file was moved
/// away meanwhile, the file system has no `fallocate`) is only missed by watchers; the file is right all the same.
fn tell_watchers(written: &File, destination: &str, mode: Mode) {
    let flags = OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let Ok(named) = openat(CWD, destination, flags, Mode::empty()).map(File::from) else { return };
    let (Ok(found), Ok(expected)) = (named.metadata(), written.metadata()) else { return };
    if (found.dev(), found.ino()) != (expected.dev(), expected.ino()) {
        return;
    }
    fchmod(&named, mode).ok();
    if expected.len() > 0 {
        fallocate(&named, FallocateFlags::KEEP_SIZE, 0, expected.len()).ok();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn root() -> User {
        User { name: "root".into(), uid: 0, gid: 0, groups: vec![0], home: "/root".into(), shell: "/bin/sh".into() }
    }

    fn write(at: &str, content: &str) -> io::Result<()> {
        let mut staged = Staged::begin(at, &root(), &Workshop::default())?;
        staged.write_all(content.as_bytes())?;
        staged.commit(&BTreeMap::new())
    }

    fn scratch() -> (tempfile::TempDir, String) {
        let dir = tempfile::tempdir_in("/var/tmp").unwrap();
        let path = dir.path().to_str().unwrap().to_owned();
        (dir, path)
    }

    fn count(directory: &str) -> usize {
        fs::read_dir(directory).unwrap().count()
    }

    #[test]
    fn a_file_appears_whole_with_its_mode_and_parents() {
        let (_dir, at) = scratch();
        let file = format!("{at}/a/b/file");
        let mut staged = Staged::begin(&file, &root(), &Workshop::default()).unwrap();
        staged.write_all(b"half").unwrap();
        assert_eq!(count(&format!("{at}/a/b")), 0, "nothing is seen before the end");
        staged.commit(&BTreeMap::new()).unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), "half");
        assert_eq!(fs::metadata(&file).unwrap().mode() & 0o777, 0o644);
    }

    #[test]
    fn an_abandoned_write_leaves_the_old_content_and_nothing_else() {
        let (_dir, at) = scratch();
        let file = format!("{at}/file");
        write(&file, "old").unwrap();
        let mut staged = Staged::begin(&file, &root(), &Workshop::default()).unwrap();
        staged.write_all(b"new").unwrap();
        drop(staged);
        assert_eq!((fs::read_to_string(&file).unwrap().as_str(), count(&at)), ("old", 1));
    }

    #[test]
    fn replacing_keeps_the_mode_and_leaves_no_temporary_name() {
        let (_dir, at) = scratch();
        let file = format!("{at}/file");
        write(&file, "old").unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o750)).unwrap();
        write(&file, "new").unwrap();
        assert_eq!((fs::read_to_string(&file).unwrap().as_str(), count(&at)), ("new", 1));
        assert_eq!(fs::metadata(&file).unwrap().mode() & 0o777, 0o750);
    }

    #[test]
    fn hard_links_and_symbolic_links_survive() {
        let (_dir, at) = scratch();
        let (file, hard, soft) = (format!("{at}/file"), format!("{at}/hard"), format!("{at}/soft"));
        write(&file, "old").unwrap();
        fs::hard_link(&file, &hard).unwrap();
        std::os::unix::fs::symlink("file", &soft).unwrap();
        write(&soft, "new").unwrap();
        assert_eq!(fs::read_to_string(&hard).unwrap(), "new");
        assert!(fs::symlink_metadata(&soft).unwrap().is_symlink());
        std::os::unix::fs::symlink("../not-yet", format!("{at}/dangling")).unwrap();
        fs::create_dir(format!("{at}/sub")).unwrap();
        std::os::unix::fs::symlink("../made", format!("{at}/sub/dangling")).unwrap();
        write(&format!("{at}/sub/dangling"), "x").unwrap();
        assert_eq!(fs::read_to_string(format!("{at}/made")).unwrap(), "x");
    }

    #[test]
    fn what_is_no_file_is_refused() {
        let (_dir, at) = scratch();
        let errno = |path: &str| Errno::from_io_error(&write(path, "x").unwrap_err()).unwrap();
        assert_eq!(errno(&at), Errno::ISDIR);
        rustix::fs::mknodat(CWD, format!("{at}/pipe"), rustix::fs::FileType::Fifo, Mode::RWXU, 0).unwrap();
        assert_eq!(errno(&format!("{at}/pipe")), Errno::NODEV);
        std::os::unix::fs::symlink("loop", format!("{at}/loop")).unwrap();
        assert_eq!(errno(&format!("{at}/loop")), Errno::LOOP);
        write(&format!("{at}/file"), "").unwrap();
        assert_eq!(errno(&format!("{at}/file/below")), Errno::NOTDIR);
    }

    #[test]
    fn a_file_made_meanwhile_is_replaced() {
        let (_dir, at) = scratch();
        let file = format!("{at}/file");
        let mut staged = Staged::begin(&file, &root(), &Workshop::default()).unwrap();
        staged.write_all(b"second").unwrap();
        write(&file, "first").unwrap();
        staged.commit(&BTreeMap::new()).unwrap();
        assert_eq!((fs::read_to_string(&file).unwrap().as_str(), count(&at)), ("second", 1));
    }

    /// What inotify tells of `directory` while `work` is done, as far as E2B's event types cover it.
    fn told(directory: &str, work: impl FnOnce()) -> Vec<(String, rustix::fs::inotify::ReadFlags)> {
        use rustix::fs::inotify::{self, ReadFlags, WatchFlags};
        let watch = inotify::init(inotify::CreateFlags::NONBLOCK).unwrap();
        inotify::add_watch(&watch, directory, WatchFlags::ALL_EVENTS).unwrap();
        work();
        let mut buffer = [std::mem::MaybeUninit::uninit(); 4096];
        let mut reader = inotify::Reader::new(&watch, &mut buffer);
        let covered = ReadFlags::CREATE
            | ReadFlags::ATTRIB
            | ReadFlags::MODIFY
            | ReadFlags::DELETE
            | ReadFlags::MOVED_TO
            | ReadFlags::MOVED_FROM;
        let mut seen = Vec::new();
        while let Ok(event) = reader.next() {
            let name = event.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
            if event.events().intersects(covered) {
                seen.push((name, event.events()));
            }
        }
        seen
    }

    #[test]
    fn a_watcher_of_the_directory_is_told_of_create_attrib_modify_and_nothing_else() {
        use rustix::fs::inotify::ReadFlags;
        let (_dir, at) = scratch();
        let workshop = Workshop::at(format!("{at}/workshop").into());
        fs::create_dir(format!("{at}/watched")).unwrap();
        let watched = format!("{at}/watched");
        let file = format!("{watched}/file");
        let write = |content: &str| {
            let mut staged = Staged::begin(&file, &root(), &workshop).unwrap();
            staged.write_all(content.as_bytes()).unwrap();
            staged.commit(&BTreeMap::new()).unwrap();
        };
        let event = |events| ("file".to_owned(), events);
        let fresh = told(&watched, || write("content"));
        assert_eq!(fresh, [event(ReadFlags::CREATE), event(ReadFlags::ATTRIB), event(ReadFlags::MODIFY)]);
        let replaced = told(&watched, || write("other content"));
        assert_eq!(replaced, [event(ReadFlags::MOVED_TO), event(ReadFlags::ATTRIB), event(ReadFlags::MODIFY)]);
        assert_eq!(fs::read_to_string(&file).unwrap(), "other content");
        assert_eq!(count(&format!("{at}/workshop")), 0);
    }

    #[test]
    fn a_workshop_on_another_mount_is_not_used() {
        let (_dir, at) = scratch();
        let elsewhere = tempfile::tempdir_in("/dev/shm").unwrap();
        let workshop = Workshop::at(elsewhere.path().join("workshop"));
        let mut staged = Staged::begin(&format!("{at}/file"), &root(), &workshop).unwrap();
        staged.write_all(b"x").unwrap();
        staged.commit(&BTreeMap::new()).unwrap();
        assert_eq!(fs::read_to_string(format!("{at}/file")).unwrap(), "x");
    }
}
