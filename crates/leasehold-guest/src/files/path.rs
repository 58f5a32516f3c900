//! From a caller's path to an absolute one.

/// Why a path cannot be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum BadPath {
    #[error("path holds a NUL byte")]
    Nul,
    #[error("path is longer than 4095 bytes")]
    TooLong,
}

/// Longest absolute path that the kernel takes, in bytes.
const MAX_BYTES: usize = 4095;

/// Makes `path` absolute: empty means `workdir`, `~` and `~/x` the home, a relative path lies under `home`. `.`, `..` and
/// repeated slashes are resolved lexically, as envd does, so the result never ends in a slash unless it is `/`. Nothing else
/// is decoded: `%2F`, `#` and blanks are plain characters of a name.
pub(super) fn expand(path: &str, home: &str, workdir: &str) -> Result<String, BadPath> {
    if path.contains('\0') {
        return Err(BadPath::Nul);
    }
    let absolute = match path {
        "" => clean(workdir),
        "~" => clean(home),
        path if path.starts_with("~/") => clean(&format!("{home}/{}", &path[2..])),
        path if path.starts_with('/') => clean(path),
        path => clean(&format!("{home}/{path}")),
    };
    if absolute.len() > MAX_BYTES { Err(BadPath::TooLong) } else { Ok(absolute) }
}

fn clean(path: &str) -> String {
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    format!("/{}", parts.join("/"))
}

/// The last component; `/` for the root.
pub(super) fn name(absolute: &str) -> &str {
    match absolute.rsplit_once('/') {
        Some((_, name)) if !name.is_empty() => name,
        _ => "/",
    }
}

/// The directory that holds it; `/` for the root itself.
pub(super) fn parent(absolute: &str) -> &str {
    match absolute.rsplit_once('/') {
        Some((parent, _)) if !parent.is_empty() => parent,
        _ => "/",
    }
}

/// `name` inside the directory `parent`.
pub(super) fn join(parent: &str, name: &str) -> String {
    if parent == "/" { format!("/{name}") } else { format!("{parent}/{name}") }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at_home(path: &str) -> String {
        expand(path, "/home/user", "/workspace").unwrap()
    }

    #[test]
    fn paths_are_made_absolute_and_nothing_in_a_name_is_decoded() {
        for (path, expected) in [
            ("", "/workspace"),
            ("~", "/home/user"),
            ("~/", "/home/user"),
            ("~/a", "/home/user/a"),
            ("~other", "/home/user/~other"),
            ("./a", "/home/user/a"),
            ("a/../b", "/home/user/b"),
            ("a%2Fb", "/home/user/a%2Fb"),
            ("a b", "/home/user/a b"),
            ("a#b?c", "/home/user/a#b?c"),
            ("a\nb", "/home/user/a\nb"),
            ("/a//b/./c/", "/a/b/c"),
            ("/", "/"),
            ("/..", "/"),
            ("../../../x", "/x"),
        ] {
            assert_eq!(at_home(path), expected, "{path:?}");
        }
        assert_eq!(expand("a\0b", "/", "/"), Err(BadPath::Nul));
        assert_eq!(expand(&"a/".repeat(3000), "/", "/"), Err(BadPath::TooLong));
    }

    #[test]
    fn names_and_parents_of_the_root_are_the_root() {
        for (path, parent_of, name_of) in [("/", "/", "/"), ("/a", "/", "a"), ("/a/b", "/a", "b")] {
            assert_eq!((parent(path), name(path)), (parent_of, name_of));
        }
        assert_eq!((join("/", "a"), join("/a", "b")), ("/a".into(), "/a/b".into()));
    }

    proptest! {
        #[test]
        fn expansion_is_absolute_clean_and_idempotent(path in "[a~./ ä%]{0,24}") {
            let once = at_home(&path);
            prop_assert!(once.starts_with('/'));
            prop_assert!(!once.split('/').skip(1).any(|part| part == ".." || part == "." || (part.is_empty() && once != "/")));
            prop_assert_eq!(at_home(&once), once);
        }
    }
}
