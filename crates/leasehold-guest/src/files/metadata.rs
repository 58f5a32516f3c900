//! Key-value metadata of files, kept in extended attributes `user.e2b.<key>`.

use std::collections::BTreeMap;
use std::os::fd::BorrowedFd;
use std::path::Path;

use rustix::fs::{
    XattrFlags, flistxattr, flistxattr_query, fremovexattr, fsetxattr, lgetxattr, llistxattr, llistxattr_query,
};
use rustix::io::Errno;

use super::error::FileError;
use crate::http::Head;

const HEADER_PREFIX: &str = "x-metadata-";
const ATTRIBUTE_PREFIX: &str = "user.e2b.";
/// Longest key in bytes: with the prefix it fits the kernel's 255.
const MAX_KEY_BYTES: usize = 246;
/// All keys and values of one file, in bytes.
const MAX_TOTAL_BYTES: usize = 4096;
/// Most that is read back, in bytes: what other programs put there is cut.
const MAX_READ_BYTES: usize = 64 << 10;

/// Takes the metadata out of a request's headers.
pub(super) fn from_headers(head: &Head) -> Result<BTreeMap<String, String>, FileError> {
    let mut found = BTreeMap::new();
    let mut total = 0;
    for (name, value) in head.headers() {
        let name = name.to_ascii_lowercase();
        let Some(key) = name.strip_prefix(HEADER_PREFIX) else { continue };
        let refuse = |problem: &str| Err(FileError::BadRequest(format!("metadata '{key}' {problem}")));
        if key.is_empty() || key.len() > MAX_KEY_BYTES {
            return refuse("has a key that is empty or longer than 246 bytes");
        }
        if !value.bytes().all(|byte| (b' '..=b'~').contains(&byte)) {
            return refuse("has a value outside printable ASCII");
        }
        total += key.len() + value.len();
        found.insert(key.to_owned(), value.to_owned());
    }
    if total > MAX_TOTAL_BYTES {
        return Err(FileError::BadRequest(format!(
            "metadata is {total} bytes long, at most {MAX_TOTAL_BYTES} are kept"
        )));
    }
    Ok(found)
}

/// Makes `wanted` the whole metadata of an open file.
pub(super) fn replace(file: BorrowedFd<'_>, wanted: &BTreeMap<String, String>) -> Result<(), Errno> {
    for attribute in list(flistxattr_query(file), |buffer| flistxattr(file, buffer)) {
        let key = attribute.strip_prefix(ATTRIBUTE_PREFIX).unwrap_or_default();
        if !wanted.contains_key(key) {
            fremovexattr(file, attribute.as_str())?;
        }
    }
    for (key, value) in wanted {
        fsetxattr(file, format!("{ATTRIBUTE_PREFIX}{key}"), value.as_bytes(), XattrFlags::empty())?;
    }
    Ok(())
}

/// Reads the metadata of a file, not following a link. A file system without attributes has none.
pub(super) fn read(path: &Path) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    for attribute in list(llistxattr_query(path), |buffer| llistxattr(path, buffer)) {
        let mut value = vec![0; MAX_READ_BYTES];
        let Ok(length) = lgetxattr(path, attribute.as_str(), &mut value) else { continue };
        let key = attribute.strip_prefix(ATTRIBUTE_PREFIX).unwrap_or_default().to_owned();
        found.insert(key, String::from_utf8_lossy(&value[..length]).into_owned());
    }
    found
}

/// The names of the attributes that hold metadata.
fn list(length: Result<usize, Errno>, names: impl FnOnce(&mut [u8]) -> Result<usize, Errno>) -> Vec<String> {
    // Most files have none, which costs one call.
    let Ok(length @ 1..) = length else { return Vec::new() };
    let mut buffer = vec![0; length.min(MAX_READ_BYTES)];
    let Ok(length) = names(&mut buffer) else { return Vec::new() };
    let names = buffer[..length].split(|byte| *byte == 0).filter_map(|name| std::str::from_utf8(name).ok());
    names.filter(|name| name.starts_with(ATTRIBUTE_PREFIX)).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd as _;

    use super::*;

    fn head(headers: &str) -> Head {
        Head::parse(format!("POST /files HTTP/1.1\r\n{headers}\r\n").as_bytes()).unwrap().unwrap().0
    }

    #[test]
    fn headers_become_lower_case_keys_within_limits() {
        let found = from_headers(&head("X-Metadata-Author: me\r\nx-metadata-A: b=c\r\nX-Other: x\r\n")).unwrap();
        assert_eq!(found, [("author", "me"), ("a", "b=c")].map(|(key, value)| (key.into(), value.into())).into());
        let refuse = |headers: &str| from_headers(&head(headers)).unwrap_err().to_string();
        assert!(refuse(&format!("X-Metadata-{}: v\r\n", "k".repeat(247))).contains("246"));
        assert!(refuse("X-Metadata-k: ä\r\n").contains("printable"));
        assert!(refuse(&format!("X-Metadata-k: {}\r\n", "v".repeat(4096))).contains("4097"));
    }

    #[test]
    fn metadata_is_replaced_as_a_whole() {
        let dir = tempfile::tempdir_in("/var/tmp").unwrap();
        let path = dir.path().join("file");
        let file = std::fs::File::create(&path).unwrap();
        let set = |pairs: &[(&str, &str)]| {
            let wanted = pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
            replace(file.as_fd(), &wanted).unwrap();
            assert_eq!(read(&path), wanted);
        };
        set(&[("a", "1"), ("b", "")]);
        set(&[("b", "2"), ("c", "3")]);
        set(&[]);
    }
}
