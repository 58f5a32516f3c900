//! The owner task of one sandbox: the only one that changes it.
//!
//! It takes requests from a bounded mailbox (a sender waits when it is full), feeds them to [`crate::transition`], and runs
//! the work that comes out, one piece at a time. Requests only wait for answers: a client that goes away stops nothing.

use std::pin::Pin;
use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, mpsc, oneshot, watch};
use tokio::time::{Instant, sleep_until};

use crate::edge::link::Link;
use crate::ledger::End;
use crate::port::{Failure, ProcessId, Running};
use crate::record::{Origin, Row, Snapshot, Stage, View};
use crate::sys::Watched;
use crate::transition::{self, Answer, Effect, EndReason, Event, Lifecycle, State};
use crate::wall::Wall;
use crate::work::{self, Outcome};
use crate::world::{Entry, World};

/// Requests that may wait at one sandbox. Chosen: more than clients of one sandbox have under way at a time.
const MAILBOX: usize = 64;

/// A request, and where its answer goes.
pub(crate) struct Message {
    pub(crate) event: Event,
    /// Name and tag, for a snapshot.
    pub(crate) name: Option<(String, String)>,
    pub(crate) reply: Option<oneshot::Sender<Told>>,
}

/// An answer.
#[derive(Debug)]
pub(crate) struct Told {
    pub(crate) answer: Answer,
    /// For a snapshot request that succeeded.
    pub(crate) snapshot: Option<Snapshot>,
}

impl From<Answer> for Told {
    fn from(answer: Answer) -> Self {
        Self { answer, snapshot: None }
    }
}

/// The processes of a sandbox.
pub(crate) struct Alive {
    pub(crate) process: ProcessId,
    watched: Watched,
    pub(crate) boot_id: String,
}

impl Alive {
    pub(crate) fn new(running: Running) -> std::io::Result<Self> {
        let watched = Watched::new(running.pidfd)?;
        Ok(Self { process: running.process, watched, boot_id: running.boot_id })
    }
}

/// Facts that change with every boot.
#[derive(Debug, Clone)]
pub(crate) struct Boot {
    pub(crate) generation: u64,
    pub(crate) boot_id: Option<String>,
    pub(crate) process: Option<ProcessId>,
}

/// What work may know of its sandbox.
#[derive(Clone)]
pub(crate) struct Subject {
    pub(crate) world: Arc<World>,
    pub(crate) origin: Arc<Origin>,
    pub(crate) started_at: Wall,
    pub(crate) boot: Boot,
    pub(crate) kept: bool,
    pub(crate) session: bool,
}

impl Subject {
    /// The ledger's row for it at `stage`.
    pub(crate) fn row(&self, stage: Stage, ends_at: Wall, reason: Option<String>) -> Row {
        Row {
            origin: (*self.origin).clone(),
            stage,
            started_at: self.started_at,
            ends_at,
            generation: self.boot.generation,
            process: self.boot.process,
            boot_id: self.boot.boot_id.clone(),
            reason,
            kept: self.kept,
            session: self.session,
        }
    }
}

type Going = Pin<Box<dyn Future<Output = Outcome> + Send>>;

pub(crate) struct Owner {
    subject: Subject,
    life: Lifecycle,
    alive: Option<Alive>,
    slot: Option<OwnedSemaphorePermit>,
    inbox: mpsc::Receiver<Message>,
    view: watch::Sender<Arc<View>>,
    entry: Arc<Entry>,
    going: Option<Going>,
    /// Who began the present work.
    initiator: Option<oneshot::Sender<Told>>,
    /// Who waits for the end.
    killers: Vec<oneshot::Sender<Told>>,
    deferred: Vec<Message>,
}

/// What an owner begins with.
pub(crate) struct Beginning {
    pub(crate) subject: Subject,
    pub(crate) life: Lifecycle,
    pub(crate) alive: Option<Alive>,
    pub(crate) slot: Option<OwnedSemaphorePermit>,
    /// Told when a new sandbox is up, or why not.
    pub(crate) initiator: Option<oneshot::Sender<Told>>,
}

impl Owner {
    /// Registers a sandbox and starts its owner. A sandbox in state `Creating` begins to start.
    pub(crate) fn spawn(beginning: Beginning) -> Arc<Entry> {
        let Beginning { subject, life, alive, slot, initiator } = beginning;
        let world = Arc::clone(&subject.world);
        let id = subject.origin.id.clone();
        let (send, inbox) = mpsc::channel(MAILBOX);
        let first = Arc::new(view_of(&subject, &life));
        let (view, seen) = watch::channel(first);
        let entry = Arc::new(Entry { inbox: send, view: seen, link: Link::default() });
        let going: Option<Going> =
            (life.state == State::Creating).then(|| Box::pin(work::start(subject.clone())) as Going);
        let owner = Self {
            subject,
            life,
            alive,
            slot,
            inbox,
            view,
            entry: Arc::clone(&entry),
            going,
            initiator,
            killers: Vec::new(),
            deferred: Vec::new(),
        };
        world.register(id, Arc::clone(&entry));
        world.tasks.spawn(owner.run());
        entry
    }

    async fn run(mut self) {
        let retire = self.subject.world.retire.clone();
        while !matches!(self.life.state, State::Gone(_)) {
            let timer = transition::timer(&self.life).map(|at| Instant::now() + at.since(Wall::now()));
            let watched = self.alive.as_ref().filter(|_| transition::watches_process(&self.life));
            let idle = self.going.is_none();
            tokio::select! {
                () = retire.cancelled(), if idle => break,
                outcome = wait_for(&mut self.going) => self.work_ended(outcome).await,
                message = self.inbox.recv() => match message {
                    Some(message) => self.handle(message).await,
                    // The entry of this sandbox holds a sender, and we hold the entry.
                    None => break,
                },
                () = ended(watched) => {
                    let how = "its first process ended by itself".to_owned();
                    self.handle(Message { event: Event::ProcessEnded(how), name: None, reply: None }).await;
                }
                () = at(timer) => self.timer_fired().await,
            }
        }
        self.finish();
    }

    /// Requests that came before the timer fired are heard first: an extension among them counts.
    async fn timer_fired(&mut self) {
        for _ in 0..MAILBOX {
            let Ok(message) = self.inbox.try_recv() else { break };
            self.handle(message).await;
        }
        self.handle(Message { event: Event::DeadlineReached, name: None, reply: None }).await;
    }

    async fn handle(&mut self, message: Message) {
        let Message { event, name, mut reply } = message;
        let is_kill = matches!(event, Event::Kill(_));
        let (life, effects) = transition::step(self.life.clone(), event.clone(), Wall::now());
        let before = std::mem::replace(&mut self.life, life);
        for effect in effects {
            match effect {
                Effect::Save => {
                    if let Err(error) = self.save().await {
                        // What could not be made durable did not happen.
                        self.life = before;
                        tell(reply.take(), Answer::Failed(Failure::internal(error.to_string())).into());
                        break;
                    }
                    self.publish();
                }
                Effect::Answer(answer) => {
                    self.publish();
                    tell(reply.take(), answer.into());
                }
                Effect::Wait if is_kill => self.killers.extend(reply.take()),
                Effect::Wait => self.initiator = reply.take(),
                Effect::Defer => {
                    self.deferred.push(Message { event: event.clone(), name: name.clone(), reply: reply.take() });
                }
                Effect::Begin(work) => self.begin(work, name.clone()),
            }
        }
        self.publish();
    }

    fn begin(&mut self, work: transition::Work, name: Option<(String, String)>) {
        let request = work::Request { work, life: self.life.clone(), name, alive: self.alive.is_some() };
        self.going = Some(Box::pin(work::run(self.subject.clone(), request)));
    }

    async fn work_ended(&mut self, outcome: Outcome) {
        self.going = None;
        let Outcome { event, boot, alive, slot, snapshot } = outcome;
        alive.apply(&mut self.alive);
        slot.apply(&mut self.slot);
        if let Some(boot) = boot {
            self.subject.boot = boot;
        }
        let is_destroy = matches!(event, Event::Destroyed | Event::DestroyFailed(_));
        let (life, effects) = transition::step(self.life.clone(), event, Wall::now());
        self.life = life;
        if !matches!(self.life.state, State::Running) {
            // Connections into a sandbox that stands still would hang until somebody's patience ends.
            self.entry.link.reset();
        }
        let mut snapshot = snapshot;
        for effect in effects {
            match effect {
                Effect::Answer(answer) => {
                    self.publish();
                    if is_destroy {
                        if matches!(self.life.state, State::Gone(_)) {
                            self.unregister();
                        }
                        for killer in self.killers.drain(..) {
                            tell(Some(killer), answer.clone().into());
                        }
                    }
                    tell(self.initiator.take(), Told { answer, snapshot: snapshot.take() });
                }
                Effect::Save => {
                    if let Err(error) = self.save().await {
                        tracing::error!(sandbox.id = %self.subject.origin.id, error = %error, "a state could not be stored");
                    }
                }
                Effect::Begin(work) => self.begin(work, None),
                Effect::Wait | Effect::Defer => {}
            }
        }
        self.publish();
        if !transition::is_working(&self.life) {
            for message in std::mem::take(&mut self.deferred) {
                self.handle(message).await;
            }
        }
    }

    async fn save(&mut self) -> Result<(), crate::ledger::LedgerError> {
        self.subject.kept = self.life.kept;
        if self.life.kept {
            self.subject.session = false;
        }
        let reason = match &self.life.state {
            State::Paused(transition::Paused::Cold { lost }) => lost.clone(),
            _ => None,
        };
        let row = self.subject.row(Stage::at_rest(&self.life.state), self.life.ends_at, reason);
        self.subject.world.ledger.put(row).await
    }

    fn publish(&self) {
        let view = Arc::new(view_of(&self.subject, &self.life));
        let before = self.view.send_replace(Arc::clone(&view));
        if before.life != view.life {
            if before.life.state != view.life.state {
                tracing::info!(
                    sandbox.id = %view.origin.id, from = before.life.state.name(), to = view.life.state.name(), "sandbox state",
                );
            }
            self.subject.world.presence.touch();
        }
    }

    fn end(&self) -> End {
        let reason = match &self.life.state {
            State::Gone(reason) | State::Killing { reason, .. } => reason.text(),
            _ => EndReason::Killed.text(),
        };
        End { id: self.subject.origin.id.as_str().to_owned(), reason, at: Wall::now() }
    }

    fn unregister(&self) {
        self.subject.world.unregister(&self.subject.origin.id, self.end());
    }

    fn finish(mut self) {
        self.entry.link.reset();
        self.inbox.close();
        while let Ok(message) = self.inbox.try_recv() {
            tell(message.reply, Answer::NotFound.into());
        }
        for message in self.deferred {
            tell(message.reply, Answer::NotFound.into());
        }
    }
}

fn tell(reply: Option<oneshot::Sender<Told>>, told: Told) {
    if let Some(reply) = reply {
        // Whoever asked may have gone; what was asked is done all the same.
        drop(reply.send(told));
    }
}

fn view_of(subject: &Subject, life: &Lifecycle) -> View {
    View {
        origin: Arc::clone(&subject.origin),
        life: life.clone(),
        started_at: subject.started_at,
        generation: subject.boot.generation,
        boot_id: subject.boot.boot_id.clone(),
    }
}

async fn wait_for(going: &mut Option<Going>) -> Outcome {
    match going {
        Some(going) => going.await,
        None => std::future::pending().await,
    }
}

async fn ended(alive: Option<&Alive>) {
    match alive {
        Some(alive) => alive.watched.ended().await,
        None => std::future::pending().await,
    }
}

async fn at(timer: Option<Instant>) {
    match timer {
        Some(timer) => sleep_until(timer).await,
        None => std::future::pending().await,
    }
}
