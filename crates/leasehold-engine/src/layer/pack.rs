//! From a writable layer to its stored form.

use std::collections::HashMap;
use std::ffi::{CString, OsStr};
use std::fs::File;
use std::io::{self, BufWriter, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, Stat};
use sha2::{Digest, Sha256};
use tar::{EntryType, Header};

use super::attributes::{self, Attributes};
use super::{DELETED, LITERAL, OPAQUE, Owners, WHITEOUT, XATTR, sparse};
use crate::error::{During, EngineError, ErrorKind};
use crate::spec::LayerDigest;

const STAGE: &str = "snapshot";

/// Deepest directory that is stored. Chosen: names this deep are far beyond what the kernel takes in one path, and each level holds a descriptor.
const DEEPEST: usize = 256;

/// Length of a name in a header; longer ones are in a PAX record.
const NAME: usize = 100;

/// Writes the archive of `upper` and returns its digest. Nothing in the tree may change meanwhile.
pub(crate) fn pack(upper: &Path, owners: Owners, out: &mut File) -> Result<LayerDigest, EngineError> {
    let out = Hashing { inner: BufWriter::with_capacity(256 << 10, out), hash: Sha256::new() };
    let mut packer = Packer { out: tar::Builder::new(out), owners, links: HashMap::new() };
    let root =
        rustix::fs::open(upper, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW, Mode::empty())
            .during(STAGE, format_args!("cannot open {}", upper.display()))?;
    let stat = rustix::fs::fstat(&root).during(STAGE, format_args!("cannot look at {}", upper.display()))?;
    packer.directory(b".", root, &stat, 0)?;
    let mut out = packer.out.into_inner().during(STAGE, "cannot write the layer")?;
    out.flush().during(STAGE, "cannot write the layer")?;
    Ok(LayerDigest::of_sha256(&out.hash.finalize()))
}

struct Hashing<W> {
    inner: W,
    hash: Sha256,
}

impl<W: Write> Write for Hashing<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let length = self.inner.write(bytes)?;
        self.hash.update(&bytes[..length]);
        Ok(length)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

struct Packer<W: Write> {
    out: tar::Builder<W>,
    owners: Owners,
    /// First name of every file that has several.
    links: HashMap<(u64, u64), Vec<u8>>,
}

/// What a mark says.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Mark {
    /// One name below is hidden.
    Deleted,
    /// Everything below is hidden.
    Opaque,
}

/// One member's header and PAX records.
struct Member<'a> {
    path: &'a [u8],
    header: Header,
    records: Vec<(String, Vec<u8>)>,
}

impl<W: Write> Packer<W> {
    /// A directory, what it hides, and what is in it. `path` is `.` for the root.
    fn directory(&mut self, path: &[u8], directory: OwnedFd, stat: &Stat, depth: usize) -> Result<(), EngineError> {
        if depth > DEEPEST {
            let message = format!("{} is more than {DEEPEST} directories deep; move or delete it", shown(path));
            return Err(EngineError::new(ErrorKind::InvalidInput, STAGE, message));
        }
        let attributes =
            attributes::read(&directory).during(STAGE, format_args!("cannot read attributes of {}", shown(path)))?;
        let name = [path, b"/"].concat();
        let mut member = self.member(&name, EntryType::Directory, stat)?;
        if depth == 0 {
            member.header.set_mtime(0);
            member.records.retain(|(key, _)| key != "mtime");
        }
        self.append(member, &attributes, 0, io::empty())?;
        let prefix: &[u8] = if depth == 0 { b"" } else { &name };
        if attributes.opaque {
            self.mark(&[prefix, OPAQUE].concat(), Mark::Opaque)?;
        }
        for entry in sorted_names(&directory, path)? {
            self.entry(&directory, &entry, &[prefix, entry.as_bytes()].concat(), depth + 1)?;
        }
        Ok(())
    }

    fn entry(&mut self, parent: &OwnedFd, name: &CString, path: &[u8], depth: usize) -> Result<(), EngineError> {
        let stat = rustix::fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW)
            .during(STAGE, format_args!("cannot look at {}", shown(path)))?;
        let kind = FileType::from_raw_mode(stat.st_mode);
        if kind != FileType::Directory
            && kind != FileType::CharacterDevice
            && stat.st_nlink > 1
            && kind != FileType::Socket
        {
            if let Some(first) = self.links.get(&(stat.st_dev, stat.st_ino)).cloned() {
                return self.link(path, &first, &stat);
            }
            self.links.insert((stat.st_dev, stat.st_ino), path.to_vec());
        }
        match kind {
            FileType::Directory => {
                let directory = open(parent, name, path, OFlags::DIRECTORY)?;
                self.directory(path, directory, &stat, depth)
            }
            FileType::RegularFile => self.file(path, open(parent, name, path, OFlags::empty())?.into(), &stat),
            FileType::Symlink => {
                let target = rustix::fs::readlinkat(parent, name, Vec::new())
                    .during(STAGE, format_args!("cannot read the link {}", shown(path)))?;
                let mut member = self.member(path, EntryType::Symlink, &stat)?;
                member.point_to(target.as_bytes());
                self.append(member, &Attributes::none(), 0, io::empty())
            }
            FileType::Fifo => {
                let member = self.member(path, EntryType::Fifo, &stat)?;
                self.append(member, &Attributes::none(), 0, io::empty())
            }
            FileType::CharacterDevice if stat.st_rdev == 0 => {
                let at = path.len() - name.as_bytes().len();
                self.mark(&[&path[..at], WHITEOUT, &path[at..]].concat(), Mark::Deleted)
            }
            FileType::Socket => Ok(()),
            _ => Err(EngineError::new(ErrorKind::Corrupt, STAGE, format!("{} is a device", shown(path)))),
        }
    }

    fn file(&mut self, path: &[u8], file: File, stat: &Stat) -> Result<(), EngineError> {
        let what = || format!("cannot read {}", shown(path));
        let attributes = attributes::read(&file).during(STAGE, what())?;
        let size = u64::try_from(stat.st_size).unwrap_or(0);
        let occupied = u64::try_from(stat.st_blocks).unwrap_or(0) * 512;
        let mut member = self.member(path, EntryType::Regular, stat)?;
        let Some(pieces) = sparse::pieces(&file, size, occupied).during(STAGE, what())? else {
            let exact = Exact { inner: file, left: size };
            return self.append(member, &attributes, size, exact);
        };
        let map = sparse::map(&pieces);
        let stored = map.len() as u64 + pieces.iter().map(|piece| piece.length).sum::<u64>();
        for (key, value) in [
            ("GNU.sparse.major", "1".to_owned()),
            ("GNU.sparse.minor", "0".to_owned()),
            ("GNU.sparse.realsize", size.to_string()),
        ] {
            member.records.push((key.to_owned(), value.into_bytes()));
        }
        member.records.push(("GNU.sparse.name".to_owned(), path.to_vec()));
        self.append(member, &attributes, stored, sparse::reader(&file, &map, &pieces))
    }

    fn link(&mut self, path: &[u8], first: &[u8], stat: &Stat) -> Result<(), EngineError> {
        let mut member = self.member(path, EntryType::Link, stat)?;
        member.point_to(first);
        self.append(member, &Attributes::none(), 0, io::empty())
    }

    /// A whiteout: its name is all it says.
    fn mark(&mut self, path: &[u8], meaning: Mark) -> Result<(), EngineError> {
        let mut header = Header::new_ustar();
        header.set_entry_type(EntryType::Regular);
        header.set_mode(0);
        let mut member = Member { path, header, records: Vec::new() };
        member.name();
        if meaning == Mark::Deleted
            && path.ends_with(OPAQUE)
            && path[..path.len() - OPAQUE.len()].last().is_none_or(|byte| *byte == b'/')
        {
            member.records.push((DELETED.to_owned(), b"1".to_vec()));
        }
        self.append(member, &Attributes::none(), 0, io::empty())
    }

    fn member<'a>(&self, path: &'a [u8], kind: EntryType, stat: &Stat) -> Result<Member<'a>, EngineError> {
        let owner = |id: u32, what: &str| {
            self.owners.inside(id).ok_or_else(|| {
                EngineError::new(
                    ErrorKind::Corrupt,
                    STAGE,
                    format!("{} belongs to {what} {id}, which is not of this sandbox", shown(path)),
                )
            })
        };
        let mut header = Header::new_ustar();
        header.set_entry_type(kind);
        header.set_mode(stat.st_mode & 0o7777);
        header.set_uid(u64::from(owner(stat.st_uid, "user")?));
        header.set_gid(u64::from(owner(stat.st_gid, "group")?));
        let mut member = Member { path, header, records: Vec::new() };
        member.time(stat.st_mtime, u32::try_from(stat.st_mtime_nsec).unwrap_or(0));
        member.name();
        let last = path.rsplit(|byte| *byte == b'/').find(|part| !part.is_empty()).unwrap_or_default();
        if last.starts_with(WHITEOUT) {
            member.records.push((LITERAL.to_owned(), b"1".to_vec()));
        }
        Ok(member)
    }

    fn append(
        &mut self,
        mut member: Member<'_>,
        attributes: &Attributes,
        size: u64,
        data: impl Read,
    ) -> Result<(), EngineError> {
        let what = || format!("cannot store {}", shown(member.path));
        for (name, value) in &attributes.own {
            let Ok(name) = std::str::from_utf8(name) else { continue }; // a PAX key is text
            if name.contains('=') {
                continue; // nor can it hold the character that ends it
            }
            member.records.push((format!("{XATTR}{name}"), value.clone()));
        }
        member.header.set_size(size);
        if size > 0o777_7777_7777 {
            member.records.push(("size".to_owned(), size.to_string().into_bytes()));
        }
        member.header.set_cksum();
        if !member.records.is_empty() {
            let records = member.records.iter().map(|(key, value)| (key.as_str(), value.as_slice()));
            self.out.append_pax_extensions(records).during(STAGE, what())?;
        }
        self.out.append(&member.header, data).during(STAGE, what())
    }
}

impl Member<'_> {
    fn name(&mut self) {
        let length = self.path.len().min(NAME);
        self.header.as_old_mut().name[..length].copy_from_slice(&self.path[..length]);
        if self.path.len() > NAME {
            self.record("path", self.path.to_vec());
        }
    }

    fn point_to(&mut self, target: &[u8]) {
        let length = target.len().min(NAME);
        self.header.as_old_mut().linkname[..length].copy_from_slice(&target[..length]);
        if target.len() > NAME {
            self.record("linkpath", target.to_vec());
        }
    }

    fn record(&mut self, key: &str, value: Vec<u8>) {
        let binary = ("hdrcharset".to_owned(), b"BINARY".to_vec());
        if std::str::from_utf8(&value).is_err() && !self.records.contains(&binary) {
            self.records.insert(0, binary);
        }
        self.records.push((key.to_owned(), value));
    }

    /// The header has whole seconds since 1970 in 33 bits; anything else needs a record.
    fn time(&mut self, seconds: i64, nanos: u32) {
        let plain = u64::try_from(seconds).ok().filter(|seconds| *seconds < 1 << 33);
        self.header.set_mtime(plain.unwrap_or(0));
        if nanos != 0 || plain.is_none() {
            self.records.push(("mtime".to_owned(), decimal(seconds, nanos).into_bytes()));
        }
    }
}

/// Seconds with a fraction, without trailing zeros.
fn decimal(seconds: i64, nanos: u32) -> String {
    const BILLION: i128 = 1_000_000_000;
    let total = i128::from(seconds) * BILLION + i128::from(nanos);
    let (sign, total) = if total < 0 { ("-", -total) } else { ("", total) };
    let text = format!("{sign}{}.{:09}", total / BILLION, total % BILLION);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// As many bytes as the header says: a file that became shorter is an error and not a broken archive.
struct Exact<R> {
    inner: R,
    left: u64,
}

impl<R: Read> Read for Exact<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let wanted = buffer.len().min(usize::try_from(self.left).unwrap_or(usize::MAX));
        let length = self.inner.read(&mut buffer[..wanted])?;
        if length == 0 && wanted > 0 {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the file became shorter"));
        }
        self.left -= length as u64;
        Ok(length)
    }
}

fn sorted_names(directory: &OwnedFd, path: &[u8]) -> Result<Vec<CString>, EngineError> {
    let what = || format!("cannot list {}", shown(path));
    let mut names = Vec::new();
    for entry in Dir::read_from(directory).during(STAGE, what())? {
        let entry = entry.during(STAGE, what())?;
        let name = entry.file_name();
        if name != c"." && name != c".." {
            names.push(name.to_owned());
        }
    }
    names.sort();
    Ok(names)
}

fn open(parent: &OwnedFd, name: &CString, path: &[u8], extra: OFlags) -> Result<OwnedFd, EngineError> {
    // Not blocking: should a file have become a pipe since we looked.
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOATIME | extra;
    rustix::fs::openat(parent, name, flags, Mode::empty()).during(STAGE, format_args!("cannot open {}", shown(path)))
}

/// A name from a sandbox, safe to print.
fn shown(path: &[u8]) -> String {
    let text = OsStr::from_bytes(&path[..path.len().min(200)]).to_string_lossy().into_owned();
    format!("{text:?}")
}

impl Attributes {
    fn none() -> Self {
        Self { opaque: false, own: Vec::new() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_exact_decimals() {
        assert_eq!(decimal(1_700_000_000, 5), "1700000000.000000005");
        assert_eq!(decimal(1, 500_000_000), "1.5");
        assert_eq!(decimal(-2, 500_000_000), "-1.5");
        assert_eq!(decimal(-1, 0), "-1");
        assert_eq!(decimal(0, 0), "0");
        assert_eq!(decimal(100, 0), "100");
    }
}
