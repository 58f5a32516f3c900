//! The life of one sandbox as a pure function: `(lifecycle, event, now) → (lifecycle, effects)`.
//!
//! ```text
//!            Started                Pause, expiry(pause)              Paused
//! Creating ───────────▶ Running ─────────────────────────▶ Pausing ─────────▶ Paused{frozen|cold}
//!    │                  ▲ │ ▲ │  ◀───────────────────────────┘ PauseFailed      │   │      ▲
//!    │                  │ │ │ └── Snapshot ──▶ Snapshotting ─┐                  │   │      │
//!    │                  │ │ └──────── SnapshotDone/Failed ───┘                  │   │      │
//!    │                  │ │                                                    │   │      │ ResumeFailed
//!    │                  └─┼────────────── Resumed ──────────── Resuming ◀──────┘   │      │
//!    │                    │                                     │   Connect, Resume│      │
//!    │ StartFailed        │ Kill, expiry(kill), process ended   └──────────────────┼──────┘
//!    ▼                    ▼                                                        ▼
//!    └───────────────▶ Killing ◀──────────────────────── Kill ─────────────────────┘
//!                         │ Destroyed (a failed attempt waits and tries again)
//!                         ▼
//!                       Gone{reason}
//! ```
//!
//! - Only `Running` has a timer; whoever fires it sends [`Event::DeadlineReached`], and the deadline is compared again
//!   here, under the owner, so an extension that came first wins.
//! - Attaching ([`Event::Connect`], [`Event::Refresh`], [`Event::AutoResume`]) never brings the end nearer.
//! - A kill that comes during work dooms the sandbox: when the work ends, whatever its outcome, it is destroyed.
//! - `Running` and `Pausing` whose process died keep the files if the sandbox was meant to outlive its processes.

use crate::port::Failure;
use crate::wall::Wall;

/// Seconds that a sandbox gets when traffic wakes it, at least (E2B's figure).
pub(crate) const AUTO_RESUME_SECONDS: i64 = 300;

/// Seconds until an automatic pause that failed is tried again. Chosen: long enough not to spin, short against a TTL.
const PAUSE_RETRY_SECONDS: i64 = 30;

/// Longest wait between two attempts to destroy a sandbox, in seconds. Chosen.
const MAX_DESTROY_WAIT_SECONDS: i64 = 60;

/// Whether a pause keeps the processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Memory {
    Keep,
    Drop,
}

/// What happens at the end of the timeout.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OnTimeout {
    Kill,
    Pause(Memory),
}

/// What a paused sandbox still has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Paused {
    /// Memory and files: its processes are frozen.
    Frozen,
    /// Files only. `lost` says why the memory is gone if nobody asked for that.
    Cold { lost: Option<String> },
}

/// Why a sandbox ended. Every end has one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum EndReason {
    /// Asked for through the API.
    Killed,
    /// Its timeout passed and it was made to die then.
    Expired,
    /// The client whose session it belonged to went away.
    SessionEnded,
    /// It never started.
    StartFailed(Failure),
    /// Its first process ended by itself.
    ProcessEnded(String),
    /// The host was shut down.
    HostShutdown,
}

impl EndReason {
    /// In words, for people and the ledger.
    pub(crate) fn text(&self) -> String {
        match self {
            Self::Killed => "killed by request".to_owned(),
            Self::Expired => "its timeout passed".to_owned(),
            Self::SessionEnded => "the client that made it went away".to_owned(),
            Self::StartFailed(failure) => format!("it did not start: {failure}"),
            Self::ProcessEnded(how) => how.clone(),
            Self::HostShutdown => "the host was shut down".to_owned(),
        }
    }
}

/// Where in its life a sandbox is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum State {
    Creating,
    Running,
    Pausing {
        /// Why memory is being dropped, if nobody asked for it.
        lost: Option<String>,
    },
    Paused(Paused),
    Resuming,
    Snapshotting,
    Killing {
        reason: EndReason,
        /// Set when an attempt failed: when the next one is due.
        retry_at: Option<Wall>,
        attempts: u32,
    },
    Gone(EndReason),
}

impl State {
    /// Its name in messages.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Creating => "creating",
            Self::Running => "running",
            Self::Pausing { .. } => "pausing",
            Self::Paused(_) => "paused",
            Self::Resuming => "resuming",
            Self::Snapshotting => "snapshotting",
            Self::Killing { .. } => "killing",
            Self::Gone(_) => "gone",
        }
    }
}

/// What the machine knows of a sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Lifecycle {
    pub(crate) state: State,
    /// When it will expire; of a paused one, when it was paused.
    pub(crate) ends_at: Wall,
    pub(crate) on_timeout: OnTimeout,
    /// Traffic may wake it.
    pub(crate) auto_resume: bool,
    /// The timeout it was made with, in seconds.
    pub(crate) timeout_s: i64,
    /// Somebody promised to come back for it.
    pub(crate) kept: bool,
    /// A kill that waits for the present work to end.
    pub(crate) doomed: Option<EndReason>,
}

/// What happens to a sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Event {
    // Requests. Each is answered, deferred, or waits for the work it began.
    Connect {
        timeout_s: i64,
        memory: Memory,
    },
    Resume {
        timeout_s: i64,
        memory: Memory,
    },
    AutoResume,
    Pause {
        memory: Memory,
    },
    Kill(EndReason),
    SetTimeout {
        timeout_s: i64,
    },
    Refresh {
        timeout_s: i64,
    },
    Snapshot,
    Keep,
    /// The host stops: nothing may keep running.
    Shutdown,
    // How work ended.
    Started {
        ends_at: Wall,
    },
    StartFailed(Failure),
    Paused {
        at: Wall,
    },
    PausedCold {
        at: Wall,
    },
    PauseFailed(Failure),
    Resumed {
        ends_at: Wall,
    },
    ResumeFailed {
        failure: Failure,
        left: Paused,
    },
    SnapshotDone,
    SnapshotFailed(Failure),
    Destroyed,
    DestroyFailed(Failure),
    // From outside.
    DeadlineReached,
    ProcessEnded(String),
}

/// Work with an effect on the machine. One piece at a time; its end comes back as an event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Work {
    /// Freeze the processes.
    Freeze,
    /// Flush, stop the processes, keep the files.
    StopKeepingFiles,
    /// Thaw the processes. It will run until `ends_at`.
    Thaw { ends_at: Wall },
    /// Boot from the files; stops frozen processes first. The timeout counts from when it is up.
    ColdStart { timeout_s: i64 },
    /// Store the writable layer.
    Checkpoint,
    /// Kill the processes and delete everything.
    Destroy,
}

/// What a request is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Answer {
    /// It runs; `resumed` if this request woke it.
    Running {
        resumed: bool,
    },
    Done,
    NotFound,
    AlreadyPaused,
    AlreadyRunning,
    /// In the middle of something else.
    Busy {
        state: &'static str,
    },
    BeingKilled,
    Failed(Failure),
}

/// What the owner must do, in this order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Effect {
    /// Make the new lifecycle durable before anything that follows.
    Save,
    /// Answer the request of this event; for the end of work, the request that began it.
    Answer(Answer),
    /// The request is answered when the work begun now, or already going on, ends.
    Wait,
    /// Feed the event again when the present work has ended.
    Defer,
    Begin(Work),
}

/// When [`Event::DeadlineReached`] is due.
pub(crate) fn timer(life: &Lifecycle) -> Option<Wall> {
    match &life.state {
        State::Running => Some(life.ends_at),
        State::Killing { retry_at, .. } => *retry_at,
        _ => None,
    }
}

/// Whether its process may end by itself now, which the owner then reports.
pub(crate) fn watches_process(life: &Lifecycle) -> bool {
    matches!(life.state, State::Running | State::Paused(Paused::Frozen))
}

/// Whether work is going on, whose end will come as an event.
pub(crate) fn is_working(life: &Lifecycle) -> bool {
    match &life.state {
        State::Creating | State::Pausing { .. } | State::Resuming | State::Snapshotting => true,
        State::Killing { retry_at, .. } => retry_at.is_none(),
        State::Running | State::Paused(_) | State::Gone(_) => false,
    }
}

/// Whether the files outlive an unexpected end of the processes.
pub(crate) fn outlives_processes(life: &Lifecycle) -> bool {
    life.kept || matches!(life.on_timeout, OnTimeout::Pause(_))
}

/// One step. `now` is the wall clock.
pub(crate) fn step(mut life: Lifecycle, event: Event, now: Wall) -> (Lifecycle, Vec<Effect>) {
    let effects = match event {
        Event::Connect { timeout_s, memory } => connect(&mut life, timeout_s, memory, now),
        Event::Resume { timeout_s, memory } => match life.state {
            State::Running | State::Snapshotting => vec![Effect::Answer(Answer::AlreadyRunning)],
            _ => connect(&mut life, timeout_s, memory, now),
        },
        Event::AutoResume => auto_resume(&mut life, now),
        Event::Pause { memory } => pause(&mut life, memory),
        Event::Kill(reason) => kill(&mut life, reason, vec![Effect::Wait]),
        Event::SetTimeout { timeout_s } => retime(&mut life, now.plus_seconds(timeout_s)),
        Event::Refresh { timeout_s } => {
            let later = life.ends_at.max(now.plus_seconds(timeout_s));
            retime(&mut life, later)
        }
        Event::Snapshot => match life.state {
            State::Running => {
                life.state = State::Snapshotting;
                vec![Effect::Begin(Work::Checkpoint), Effect::Wait]
            }
            State::Paused(_) | State::Gone(_) => vec![Effect::Answer(Answer::NotFound)],
            ref state => vec![Effect::Answer(Answer::Busy { state: state.name() })],
        },
        Event::Keep => match life.state {
            State::Killing { .. } => vec![Effect::Answer(Answer::BeingKilled)],
            State::Gone(_) => vec![Effect::Answer(Answer::NotFound)],
            _ if life.doomed.is_some() => vec![Effect::Answer(Answer::BeingKilled)],
            _ if is_working(&life) => vec![Effect::Defer],
            _ => {
                life.kept = true;
                vec![Effect::Save, Effect::Answer(Answer::Done)]
            }
        },
        Event::Shutdown => shutdown(&mut life),
        Event::DeadlineReached => deadline(&mut life, now),
        Event::ProcessEnded(how) => process_ended(&mut life, how),
        outcome => work_ended(&mut life, outcome, now),
    };
    (life, effects)
}

fn connect(life: &mut Lifecycle, timeout_s: i64, memory: Memory, now: Wall) -> Vec<Effect> {
    match &life.state {
        State::Running => {
            let later = life.ends_at.max(now.plus_seconds(timeout_s));
            let answer = Effect::Answer(Answer::Running { resumed: false });
            if later == life.ends_at {
                return vec![answer];
            }
            life.ends_at = later;
            vec![Effect::Save, answer]
        }
        State::Paused(paused) => {
            let work = if *paused == Paused::Frozen && memory == Memory::Keep {
                Work::Thaw { ends_at: now.plus_seconds(timeout_s) }
            } else {
                Work::ColdStart { timeout_s }
            };
            life.state = State::Resuming;
            vec![Effect::Begin(work), Effect::Wait]
        }
        State::Gone(_) => vec![Effect::Answer(Answer::NotFound)],
        State::Killing { .. } => vec![Effect::Answer(Answer::BeingKilled)],
        _ if life.doomed.is_some() => vec![Effect::Answer(Answer::BeingKilled)],
        State::Creating | State::Pausing { .. } | State::Resuming | State::Snapshotting => vec![Effect::Defer],
    }
}

fn auto_resume(life: &mut Lifecycle, now: Wall) -> Vec<Effect> {
    match &life.state {
        State::Running => vec![Effect::Answer(Answer::Running { resumed: false })],
        // Files-only pauses are never woken by traffic: the process that it is meant for is not there.
        State::Paused(Paused::Frozen | Paused::Cold { lost: Some(_) }) if life.auto_resume => {
            connect(life, life.timeout_s.max(AUTO_RESUME_SECONDS), Memory::Keep, now)
        }
        State::Paused(_) | State::Killing { .. } | State::Gone(_) => vec![Effect::Answer(Answer::NotFound)],
        _ if life.doomed.is_some() => vec![Effect::Answer(Answer::NotFound)],
        State::Creating | State::Pausing { .. } | State::Resuming | State::Snapshotting => vec![Effect::Defer],
    }
}

fn pause(life: &mut Lifecycle, memory: Memory) -> Vec<Effect> {
    match &life.state {
        State::Running => {
            life.state = State::Pausing { lost: None };
            vec![Effect::Begin(pause_work(memory)), Effect::Wait]
        }
        State::Paused(_) => vec![Effect::Answer(Answer::AlreadyPaused)],
        State::Gone(_) => vec![Effect::Answer(Answer::NotFound)],
        state => vec![Effect::Answer(Answer::Busy { state: state.name() })],
    }
}

fn pause_work(memory: Memory) -> Work {
    match memory {
        Memory::Keep => Work::Freeze,
        Memory::Drop => Work::StopKeepingFiles,
    }
}

fn kill(life: &mut Lifecycle, reason: EndReason, mut then: Vec<Effect>) -> Vec<Effect> {
    match &mut life.state {
        State::Gone(_) => vec![Effect::Answer(Answer::NotFound)],
        State::Killing { retry_at, .. } => {
            // Asked again after a failed attempt: try at once.
            if retry_at.take().is_some() {
                then.insert(0, Effect::Begin(Work::Destroy));
            }
            then
        }
        State::Creating | State::Pausing { .. } | State::Resuming | State::Snapshotting => {
            life.doomed.get_or_insert(reason);
            then
        }
        State::Running | State::Paused(_) => {
            life.state = State::Killing { reason, retry_at: None, attempts: 0 };
            then.insert(0, Effect::Begin(Work::Destroy));
            then
        }
    }
}

fn retime(life: &mut Lifecycle, ends_at: Wall) -> Vec<Effect> {
    match &life.state {
        State::Running => {
            if ends_at == life.ends_at {
                return vec![Effect::Answer(Answer::Done)];
            }
            life.ends_at = ends_at;
            vec![Effect::Save, Effect::Answer(Answer::Done)]
        }
        // A snapshot is short and leaves the sandbox running: the caller need not know of it.
        State::Snapshotting if life.doomed.is_none() => vec![Effect::Defer],
        State::Creating | State::Pausing { .. } | State::Resuming | State::Snapshotting => {
            vec![Effect::Answer(Answer::Busy { state: life.state.name() })]
        }
        State::Paused(_) | State::Killing { .. } | State::Gone(_) => vec![Effect::Answer(Answer::NotFound)],
    }
}

fn shutdown(life: &mut Lifecycle) -> Vec<Effect> {
    let outlives = outlives_processes(life);
    match &life.state {
        State::Paused(Paused::Cold { .. }) => vec![Effect::Answer(Answer::Done)],
        State::Paused(Paused::Frozen) => {
            life.state = State::Pausing { lost: Some(EndReason::HostShutdown.text()) };
            vec![Effect::Begin(Work::StopKeepingFiles), Effect::Wait]
        }
        State::Running if outlives => {
            life.state = State::Pausing { lost: Some(EndReason::HostShutdown.text()) };
            vec![Effect::Begin(Work::StopKeepingFiles), Effect::Wait]
        }
        State::Running | State::Killing { .. } | State::Gone(_) => {
            kill(life, EndReason::HostShutdown, vec![Effect::Wait])
        }
        State::Creating | State::Pausing { .. } | State::Resuming | State::Snapshotting => vec![Effect::Defer],
    }
}

fn deadline(life: &mut Lifecycle, now: Wall) -> Vec<Effect> {
    match &mut life.state {
        State::Running if now >= life.ends_at => match life.on_timeout {
            OnTimeout::Kill => kill(life, EndReason::Expired, Vec::new()),
            OnTimeout::Pause(memory) => {
                life.state = State::Pausing { lost: None };
                vec![Effect::Begin(pause_work(memory))]
            }
        },
        State::Killing { retry_at, .. } if retry_at.is_some_and(|at| now >= at) => {
            *retry_at = None;
            vec![Effect::Begin(Work::Destroy)]
        }
        _ => Vec::new(),
    }
}

fn process_ended(life: &mut Lifecycle, how: String) -> Vec<Effect> {
    match &life.state {
        State::Running if !outlives_processes(life) => kill(life, EndReason::ProcessEnded(how), Vec::new()),
        // A paused sandbox was left to be found again, whatever its timeout would have done.
        State::Running | State::Paused(Paused::Frozen) => {
            life.state = State::Pausing { lost: Some(how) };
            vec![Effect::Begin(Work::StopKeepingFiles)]
        }
        _ => Vec::new(),
    }
}

fn work_ended(life: &mut Lifecycle, outcome: Event, now: Wall) -> Vec<Effect> {
    let lost = match &mut life.state {
        State::Pausing { lost } => lost.take(),
        _ => None,
    };
    let mut save = false;
    let (state, answer) = match outcome {
        Event::Started { ends_at } => {
            life.ends_at = ends_at;
            (State::Running, Answer::Done)
        }
        Event::SnapshotDone => (State::Running, Answer::Done),
        Event::StartFailed(failure) => {
            life.doomed = None;
            life.state = State::Killing { reason: EndReason::StartFailed(failure), retry_at: None, attempts: 0 };
            return vec![Effect::Begin(Work::Destroy)];
        }
        Event::Paused { at } => {
            life.ends_at = at;
            (State::Paused(Paused::Frozen), Answer::Done)
        }
        Event::PausedCold { at } => {
            life.ends_at = at;
            (State::Paused(Paused::Cold { lost }), Answer::Done)
        }
        // The processes are gone already; what could not be tidied is tidied by the next start or kill.
        Event::PauseFailed(failure) if lost.is_some() => {
            save = true;
            life.ends_at = life.ends_at.min(now);
            (State::Paused(Paused::Cold { lost }), Answer::Failed(failure))
        }
        Event::PauseFailed(failure) => {
            save = true;
            life.ends_at = life.ends_at.max(now.plus_seconds(PAUSE_RETRY_SECONDS));
            (State::Running, Answer::Failed(failure))
        }
        Event::Resumed { ends_at } => {
            life.ends_at = ends_at;
            (State::Running, Answer::Running { resumed: true })
        }
        Event::ResumeFailed { failure, left } => (State::Paused(left), Answer::Failed(failure)),
        Event::SnapshotFailed(failure) => (State::Running, Answer::Failed(failure)),
        Event::Destroyed => {
            let State::Killing { reason, .. } = &life.state else { return Vec::new() };
            let answer = match reason {
                EndReason::StartFailed(failure) => Answer::Failed(failure.clone()),
                _ => Answer::Done,
            };
            (State::Gone(reason.clone()), answer)
        }
        Event::DestroyFailed(failure) => {
            let State::Killing { retry_at, attempts, .. } = &mut life.state else { return Vec::new() };
            let wait = (1_i64 << (*attempts).min(10)).min(MAX_DESTROY_WAIT_SECONDS);
            *attempts = attempts.saturating_add(1);
            *retry_at = Some(now.plus_seconds(wait));
            return vec![Effect::Answer(Answer::Failed(failure))];
        }
        _ => return Vec::new(),
    };
    life.state = state;
    let mut effects = if save { vec![Effect::Save] } else { Vec::new() };
    effects.push(Effect::Answer(answer));
    if let Some(reason) = life.doomed.take() {
        effects.extend(kill(life, reason, Vec::new()));
    }
    effects
}

#[cfg(test)]
#[path = "transition_tests.rs"]
mod tests;
