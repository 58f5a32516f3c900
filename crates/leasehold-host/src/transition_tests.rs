use proptest::prelude::*;

use super::*;

const NOW: Wall = Wall::from_micros(1_000_000_000);

fn life(state: State) -> Lifecycle {
    Lifecycle {
        state,
        ends_at: NOW.plus_seconds(100),
        on_timeout: OnTimeout::Kill,
        auto_resume: false,
        timeout_s: 100,
        kept: false,
        doomed: None,
    }
}

fn failure() -> Failure {
    Failure::internal("no")
}

fn killing() -> State {
    State::Killing { reason: EndReason::Killed, retry_at: None, attempts: 0 }
}

#[test]
fn l4_an_extension_before_the_deadline_wins() {
    let (extended, _) = step(life(State::Running), Event::SetTimeout { timeout_s: 500 }, NOW);
    let (after, effects) = step(extended.clone(), Event::DeadlineReached, NOW.plus_seconds(100));
    assert_eq!((after, effects), (extended, Vec::new()));
}

#[test]
fn t1_attaching_never_shortens() {
    let before = life(State::Running);
    let (after, effects) = step(before.clone(), Event::Connect { timeout_s: 1, memory: Memory::Keep }, NOW);
    assert_eq!(after, before);
    assert_eq!(effects, [Effect::Answer(Answer::Running { resumed: false })]);
}

#[test]
fn expiry_kills_or_pauses_as_made() {
    let late = NOW.plus_seconds(100);
    let (killed, effects) = step(life(State::Running), Event::DeadlineReached, late);
    assert!(matches!(killed.state, State::Killing { reason: EndReason::Expired, .. }));
    assert_eq!(effects, [Effect::Begin(Work::Destroy)]);
    for (memory, work) in [(Memory::Keep, Work::Freeze), (Memory::Drop, Work::StopKeepingFiles)] {
        let made = Lifecycle { on_timeout: OnTimeout::Pause(memory), ..life(State::Running) };
        let (_, effects) = step(made, Event::DeadlineReached, late);
        assert_eq!(effects, [Effect::Begin(work)]);
    }
}

#[test]
fn a_kill_during_work_takes_effect_when_the_work_ends() {
    for (state, end) in [
        (State::Creating, Event::Started { ends_at: NOW }),
        (State::Pausing { lost: None }, Event::Paused { at: NOW }),
        (State::Pausing { lost: None }, Event::PauseFailed(failure())),
        (State::Resuming, Event::Resumed { ends_at: NOW }),
        (State::Resuming, Event::ResumeFailed { failure: failure(), left: Paused::Frozen }),
        (State::Snapshotting, Event::SnapshotDone),
        (State::Snapshotting, Event::SnapshotFailed(failure())),
    ] {
        let (doomed, effects) = step(life(state), Event::Kill(EndReason::SessionEnded), NOW);
        assert_eq!(effects, [Effect::Wait]);
        let (after, effects) = step(doomed, end.clone(), NOW);
        assert!(matches!(after.state, State::Killing { reason: EndReason::SessionEnded, .. }), "{end:?}");
        assert!(effects.contains(&Effect::Begin(Work::Destroy)), "{end:?}");
    }
}

#[test]
fn a_failed_destroy_is_tried_again() {
    let (waiting, effects) = step(life(killing()), Event::DestroyFailed(failure()), NOW);
    assert_eq!(effects, [Effect::Answer(Answer::Failed(failure()))]);
    let due = timer(&waiting).expect("a retry is due");
    let (early, effects) = step(waiting.clone(), Event::DeadlineReached, NOW);
    assert_eq!((early, effects), (waiting.clone(), Vec::new()));
    let (again, effects) = step(waiting.clone(), Event::DeadlineReached, due);
    assert!(is_working(&again));
    assert_eq!(effects, [Effect::Begin(Work::Destroy)]);
    let (again, effects) = step(waiting, Event::Kill(EndReason::Killed), NOW);
    assert!(is_working(&again));
    assert_eq!(effects, [Effect::Begin(Work::Destroy), Effect::Wait]);
}

#[test]
fn files_outlive_processes_when_they_were_meant_to() {
    let ended = || Event::ProcessEnded("oom".to_owned());
    let (dead, _) = step(life(State::Running), ended(), NOW);
    assert!(matches!(dead.state, State::Killing { reason: EndReason::ProcessEnded(_), .. }));
    for meant in [
        Lifecycle { kept: true, ..life(State::Running) },
        Lifecycle { on_timeout: OnTimeout::Pause(Memory::Keep), ..life(State::Running) },
        life(State::Paused(Paused::Frozen)),
    ] {
        let (pausing, effects) = step(meant, ended(), NOW);
        assert_eq!(effects, [Effect::Begin(Work::StopKeepingFiles)]);
        let (cold, _) = step(pausing, Event::PausedCold { at: NOW }, NOW);
        assert_eq!(cold.state, State::Paused(Paused::Cold { lost: Some("oom".to_owned()) }));
    }
}

#[test]
fn a_failed_automatic_pause_does_not_spin() {
    let pausing = Lifecycle { ends_at: NOW, ..life(State::Pausing { lost: None }) };
    let (running, _) = step(pausing, Event::PauseFailed(failure()), NOW);
    assert_eq!(running.state, State::Running);
    assert!(timer(&running).expect("it has a timer") > NOW);
}

fn any_state() -> impl Strategy<Value = State> {
    prop_oneof![
        Just(State::Creating),
        Just(State::Running),
        prop::option::of("x").prop_map(|lost| State::Pausing { lost }),
        Just(State::Paused(Paused::Frozen)),
        prop::option::of("x").prop_map(|lost| State::Paused(Paused::Cold { lost })),
        Just(State::Resuming),
        Just(State::Snapshotting),
        prop::option::of(0_i64..200).prop_map(|at| State::Killing {
            reason: EndReason::Killed,
            retry_at: at.map(|at| NOW.plus_seconds(at)),
            attempts: 1,
        }),
        Just(State::Gone(EndReason::Killed)),
    ]
}

fn any_life() -> impl Strategy<Value = Lifecycle> {
    let on_timeout =
        prop_oneof![Just(OnTimeout::Kill), Just(OnTimeout::Pause(Memory::Keep)), Just(OnTimeout::Pause(Memory::Drop))];
    (any_state(), -50_i64..200, on_timeout, any::<bool>(), any::<bool>(), any::<bool>()).prop_map(
        |(state, left, on_timeout, auto_resume, kept, doomed)| {
            let working =
                matches!(state, State::Creating | State::Pausing { .. } | State::Resuming | State::Snapshotting);
            Lifecycle {
                state,
                ends_at: NOW.plus_seconds(left),
                on_timeout,
                auto_resume,
                timeout_s: 60,
                kept,
                doomed: (doomed && working).then_some(EndReason::Killed),
            }
        },
    )
}

fn any_memory() -> impl Strategy<Value = Memory> {
    prop_oneof![Just(Memory::Keep), Just(Memory::Drop)]
}

fn any_request() -> impl Strategy<Value = Event> {
    prop_oneof![
        (1_i64..500, any_memory()).prop_map(|(timeout_s, memory)| Event::Connect { timeout_s, memory }),
        (1_i64..500, any_memory()).prop_map(|(timeout_s, memory)| Event::Resume { timeout_s, memory }),
        Just(Event::AutoResume),
        any_memory().prop_map(|memory| Event::Pause { memory }),
        Just(Event::Kill(EndReason::Killed)),
        (0_i64..500).prop_map(|timeout_s| Event::SetTimeout { timeout_s }),
        (1_i64..500).prop_map(|timeout_s| Event::Refresh { timeout_s }),
        Just(Event::Snapshot),
        Just(Event::Keep),
        Just(Event::Shutdown),
    ]
}

fn any_event() -> impl Strategy<Value = Event> {
    prop_oneof![
        3 => any_request(),
        1 => prop_oneof![Just(Event::DeadlineReached), Just(Event::ProcessEnded("x".to_owned()))],
    ]
}

/// Ends of the work that a state is in.
fn ends_of(state: &State) -> Vec<Event> {
    match state {
        State::Creating => vec![Event::Started { ends_at: NOW.plus_seconds(9) }, Event::StartFailed(failure())],
        State::Pausing { .. } => {
            vec![Event::Paused { at: NOW }, Event::PausedCold { at: NOW }, Event::PauseFailed(failure())]
        }
        State::Resuming => vec![
            Event::Resumed { ends_at: NOW.plus_seconds(9) },
            Event::ResumeFailed { failure: failure(), left: Paused::Frozen },
        ],
        State::Snapshotting => vec![Event::SnapshotDone, Event::SnapshotFailed(failure())],
        State::Killing { retry_at: None, .. } => vec![Event::Destroyed, Event::DestroyFailed(failure())],
        _ => Vec::new(),
    }
}

fn begun(effects: &[Effect]) -> usize {
    effects.iter().filter(|effect| matches!(effect, Effect::Begin(_))).count()
}

proptest! {
    #[test]
    fn every_request_is_answered_deferred_or_waits(life in any_life(), event in any_request()) {
        let (_, effects) = step(life, event, NOW);
        let outcomes = effects.iter()
            .filter(|effect| matches!(effect, Effect::Answer(_) | Effect::Wait | Effect::Defer)).count();
        prop_assert_eq!(outcomes, 1);
    }

    #[test]
    fn nobody_is_deferred_or_waits_without_work_that_will_end(life in any_life(), event in any_request()) {
        let (after, effects) = step(life, event, NOW);
        if effects.iter().any(|effect| matches!(effect, Effect::Wait | Effect::Defer)) {
            prop_assert!(is_working(&after));
        }
    }

    #[test]
    fn work_begins_only_when_none_is_going_on(life in any_life(), event in any_event()) {
        let working = is_working(&life);
        let (after, effects) = step(life, event, NOW);
        prop_assert_eq!(begun(&effects), usize::from(!working && is_working(&after)));
    }

    #[test]
    fn work_that_ends_is_followed_by_rest_or_by_new_work(life in any_life(), pick in any::<prop::sample::Index>()) {
        let ends = ends_of(&life.state);
        prop_assume!(!ends.is_empty());
        let (after, effects) = step(life, pick.get(&ends).clone(), NOW);
        prop_assert_eq!(begun(&effects), usize::from(is_working(&after)));
        prop_assert!(after.doomed.is_none());
    }

    #[test]
    fn attaching_never_brings_the_end_nearer(life in any_life(), timeout_s in 1_i64..500) {
        let life = Lifecycle { state: State::Running, doomed: None, ..life };
        for event in [
            Event::Connect { timeout_s, memory: Memory::Keep },
            Event::Refresh { timeout_s },
            Event::AutoResume,
        ] {
            let (after, _) = step(life.clone(), event, NOW);
            prop_assert!(after.ends_at >= life.ends_at);
        }
    }

    #[test]
    fn a_changed_end_is_saved_before_it_is_answered(life in any_life(), event in any_request()) {
        let (after, effects) = step(life.clone(), event, NOW);
        if after.ends_at != life.ends_at || after.kept != life.kept {
            prop_assert_eq!(effects.first(), Some(&Effect::Save));
        }
    }

    #[test]
    fn gone_is_gone(event in any_event()) {
        let gone = life(State::Gone(EndReason::Killed));
        let (after, effects) = step(gone.clone(), event, NOW);
        prop_assert_eq!(after, gone);
        prop_assert_eq!(begun(&effects), 0);
    }

    #[test]
    fn whatever_happens_a_running_sandbox_has_a_timer(first in any_life(), events in prop::collection::vec(any_event(), 1..30), picks in prop::collection::vec(any::<prop::sample::Index>(), 30)) {
        let mut life = first;
        let mut now = NOW;
        for (event, pick) in events.into_iter().zip(picks) {
            now = now.plus_seconds(1);
            let ends = ends_of(&life.state);
            let event = if ends.is_empty() || pick.index(3) == 0 { event } else { pick.get(&ends).clone() };
            let before = life.clone();
            (life, _) = step(life, event.clone(), now);
            if matches!(life.state, State::Running) {
                prop_assert!(timer(&life).is_some());
                // A deadline that has passed leads somewhere: no timer fires for ever.
                if let Some(at) = timer(&life) {
                    let (next, _) = step(life.clone(), Event::DeadlineReached, at);
                    prop_assert_ne!(&next.state, &State::Running, "from {:?} by {:?}", before, event);
                }
            }
        }
    }
}
