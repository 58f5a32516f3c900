//! The lowest layer of template `host`: directories, links and an `/etc` of our own.
//!
//! Made once per data directory and content: the name is a digest of everything in it, so another release of the machine's system, or of us, is another
//! layer, and an existing one never changes. Ids in it are the sandbox's, shifted to the host range when it is written.

use std::collections::HashSet;
use std::fs;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use sha2::{Digest, Sha256};

use crate::error::{During, EngineError};
use crate::layer::unfinished;
use crate::paths::{DataDir, IdMode, private_dir, set_mode};
use crate::plan::{HostFacts, HostRoot, ID_BASE};
use crate::record::machine_boot_id;
use crate::removal::remove_all;
use crate::spec::hex;

/// The ordinary user of template `host`.
const USER: u32 = 1000;

/// Prefix of the layer's name in the cache; names of stored layers are hexadecimal.
const PREFIX: &str = "host-";

/// One entry, in the order in which it is made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Entry {
    path: PathBuf,
    owner: u32,
    node: Node,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Node {
    Directory { mode: u32 },
    File { mode: u32, content: Vec<u8> },
    Link { to: PathBuf },
}

/// Files of the machine's `/etc` that programs under `/usr` need and that say nothing about this machine's users or services.
const COPIED_FILES: &[&str] = &[
    "etc/ld.so.cache",
    "etc/ld.so.conf",
    "etc/localtime",
    "etc/timezone",
    "etc/os-release",
    "etc/debian_version",
    "etc/inputrc",
    "etc/services",
    "etc/protocols",
    "etc/mime.types",
    "etc/ca-certificates.conf",
    "etc/ssl/openssl.cnf",
];

/// Directories of the same kind, each with what is directly in it. Never a directory that also holds keys.
const COPIED_DIRECTORIES: &[&str] = &[
    "etc/ld.so.conf.d",
    "etc/alternatives",
    "etc/ssl/certs",
    "etc/pki/tls/certs",
    "etc/terminfo",
    "etc/ca-certificates",
];

/// Chosen: certificate bundles and the linker's cache have some hundred kilobytes; a larger file in `/etc` is not what we think it is.
const LARGEST_COPY: u64 = 4 << 20;

const PASSWD: &str = "root:x:0:0:root:/root:/bin/bash\n\
    daemon:x:1:1:daemon:/usr/sbin:/usr/sbin/nologin\n\
    nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n\
    user:x:1000:1000:user:/home/user:/bin/bash\n";

const GROUP: &str = "root:x:0:\ndaemon:x:1:\ntty:x:5:\nnogroup:x:65534:\nuser:x:1000:\n";

const NSSWITCH: &str = "passwd: files\ngroup: files\nshadow: files\nhosts: files dns\nnetworks: files\n\
    protocols: files\nservices: files\nethers: files\nrpc: files\n";

const PROFILE: &str = r#"# System-wide settings of login shells.
if [ "$(id -u)" -eq 0 ]; then
  PATH="${PATH:-/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin}"
else
  PATH="${PATH:-/usr/local/bin:/usr/bin:/bin}"
fi
export PATH
if [ -n "${BASH-}" ] && [ "$BASH" != /bin/sh ] && [ -r /etc/bash.bashrc ]; then
  . /etc/bash.bashrc
fi
"#;

const BASHRC: &str = r#"# Settings of interactive shells.
[ -z "${PS1-}" ] && return
shopt -s checkwinsize
PS1='\u@\h:\w\$ '
"#;

const USER_PROFILE: &str = r#"# Settings of login shells.
if [ -n "${BASH_VERSION-}" ] && [ -r "$HOME/.bashrc" ]; then
  . "$HOME/.bashrc"
fi
for directory in "$HOME/bin" "$HOME/.local/bin"; do
  [ -d "$directory" ] && PATH="$directory:$PATH"
done
unset directory
"#;

const USER_BASHRC: &str = r#"# Settings of interactive shells.
case $- in *i*) ;; *) return ;; esac
HISTCONTROL=ignoreboth
PS1='\u@\h:\w\$ '
"#;

const HOSTS: &str = "127.0.0.1 localhost\n::1 localhost ip6-localhost ip6-loopback\n";

const RESOLV_CONF: &str = "# This sandbox has no network beyond its own loopback interface.\n";

/// What is in the layer, a pure function of what the machine has.
pub(crate) fn entries(facts: &HostFacts, copied: Vec<Entry>) -> Vec<Entry> {
    let mut all = vec![directory("", 0o755)];
    for (name, root) in &facts.roots {
        all.push(match root {
            HostRoot::Link(to) => Entry { path: name.into(), owner: 0, node: Node::Link { to: to.clone() } },
            HostRoot::Directory => directory(name, 0o755),
        });
    }
    for name in
        ["dev", "etc", "home", "mnt", "opt", "proc", "run", "srv", "sys", "var", "var/cache", "var/lib", "var/log"]
    {
        all.push(directory(name, 0o755));
    }
    // Where the guest keeps what it writes; made here, it is no part of every snapshot.
    all.extend([directory("var/lib/leasehold", 0o755), directory("var/lib/leasehold/uploads", 0o1733)]);
    all.extend([directory("root", 0o700), directory("tmp", 0o1777), directory("var/tmp", 0o1777)]);
    all.push(link("var/run", "/run"));
    for home in ["home/user", "home/dify"] {
        all.push(owned(directory(home, 0o755)));
        all.push(owned(file(&format!("{home}/.profile"), USER_PROFILE)));
        all.push(owned(file(&format!("{home}/.bashrc"), USER_BASHRC)));
    }
    all.push(owned(directory("workspace", 0o755)));
    for (path, content) in [
        ("etc/passwd", PASSWD),
        ("etc/group", GROUP),
        ("etc/nsswitch.conf", NSSWITCH),
        ("etc/profile", PROFILE),
        ("etc/bash.bashrc", BASHRC),
        ("etc/hosts", HOSTS),
        ("etc/hostname", "sandbox\n"),
        ("etc/resolv.conf", RESOLV_CONF),
        ("etc/shells", "/bin/sh\n/bin/bash\n"),
        ("root/.profile", USER_PROFILE),
        ("root/.bashrc", USER_BASHRC),
    ] {
        all.push(file(path, content));
    }
    all.push(link("etc/mtab", "/proc/self/mounts"));
    let mut known: HashSet<PathBuf> = all.iter().map(|entry| entry.path.clone()).collect();
    for entry in copied {
        for parent in parents(&entry.path) {
            if known.insert(parent.to_owned()) {
                all.push(directory(parent, 0o755));
            }
        }
        if known.insert(entry.path.clone()) {
            all.push(entry);
        }
    }
    all
}

fn parents(path: &Path) -> impl Iterator<Item = &Path> {
    let mut all: Vec<&Path> = path.ancestors().skip(1).filter(|parent| !parent.as_os_str().is_empty()).collect();
    all.reverse();
    all.into_iter()
}

fn directory(path: impl AsRef<Path>, mode: u32) -> Entry {
    Entry { path: path.as_ref().to_owned(), owner: 0, node: Node::Directory { mode } }
}

fn file(path: &str, content: &str) -> Entry {
    Entry { path: path.into(), owner: 0, node: Node::File { mode: 0o644, content: content.into() } }
}

fn link(path: &str, to: &str) -> Entry {
    Entry { path: path.into(), owner: 0, node: Node::Link { to: to.into() } }
}

fn owned(entry: Entry) -> Entry {
    Entry { owner: USER, ..entry }
}

/// Reads the machine's files that are copied. What is missing or odd is left out: each of them only makes some program nicer.
pub(crate) fn read_copies(root: &Path) -> Vec<Entry> {
    let mut found: Vec<Entry> = COPIED_FILES.iter().filter_map(|path| read_copy(root, Path::new(path))).collect();
    for directory in COPIED_DIRECTORIES {
        let Ok(listing) = fs::read_dir(root.join(directory)) else { continue };
        let mut names: Vec<_> = listing.filter_map(|entry| entry.ok().map(|entry| entry.file_name())).collect();
        names.sort();
        found.extend(names.iter().filter_map(|name| read_copy(root, &Path::new(directory).join(name))));
    }
    found
}

fn read_copy(root: &Path, path: &Path) -> Option<Entry> {
    let source = root.join(path);
    let metadata = fs::symlink_metadata(&source).ok()?;
    let node = if metadata.is_symlink() {
        let to = fs::read_link(&source).ok()?;
        // A link into /usr leads to the same file inside; any other is replaced by what it leads to, if that is public.
        let resolved = resolve(&source)?;
        if resolved.starts_with(root.join("usr")) || to.components().count() == 1 {
            Node::Link { to }
        } else {
            public_content(&resolved)?
        }
    } else {
        public_content(&source)?
    };
    Some(Entry { path: path.to_owned(), owner: 0, node })
}

/// Where a path leads in the end. A machine has many hundred links here, and each host start asks about all: the kernel walks one in a single call, while
/// `canonicalize` makes a call per component.
fn resolve(path: &Path) -> Option<PathBuf> {
    let found = rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).ok()?;
    let name = Path::new("/proc/self/fd").join(found.as_raw_fd().to_string());
    fs::read_link(name).ok()
}

/// The content of a regular file that every user of this machine may read.
fn public_content(source: &Path) -> Option<Node> {
    let metadata = fs::symlink_metadata(source).ok()?;
    let public = metadata.is_file() && metadata.permissions().mode() & 0o004 != 0 && metadata.len() <= LARGEST_COPY;
    let content = public.then(|| fs::read(source).ok()).flatten()?;
    Some(Node::File { mode: 0o644, content })
}

/// Digest of everything in the layer.
pub(crate) fn stamp(entries: &[Entry]) -> String {
    let mut hash = Sha256::new();
    for entry in entries {
        let (kind, mode, content): (u8, u32, &[u8]) = match &entry.node {
            Node::Directory { mode } => (b'd', *mode, &[]),
            Node::File { mode, content } => (b'f', *mode, content),
            Node::Link { to } => (b'l', 0, to.as_os_str().as_bytes()),
        };
        hash.update([kind]);
        hash.update(mode.to_le_bytes());
        hash.update(entry.owner.to_le_bytes());
        for part in [entry.path.as_os_str().as_bytes(), content] {
            hash.update((part.len() as u64).to_le_bytes());
            hash.update(part);
        }
    }
    hex(&hash.finalize())
}

/// Writes the layer unless it is there, and says where.
///
/// It is not synced to disk, which may take seconds on a busy one. Instead the machine's boot id is part of the name, so that what a power failure left
/// incomplete is never used again; layers of earlier boots are deleted, as nothing runs on them.
pub(crate) fn install(data: &DataDir, mode: IdMode, entries: &[Entry]) -> Result<PathBuf, EngineError> {
    const STAGE: &str = "base";
    let boot = machine_boot_id()?;
    remove_earlier(data, &boot)?;
    let target = data.cached(&format!("{PREFIX}{}-{boot}", &stamp(entries)[..32]), mode);
    if target.exists() {
        return Ok(target);
    }
    let temporary = unfinished(&data.cache());
    private_dir(&temporary)?;
    for entry in entries {
        let path = temporary.join(&entry.path);
        let what = || format!("cannot make {}", path.display());
        match &entry.node {
            Node::Directory { .. } if entry.path.as_os_str().is_empty() => {}
            Node::Directory { .. } => fs::create_dir(&path).during(STAGE, what())?,
            Node::File { content, .. } => fs::write(&path, content).during(STAGE, what())?,
            Node::Link { to } => symlink(to, &path).during(STAGE, what())?,
        }
        let owner = Some(ID_BASE + entry.owner);
        match &entry.node {
            Node::Link { .. } => std::os::unix::fs::lchown(&path, owner, owner).during(STAGE, what())?,
            Node::Directory { mode } | Node::File { mode, .. } => {
                chown(&path, owner, owner).during(STAGE, what())?;
                set_mode(&path, *mode)?;
            }
        }
    }
    match fs::rename(&temporary, &target) {
        Ok(()) => {}
        // Somebody else was first; both are the same.
        Err(_) if target.exists() => remove_all(&temporary)?,
        Err(error) => return Err(error).during(STAGE, target.display()),
    }
    Ok(target)
}

fn remove_earlier(data: &DataDir, boot: &str) -> Result<(), EngineError> {
    for entry in fs::read_dir(data.cache()).during("base", "cannot list the cache")?.filter_map(Result::ok) {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if name.starts_with(PREFIX) && !name.contains(boot) {
            remove_all(&entry.path())?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts() -> HostFacts {
        HostFacts {
            roots: vec![("usr".into(), HostRoot::Directory), ("bin".into(), HostRoot::Link("usr/bin".into()))],
            has_usr_local: true,
        }
    }

    #[test]
    fn no_entry_comes_before_its_directory_and_none_comes_twice() {
        let copied = vec![file("etc/ssl/certs/a.pem", "x"), file("etc/passwd", "root:secret")];
        let all = entries(&facts(), copied);
        for (at, entry) in all.iter().enumerate() {
            let before: Vec<_> = all[..at].iter().map(|entry| entry.path.as_path()).collect();
            assert!(!before.contains(&entry.path.as_path()), "{entry:?} twice");
            if let Some(parent) = entry.path.parent() {
                assert!(before.contains(&parent), "{entry:?} before {parent:?}");
            }
        }
        let passwd = all.iter().find(|entry| entry.path == Path::new("etc/passwd")).unwrap();
        assert_eq!(passwd.node, Node::File { mode: 0o644, content: PASSWD.into() }, "ours, never the machine's");
    }

    #[test]
    fn another_content_is_another_stamp() {
        let one = entries(&facts(), Vec::new());
        let two = entries(&facts(), vec![file("etc/timezone", "Etc/UTC\n")]);
        assert_ne!(stamp(&one), stamp(&two));
        assert_eq!(stamp(&one), stamp(&entries(&facts(), Vec::new())));
    }

    #[test]
    fn only_public_files_are_copied() {
        let root = tempfile::tempdir().unwrap();
        let etc = root.path().join("etc");
        fs::create_dir_all(etc.join("ssl/certs")).unwrap();
        fs::create_dir_all(root.path().join("usr/share")).unwrap();
        fs::write(root.path().join("usr/share/a.pem"), "A").unwrap();
        fs::write(root.path().join("secret"), "S").unwrap();
        set_mode(&root.path().join("secret"), 0o600).unwrap();
        fs::write(etc.join("services"), "ssh 22/tcp\n").unwrap();
        fs::write(etc.join("protocols"), "hidden").unwrap();
        set_mode(&etc.join("protocols"), 0o640).unwrap();
        symlink("../../../usr/share/a.pem", etc.join("ssl/certs/a.pem")).unwrap();
        symlink("../../../secret", etc.join("ssl/certs/key.pem")).unwrap();
        let copies = read_copies(root.path());
        let paths: Vec<_> = copies.iter().map(|entry| entry.path.to_str().unwrap()).collect();
        assert_eq!(paths, ["etc/services", "etc/ssl/certs/a.pem"]);
        assert!(matches!(copies[1].node, Node::Link { .. }));
    }
}
