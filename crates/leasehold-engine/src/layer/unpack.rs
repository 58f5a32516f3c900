//! From a stored layer to a directory that overlayfs can use. The archive is hostile input.
//!
//! Every name is looked up below the new directory without following links; names that leave it, come twice or go through something that is no directory are
//! refused, as are devices and foreign owners. Nothing is repaired: an archive of ours has none of that.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, BufReader, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags, ResolveFlags, Timespec, Timestamps, Uid};
use rustix::io::Errno;
use sha2::{Digest, Sha256};
use tar::{Archive, EntryType};

use super::{DELETED, LITERAL, OPAQUE, Owners, WHITEOUT, XATTR, attributes, sparse};
use crate::error::{During, EngineError, ErrorKind};
use crate::paths::private_dir;
use crate::spec::LayerDigest;

const STAGE: &str = "unpack";

/// Unpacks an archive into `target`, which must not exist, and returns the archive's digest.
pub(crate) fn unpack(archive: &mut File, target: &Path, owners: Owners) -> Result<LayerDigest, EngineError> {
    private_dir(target)?;
    let root =
        rustix::fs::open(target, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW, Mode::empty())
            .during(STAGE, format_args!("cannot open {}", target.display()))?;
    let mut unpacker = Unpacker { root, owners, times: Vec::new() };
    let owner = (owners.outside(0), owners.outside(0));
    unpacker.own(&unpacker.root, owner, 0o755, b".")?;
    let mut hashing = Hashing { inner: BufReader::with_capacity(256 << 10, archive), hash: Sha256::new() };
    let mut reader = Archive::new(&mut hashing);
    let mut records = Records::default();
    // Raw: the library splits PAX records at line ends, which values may contain.
    for entry in reader.entries().map_err(|error| malformed(b"", error))?.raw(true) {
        let entry = entry.map_err(|error| malformed(b"", error))?;
        if entry.header().entry_type() == EntryType::XHeader {
            records = read_records(entry)?;
        } else {
            unpacker.entry(entry, std::mem::take(&mut records))?;
        }
    }
    // What follows the end marker belongs to the digest too.
    io::copy(&mut hashing, &mut io::sink()).during(STAGE, "cannot read the archive")?;
    unpacker.set_directory_times()?;
    Ok(LayerDigest::of_sha256(&hashing.hash.finalize()))
}

struct Hashing<R> {
    inner: R,
    hash: Sha256,
}

impl<R: Read> Read for Hashing<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let length = self.inner.read(buffer)?;
        self.hash.update(&buffer[..length]);
        Ok(length)
    }
}

struct Unpacker {
    root: OwnedFd,
    owners: Owners,
    /// Of directories; set last, since putting something into a directory changes its time.
    times: Vec<(Vec<u8>, Timespec)>,
}

/// What PAX records say about a member.
#[derive(Default)]
struct Records {
    path: Option<Vec<u8>>,
    link: Option<Vec<u8>>,
    time: Option<Timespec>,
    size: Option<u64>,
    sparse_size: Option<u64>,
    sparse_version: (Option<u64>, Option<u64>),
    literal: bool,
    deleted: bool,
    attributes: Vec<(Vec<u8>, Vec<u8>)>,
}

/// A member's place and common properties.
struct Place {
    path: Vec<u8>,
    parent: OwnedFd,
    name: Vec<u8>,
    owner: (Option<u32>, Option<u32>),
    mode: u32,
    time: Timespec,
}

impl Unpacker {
    fn entry<R: Read>(&mut self, mut entry: tar::Entry<'_, R>, records: Records) -> Result<(), EngineError> {
        let raw = records.path.clone().unwrap_or_else(|| entry.header().path_bytes().into_owned());
        if records.size.is_some_and(|size| size != entry.size()) {
            return Err(hostile(&raw, "has two sizes"));
        }
        let Some(path) = clean(&raw)? else { return self.root_member(&entry, records) };
        let (parent, name) = self.parent(&path)?;
        if name.starts_with(WHITEOUT) && !records.literal {
            return whiteout(&parent, &name, &path, records.deleted);
        }
        let header = entry.header();
        let number = |value: io::Result<u64>| value.map_err(|error| malformed(&path, error));
        let place = Place {
            owner: self.owner(number(header.uid())?, number(header.gid())?, &path)?,
            mode: header.mode().map_err(|error| malformed(&path, error))? & 0o7777,
            time: match records.time {
                Some(time) => time,
                None => Timespec { tv_sec: i64::try_from(number(header.mtime())?).unwrap_or(0), tv_nsec: 0 },
            },
            path,
            parent,
            name,
        };
        match header.entry_type() {
            EntryType::Directory => self.directory(place, &records),
            EntryType::Regular | EntryType::Continuous => self.file(&place, &records, &mut entry),
            EntryType::Symlink => {
                let target = link_target(&entry, &records, &place.path)?;
                rustix::fs::symlinkat(OsStr::from_bytes(&target), &place.parent, place.name.as_slice())
                    .map_err(|errno| refused(&place.path, errno))?;
                finish_unopened(&place, true)
            }
            EntryType::Fifo => {
                rustix::fs::mknodat(
                    &place.parent,
                    place.name.as_slice(),
                    FileType::Fifo,
                    Mode::from_raw_mode(0o600),
                    0,
                )
                .map_err(|errno| refused(&place.path, errno))?;
                finish_unopened(&place, false)
            }
            EntryType::Link => {
                let target = link_target(&entry, &records, &place.path)?;
                self.link(&place, &target)
            }
            other => Err(hostile(&place.path, format_args!("has the unwelcome type {other:?}"))),
        }
    }

    /// The root itself: `./`.
    fn root_member<R: Read>(&self, entry: &tar::Entry<'_, R>, records: Records) -> Result<(), EngineError> {
        let header = entry.header();
        if header.entry_type() != EntryType::Directory {
            return Err(hostile(b".", "is not a directory"));
        }
        let number = |value: io::Result<u64>| value.map_err(|error| malformed(b".", error));
        let owner = self.owner(number(header.uid())?, number(header.gid())?, b".")?;
        self.own(&self.root, owner, header.mode().map_err(|error| malformed(b".", error))? & 0o7777, b".")?;
        let directory = reopen(&self.root, b".")?;
        set_attributes(&directory, &records, b".")
    }

    fn directory(&mut self, place: Place, records: &Records) -> Result<(), EngineError> {
        rustix::fs::mkdirat(&place.parent, place.name.as_slice(), Mode::from_raw_mode(0o700))
            .map_err(|errno| refused(&place.path, errno))?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let directory = rustix::fs::openat(&place.parent, place.name.as_slice(), flags, Mode::empty())
            .map_err(|errno| refused(&place.path, errno))?;
        self.own(&directory, place.owner, place.mode, &place.path)?;
        set_attributes(&directory, records, &place.path)?;
        self.times.push((place.path, place.time));
        Ok(())
    }

    fn file(&self, place: &Place, records: &Records, data: &mut impl Read) -> Result<(), EngineError> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = rustix::fs::openat(&place.parent, place.name.as_slice(), flags, Mode::from_raw_mode(0o600))
            .map_err(|errno| refused(&place.path, errno))?;
        let mut file = File::from(file);
        let written = match (records.sparse_size, records.sparse_version) {
            (Some(size), (Some(1), Some(0))) => sparse::restore(data, &mut file, size),
            (None, (None, None)) => io::copy(data, &mut file).map(drop),
            _ => return Err(hostile(&place.path, "is sparse in a format that is not known here")),
        };
        written.map_err(|error| match error.raw_os_error() {
            Some(_) => EngineError::io(STAGE, format!("cannot write {}", shown(&place.path)), error),
            None => malformed(&place.path, error),
        })?;
        self.own(&file, place.owner, place.mode, &place.path)?;
        set_attributes(&file, records, &place.path)?;
        rustix::fs::futimens(&file, &times(place.time)).map_err(|errno| refused(&place.path, errno))
    }

    fn link(&self, place: &Place, target: &[u8]) -> Result<(), EngineError> {
        let target = clean(target)?.ok_or_else(|| hostile(&place.path, "is a hard link to the root"))?;
        let (parent, name) = self.parent(&target)?;
        rustix::fs::linkat(&parent, name.as_slice(), &place.parent, place.name.as_slice(), AtFlags::empty())
            .map_err(|errno| refused(&place.path, errno))
    }

    fn owner(&self, uid: u64, gid: u64, path: &[u8]) -> Result<(Option<u32>, Option<u32>), EngineError> {
        match (self.owners.outside(uid), self.owners.outside(gid)) {
            (Some(uid), Some(gid)) => Ok((Some(uid), Some(gid))),
            _ => Err(hostile(path, format_args!("belongs to {uid}:{gid}, which no sandbox has"))),
        }
    }

    /// Owner first: changing it clears the set-user-id bits.
    fn own(
        &self,
        file: impl AsFd,
        owner: (Option<u32>, Option<u32>),
        mode: u32,
        path: &[u8],
    ) -> Result<(), EngineError> {
        // Through /proc, as the descriptor may only name the file.
        let name = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file.as_fd()));
        std::os::unix::fs::chown(&name, owner.0, owner.1)
            .and_then(|()| Ok(rustix::fs::chmod(&name, Mode::from_raw_mode(mode))?))
            .during(STAGE, format_args!("cannot set the owner of {}", shown(path)))
    }

    /// The directory of a name, which must have been unpacked before, and the last part of the name.
    fn parent(&self, path: &[u8]) -> Result<(OwnedFd, Vec<u8>), EngineError> {
        let (above, name) = match path.iter().rposition(|byte| *byte == b'/') {
            Some(at) => (&path[..at], &path[at + 1..]),
            None => (&b"."[..], path),
        };
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
        let parent = rustix::fs::openat2(
            &self.root,
            above,
            OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC,
            Mode::empty(),
            resolve,
        )
        .map_err(|errno| refused(path, errno))?;
        Ok((parent, name.to_vec()))
    }

    fn set_directory_times(&self) -> Result<(), EngineError> {
        for (path, time) in self.times.iter().rev() {
            let (parent, name) = self.parent(path)?;
            rustix::fs::utimensat(&parent, name.as_slice(), &times(*time), AtFlags::SYMLINK_NOFOLLOW)
                .map_err(|errno| refused(path, errno))?;
        }
        let zero = Timespec { tv_sec: 0, tv_nsec: 0 };
        let root = reopen(&self.root, b".")?;
        rustix::fs::futimens(&root, &times(zero)).map_err(|errno| refused(b".", errno))
    }
}

fn whiteout(parent: &OwnedFd, name: &[u8], path: &[u8], deleted: bool) -> Result<(), EngineError> {
    if name == OPAQUE && !deleted {
        return attributes::make_opaque(reopen(parent, path)?).map_err(|errno| refused(path, errno));
    }
    let hidden = &name[WHITEOUT.len()..];
    if hidden.is_empty() || hidden == b"." || hidden == b".." {
        return Err(hostile(path, "hides nothing that can exist"));
    }
    rustix::fs::mknodat(parent, hidden, FileType::CharacterDevice, Mode::empty(), 0)
        .map_err(|errno| refused(path, errno))
}

fn reopen(directory: &OwnedFd, path: &[u8]) -> Result<OwnedFd, EngineError> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::openat(directory, c".", flags, Mode::empty()).map_err(|errno| refused(path, errno))
}

fn set_attributes(file: impl AsFd, records: &Records, path: &[u8]) -> Result<(), EngineError> {
    records.attributes.iter().try_for_each(|(name, value)| {
        attributes::write(&file, name, value)
            .during(STAGE, format_args!("cannot set attribute {} of {}", shown(name), shown(path)))
    })
}

/// Owner, mode and time of what cannot be opened.
fn finish_unopened(place: &Place, symlink: bool) -> Result<(), EngineError> {
    let name = place.name.as_slice();
    let set = || {
        let (uid, gid) = place.owner;
        rustix::fs::chownat(
            &place.parent,
            name,
            uid.map(Uid::from_raw),
            gid.map(Gid::from_raw),
            AtFlags::SYMLINK_NOFOLLOW,
        )?;
        if !symlink {
            rustix::fs::chmodat(&place.parent, name, Mode::from_raw_mode(place.mode), AtFlags::empty())?;
        }
        rustix::fs::utimensat(&place.parent, name, &times(place.time), AtFlags::SYMLINK_NOFOLLOW)
    };
    set().map_err(|errno| refused(&place.path, errno))
}

fn times(modified: Timespec) -> Timestamps {
    Timestamps { last_access: modified, last_modification: modified }
}

fn link_target<R: Read>(entry: &tar::Entry<'_, R>, records: &Records, path: &[u8]) -> Result<Vec<u8>, EngineError> {
    let target = match &records.link {
        Some(target) => target.clone(),
        None => entry.header().link_name_bytes().map(std::borrow::Cow::into_owned).unwrap_or_default(),
    };
    if target.is_empty() || target.contains(&0) {
        return Err(hostile(path, "is a link to nothing"));
    }
    Ok(target)
}

/// A member's path without `./` and a final `/`; none for the root. Anything that is not a plain relative path is refused.
fn clean(raw: &[u8]) -> Result<Option<Vec<u8>>, EngineError> {
    let trimmed = raw.strip_suffix(b"/").unwrap_or(raw);
    let trimmed = trimmed.strip_prefix(b"./").unwrap_or(trimmed);
    if trimmed == b"." {
        return Ok(None);
    }
    let plain = trimmed
        .split(|byte| *byte == b'/')
        .all(|part| !part.is_empty() && part != b"." && part != b".." && !part.contains(&0));
    if plain { Ok(Some(trimmed.to_vec())) } else { Err(hostile(raw, "is not a plain relative path")) }
}

/// Most bytes of one member's records. Chosen: the kernel's 64 KiB of attributes per file, names and targets, several times over.
const MOST_RECORDS: u64 = 1 << 20;

fn read_records<R: Read>(entry: tar::Entry<'_, R>) -> Result<Records, EngineError> {
    if entry.size() > MOST_RECORDS {
        return Err(hostile(b"", format_args!("has {} bytes of records", entry.size())));
    }
    let mut bytes = Vec::new();
    entry.take(MOST_RECORDS).read_to_end(&mut bytes).map_err(|error| malformed(b"", error))?;
    let mut records = Records::default();
    let mut rest = bytes.as_slice();
    while !rest.is_empty() {
        let (key, value, after) = split_record(rest).ok_or_else(|| hostile(b"", "has malformed records"))?;
        records.take(key, value)?;
        rest = after;
    }
    Ok(records)
}

/// Takes `LENGTH KEY=VALUE\n` apart; the length counts everything, itself too.
fn split_record(bytes: &[u8]) -> Option<(&[u8], &[u8], &[u8])> {
    let blank = bytes.iter().position(|byte| *byte == b' ')?;
    let length: usize = std::str::from_utf8(&bytes[..blank]).ok().filter(|text| text.len() <= 8)?.parse().ok()?;
    let (record, after) = bytes.split_at_checked(length)?;
    let record = record.get(blank + 1..)?.strip_suffix(b"\n")?;
    let equals = record.iter().position(|byte| *byte == b'=')?;
    Some((&record[..equals], &record[equals + 1..], after))
}

impl Records {
    fn take(&mut self, key: &[u8], value: &[u8]) -> Result<(), EngineError> {
        let number = || {
            let number = std::str::from_utf8(value).ok().and_then(|text| text.parse().ok());
            number.map(Some).ok_or_else(|| hostile(value, "is not a number"))
        };
        match key {
            b"path" | b"GNU.sparse.name" => self.path = Some(value.to_vec()),
            b"linkpath" => self.link = Some(value.to_vec()),
            b"mtime" => self.time = Some(time(value).ok_or_else(|| hostile(value, "is not a time"))?),
            b"size" => self.size = number()?,
            b"GNU.sparse.realsize" => self.sparse_size = number()?,
            b"GNU.sparse.major" => self.sparse_version.0 = number()?,
            b"GNU.sparse.minor" => self.sparse_version.1 = number()?,
            _ if key == LITERAL.as_bytes() => self.literal = true,
            _ if key == DELETED.as_bytes() => self.deleted = true,
            _ => {
                if let Some(name) = key.strip_prefix(XATTR.as_bytes()) {
                    self.attributes.push((name.to_vec(), value.to_vec()));
                }
            }
        }
        Ok(())
    }
}

/// A PAX time: seconds, perhaps negative, perhaps with a fraction.
fn time(text: &[u8]) -> Option<Timespec> {
    let text = std::str::from_utf8(text).ok()?;
    let (negative, text) = text.strip_prefix('-').map_or((false, text), |rest| (true, rest));
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    if whole.is_empty() || !whole.bytes().chain(fraction.bytes()).all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let nanos: i64 = format!("{:0<9.9}", fraction).parse().ok()?;
    let seconds: i64 = whole.parse().ok()?;
    Some(match (negative, nanos) {
        (false, nanos) => Timespec { tv_sec: seconds, tv_nsec: nanos },
        (true, 0) => Timespec { tv_sec: -seconds, tv_nsec: 0 },
        (true, nanos) => Timespec { tv_sec: -seconds - 1, tv_nsec: 1_000_000_000 - nanos },
    })
}

fn hostile(path: &[u8], what: impl std::fmt::Display) -> EngineError {
    EngineError::new(ErrorKind::Corrupt, STAGE, format!("member {} {what}", shown(path)))
}

fn malformed(path: &[u8], error: io::Error) -> EngineError {
    EngineError::new(ErrorKind::Corrupt, STAGE, format!("member {} is malformed: {error}", shown(path)))
}

/// A system call's answer to a member's name.
fn refused(path: &[u8], errno: Errno) -> EngineError {
    match errno {
        Errno::EXIST => hostile(path, "comes twice"),
        Errno::LOOP | Errno::XDEV | Errno::NOTDIR => hostile(path, "leads through something that is no directory"),
        Errno::NOENT => hostile(path, "comes before its directory or its link's target"),
        Errno::NAMETOOLONG => hostile(path, "has too long a name"),
        errno => EngineError::io(STAGE, format!("cannot make {}", shown(path)), errno),
    }
}

fn shown(path: &[u8]) -> String {
    let text = OsStr::from_bytes(&path[..path.len().min(200)]).to_string_lossy().into_owned();
    format!("{text:?}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_plain_relative_paths_are_taken() {
        assert_eq!(clean(b"./").unwrap(), None);
        assert_eq!(clean(b".").unwrap(), None);
        assert_eq!(clean(b"a/b/").unwrap().unwrap(), b"a/b");
        assert_eq!(clean(b"./a").unwrap().unwrap(), b"a");
        for path in [&b""[..], b"/", b"/a", b"..", b"a/../b", b"a//b", b"a/./b", b"a/..", b"a\0b", b"../a"] {
            assert!(clean(path).is_err(), "{path:?}");
        }
    }

    #[test]
    fn records_may_hold_anything_but_must_have_their_length() {
        assert_eq!(split_record(b"10 a=b\n=\n\nrest"), Some((&b"a"[..], &b"b\n=\n"[..], &b"rest"[..])));
        for bytes in [
            &b""[..],
            b"5",
            b"a b=c\n",
            b"99 a=b\n",
            b"5 a=b\n",
            b"7 a=b c",
            b"3 =\n",
            b"0 a=b\n",
            b"1 a=b\n",
            b"999999999999 a=b\n",
        ] {
            assert_eq!(split_record(bytes), None, "{bytes:?}");
        }
    }

    #[test]
    fn times_are_read_exactly() {
        let read = |text: &str| time(text.as_bytes()).map(|time| (time.tv_sec, time.tv_nsec));
        assert_eq!(read("1700000000.000000005"), Some((1_700_000_000, 5)));
        assert_eq!(read("1.5"), Some((1, 500_000_000)));
        assert_eq!(read("-1.5"), Some((-2, 500_000_000)));
        assert_eq!(read("-1"), Some((-1, 0)));
        for text in ["", "-", ".5", "1e3", "1.x", "+1", "1.-5"] {
            assert_eq!(read(text), None, "{text:?}");
        }
    }
}
