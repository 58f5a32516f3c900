//! Cancellation sweep: every call of every operation is held before its effect and with its answer on the way, the caller leaves there,
//! and nothing may be left running or unowned. The points are generated from the calls that were recorded.

#![expect(clippy::unwrap_used, reason = "a test's helpers may, as the test may")]

mod fake;

use std::collections::BTreeSet;
use std::time::Duration;

use fake::{Life, Phase, Plan, World, binding, create_spec, destroy_spec, snapshot_spec, status, transport};
use leasehold::{ExecutionBindingBackend as _, HomeSnapshotBackend as _, RuntimeError, SnapshotRef};
use leasehold_e2b::E2bLease;
use leasehold_e2b::driver::{Driver, SeamError, SeamErrorKind};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Operation {
    Create,
    Acquire,
    Release,
    Destroy,
    Snapshot,
    Delete,
}

const OPERATIONS: [Operation; 6] = [
    Operation::Create,
    Operation::Acquire,
    Operation::Release,
    Operation::Destroy,
    Operation::Snapshot,
    Operation::Delete,
];
const PHASES: [Phase; 2] = [Phase::BeforeEffect, Phase::AfterEffect];

/// How a call fails: in the phase that is tried again, and in one that is not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    Transport,
    Status,
}

const FAULTS: [Fault; 2] = [Fault::Transport, Fault::Status];

impl Fault {
    fn error(self) -> SeamError {
        match self {
            Self::Transport => transport(SeamErrorKind::Read),
            Self::Status => status(503, "E2B unavailable"),
        }
    }
}

fn plan(index: usize, phase: Phase, hold: bool, fault: Option<Fault>) -> Plan {
    Plan { index, phase, hold, failure: fault.map(Fault::error), panic: false }
}

/// One operation on a fresh provider.
struct Bench {
    operation: Operation,
    world: World,
    driver: Driver<World>,
    lease: Option<E2bLease<World>>,
}

impl Bench {
    fn new(operation: Operation) -> Self {
        let world = World::new();
        let driver = world.driver();
        let mut lease = None;
        match operation {
            Operation::Create => {}
            Operation::Acquire | Operation::Destroy => world.put("box", Life::Paused),
            Operation::Release | Operation::Snapshot => {
                world.put("box", Life::Running);
                lease = Some(driver.adopt(world.handle("box"), world.plane()));
            }
            Operation::Delete => drop(world.state().snapshots.insert("snapshot".to_owned(), "home-1".to_owned())),
        }
        Self { operation, world, driver, lease }
    }

    /// Runs it; what it gives is dropped at once, as by a caller that only looks.
    async fn run(&self) -> Result<(), RuntimeError> {
        let lease = || self.lease.as_ref().expect("made with one");
        match self.operation {
            Operation::Create => self.driver.create_binding(&create_spec("binding-1", None)).await.map(drop),
            Operation::Acquire => self.driver.acquire(&binding("box")).await.map(drop),
            Operation::Release => self.driver.release(lease()).await,
            Operation::Destroy => self.driver.destroy_binding(&destroy_spec("box")).await,
            Operation::Snapshot => self.driver.create_from_runtime(&snapshot_spec("1"), lease()).await.map(drop),
            Operation::Delete => self.driver.delete(&SnapshotRef::new("snapshot").unwrap()).await,
        }
    }

    /// Runs it until a held call is reached, leaves there, and lets the call go on.
    async fn leave_at_the_held_call(&self) {
        {
            let mut running = Box::pin(self.run());
            tokio::select! {
                biased;
                () = self.world.reached() => {}
                outcome = &mut running => panic!("{:?} ended before the held call: {outcome:?}", self.operation),
            }
        }
        self.world.let_go();
    }

    /// Waits for the driver's own tasks and looks for what is left.
    async fn assert_nothing_left(mut self, plans: &[Plan], about: &str) {
        drop(self.lease.take());
        settle().await;
        let calls_before = self.world.calls().len();
        let shutdown = self.driver.shutdown(Duration::from_secs(3600)).await;
        assert_eq!(shutdown.unfinished, 0, "{about}");
        assert_eq!(self.world.calls().len(), calls_before, "{about}: a lease nobody has was left for the shutdown");
        let state = self.world.state();
        let calls = |name: &str| state.seen.iter().filter(|seen| seen.call.starts_with(name)).count();
        // A clean-up that was made to fail for good leaves what it was to clean up; it must have been tried.
        let broken: BTreeSet<&str> = plans
            .iter()
            .filter_map(|plan| {
                let (call, error) = (state.seen.get(plan.index)?.call, plan.failure.as_ref()?);
                // Closing is one-shot; the others are tried once more after a transport failure.
                (call == "close" || !error.kind().in_control_set()).then_some(call)
            })
            .collect();
        let life = state.boxes.get("box").map(|one| one.life);
        match self.operation {
            Operation::Create => {
                let failed = broken.contains("kill") || broken.contains("kill_handle");
                assert!(
                    state.boxes.is_empty() || (failed && calls("kill") > 0),
                    "{about}: a sandbox nobody knows is left"
                );
            }
            Operation::Acquire => {
                let paused = life == Some(Life::Paused) || (broken.contains("pause") && calls("pause") > 0);
                assert!(paused, "{about}: the sandbox runs and nobody has a lease");
                let closed = state.planes.iter().all(|open| !open) || broken.contains("close");
                assert!(closed, "{about}: connections are open and nobody has a lease");
                assert!(
                    state.planes.is_empty() || (calls("close") > 0 && calls("pause") > 0),
                    "{about}: both clean-ups are tried"
                );
            }
            Operation::Release => {
                assert!(calls("close") > 0 && calls("pause") > 0, "{about}: both clean-ups are tried");
                assert!(!state.planes[0] || broken.contains("close"), "{about}: connections are open");
                assert!(life == Some(Life::Paused) || broken.contains("pause"), "{about}: the sandbox runs");
            }
            Operation::Destroy => assert!(life.is_none() || broken.contains("kill"), "{about}: the sandbox is left"),
            Operation::Snapshot => {
                let failed = broken.contains("delete_snapshot") || broken.contains("find_snapshot");
                assert!(state.snapshots.is_empty() || failed, "{about}: a snapshot nobody knows is left");
                assert!(
                    life == Some(Life::Paused) || broken.contains("pause"),
                    "{about}: the source is as its lease left it"
                );
            }
            Operation::Delete => {
                assert!(
                    state.snapshots.is_empty() || broken.contains("delete_snapshot"),
                    "{about}: the snapshot is left"
                );
            }
        }
    }
}

/// Lets everything that is under way come to its end: the clock is paused, so it jumps once nothing can go on without it.
async fn settle() {
    tokio::time::sleep(Duration::from_secs(60)).await;
}

/// The number of calls of an undisturbed run.
async fn undisturbed(operation: Operation) -> usize {
    let bench = Bench::new(operation);
    bench.world.plan(Vec::new());
    bench.run().await.unwrap();
    // Counted when the caller has its answer: what follows is clean-up of what this caller throws away.
    bench.world.calls().len()
}

/// The number of calls that there are in all when the caller stays and these plans are carried out.
async fn calls_when_staying(operation: Operation, plans: &[Plan]) -> usize {
    let bench = Bench::new(operation);
    bench.world.plan(plans.to_vec());
    let outcome = bench.run().await;
    let calls = bench.world.calls().len();
    drop(outcome);
    calls
}

/// The number of calls that there are in all when the caller leaves at the held call.
async fn calls_when_leaving(operation: Operation, plans: &[Plan]) -> usize {
    let bench = Bench::new(operation);
    bench.world.plan(plans.to_vec());
    bench.leave_at_the_held_call().await;
    settle().await;
    bench.world.calls().len()
}

async fn check(operation: Operation, plans: Vec<Plan>) {
    let bench = Bench::new(operation);
    bench.world.plan(plans.clone());
    bench.leave_at_the_held_call().await;
    let told: Vec<_> = plans
        .iter()
        .map(|plan| (plan.index, plan.phase, plan.hold, plan.failure.as_ref().map(SeamError::kind)))
        .collect();
    bench.assert_nothing_left(&plans, &format!("{operation:?} {told:?}")).await;
}

#[tokio::test(start_paused = true)]
async fn a_caller_that_leaves_at_a_held_call_leaves_nothing_behind() {
    let mut points = 0;
    for operation in OPERATIONS {
        for index in 0..undisturbed(operation).await {
            for phase in PHASES {
                for fault in [None, Some(Fault::Transport), Some(Fault::Status)] {
                    check(operation, vec![plan(index, phase, true, fault)]).await;
                    points += 1;
                }
            }
        }
    }
    println!("sweep: {points} points where the caller leaves");
    assert_eq!(points, 84);
}

#[tokio::test(start_paused = true)]
async fn a_caller_that_leaves_while_a_failure_is_handled_leaves_nothing_behind() {
    let mut points = 0;
    for operation in OPERATIONS {
        for index in 0..undisturbed(operation).await {
            for (phase, fault) in PHASES.into_iter().flat_map(|phase| FAULTS.map(|fault| (phase, fault))) {
                let failing = plan(index, phase, false, Some(fault));
                let calls = calls_when_staying(operation, std::slice::from_ref(&failing)).await;
                for (later, held) in (index + 1..calls).flat_map(|later| PHASES.map(|held| (later, held))) {
                    check(operation, vec![failing.clone(), plan(later, held, true, None)]).await;
                    points += 1;
                }
            }
        }
    }
    println!("sweep: {points} points where the caller leaves after a failure");
    assert_eq!(points, 116);
}

#[tokio::test(start_paused = true)]
async fn a_clean_up_that_fails_does_not_stop_the_other() {
    let mut points = 0;
    for operation in OPERATIONS {
        for index in 0..undisturbed(operation).await {
            for phase in PHASES {
                let held = plan(index, phase, true, None);
                let calls = calls_when_leaving(operation, std::slice::from_ref(&held)).await;
                for later in index + 1..calls {
                    for (after, fault) in PHASES.into_iter().flat_map(|after| FAULTS.map(|fault| (after, fault))) {
                        check(operation, vec![held.clone(), plan(later, after, false, Some(fault))]).await;
                        points += 1;
                    }
                }
            }
        }
    }
    println!("sweep: {points} points where a clean-up fails");
    assert_eq!(points, 96);
}
