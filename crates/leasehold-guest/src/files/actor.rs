//! Doing file work as the user who asked for it.
//!
//! The guest is root in the sandbox, its callers mostly are not. Checking permissions by hand before acting as root would be a
//! race with every symbolic link the user can swap; so the kernel checks: for the length of an operation, the *thread* takes
//! the user's effective ids and groups and gives up every effective capability. Linux keeps credentials per thread, and
//! `rustix` makes the bare system calls, without the C library's broadcast to the other threads.
//!
//! Effective ids instead of `setfsuid`: gVisor has no `setfsuid`, and the file-system ids follow the effective ones. Real and saved ids
//! stay root's, so that the thread can come back, and so that a process of the user can neither signal nor trace it.
//! Capabilities are cleared explicitly, since the kernel's own clearing can be switched off by securebits.

use std::io;
use std::marker::PhantomData;
use std::thread;

use rustix::process::{Gid, Uid, getegid, geteuid, getgroups, getuid};
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, set_capabilities, set_thread_groups, set_thread_res_gid,
    set_thread_res_uid,
};

use crate::users::User;

/// The calling thread is this user until the value is dropped. Cannot move to another thread.
#[must_use = "dropping it makes the thread root again"]
#[derive(Debug)]
pub(crate) struct ActingAs {
    /// What to go back to; `None` when the thread already is that user.
    saved: Option<Saved>,
    not_send: PhantomData<*const ()>,
}

#[derive(Debug)]
struct Saved {
    uid: Uid,
    gid: Gid,
    groups: Vec<Gid>,
    capabilities: CapabilitySets,
}

impl ActingAs {
    /// Makes the calling thread act as `user`.
    ///
    /// # Errors
    /// `PermissionDenied` when the guest is not root and the user is somebody else; whatever the kernel refuses. The thread is then
    /// what it was before.
    pub(crate) fn user(user: &User) -> io::Result<Self> {
        let saved = if user.uid == geteuid().as_raw() {
            // Root in a sandbox acts as root; a guest without root (one id in the sandbox) is the user already.
            None
        } else if getuid().is_root() {
            let saved =
                Saved { uid: geteuid(), gid: getegid(), groups: getgroups()?, capabilities: capabilities(None)? };
            if let Err(error) = become_user(user, &saved) {
                saved.restore()?;
                return Err(error);
            }
            Some(saved)
        } else {
            return Err(io::Error::new(
                io::ErrorKind::PermissionDenied,
                format!("this sandbox has one user id: it cannot act as '{}'", user.name),
            ));
        };
        Ok(Self { saved, not_send: PhantomData })
    }
}

fn become_user(user: &User, saved: &Saved) -> io::Result<()> {
    let groups: Vec<Gid> = user.groups.iter().map(|gid| Gid::from_raw(*gid)).collect();
    set_thread_groups(&groups)?;
    set_thread_res_gid(None, Gid::from_raw(user.gid), None)?;
    set_thread_res_uid(None, Uid::from_raw(user.uid), None)?;
    set_capabilities(None, CapabilitySets { effective: CapabilitySet::empty(), ..saved.capabilities })?;
    Ok(())
}

impl Saved {
    fn restore(&self) -> io::Result<()> {
        // The ids first: the saved ones may always become the effective ones. The groups last: they need a capability.
        set_thread_res_uid(None, self.uid, None)?;
        set_thread_res_gid(None, self.gid, None)?;
        set_capabilities(None, self.capabilities)?;
        set_thread_groups(&self.groups)?;
        Ok(())
    }
}

impl Drop for ActingAs {
    fn drop(&mut self) {
        let Some(saved) = self.saved.take() else { return };
        if let Err(error) = saved.restore() {
            // Never seen: the saved ids allow it. A thread with too few rights must not serve another request; the panic ends its
            // connection. While another panic unwinds, that one does.
            assert!(thread::panicking(), "cannot act as root again: {error}");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};

    use super::*;

    fn somebody() -> User {
        User {
            name: "somebody".into(),
            uid: 54_321,
            gid: 54_322,
            groups: vec![54_322, 54_323],
            home: "/".into(),
            shell: "/bin/sh".into(),
        }
    }

    #[test]
    fn a_thread_has_the_users_rights_and_then_its_own_again() {
        assert!(getuid().is_root(), "the guest's tests run as root");
        let dir = tempfile::tempdir().unwrap();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o777)).unwrap();
        let (secret, shared) = (dir.path().join("secret"), dir.path().join("shared"));
        fs::write(&secret, "root's").unwrap();
        fs::set_permissions(&secret, fs::Permissions::from_mode(0o600)).unwrap();
        fs::write(&shared, "the group's").unwrap();
        std::os::unix::fs::chown(&shared, Some(0), Some(54_323)).unwrap();
        fs::set_permissions(&shared, fs::Permissions::from_mode(0o040)).unwrap();
        let before = capabilities(None).unwrap();
        {
            let _acting = ActingAs::user(&somebody()).unwrap();
            assert_eq!(fs::read(&secret).unwrap_err().kind(), io::ErrorKind::PermissionDenied);
            assert_eq!(fs::read_to_string(&shared).unwrap(), "the group's");
            assert!(capabilities(None).unwrap().effective.is_empty());
            fs::write(dir.path().join("mine"), "x").unwrap();
            let mine = fs::metadata(dir.path().join("mine")).unwrap();
            assert_eq!((mine.uid(), mine.gid()), (54_321, 54_322));
        }
        assert_eq!(capabilities(None).unwrap(), before);
        assert_eq!((geteuid().as_raw(), getegid().as_raw()), (0, 0));
        assert!(fs::read(&secret).is_ok());
    }

    #[test]
    fn other_threads_stay_root() {
        let (ask, asked) = std::sync::mpsc::channel::<()>();
        let other = thread::spawn(move || asked.recv().map(|()| (geteuid().is_root(), getegid().as_raw())));
        let _acting = ActingAs::user(&somebody()).unwrap();
        ask.send(()).unwrap();
        assert_eq!(other.join().unwrap(), Ok((true, 0)));
    }

    #[test]
    fn a_panic_while_acting_leaves_the_thread_root() {
        let result = std::panic::catch_unwind(|| {
            let _acting = ActingAs::user(&somebody()).unwrap();
            panic!("handler failed");
        });
        assert!(result.is_err());
        assert!(geteuid().is_root() && !capabilities(None).unwrap().effective.is_empty());
    }

    #[test]
    fn root_acts_as_root() {
        let root = User { name: "root".into(), uid: 0, gid: 0, groups: vec![0], ..somebody() };
        let _acting = ActingAs::user(&root).unwrap();
        assert!(!capabilities(None).unwrap().effective.is_empty());
    }
}
