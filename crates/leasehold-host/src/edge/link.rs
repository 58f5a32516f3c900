//! What the edge holds open to one sandbox: idle connections to its daemons, and the means to cut everything at once.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hyper::body::Incoming;
use hyper::client::conn::http1::SendRequest;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;

use crate::port::Door;

/// Requests under way to one sandbox, at most. Chosen: far above a page with its sockets, far below our descriptors.
pub(crate) const MAX_CONNECTIONS: usize = 1024;

/// Idle connections kept to each daemon. Chosen: each costs the guest a thread.
const MAX_IDLE: usize = 2;

type Idle = HashMap<Door, Vec<SendRequest<Incoming>>>;

struct Epoch {
    token: CancellationToken,
    idle: Idle,
}

/// The edge's side of one sandbox.
pub(crate) struct Link {
    epoch: Mutex<Epoch>,
    connections: Arc<Semaphore>,
}

impl Default for Link {
    fn default() -> Self {
        let epoch = Epoch { token: CancellationToken::new(), idle: Idle::default() };
        Self { epoch: Mutex::new(epoch), connections: Arc::new(Semaphore::new(MAX_CONNECTIONS)) }
    }
}

impl Link {
    fn lock(&self) -> MutexGuard<'_, Epoch> {
        self.epoch.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Cuts every connection: a new epoch begins.
    pub(crate) fn reset(&self) {
        let mut epoch = self.lock();
        epoch.token.cancel();
        *epoch = Epoch { token: CancellationToken::new(), idle: Idle::default() };
    }

    /// Cancelled when this epoch ends.
    pub(crate) fn token(&self) -> CancellationToken {
        self.lock().token.clone()
    }

    /// Room for one more request, or none.
    pub(crate) fn permit(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.connections).try_acquire_owned().ok()
    }

    /// An idle connection, if one is there.
    pub(crate) fn take_idle(&self, door: Door) -> Option<SendRequest<Incoming>> {
        let mut epoch = self.lock();
        let idle = epoch.idle.get_mut(&door)?;
        while let Some(sender) = idle.pop() {
            if sender.is_ready() && !sender.is_closed() {
                return Some(sender);
            }
        }
        None
    }

    /// Gives a connection back that is ready for another request. It is closed instead if its epoch is over or there are
    /// enough.
    pub(crate) fn put_idle(&self, door: Door, token: &CancellationToken, sender: SendRequest<Incoming>) {
        let mut epoch = self.lock();
        if token.is_cancelled() {
            return;
        }
        let idle = epoch.idle.entry(door).or_default();
        idle.retain(|sender| !sender.is_closed());
        if idle.len() < MAX_IDLE {
            idle.push(sender);
        }
    }
}
