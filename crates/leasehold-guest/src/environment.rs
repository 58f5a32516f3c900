//! The environment of processes: what every one has, what a terminal adds, and what a request lays over it.

use std::collections::BTreeMap;
use std::ffi::OsString;

use crate::identity::Identity;
use crate::users::User;

/// Where programs are looked up unless a request says otherwise.
pub const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// What a terminal program needs; without a UTF-8 locale, box drawing is garbled (e2b-dev/E2B#1072).
const TERMINAL: [(&str, &str); 3] = [("TERM", "xterm-256color"), ("LANG", "C.UTF-8"), ("LC_ALL", "C.UTF-8")];

/// Whether the process runs on a terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Terminal {
    /// It does.
    Yes,
    /// It does not.
    No,
}

/// The environment of a process: later sources win over earlier ones, in this order: the user's, the sandbox's, the terminal's,
/// the identity's variables, the request's.
#[must_use]
pub fn build(
    identity: &Identity,
    user: &User,
    terminal: Terminal,
    request: &BTreeMap<String, String>,
) -> BTreeMap<OsString, OsString> {
    let mut env = BTreeMap::new();
    let mut set = |name: &str, value: OsString| env.insert(OsString::from(name), value);
    set("PATH", DEFAULT_PATH.into());
    set("HOME", user.home.clone().into());
    set("USER", user.name.clone().into());
    set("LOGNAME", user.name.clone().into());
    set("E2B_SANDBOX", "true".into());
    set("E2B_SANDBOX_ID", identity.sandbox_id.clone().into());
    set("E2B_TEMPLATE_ID", identity.template_id.clone().into());
    if terminal == Terminal::Yes {
        for (name, value) in TERMINAL {
            set(name, value.into());
        }
    }
    for (name, value) in identity.envs.iter().chain(request) {
        set(name, value.into());
    }
    env
}

/// The first variable that `execve` could not carry, with what is wrong with it.
#[must_use]
pub fn first_unusable(env: &BTreeMap<String, String>) -> Option<String> {
    env.iter().find_map(|(name, value)| {
        if name.is_empty() {
            Some("environment variable with an empty name".to_owned())
        } else if name.contains(['=', '\0']) {
            Some(format!("environment variable {name:?} has '=' or NUL in its name"))
        } else if value.contains('\0') {
            Some(format!("environment variable {name:?} has NUL in its value"))
        } else {
            None
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_win_over_the_identity_which_wins_over_the_defaults() {
        let mut identity = Identity::new("i1", "host");
        identity.envs =
            [("A", "identity"), ("B", "identity"), ("TERM", "vt100")].map(|(k, v)| (k.into(), v.into())).into();
        let user = User {
            name: "user".into(),
            uid: 1,
            gid: 1,
            groups: vec![1],
            home: "/home/user".into(),
            shell: "/bin/sh".into(),
        };
        let request = [("B", "request"), ("HOME", "/elsewhere")].map(|(k, v)| (k.into(), v.into())).into();
        let env = build(&identity, &user, Terminal::Yes, &request);
        let get = |name: &str| env.get(&OsString::from(name)).and_then(|value| value.to_str()).unwrap_or("absent");
        assert_eq!((get("A"), get("B"), get("HOME"), get("TERM")), ("identity", "request", "/elsewhere", "vt100"));
        assert_eq!((get("USER"), get("E2B_SANDBOX_ID"), get("LANG")), ("user", "i1", "C.UTF-8"));
        let env = build(&identity, &user, Terminal::No, &request);
        assert!(!env.contains_key(&OsString::from("LANG")));
    }

    #[test]
    fn unusable_variables_are_named() {
        let check = |name: &str, value: &str| first_unusable(&[(name.to_owned(), value.to_owned())].into());
        assert_eq!(check("A", "b=c"), None);
        assert!(check("A=B", "").is_some_and(|text| text.contains("\"A=B\"")));
        assert!(check("", "x").is_some() && check("A", "\0").is_some());
    }
}
