//! Sessions: what a client made goes when the client goes, and what it used is paused.
//!
//! A client keeps one streaming request open for as long as it lives. When that connection ends, however it ends, the
//! sandboxes made under the session are killed, unless somebody promised to keep them; a kept sandbox that it connected to is
//! paused, unless another session uses it too.

use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::ids::{SandboxId, random_text};

/// Open sessions and the sandboxes of each.
#[derive(Debug, Default)]
pub(crate) struct Sessions {
    open: Mutex<HashMap<String, Belongings>>,
}

#[derive(Debug, Default)]
struct Belongings {
    made: HashSet<SandboxId>,
    used: HashSet<SandboxId>,
}

/// What is to be done when a session has ended.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Ended {
    pub(crate) kill: HashSet<SandboxId>,
    pub(crate) pause: HashSet<SandboxId>,
}

impl Sessions {
    fn lock(&self) -> MutexGuard<'_, HashMap<String, Belongings>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens a session and names it.
    pub(crate) fn open(&self) -> String {
        let id = format!("s{}", random_text(20));
        self.lock().insert(id.clone(), Belongings::default());
        id
    }

    /// Makes `sandbox` belong to `session`; false if that session is not open (any more).
    pub(crate) fn adopt(&self, session: &str, sandbox: &SandboxId) -> bool {
        match self.lock().get_mut(session) {
            Some(belongings) => {
                belongings.made.insert(sandbox.clone());
                true
            }
            None => false,
        }
    }

    /// Notes that `session` uses `sandbox`, which it does not own; false if that session is not open (any more).
    pub(crate) fn note_use(&self, session: &str, sandbox: &SandboxId) -> bool {
        match self.lock().get_mut(session) {
            Some(belongings) => {
                belongings.used.insert(sandbox.clone());
                true
            }
            None => false,
        }
    }

    /// Turns ownership of `sandbox` into mere use: it outlives the session that made it.
    pub(crate) fn keep(&self, sandbox: &SandboxId) {
        for belongings in self.lock().values_mut() {
            if belongings.made.remove(sandbox) {
                belongings.used.insert(sandbox.clone());
            }
        }
    }

    /// Takes `sandbox` out of whatever session it belongs to.
    pub(crate) fn release(&self, sandbox: &SandboxId) {
        for belongings in self.lock().values_mut() {
            belongings.made.remove(sandbox);
            belongings.used.remove(sandbox);
        }
    }

    /// Ends a session and tells what becomes of its sandboxes.
    pub(crate) fn end(&self, session: &str) -> Ended {
        let mut open = self.lock();
        let Some(Belongings { made, mut used }) = open.remove(session) else { return Ended::default() };
        used.retain(|sandbox| !open.values().any(|other| other.used.contains(sandbox) || other.made.contains(sandbox)));
        Ended { kill: made, pause: used }
    }

    /// Whether `sandbox` goes when a session ends.
    pub(crate) fn holds(&self, sandbox: &SandboxId) -> bool {
        self.lock().values().any(|belongings| belongings.made.contains(sandbox))
    }

    pub(crate) fn count(&self) -> usize {
        self.lock().len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kept_sandbox_is_paused_by_the_last_session_that_used_it_and_never_killed() {
        let sessions = Sessions::default();
        let (maker, user) = (sessions.open(), sessions.open());
        let sandbox = SandboxId::random();
        assert!(sessions.adopt(&maker, &sandbox));
        sessions.keep(&sandbox);
        assert!(sessions.note_use(&user, &sandbox));
        assert_eq!(sessions.end(&maker), Ended::default());
        assert_eq!(sessions.end(&user), Ended { kill: HashSet::new(), pause: HashSet::from([sandbox]) });
    }
}
