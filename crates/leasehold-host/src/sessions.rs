//! Sessions: what a client made goes when the client goes.
//!
//! A client keeps one streaming request open for as long as it lives. When that connection ends, however it ends, the
//! sandboxes made under the session are killed, unless somebody promised to keep them.

use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::ids::{SandboxId, random_text};

/// Open sessions and the sandboxes that belong to each.
#[derive(Debug, Default)]
pub(crate) struct Sessions {
    open: Mutex<HashMap<String, HashSet<SandboxId>>>,
}

impl Sessions {
    fn lock(&self) -> MutexGuard<'_, HashMap<String, HashSet<SandboxId>>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens a session and names it.
    pub(crate) fn open(&self) -> String {
        let id = format!("s{}", random_text(20));
        self.lock().insert(id.clone(), HashSet::new());
        id
    }

    /// Makes `sandbox` belong to `session`; false if that session is not open (any more).
    pub(crate) fn adopt(&self, session: &str, sandbox: &SandboxId) -> bool {
        match self.lock().get_mut(session) {
            Some(sandboxes) => {
                sandboxes.insert(sandbox.clone());
                true
            }
            None => false,
        }
    }

    /// Takes `sandbox` out of whatever session it belongs to.
    pub(crate) fn release(&self, sandbox: &SandboxId) {
        for sandboxes in self.lock().values_mut() {
            sandboxes.remove(sandbox);
        }
    }

    /// Ends a session and tells what belonged to it.
    pub(crate) fn end(&self, session: &str) -> HashSet<SandboxId> {
        self.lock().remove(session).unwrap_or_default()
    }

    /// Whether `sandbox` goes when a session ends.
    pub(crate) fn holds(&self, sandbox: &SandboxId) -> bool {
        self.lock().values().any(|sandboxes| sandboxes.contains(sandbox))
    }

    pub(crate) fn count(&self) -> usize {
        self.lock().len()
    }
}
