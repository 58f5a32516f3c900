//! Copies a local directory into the Workspace and what changed back out, as tar streams.
//!
//! Going in, links are kept as links. Coming out, the archive is hostile input: an entry is written only beneath the
//! directory, a file that did not change is left alone, and nothing of the user's is ever deleted.

use std::fs;
use std::io::{self, Read, Write};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Component, Path};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::Context as _;

/// What a copy back did.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CopiedBack {
    /// Files written, new or changed.
    pub(crate) written: u64,
    /// Files that were equal by size and time of change.
    pub(crate) unchanged: u64,
    /// Entries that cannot or must not be written here: devices, sockets, names that lead out of the directory.
    pub(crate) refused: u64,
    /// Entries that could not be written although they are ordinary: a file where a directory is, no space.
    pub(crate) failed: u64,
}

/// Writes `dir`'s content as a tar archive.
pub(crate) fn pack(dir: &Path, out: impl Write) -> anyhow::Result<()> {
    let mut archive = tar::Builder::new(out);
    archive.follow_symlinks(false);
    archive.append_dir_all(".", dir).with_context(|| format!("cannot read {}", dir.display()))?;
    archive.into_inner().and_then(|mut out| out.flush()).context("cannot send the workspace")
}

/// Writes the entries of a tar archive beneath `dir`. What was changed at `since` or later is never taken for unchanged: times are
/// compared in whole seconds, and an edit may fall into the second of the copy.
pub(crate) fn unpack(dir: &Path, archive: impl Read, since: SystemTime) -> anyhow::Result<CopiedBack> {
    let mut archive = tar::Archive::new(archive);
    archive.set_overwrite(true);
    archive.set_preserve_mtime(true);
    let mut done = CopiedBack::default();
    for entry in archive.entries().context("cannot read the workspace back")? {
        let mut entry = entry.context("the workspace's archive broke off")?;
        let path = entry.path().context("an entry of the workspace has an unusable name")?.into_owned();
        let plain = path.components().all(|part| matches!(part, Component::Normal(_) | Component::CurDir));
        let kind = entry.header().entry_type();
        let usable = kind.is_file() || kind.is_dir() || kind.is_symlink() || kind.is_hard_link();
        if !plain || !usable {
            done.refused += 1;
            continue;
        }
        let target = dir.join(&path);
        if kind.is_dir() && target.is_dir() {
            continue;
        }
        if kind.is_file() && is_unchanged(&target, &entry, since)? {
            done.unchanged += 1;
            continue;
        }
        if kind.is_symlink() && fs::read_link(&target).ok().as_deref() == entry.link_name()?.as_deref() {
            done.unchanged += 1;
            continue;
        }
        // `unpack_in` resolves the parent and refuses one outside of `dir`, whatever links the archive made before.
        match entry.unpack_in(dir) {
            Ok(true) => done.written += u64::from(!kind.is_dir()),
            Ok(false) => done.refused += 1,
            Err(error) => {
                crate::complain(&format!("cannot write {}: {}", target.display(), root_cause(&error)));
                done.failed += 1;
            }
        }
    }
    Ok(done)
}

fn seconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO).as_secs()
}

fn is_unchanged(target: &Path, entry: &tar::Entry<'_, impl Read>, since: SystemTime) -> io::Result<bool> {
    let Ok(meta) = fs::symlink_metadata(target) else { return Ok(false) };
    let (mtime, mode) = (entry.header().mtime()?, entry.header().mode()?);
    let same = meta.is_file() && meta.len() == entry.size() && meta.permissions().mode() & 0o777 == mode & 0o777;
    Ok(same && mtime < seconds(since) && meta.modified().is_ok_and(|time| seconds(time) == mtime))
}

fn root_cause(error: &io::Error) -> String {
    let mut source: &dyn std::error::Error = error;
    while let Some(next) = source.source() {
        source = next;
    }
    source.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packed(dir: &Path) -> Vec<u8> {
        let mut bytes = Vec::new();
        pack(dir, &mut bytes).unwrap();
        bytes
    }

    #[test]
    fn a_directory_comes_back_as_it_was_and_unchanged_files_are_left_alone() {
        let dir = tempfile::Builder::new().prefix("leasehold-").tempdir().unwrap();
        let (from, to) = (dir.path().join("from"), dir.path().join("to"));
        fs::create_dir_all(from.join("a/b")).unwrap();
        fs::create_dir(&to).unwrap();
        fs::write(from.join("a/b/file"), "x").unwrap();
        std::os::unix::fs::symlink("b/file", from.join("a/link")).unwrap();
        let archive = packed(&from);
        let first = unpack(&to, &archive[..], SystemTime::now() + Duration::from_secs(2)).unwrap();
        assert_eq!(first, CopiedBack { written: 2, unchanged: 0, refused: 0, failed: 0 });
        assert_eq!(fs::read_to_string(to.join("a/link")).unwrap(), "x");
        fs::write(to.join("mine"), "stays").unwrap();
        let again = unpack(&to, &archive[..], SystemTime::now() + Duration::from_secs(2)).unwrap();
        assert_eq!(again, CopiedBack { written: 0, unchanged: 2, refused: 0, failed: 0 });
        assert_eq!(fs::read_to_string(to.join("mine")).unwrap(), "stays");
    }

    #[test]
    fn an_archive_cannot_write_outside_of_the_directory() {
        let dir = tempfile::Builder::new().prefix("leasehold-").tempdir().unwrap();
        let (to, outside) = (dir.path().join("to"), dir.path().join("outside"));
        fs::create_dir(&to).unwrap();
        fs::create_dir(&outside).unwrap();
        let mut builder = tar::Builder::new(Vec::new());
        let mut link = tar::Header::new_gnu();
        link.set_entry_type(tar::EntryType::Symlink);
        link.set_size(0);
        builder.append_link(&mut link, "way-out", &outside).unwrap();
        let mut file = tar::Header::new_gnu();
        file.set_size(1);
        file.set_mode(0o644);
        builder.append_data(&mut file, "way-out/stolen", &b"x"[..]).unwrap();
        let through_link = builder.into_inner().unwrap();
        assert_eq!(unpack(&to, &through_link[..], SystemTime::now()).unwrap().failed, 1);

        let mut file = tar::Header::new_gnu();
        file.set_size(1);
        file.set_mode(0o644);
        let name = b"../outside/stolen";
        file.as_gnu_mut().unwrap().name[..name.len()].copy_from_slice(name);
        file.set_cksum();
        let mut builder = tar::Builder::new(Vec::new());
        builder.append(&file, &b"x"[..]).unwrap();
        let climbing = builder.into_inner().unwrap();
        assert_eq!(unpack(&to, &climbing[..], SystemTime::now()).unwrap().refused, 1);
        assert_eq!(fs::read_dir(&outside).unwrap().count(), 0);
    }
}
