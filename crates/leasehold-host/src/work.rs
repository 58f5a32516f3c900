//! Work on the machine: each piece writes its intent to the ledger, acts, and writes the outcome.
//!
//! Freezing and thawing write once: the row says the state that is wanted, and a restart repeats the (repeatable) step.
//! The others write twice, around their effect.

use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Duration, timeout};

use crate::guest_control;
use crate::ids::random_text;
use crate::ledger::{End, LedgerError};
use crate::owner::{Alive, Boot, Subject};
use crate::port::Failure;
use crate::record::{Snapshot, Stage};
use crate::transition::{Event, Lifecycle, Paused, State, Work};
use crate::wall::Wall;

/// How long a guest may take to flush its file systems before it is stopped all the same. Chosen: a slow disk gets a
/// chance, a hostile guest does not hold up a stop.
const FLUSH_LIMIT: Duration = Duration::from_secs(10);

/// What work changes of a thing that the owner holds.
pub(crate) enum Change<T> {
    Keep,
    Set(T),
    Clear,
}

impl<T> Change<T> {
    pub(crate) fn apply(self, held: &mut Option<T>) {
        match self {
            Self::Keep => {}
            Self::Set(new) => *held = Some(new),
            Self::Clear => *held = None,
        }
    }
}

/// How work ended.
pub(crate) struct Outcome {
    pub(crate) event: Event,
    pub(crate) boot: Option<Boot>,
    pub(crate) alive: Change<Alive>,
    pub(crate) slot: Change<OwnedSemaphorePermit>,
    pub(crate) snapshot: Option<Snapshot>,
}

impl From<Event> for Outcome {
    fn from(event: Event) -> Self {
        Self { event, boot: None, alive: Change::Keep, slot: Change::Keep, snapshot: None }
    }
}

impl From<LedgerError> for Failure {
    fn from(error: LedgerError) -> Self {
        Self::internal(error.to_string())
    }
}

/// A piece of work, and what the owner knew when it began.
pub(crate) struct Request {
    pub(crate) work: Work,
    pub(crate) life: Lifecycle,
    pub(crate) name: Option<(String, String)>,
    /// There are processes.
    pub(crate) alive: bool,
}

/// Does a piece of work.
pub(crate) async fn run(subject: Subject, request: Request) -> Outcome {
    match request.work {
        Work::Freeze => freeze(&subject).await,
        Work::StopKeepingFiles => stop_keeping_files(&subject, &request.life).await,
        Work::Thaw { ends_at } => thaw(&subject, ends_at, request.life.ends_at).await,
        Work::ColdStart { timeout_s } => cold_start(&subject, &request, timeout_s).await,
        Work::Checkpoint => match checkpoint(&subject, request.name).await {
            Ok(snapshot) => Outcome { snapshot: Some(snapshot), ..Event::SnapshotDone.into() },
            Err(failure) => Event::SnapshotFailed(failure).into(),
        },
        Work::Destroy => match destroy(&subject, &request.life).await {
            Ok(()) => Outcome { alive: Change::Clear, slot: Change::Clear, ..Event::Destroyed.into() },
            Err(failure) => Event::DestroyFailed(failure).into(),
        },
    }
}

/// First start of a new sandbox.
pub(crate) async fn start(subject: Subject) -> Outcome {
    let timeout_s = subject.origin.timeout_s;
    match boot(&subject, Stage::Creating, timeout_s).await {
        Ok((ends_at, boot, alive)) => {
            Outcome { boot: Some(boot), alive: Change::Set(alive), ..Event::Started { ends_at }.into() }
        }
        Err(failure) => Event::StartFailed(failure).into(),
    }
}

async fn boot(subject: &Subject, intent: Stage, timeout_s: i64) -> Result<(Wall, Boot, Alive), Failure> {
    let world = &subject.world;
    let mut subject = subject.clone();
    world.ledger.put(subject.row(intent, Wall::now().plus_seconds(timeout_s), None)).await?;
    let spec = subject.origin.start_spec(subject.boot.generation);
    let running = world.engine(move |engine| engine.start(&spec)).await?;
    let alive = match Alive::new(running) {
        Ok(alive) => alive,
        Err(error) => {
            stop_quietly(&subject).await;
            return Err(Failure::internal(format!("cannot watch the sandbox's first process: {error}")));
        }
    };
    subject.boot.process = Some(alive.process);
    subject.boot.boot_id = Some(alive.boot_id.clone());
    let ends_at = Wall::now().plus_seconds(timeout_s);
    if let Err(error) = world.ledger.put(subject.row(Stage::Running, ends_at, None)).await {
        stop_quietly(&subject).await;
        return Err(error.into());
    }
    Ok((ends_at, subject.boot, alive))
}

/// Undoes a start; what fails is left to the work that follows, which stops again.
async fn stop_quietly(subject: &Subject) {
    if let Err(error) = stop(subject).await {
        tracing::warn!(sandbox.id = %subject.origin.id, error = %error, "undoing a start failed");
    }
}

async fn stop(subject: &Subject) -> Result<(), Failure> {
    let id = subject.origin.id.as_str().to_owned();
    let process = subject.boot.process;
    subject.world.engine(move |engine| engine.stop(&id, process)).await
}

async fn freeze(subject: &Subject) -> Outcome {
    let at = Wall::now();
    let world = &subject.world;
    if let Err(error) = world.ledger.put(subject.row(Stage::Frozen, at, None)).await {
        return Event::PauseFailed(error.into()).into();
    }
    let id = subject.origin.id.as_str().to_owned();
    match world.engine(move |engine| engine.pause(&id)).await {
        Ok(()) => Outcome { slot: Change::Clear, ..Event::Paused { at }.into() },
        // The owner stores that it runs on.
        Err(failure) => Event::PauseFailed(failure).into(),
    }
}

async fn stop_keeping_files(subject: &Subject, life: &Lifecycle) -> Outcome {
    let world = &subject.world;
    let lost = match &life.state {
        State::Pausing { lost } => lost.clone(),
        _ => None,
    };
    if let Err(error) = world.ledger.put(subject.row(Stage::Stopping, Wall::now(), lost.clone())).await {
        return Event::PauseFailed(error.into()).into();
    }
    if lost.is_none() {
        // Success means that the files are on disk: flush first, then stop.
        match timeout(FLUSH_LIMIT, guest_control::flush(world, &subject.origin.id)).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                tracing::warn!(sandbox.id = %subject.origin.id, error = %error, "the guest did not flush its files");
            }
            Err(_) => tracing::warn!(sandbox.id = %subject.origin.id, "the guest took too long to flush its files"),
        }
    }
    if let Err(failure) = stop(subject).await {
        return Event::PauseFailed(failure).into();
    }
    let at = Wall::now();
    let mut stopped = subject.clone();
    stopped.boot.process = None;
    let outcome = Outcome {
        boot: Some(stopped.boot.clone()),
        alive: Change::Clear,
        slot: Change::Clear,
        ..Event::PausedCold { at }.into()
    };
    if let Err(error) = world.ledger.put(stopped.row(Stage::Cold, at, lost)).await {
        // The row says `stopping`, which a restart finishes to the same end.
        tracing::error!(sandbox.id = %subject.origin.id, error = %error, "a stop could not be recorded");
    }
    outcome
}

async fn thaw(subject: &Subject, ends_at: Wall, paused_at: Wall) -> Outcome {
    let world = &subject.world;
    let failed = |failure| Outcome::from(Event::ResumeFailed { failure, left: Paused::Frozen });
    let slot = match world.take_slot() {
        Ok(slot) => slot,
        Err(failure) => return failed(failure),
    };
    if let Err(error) = world.ledger.put(subject.row(Stage::Running, ends_at, None)).await {
        return failed(error.into());
    }
    let id = subject.origin.id.as_str().to_owned();
    match world.engine(move |engine| engine.resume(&id)).await {
        Ok(()) => Outcome { slot: Change::Set(slot), ..Event::Resumed { ends_at }.into() },
        Err(failure) => {
            let id = subject.origin.id.as_str().to_owned();
            if let Err(error) = world.engine(move |engine| engine.pause(&id)).await {
                tracing::warn!(sandbox.id = %subject.origin.id, error = %error, "freezing again failed");
            }
            if let Err(error) = world.ledger.put(subject.row(Stage::Frozen, paused_at, None)).await {
                tracing::error!(sandbox.id = %subject.origin.id, error = %error, "a failed resume could not be recorded");
            }
            failed(failure)
        }
    }
}

async fn cold_start(subject: &Subject, request: &Request, timeout_s: i64) -> Outcome {
    let world = &subject.world;
    // Who gives up memory by asking for a cold start has lost nothing.
    let left = Paused::Cold { lost: None };
    let slot = match world.take_slot() {
        Ok(slot) => slot,
        Err(failure) => {
            let left = if request.alive { Paused::Frozen } else { left };
            return Event::ResumeFailed { failure, left }.into();
        }
    };
    // Also when no process is known: an earlier stop may have been left half done.
    if let Err(failure) = stop(subject).await {
        let left = if request.alive { Paused::Frozen } else { left };
        return Event::ResumeFailed { failure, left }.into();
    }
    let mut next = subject.clone();
    next.boot = Boot { generation: subject.boot.generation + 1, boot_id: None, process: None };
    match boot(&next, Stage::Booting, timeout_s).await {
        Ok((ends_at, boot, alive)) => Outcome {
            boot: Some(boot),
            alive: Change::Set(alive),
            slot: Change::Set(slot),
            ..Event::Resumed { ends_at }.into()
        },
        Err(failure) => {
            if let Err(error) = world.ledger.put(next.row(Stage::Cold, request.life.ends_at, None)).await {
                tracing::error!(sandbox.id = %subject.origin.id, error = %error, "a failed start could not be recorded");
            }
            Outcome { boot: Some(next.boot), alive: Change::Clear, ..Event::ResumeFailed { failure, left }.into() }
        }
    }
}

async fn checkpoint(subject: &Subject, name: Option<(String, String)>) -> Result<Snapshot, Failure> {
    let world = &subject.world;
    let id = random_text(20);
    let source = subject.origin.id.as_str().to_owned();
    let created_at = Wall::now();
    world.ledger.begin_snapshot(id.clone(), source.clone(), created_at).await?;
    let _making = world.shelf.layers.read().await;
    let layer = freeze_and_store(subject).await;
    let layer = match layer {
        Ok(layer) => layer,
        Err(failure) => {
            if let Err(error) = world.ledger.delete_snapshot(id).await {
                tracing::warn!(sandbox.id = %subject.origin.id, error = %error, "a failed snapshot stays in the ledger until the next start");
            }
            return Err(failure);
        }
    };
    let mut layers = subject.origin.layers.clone();
    layers.push(layer);
    let snapshot = Snapshot { id, source, created_at, layers, name };
    let replaced = world.shelf.put(snapshot.clone());
    let replaced_id = replaced.as_ref().map(|replaced| replaced.id.clone());
    if let Err(error) = world.ledger.finish_snapshot(snapshot.clone(), replaced_id).await {
        world.shelf.take(&snapshot.id);
        if let Some(replaced) = replaced {
            // Its layers were never unpinned, so putting it back pins them once too often: give that back.
            world.shelf.put(replaced.clone());
            world.shelf.unpin(&replaced.layers);
        }
        // The layer goes with the unfinished row at the next start.
        world.shelf.unpin(&snapshot.layers);
        return Err(error.into());
    }
    drop(_making);
    if let Some(replaced) = replaced {
        let unneeded = world.shelf.unpin(&replaced.layers);
        world.discard_layers(unneeded).await;
    }
    Ok(snapshot)
}

/// The processes stand still only while the layer is stored, and go on whatever comes of it.
async fn freeze_and_store(subject: &Subject) -> Result<String, Failure> {
    let id = subject.origin.id.as_str().to_owned();
    subject
        .world
        .engine(move |engine| {
            let stored = engine.pause(&id).and_then(|()| engine.snapshot(&id));
            let resumed = engine.resume(&id);
            match (stored, resumed) {
                (Ok(layer), Ok(())) => Ok(layer),
                (Err(first), Ok(())) => Err(first),
                (Ok(_), Err(second)) => {
                    Err(Failure::internal(format!("the sandbox could not be thawed after its snapshot: {second}")))
                }
                (Err(first), Err(second)) => {
                    Err(Failure::internal(format!("{first}; and it could not be thawed again: {second}")))
                }
            }
        })
        .await
}

async fn destroy(subject: &Subject, life: &Lifecycle) -> Result<(), Failure> {
    let world = &subject.world;
    let reason = match &life.state {
        State::Killing { reason, .. } => reason.text(),
        _ => "killed".to_owned(),
    };
    world.ledger.put(subject.row(Stage::Killing, Wall::now(), Some(reason.clone()))).await?;
    let id = subject.origin.id.as_str().to_owned();
    let process = subject.boot.process;
    world.engine(move |engine| engine.destroy(&id, process)).await?;
    let id = subject.origin.id.as_str().to_owned();
    world.ledger.end(End { id, reason, at: Wall::now() }).await?;
    let unneeded = world.shelf.unpin(&subject.origin.layers);
    world.discard_layers(unneeded).await;
    Ok(())
}
