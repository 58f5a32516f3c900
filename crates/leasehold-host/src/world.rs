//! What all parts of a running host share: engine, ledger, sandboxes, snapshots, sessions, and room.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::edge::link::Link;
use crate::ids::SandboxId;
use crate::ledger::{End, Ledger};
use crate::owner::{Message, Told};
use crate::port::{Failure, Limits, Sandboxes};
use crate::presence::Presence;
use crate::record::View;
use crate::sessions::Sessions;
use crate::shelf::Shelf;
use crate::transition::{Answer, EndReason, Event, Memory, State};

/// How many ended sandboxes are remembered in memory. Chosen; the ledger keeps as many.
const ENDS_REMEMBERED: usize = 1000;

/// Settings that requests need.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    pub(crate) data_dir: std::path::PathBuf,
    /// What `domain` says in answers.
    pub(crate) domain: String,
    pub(crate) max_running: usize,
    pub(crate) max_timeout_s: i64,
    pub(crate) limits: Limits,
    pub(crate) machine: Machine,
}

/// What this machine has, for sandboxes without bounds.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Machine {
    pub(crate) cores: u64,
    pub(crate) memory_mib: u64,
    pub(crate) disk_mib: u64,
}

/// A sandbox as the rest of the host reaches it. Its owner task alone changes it.
pub(crate) struct Entry {
    pub(crate) inbox: mpsc::Sender<Message>,
    pub(crate) view: watch::Receiver<Arc<View>>,
    pub(crate) link: Link,
}

impl Entry {
    pub(crate) fn view(&self) -> Arc<View> {
        Arc::clone(&self.view.borrow())
    }
}

/// The host's shared state.
pub(crate) struct World {
    pub(crate) engine: Arc<dyn Sandboxes>,
    pub(crate) ledger: Ledger,
    pub(crate) settings: Settings,
    pub(crate) shelf: Shelf,
    pub(crate) sessions: Sessions,
    pub(crate) presence: Presence,
    /// Owner tasks and clean-up tasks.
    pub(crate) tasks: TaskTracker,
    pub(crate) runtime: tokio::runtime::Handle,
    /// Cancelled when the host begins to stop.
    pub(crate) closing: CancellationToken,
    /// Cancelled when owners must end, with their sandboxes as they are.
    pub(crate) retire: CancellationToken,
    slots: Arc<Semaphore>,
    sandboxes: RwLock<HashMap<SandboxId, Arc<Entry>>>,
    ends: Mutex<VecDeque<End>>,
}

impl World {
    pub(crate) fn new(
        engine: Arc<dyn Sandboxes>,
        ledger: Ledger,
        settings: Settings,
        ends: Vec<End>,
        closing: CancellationToken,
    ) -> Arc<Self> {
        Arc::new(Self {
            engine,
            ledger,
            shelf: Shelf::default(),
            sessions: Sessions::default(),
            presence: Presence::default(),
            tasks: TaskTracker::new(),
            runtime: tokio::runtime::Handle::current(),
            closing,
            retire: CancellationToken::new(),
            slots: Arc::new(Semaphore::new(settings.max_running)),
            settings,
            sandboxes: RwLock::default(),
            ends: Mutex::new(ends.into()),
        })
    }

    /// Runs an engine call on a blocking thread.
    pub(crate) async fn engine<T: Send + 'static>(
        &self,
        call: impl FnOnce(&dyn Sandboxes) -> Result<T, Failure> + Send + 'static,
    ) -> Result<T, Failure> {
        let engine = Arc::clone(&self.engine);
        tokio::task::spawn_blocking(move || call(engine.as_ref()))
            .await
            .unwrap_or_else(|error| Err(Failure::internal(format!("the engine call did not finish: {error}"))))
    }

    /// Room for one more running sandbox, taken at once or not at all.
    pub(crate) fn take_slot(&self) -> Result<OwnedSemaphorePermit, Failure> {
        Arc::clone(&self.slots).try_acquire_owned().map_err(|_| Failure::capacity(self.settings.max_running))
    }

    /// Room for a sandbox that runs already, found after a restart; none if the limit was lowered meanwhile.
    pub(crate) fn take_slot_if_any(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.slots).try_acquire_owned().ok()
    }

    pub(crate) fn register(&self, id: SandboxId, entry: Arc<Entry>) {
        self.sandboxes.write().unwrap_or_else(PoisonError::into_inner).insert(id, entry);
        self.presence.touch();
    }

    pub(crate) fn find(&self, id: &SandboxId) -> Option<Arc<Entry>> {
        self.sandboxes.read().unwrap_or_else(PoisonError::into_inner).get(id).cloned()
    }

    pub(crate) fn entries(&self) -> Vec<Arc<Entry>> {
        self.sandboxes.read().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }

    /// Forgets a sandbox that is gone, and remembers why.
    pub(crate) fn unregister(&self, id: &SandboxId, end: End) {
        self.sandboxes.write().unwrap_or_else(PoisonError::into_inner).remove(id);
        self.sessions.release(id);
        let mut ends = self.ends.lock().unwrap_or_else(PoisonError::into_inner);
        ends.push_back(end);
        if ends.len() > ENDS_REMEMBERED {
            ends.pop_front();
        }
        drop(ends);
        self.presence.touch();
    }

    /// How a sandbox that is gone ended, if it is not too long ago.
    pub(crate) fn end_of(&self, id: &str) -> Option<End> {
        let ends = self.ends.lock().unwrap_or_else(PoisonError::into_inner);
        ends.iter().rev().find(|end| end.id == id).cloned()
    }

    /// Asks a sandbox's owner and waits for its answer. The work goes on if the caller goes away.
    pub(crate) async fn ask(&self, entry: &Entry, event: Event) -> Told {
        self.ask_named(entry, event, None).await
    }

    pub(crate) async fn ask_named(&self, entry: &Entry, event: Event, name: Option<(String, String)>) -> Told {
        let (reply, told) = oneshot::channel();
        let message = Message { event, name, reply: Some(reply) };
        if entry.inbox.send(message).await.is_err() {
            return Told::from(Answer::NotFound);
        }
        told.await.unwrap_or_else(|_| Told::from(Answer::NotFound))
    }

    /// Kills what belonged to a session that ended, and pauses what only it used.
    pub(crate) fn end_session(self: &Arc<Self>, session: &str) {
        let ended = self.sessions.end(session);
        let killed = ended.kill.into_iter().map(|id| (id, Event::Kill(EndReason::SessionEnded)));
        let paused = ended.pause.into_iter().map(|id| (id, Event::Pause { memory: Memory::Keep }));
        for (id, event) in killed.chain(paused) {
            if let Some(entry) = self.find(&id) {
                let world = Arc::clone(self);
                self.tasks.spawn_on(
                    async move {
                        // That it is paused or gone already is the usual case.
                        if let Answer::Failed(failure) = world.ask(&entry, event).await.answer {
                            tracing::warn!(sandbox.id = %id, error = %failure, "a session's sandbox could not be cleaned up yet");
                        }
                    },
                    &self.runtime,
                );
            }
        }
    }

    /// Deletes layers that nobody needs.
    pub(crate) async fn discard_layers(&self, layers: Vec<String>) {
        if layers.is_empty() {
            return;
        }
        let _alone = self.shelf.layers.write().await;
        for layer in layers {
            if self.shelf.is_needed(&layer) {
                continue;
            }
            let digest = layer.clone();
            if let Err(error) = self.engine(move |engine| engine.delete_layer(&digest)).await {
                tracing::warn!(layer, error = %error, "an unneeded layer could not be deleted; the next start tries again");
            }
        }
    }

    /// Waits until a sandbox is at rest, or `limit` has passed.
    pub(crate) async fn settled(&self, entry: &Entry, limit: Duration) -> Arc<View> {
        let mut view = entry.view.clone();
        let at_rest = |view: &Arc<View>| {
            matches!(view.life.state, State::Running | State::Paused(_) | State::Killing { .. } | State::Gone(_))
        };
        match tokio::time::timeout(limit, view.wait_for(at_rest)).await {
            Ok(Ok(view)) => Arc::clone(&view),
            // Gone, or still busy: what was seen last says which.
            Ok(Err(_)) | Err(_) => entry.view(),
        }
    }
}
