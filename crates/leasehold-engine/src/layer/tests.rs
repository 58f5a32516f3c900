//! Round trips of odd trees, and archives that mean harm.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{Read, Seek, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, MetadataExt, lchown, symlink};
use std::path::{Path, PathBuf};

use proptest::prelude::*;
use rustix::fs::{AtFlags, CWD, FileType, Mode, Timespec, Timestamps, XattrFlags};
use tar::{EntryType, Header};

use super::*;
use crate::paths::set_mode;

const OWNERS: Owners = Owners::RANGE;

fn packed(tree: &Path) -> (LayerDigest, File) {
    let mut file = tempfile::tempfile().unwrap();
    let digest = pack(tree, OWNERS, &mut file).unwrap();
    file.rewind().unwrap();
    (digest, file)
}

/// A new tree as a sandbox's root would make it: everything is the mapped root's.
fn tree(fill: impl FnOnce(&Path)) -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    fill(directory.path());
    adopt(directory.path());
    directory
}

fn adopt(path: &Path) {
    let metadata = path.symlink_metadata().unwrap();
    if metadata.uid() < ID_BASE {
        lchown(path, Some(ID_BASE + metadata.uid()), Some(ID_BASE + metadata.gid())).unwrap();
        if !metadata.is_symlink() {
            set_mode(path, metadata.mode() & 0o7777).unwrap(); // lchown clears the set-user-id bits
        }
    }
    if metadata.is_dir() {
        fs::read_dir(path).unwrap().for_each(|entry| adopt(&entry.unwrap().path()));
    }
}

fn touch(path: &Path, seconds: i64, nanos: i64) {
    let time = Timespec { tv_sec: seconds, tv_nsec: nanos };
    let times = Timestamps { last_access: time, last_modification: time };
    rustix::fs::utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW).unwrap();
}

/// Everything about a tree that a layer keeps.
fn described(root: &Path) -> BTreeMap<PathBuf, String> {
    let mut found = BTreeMap::new();
    let mut inodes = BTreeMap::new();
    let mut pending = vec![root.to_owned()];
    while let Some(path) = pending.pop() {
        let metadata = path.symlink_metadata().unwrap();
        let name = path.strip_prefix(root).unwrap().to_owned();
        let kind = FileType::from_raw_mode(metadata.mode());
        let mut text = format!("{kind:?} {:o}", metadata.mode() & 0o7777);
        if kind != FileType::CharacterDevice {
            text += &format!(" {}:{}", metadata.uid(), metadata.gid());
        }
        if !name.as_os_str().is_empty() && kind != FileType::CharacterDevice {
            text += &format!(" {}.{}", metadata.mtime(), metadata.mtime_nsec());
        }
        if kind == FileType::Symlink {
            text += &format!(" -> {:?}", fs::read_link(&path).unwrap());
        } else if kind != FileType::CharacterDevice && kind != FileType::Fifo {
            let mut names = vec![0; 4096];
            let length = rustix::fs::listxattr(&path, &mut names).unwrap();
            let mut attributes: Vec<_> =
                names[..length].split(|byte| *byte == 0).filter(|name| !name.is_empty()).collect();
            attributes.sort();
            for attribute in attributes {
                let mut value = vec![0; 4096];
                let length = rustix::fs::getxattr(&path, attribute, &mut value).unwrap();
                text += &format!(" {}={:?}", String::from_utf8_lossy(attribute), &value[..length]);
            }
        }
        if kind == FileType::RegularFile {
            text += &format!(" {:?}", layer_digest(&fs::read(&path).unwrap()));
        }
        if metadata.nlink() > 1 && kind != FileType::Directory {
            inodes.entry(metadata.ino()).or_insert_with(Vec::new).push(name.clone());
        }
        if kind == FileType::Directory {
            pending.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        }
        found.insert(name, text);
    }
    for mut names in inodes.into_values() {
        names.sort();
        for name in &names {
            let text = format!("{} shared by {names:?}", found[name]);
            found.insert(name.clone(), text);
        }
    }
    found
}

fn layer_digest(bytes: &[u8]) -> String {
    use sha2::Digest;
    crate::spec::hex(&sha2::Sha256::digest(bytes))
}

/// Packs, unpacks, compares, packs again.
fn round_trip(tree: &Path) -> LayerDigest {
    let (digest, mut archive) = packed(tree);
    let parent = tempfile::tempdir().unwrap();
    let target = parent.path().join("unpacked");
    assert_eq!(unpack(&mut archive, &target, OWNERS).unwrap(), digest, "the digest is over the whole archive");
    assert_eq!(described(&target), described(tree));
    assert_eq!(packed(&target).0, digest, "what was unpacked is the same layer");
    digest
}

#[test]
fn oddities_survive_the_round_trip() {
    let odd = tree(|root| {
        let long = "n".repeat(255);
        let deep: PathBuf = (0..20).map(|number| format!("{number}-{}", "d".repeat(100))).collect();
        fs::create_dir_all(root.join(&deep)).unwrap();
        fs::write(root.join(&deep).join(&long), "deep").unwrap();
        fs::write(root.join(OsString::from_vec(b"not-utf8-\xff\xfe".to_vec())), "bytes").unwrap();
        fs::write(root.join(OsString::from_vec([&b"\xff".repeat(150)[..], b"x"].concat())), "long bytes").unwrap();
        fs::write(root.join("name\nwith\tcontrol\u{7f}"), "").unwrap();
        fs::write(root.join(" spaces = equals "), "x").unwrap();
        fs::create_dir(root.join("empty")).unwrap();
        set_mode(&root.join("empty"), 0o1777).unwrap();
        fs::write(root.join("suid"), "x").unwrap();
        lchown(root.join("suid"), Some(1000), Some(65535)).unwrap();
        set_mode(&root.join("suid"), 0o6755).unwrap();
        fs::write(root.join("none"), "unreadable").unwrap();
        set_mode(&root.join("none"), 0).unwrap();
        fs::write(root.join("a-link"), "shared").unwrap();
        fs::hard_link(root.join("a-link"), root.join("empty/z-link")).unwrap();
        fs::hard_link(root.join("a-link"), root.join("b-link")).unwrap();
        symlink("/etc/passwd", root.join("absolute")).unwrap();
        symlink("../../../..", root.join("upwards")).unwrap();
        symlink(format!("long/{}", "l".repeat(300)), root.join("long-target")).unwrap();
        symlink(OsString::from_vec(b"\xffbytes".to_vec()), root.join("byte-target")).unwrap();
        rustix::fs::mknodat(CWD, root.join("fifo"), FileType::Fifo, Mode::from_raw_mode(0o640), 0).unwrap();
        rustix::fs::mknodat(CWD, root.join("deleted"), FileType::CharacterDevice, Mode::empty(), 0).unwrap();
        fs::write(root.join(".wh.literal"), "a name, not a mark").unwrap();
        fs::create_dir(root.join(".wh..wh..opq")).unwrap();
        fs::create_dir(root.join("marks")).unwrap();
        for name in [".wh..opq", ".wh.x", ".wh."] {
            rustix::fs::mknodat(CWD, root.join("marks").join(name), FileType::CharacterDevice, Mode::empty(), 0)
                .unwrap();
        }
        fs::create_dir(root.join("opaque")).unwrap();
        rustix::fs::setxattr(root.join("opaque"), "user.overlay.opaque", b"y", XattrFlags::empty()).unwrap();
        rustix::fs::mknodat(CWD, root.join("opaque/deleted"), FileType::CharacterDevice, Mode::empty(), 0).unwrap();
        rustix::fs::setxattr(root.join("suid"), "user.note", b"\0\n=\xff", XattrFlags::empty()).unwrap();
        rustix::fs::setxattr(root.join("empty"), "user.empty", b"", XattrFlags::empty()).unwrap();
        rustix::fs::setxattr(root.join("empty"), "user.overlay.overlay.opaque", b"y", XattrFlags::empty()).unwrap();
        for (name, seconds, nanos) in
            [("suid", 1, 1), ("absolute", 2_000_000_000, 999_999_999), ("fifo", -1, 500_000_000), ("empty", 1 << 33, 0)]
        {
            touch(&root.join(name), seconds, nanos);
        }
    });
    round_trip(odd.path());
}

#[test]
fn overlays_private_marks_and_sockets_are_not_part_of_a_layer() {
    let plain = tree(|root| {
        fs::create_dir(root.join("directory")).unwrap();
        touch(&root.join("directory"), 5, 0);
    });
    let marked = tree(|root| {
        fs::create_dir(root.join("directory")).unwrap();
        for name in ["user.overlay.origin", "user.overlay.impure", "user.overlay.nlink"] {
            rustix::fs::setxattr(root.join("directory"), name, b"y", XattrFlags::empty()).unwrap();
        }
        drop(std::os::unix::net::UnixListener::bind(root.join("directory/socket")).unwrap());
        touch(&root.join("directory"), 5, 0);
    });
    assert_eq!(packed(plain.path()).0, packed(marked.path()).0);
}

#[test]
fn holes_stay_holes() {
    let sparse = tree(|root| {
        let file = File::create(root.join("image")).unwrap();
        file.set_len(9 << 30).unwrap();
        file.write_all_at(b"start", 0).unwrap();
        file.write_all_at(b"beyond what an octal size can say", (8 << 30) + 12345).unwrap();
        file.sync_all().unwrap();
        touch(&root.join("image"), 1, 0);
    });
    let (digest, mut archive) = packed(sparse.path());
    assert!(archive.metadata().unwrap().len() < 1 << 20, "{} bytes", archive.metadata().unwrap().len());
    let parent = tempfile::tempdir().unwrap();
    let target = parent.path().join("unpacked");
    unpack(&mut archive, &target, OWNERS).unwrap();
    let image = File::open(target.join("image")).unwrap();
    let metadata = image.metadata().unwrap();
    assert_eq!(metadata.len(), 9 << 30);
    assert!(metadata.blocks() * 512 < 1 << 20);
    let mut found = [0; 12];
    image.read_exact_at(&mut found, (8 << 30) + 12345).unwrap();
    assert_eq!(&found, b"beyond what ");
    assert_eq!(packed(&target).0, digest);
}

#[test]
fn the_order_of_making_does_not_matter() {
    let names: Vec<String> = (0..50).map(|number| format!("f{}", number * 7919 % 50)).collect();
    let make = |names: &mut dyn Iterator<Item = &String>| {
        tree(|root| {
            for name in names {
                fs::write(root.join(name), name).unwrap();
                touch(&root.join(name), 7, 7);
            }
        })
    };
    let one = make(&mut names.iter());
    let other = make(&mut names.iter().rev());
    assert_eq!(packed(one.path()).0, packed(other.path()).0);
}

#[test]
fn an_owner_that_no_sandbox_has_is_refused_on_the_way_in_and_out() {
    let foreign = tree(|root| fs::write(root.join("file"), "x").unwrap());
    lchown(foreign.path().join("file"), Some(0), Some(0)).unwrap();
    let mut out = tempfile::tempfile().unwrap();
    assert_eq!(pack(foreign.path(), OWNERS, &mut out).unwrap_err().kind(), ErrorKind::Corrupt);
    for id in [65536, 1 << 32, u64::from(u32::MAX)] {
        let error = unpacked_from(vec![member("x", EntryType::Regular, "", id)]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    }
}

/// One member of a hostile archive: header and data.
fn member(name: &str, kind: EntryType, link: &str, uid: u64) -> Vec<u8> {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
    header.as_old_mut().linkname[..link.len()].copy_from_slice(link.as_bytes());
    header.set_uid(uid);
    header.set_gid(0);
    header.set_mode(0o644);
    header.set_mtime(0);
    header.set_size(0);
    header.set_cksum();
    header.as_bytes().to_vec()
}

fn unpacked_from(members: Vec<Vec<u8>>) -> Result<LayerDigest, EngineError> {
    let parent = tempfile::tempdir().unwrap();
    fs::write(parent.path().join("outside"), "untouched").unwrap();
    let before = described(parent.path());
    let mut archive = tempfile::tempfile().unwrap();
    archive.write_all(&members.concat()).unwrap();
    archive.write_all(&[0; 1024]).unwrap();
    archive.rewind().unwrap();
    let target = parent.path().join("unpacked");
    let result = unpack(&mut archive, &target, OWNERS);
    if target.exists() {
        let marks = described(&target);
        for (name, text) in marks {
            assert!(!text.contains("BlockDevice"), "{name:?}");
        }
        fs::remove_dir_all(&target).unwrap();
    }
    let untouched = |mut tree: BTreeMap<PathBuf, String>| {
        tree.remove(Path::new(""));
        tree
    };
    assert_eq!(untouched(described(parent.path())), untouched(before), "nothing outside was touched");
    result
}

#[test]
fn hostile_members_are_refused_and_nothing_outside_is_touched() {
    use EntryType::{Block, Char, Directory, Link, Regular, Symlink};
    let directory = || member("d/", Directory, "", 0);
    let escape = || member("d/link", Symlink, "../../outside", 0);
    let above = || member("d/up", Symlink, "../..", 0);
    for (what, members) in [
        ("absolute", vec![member("/etc/passwd", Regular, "", 0)]),
        ("upwards", vec![member("../outside", Regular, "", 0)]),
        ("upwards inside", vec![directory(), member("d/../../outside", Regular, "", 0)]),
        ("only upwards", vec![member("..", Directory, "", 0)]),
        ("empty part", vec![directory(), member("d//x", Regular, "", 0)]),
        ("through a link", vec![directory(), above(), member("d/up/outside", Regular, "", 0)]),
        ("through a link, a directory", vec![directory(), above(), member("d/up/new/", Directory, "", 0)]),
        ("over a link", vec![directory(), escape(), member("d/link", Regular, "", 0)]),
        ("hard link upwards", vec![member("x", Link, "../outside", 0)]),
        ("hard link to an absolute name", vec![member("x", Link, "/etc/passwd", 0)]),
        ("hard link through a link", vec![directory(), above(), member("x", Link, "d/up/outside", 0)]),
        ("hard link to the root", vec![member("x", Link, "./", 0)]),
        ("hard link to nothing", vec![member("x", Link, "", 0)]),
        ("device", vec![member("x", Char, "", 0)]),
        ("disk", vec![member("x", Block, "", 0)]),
        ("twice", vec![member("x", Regular, "", 0), member("x", Regular, "", 0)]),
        ("a file and a directory", vec![member("x", Regular, "", 0), member("x/y", Regular, "", 0)]),
        ("a member before its directory", vec![member("d/x", Regular, "", 0)]),
        ("whiteout of nothing", vec![member(".wh.", Regular, "", 0)]),
        ("whiteout upwards", vec![member(".wh...", Regular, "", 0)]),
        ("whiteout through a link", vec![directory(), above(), member("d/up/.wh.outside", Regular, "", 0)]),
        ("opaque through a link", vec![directory(), above(), member("d/up/.wh..wh..opq", Regular, "", 0)]),
        ("root that is a file", vec![member("./", Regular, "", 0)]),
        ("garbage", vec![vec![0xff; 512]]),
        ("cut short", vec![directory(), member("x", Regular, "", 0)[..100].to_vec()]),
    ] {
        let error = unpacked_from(members).expect_err(what);
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{what}: {error}");
    }
    // A link may say anything, as long as nothing goes through it.
    unpacked_from(vec![directory(), escape()]).unwrap();
}

#[test]
fn attributes_that_are_not_a_users_are_refused() {
    for name in ["trusted.overlay.opaque", "security.capability", "system.posix_acl_access"] {
        let mut archive = tar::Builder::new(Vec::new());
        archive.append_pax_extensions([(format!("{XATTR}{name}").as_str(), &b"y"[..])]).unwrap();
        let mut header = Header::new_ustar();
        header.set_path("d").unwrap();
        header.set_entry_type(EntryType::Directory);
        header.set_uid(0);
        header.set_gid(0);
        header.set_mode(0o755);
        header.set_mtime(0);
        header.set_size(0);
        header.set_cksum();
        archive.append(&header, std::io::empty()).unwrap();
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&archive.into_inner().unwrap()).unwrap();
        file.rewind().unwrap();
        let parent = tempfile::tempdir().unwrap();
        assert!(unpack(&mut file, &parent.path().join("x"), OWNERS).is_err(), "{name}");
    }
}

#[test]
fn a_changed_archive_is_noticed_and_leaves_no_directory() {
    let parent = tempfile::tempdir().unwrap();
    let data = DataDir::open(&parent.path().join("data")).unwrap();
    let layer = tree(|root| fs::write(root.join("file"), "content").unwrap());
    let digest = store(&data, layer.path(), IdMode::Range).unwrap();
    assert_eq!(store(&data, layer.path(), IdMode::Range).unwrap(), digest, "storing it again is fine");
    let archive = data.layer(&digest);
    let mut bytes = fs::read(&archive).unwrap();
    let at = bytes.windows(7).position(|window| window == b"content").unwrap();
    bytes[at] = b'C';
    fs::write(&archive, &bytes).unwrap();
    let error = unpacked(&data, &digest, IdMode::Range).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    assert_eq!(error.id(), Some(digest.to_string().as_str()));
    assert_eq!(fs::read_dir(data.cache()).unwrap().count(), 0);
    bytes[at] = b'c';
    fs::write(&archive, &bytes).unwrap();
    let directory = unpacked(&data, &digest, IdMode::Range).unwrap();
    assert_eq!(fs::read_to_string(directory.join("file")).unwrap(), "content");
    assert_eq!(unpacked(&data, &digest, IdMode::Range).unwrap(), directory);
    assert_eq!(fs::read_dir(data.layers()).unwrap().count(), 1);
}

#[test]
fn what_an_earlier_process_left_unfinished_is_removed() {
    let parent = tempfile::tempdir().unwrap();
    let data = DataDir::open(&parent.path().join("data")).unwrap();
    fs::create_dir_all(data.cache().join(".new-1-0/some/tree")).unwrap();
    fs::write(data.layers().join(".new-1-7"), "half").unwrap();
    remove_unfinished(&data).unwrap();
    assert_eq!(fs::read_dir(data.cache()).unwrap().count() + fs::read_dir(data.layers()).unwrap().count(), 0);
}

#[derive(Debug, Clone)]
enum Kind {
    Directory { opaque: bool },
    File(Vec<u8>),
    Sparse(u32),
    Link(Vec<u8>),
    HardLink(usize),
    Deleted,
}

#[derive(Debug, Clone)]
struct Node {
    parent: usize,
    name: Vec<u8>,
    kind: Kind,
    mode: u32,
    owner: u32,
    time: (i64, i64),
}

fn node() -> impl Strategy<Value = Node> {
    let byte = any::<u8>().prop_filter("no separator", |byte| !matches!(byte, 0 | b'/'));
    let name = prop_oneof![
        proptest::collection::vec(byte, 1..120),
        Just(b".wh.x".to_vec()),
        Just(b"x".to_vec()),
        Just(b"\xc3\xa9".to_vec())
    ]
    .prop_filter("not special", |name| name != b"." && name != b"..");
    let target = proptest::collection::vec(any::<u8>().prop_filter("no NUL", |byte| *byte != 0), 1..200);
    let kind = prop_oneof![
        3 => any::<bool>().prop_map(|opaque| Kind::Directory { opaque }),
        4 => proptest::collection::vec(any::<u8>(), 0..2000).prop_map(Kind::File),
        1 => (0u32..1 << 22).prop_map(Kind::Sparse),
        2 => target.prop_map(Kind::Link),
        1 => any::<usize>().prop_map(Kind::HardLink),
        1 => Just(Kind::Deleted),
    ];
    (any::<usize>(), name, kind, 0u32..0o10000, 0u32..65536, (0i64..1 << 34, 0i64..1_000_000_000))
        .prop_map(|(parent, name, kind, mode, owner, time)| Node { parent, name, kind, mode, owner, time })
}

/// Makes what can be made of the nodes: a name that is taken is left out.
fn build(root: &Path, nodes: &[Node]) {
    let mut directories = vec![root.to_owned()];
    let mut files: Vec<PathBuf> = Vec::new();
    let mut times = Vec::new();
    for node in nodes {
        let path = directories[node.parent % directories.len()].join(std::ffi::OsStr::from_bytes(&node.name));
        if path.symlink_metadata().is_ok() {
            continue;
        }
        match &node.kind {
            Kind::Directory { opaque } => {
                fs::create_dir(&path).unwrap();
                if *opaque {
                    rustix::fs::setxattr(&path, "user.overlay.opaque", b"y", XattrFlags::empty()).unwrap();
                }
                directories.push(path.clone());
            }
            Kind::File(content) => fs::write(&path, content).unwrap(),
            Kind::Sparse(offset) => File::create(&path).unwrap().write_all_at(b"end", u64::from(*offset)).unwrap(),
            Kind::Link(target) => symlink(std::ffi::OsStr::from_bytes(target), &path).unwrap(),
            Kind::HardLink(which) => {
                let Some(file) = files.get(which % files.len().max(1)) else { continue };
                fs::hard_link(file, &path).unwrap();
                continue;
            }
            Kind::Deleted => {
                rustix::fs::mknodat(CWD, &path, FileType::CharacterDevice, Mode::empty(), 0).unwrap();
                continue;
            }
        }
        lchown(&path, Some(ID_BASE + node.owner), Some(ID_BASE + node.owner)).unwrap();
        if !matches!(node.kind, Kind::Link(_)) {
            set_mode(&path, node.mode).unwrap();
        }
        if matches!(node.kind, Kind::File(_) | Kind::Sparse(_)) {
            files.push(path.clone());
        }
        times.push((path, node.time));
    }
    adopt(root);
    for (path, (seconds, nanos)) in times.iter().rev() {
        touch(path, *seconds, *nanos);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_tree_survives_and_has_one_digest(nodes in proptest::collection::vec(node(), 0..25)) {
        let one = tempfile::tempdir().unwrap();
        build(one.path(), &nodes);
        let digest = round_trip(one.path());
        let other = tempfile::tempdir().unwrap();
        build(other.path(), &nodes);
        prop_assert_eq!(packed(other.path()).0, digest);
    }

    #[test]
    fn damaged_archives_never_panic_or_escape(at in 0usize..20_000, value in any::<u8>(), cut in any::<bool>()) {
        let layer = tree(|root| {
            fs::create_dir_all(root.join("a/b")).unwrap();
            fs::write(root.join("a/b/file"), vec![7; 3000]).unwrap();
            symlink("../..", root.join("a/up")).unwrap();
            fs::write(root.join("n".repeat(150)), "long").unwrap();
        });
        let (_, mut archive) = packed(layer.path());
        let mut bytes = Vec::new();
        archive.read_to_end(&mut bytes).unwrap();
        let at = at % bytes.len();
        if cut { bytes.truncate(at) } else { bytes[at] = value }
        drop(unpacked_from(vec![bytes]));
    }
}
