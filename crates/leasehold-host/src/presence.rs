//! Who needs the host: requests under way and open sessions. An embedded host leaves when nobody does.

use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;

#[derive(Debug, Default)]
struct State {
    clients: usize,
    /// Set once, when the host has decided to leave: from then on nobody enters.
    leaving: bool,
}

/// Counts clients.
#[derive(Debug)]
pub(crate) struct Presence {
    state: Mutex<State>,
    changes: watch::Sender<u64>,
}

impl Default for Presence {
    fn default() -> Self {
        Self { state: Mutex::default(), changes: watch::Sender::new(0) }
    }
}

/// One client; gone when dropped.
#[derive(Debug)]
#[must_use]
pub(crate) struct Client<P: std::borrow::Borrow<Presence>>(P);

impl Presence {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a client in; false when the host is leaving.
    pub(crate) fn enter(&self) -> bool {
        let mut state = self.lock();
        if state.leaving {
            return false;
        }
        state.clients += 1;
        true
    }

    fn exit(&self) {
        self.lock().clients -= 1;
        self.touch();
    }

    /// Closes the door if nobody is in. From then on [`Self::enter`] refuses.
    pub(crate) fn leave_if_empty(&self) -> bool {
        let mut state = self.lock();
        state.leaving |= state.clients == 0;
        state.leaving
    }

    /// Closes the door whoever is in.
    pub(crate) fn leave(&self) {
        self.lock().leaving = true;
    }

    pub(crate) fn clients(&self) -> usize {
        self.lock().clients
    }

    /// Says that something changed that may decide whether the host stays.
    pub(crate) fn touch(&self) {
        self.changes.send_modify(|count| *count = count.wrapping_add(1));
    }

    pub(crate) fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }
}

impl<P: std::borrow::Borrow<Presence>> Client<P> {
    /// Enters, if the host is not leaving.
    pub(crate) fn enter(presence: P) -> Option<Self> {
        presence.borrow().enter().then(|| Self(presence))
    }
}

impl<P: std::borrow::Borrow<Presence>> Drop for Client<P> {
    fn drop(&mut self) {
        self.0.borrow().exit();
    }
}
