//! Users and groups of the sandbox, read from `/etc/passwd` and `/etc/group` at each use.
//!
//! A static program has no NSS, and the files may change while the sandbox runs, so nothing is kept.

use std::fs;
use std::io;
use std::path::PathBuf;

/// A user under whom processes run and files are made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct User {
    /// Login name.
    pub name: String,
    /// User id.
    pub uid: u32,
    /// Primary group.
    pub gid: u32,
    /// All groups, the primary one included.
    pub groups: Vec<u32>,
    /// Home directory.
    pub home: PathBuf,
    /// Login shell.
    pub shell: PathBuf,
}

/// A user that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum UserError {
    /// Nobody has that name.
    #[error("invalid username: '{0}'")]
    Unknown(String),
    /// The list of users cannot be read.
    #[error("cannot read {path}: {source}")]
    Read {
        /// The file.
        path: String,
        /// Why.
        source: io::Error,
    },
}

/// Where users and groups are listed.
#[derive(Debug, Clone)]
pub struct Users {
    passwd: PathBuf,
    group: PathBuf,
}

impl Default for Users {
    fn default() -> Self {
        Self::at("/etc/passwd", "/etc/group")
    }
}

impl Users {
    /// Reads these two files.
    pub fn at(passwd: impl Into<PathBuf>, group: impl Into<PathBuf>) -> Self {
        Self { passwd: passwd.into(), group: group.into() }
    }

    /// The user of that name.
    ///
    /// # Errors
    /// When there is none, or the list cannot be read.
    pub fn by_name(&self, name: &str) -> Result<User, UserError> {
        self.find(|fields| fields[0] == name)?.ok_or_else(|| UserError::Unknown(name.to_owned()))
    }

    /// The name of a user id, if it has one.
    #[must_use]
    pub fn name_of(&self, uid: u32) -> Option<String> {
        self.find(|fields| fields[2].parse() == Ok(uid)).ok()?.map(|user| user.name)
    }

    /// The name of a group id, if it has one.
    #[must_use]
    pub fn group_name_of(&self, gid: u32) -> Option<String> {
        let text = read_lossy(&self.group).ok()?;
        text.lines().find_map(|line| {
            let mut fields = line.split(':');
            let name = fields.next()?;
            (fields.nth(1)?.parse() == Ok(gid)).then(|| name.to_owned())
        })
    }

    fn find(&self, wanted: impl Fn(&[&str]) -> bool) -> Result<Option<User>, UserError> {
        let text = read_lossy(&self.passwd)
            .map_err(|source| UserError::Read { path: self.passwd.display().to_string(), source })?;
        for line in text.lines() {
            let fields: Vec<_> = line.split(':').collect();
            let [name, _, uid, gid, _, home, shell] = fields[..] else { continue };
            let (Ok(uid), Ok(gid)) = (uid.parse(), gid.parse()) else { continue };
            if name.is_empty() || !wanted(&fields) {
                continue;
            }
            let or = |text: &str, default: &str| PathBuf::from(if text.is_empty() { default } else { text });
            return Ok(Some(User {
                name: name.to_owned(),
                uid,
                gid,
                groups: self.groups_of(name, gid),
                home: or(home, "/"),
                shell: or(shell, "/bin/sh"),
            }));
        }
        Ok(None)
    }

    /// A missing group file means: no groups beside the primary one.
    fn groups_of(&self, name: &str, primary: u32) -> Vec<u32> {
        let mut groups = vec![primary];
        for line in read_lossy(&self.group).unwrap_or_default().lines() {
            let fields: Vec<_> = line.split(':').collect();
            let [_, _, gid, members] = fields[..] else { continue };
            if let Ok(gid) = gid.parse()
                && !groups.contains(&gid)
                && members.split(',').any(|member| member == name)
            {
                groups.push(gid);
            }
        }
        groups
    }
}

fn read_lossy(path: &PathBuf) -> io::Result<String> {
    Ok(String::from_utf8_lossy(&fs::read(path)?).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_are_found_with_all_their_groups() {
        let dir = tempfile::tempdir().unwrap();
        let (passwd, group) = (dir.path().join("passwd"), dir.path().join("group"));
        fs::write(
            &passwd,
            "# comment\nroot:x:0:0:root:/root:/bin/bash\nbroken:x:1\nbad:x:y:0:::\nuser:x:1000:1000::/home/user:\n",
        )
        .unwrap();
        fs::write(&group, "root:x:0:\nuser:x:1000:\ndocker:x:999:root,user\nusers:x:100:user\nusers2:x:101:user2\n")
            .unwrap();
        let users = Users::at(&passwd, &group);
        let user = users.by_name("user").unwrap();
        assert_eq!((user.uid, user.gid, user.groups), (1000, 1000, vec![1000, 999, 100]));
        assert_eq!((user.home.to_str(), user.shell.to_str()), (Some("/home/user"), Some("/bin/sh")));
        assert_eq!(users.name_of(0).as_deref(), Some("root"));
        assert_eq!(users.name_of(7), None);
        assert_eq!(users.group_name_of(999).as_deref(), Some("docker"));
        for name in ["x", "", "bad", "broken", "# comment"] {
            assert_eq!(users.by_name(name).unwrap_err().to_string(), format!("invalid username: '{name}'"));
        }
        fs::remove_file(&group).unwrap();
        assert_eq!(users.by_name("user").unwrap().groups, [1000]);
    }
}
