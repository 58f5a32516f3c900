//! What is told about one directory entry.

use std::collections::BTreeMap;
use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::SystemTime;

use envd::{EntryInfo, FileType};

use super::{metadata, path, permissions};
use crate::users::Users;

/// Names of owners, each looked up once.
#[derive(Debug)]
pub(super) struct Owners<'a> {
    users: &'a Users,
    names: BTreeMap<u32, String>,
    groups: BTreeMap<u32, String>,
}

impl<'a> Owners<'a> {
    pub(super) fn new(users: &'a Users) -> Self {
        Self { users, names: BTreeMap::new(), groups: BTreeMap::new() }
    }

    fn name(&mut self, uid: u32) -> String {
        let find = || self.users.name_of(uid).unwrap_or_else(|| uid.to_string());
        self.names.entry(uid).or_insert_with(find).clone()
    }

    fn group(&mut self, gid: u32) -> String {
        let find = || self.users.group_name_of(gid).unwrap_or_else(|| gid.to_string());
        self.groups.entry(gid).or_insert_with(find).clone()
    }
}

/// Describes the entry at `absolute`, which callers know as `shown`, without following it. Type and mode of a symbolic link are its target's, everything else
/// is the link's own; a link that leads nowhere is a `SYMLINK` whose target is the text it holds.
pub(super) fn describe(absolute: &Path, shown: &str, owners: &mut Owners<'_>) -> io::Result<EntryInfo> {
    let own = fs::symlink_metadata(absolute)?;
    let mut entry = EntryInfo {
        name: path::name(shown).to_owned(),
        path: shown.to_owned(),
        file_type: kind(&own),
        size: i64::try_from(own.size()).unwrap_or(i64::MAX),
        mode: own.mode() & 0o777,
        permissions: permissions::text(own.mode()),
        owner: owners.name(own.uid()),
        group: owners.group(own.gid()),
        modified_time: own.modified().ok().map(timestamp),
        symlink_target: None,
        metadata: BTreeMap::new(),
    };
    if own.is_symlink() {
        match (fs::metadata(absolute), fs::canonicalize(absolute)) {
            (Ok(target), Ok(resolved)) => {
                entry.file_type = kind(&target);
                entry.mode = target.mode() & 0o777;
                entry.symlink_target = Some(resolved.to_string_lossy().into_owned());
            }
            _ => entry.symlink_target = Some(fs::read_link(absolute)?.to_string_lossy().into_owned()),
        }
    } else if own.is_file() {
        entry.metadata = metadata::read(absolute);
    }
    Ok(entry)
}

fn kind(metadata: &Metadata) -> FileType {
    let kind = metadata.file_type();
    if kind.is_file() {
        FileType::File
    } else if kind.is_dir() {
        FileType::Directory
    } else if kind.is_symlink() {
        FileType::Symlink
    } else {
        FileType::Unspecified
    }
}

/// RFC 3339 with nanoseconds.
fn timestamp(time: SystemTime) -> String {
    let nanoseconds = match time.duration_since(SystemTime::UNIX_EPOCH) {
        Ok(after) => after.subsec_nanos(),
        Err(before) => (1_000_000_000 - before.duration().subsec_nanos()) % 1_000_000_000,
    };
    let whole = time - std::time::Duration::from_nanos(nanoseconds.into());
    let seconds = shellctl::Timestamp::from(whole).to_string();
    if nanoseconds == 0 {
        return seconds;
    }
    format!("{}.{nanoseconds:09}Z", seconds.trim_end_matches('Z'))
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use super::*;

    #[test]
    fn times_carry_their_nanoseconds_before_and_after_the_epoch() {
        assert_eq!(timestamp(UNIX_EPOCH + Duration::new(1_796_083_200, 5)), "2026-12-01T00:00:00.000000005Z");
        assert_eq!(timestamp(UNIX_EPOCH), "1970-01-01T00:00:00Z");
        assert_eq!(timestamp(UNIX_EPOCH - Duration::from_millis(250)), "1969-12-31T23:59:59.750000000Z");
    }

    #[test]
    fn links_are_described_by_their_target_and_their_own_permissions() {
        let dir = tempfile::tempdir().unwrap();
        let users = Users::at("/nonexistent/passwd", "/nonexistent/group");
        let at = |name: &str| dir.path().join(name);
        let describe = |name: &str| super::describe(&at(name), at(name).to_str().unwrap(), &mut Owners::new(&users));
        fs::write(at("file"), "12345").unwrap();
        std::os::unix::fs::symlink("file", at("link")).unwrap();
        std::os::unix::fs::symlink("nowhere", at("broken")).unwrap();
        let link = describe("link").unwrap();
        let target = fs::canonicalize(at("file")).unwrap();
        assert_eq!((link.file_type, link.symlink_target.as_deref()), (FileType::File, target.to_str()));
        assert_eq!(link.permissions, "Lrwxrwxrwx");
        let broken = describe("broken").unwrap();
        assert_eq!((broken.file_type, broken.symlink_target.as_deref()), (FileType::Symlink, Some("nowhere")));
        let file = describe("file").unwrap();
        assert_eq!((file.size, file.name.as_str(), file.owner.as_str()), (5, "file", "0"));
        assert_eq!(describe("absent").unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
