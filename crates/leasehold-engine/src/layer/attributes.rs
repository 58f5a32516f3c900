//! Extended attributes on their way in and out.

use std::os::fd::AsFd;

use rustix::fs::XattrFlags;
use rustix::io::Errno;

/// Where overlayfs keeps its own marks when it is mounted in a user namespace.
const OVERLAY: &[u8] = b"user.overlay.";
const OPAQUE: &[u8] = b"user.overlay.opaque";

/// The attributes of a file.
pub(super) struct Attributes {
    /// Whether the directory hides everything below.
    pub(super) opaque: bool,
    /// What users set: name and value, sorted.
    pub(super) own: Vec<(Vec<u8>, Vec<u8>)>,
}

/// Reads the attributes of an opened file or directory. A file system without attributes has none.
pub(super) fn read(file: impl AsFd) -> Result<Attributes, Errno> {
    let mut found = Attributes { opaque: false, own: Vec::new() };
    let mut names = vec![0u8; 1024];
    let length = loop {
        match rustix::fs::flistxattr(&file, &mut names) {
            Ok(length) => break length,
            // The kernel's limit on all names together is 64 KiB.
            Err(Errno::RANGE) if names.len() < 1 << 16 => names.resize(1 << 16, 0),
            Err(Errno::NOTSUP) => return Ok(found),
            Err(errno) => return Err(errno),
        }
    };
    for name in names[..length].split(|byte| *byte == 0).filter(|name| name.starts_with(b"user.")) {
        if name == OPAQUE {
            // "x" says only that whiteouts may be attributes, which a kernel's own overlay never makes.
            found.opaque = value(&file, name)? == b"y";
        } else if let Some(exported) = exported(name) {
            found.own.push((exported, value(&file, name)?));
        }
    }
    found.own.sort();
    Ok(found)
}

fn value(file: impl AsFd, name: &[u8]) -> Result<Vec<u8>, Errno> {
    let mut value = vec![0u8; 256];
    loop {
        match rustix::fs::fgetxattr(&file, name, &mut value) {
            Ok(length) => {
                value.truncate(length);
                return Ok(value);
            }
            Err(Errno::RANGE) if value.len() < 1 << 16 => value.resize(1 << 16, 0),
            Err(errno) => return Err(errno),
        }
    }
}

/// The name as seen inside; none for overlayfs's own marks.
///
/// Inside, `user.overlay.x` is stored as `user.overlay.overlay.x`: overlayfs escapes its own prefix.
fn exported(name: &[u8]) -> Option<Vec<u8>> {
    let Some(rest) = name.strip_prefix(OVERLAY) else { return Some(name.to_vec()) };
    rest.strip_prefix(b"overlay.").map(|rest| [OVERLAY, rest].concat())
}

/// The name on disk of an attribute as seen inside.
fn imported(name: &[u8]) -> Vec<u8> {
    name.strip_prefix(OVERLAY).map_or_else(|| name.to_vec(), |rest| [OVERLAY, b"overlay.", rest].concat())
}

/// Sets an attribute that a user had set. A name that is not a user's is refused.
pub(super) fn write(file: impl AsFd, name: &[u8], value: &[u8]) -> Result<(), Errno> {
    if !name.starts_with(b"user.") || name.contains(&0) {
        return Err(Errno::PERM);
    }
    rustix::fs::fsetxattr(file, imported(name).as_slice(), value, XattrFlags::empty())
}

/// Makes a directory hide everything below.
pub(super) fn make_opaque(directory: impl AsFd) -> Result<(), Errno> {
    rustix::fs::fsetxattr(directory, OPAQUE, b"y", XattrFlags::empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overlays_own_marks_stay_here_and_a_users_come_back() {
        assert_eq!(exported(b"user.overlay.origin"), None);
        assert_eq!(exported(b"user.overlay.opaque"), None);
        assert_eq!(exported(b"user.note").unwrap(), b"user.note");
        let stored = imported(b"user.overlay.opaque");
        assert_eq!(stored, b"user.overlay.overlay.opaque", "a stored layer cannot plant a mark");
        assert_eq!(exported(&stored).unwrap(), b"user.overlay.opaque");
    }
}
