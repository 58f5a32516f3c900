//! One command of the fake: a process, its output so far, and how it ended.

use std::sync::Arc;
use std::time::Duration;

use leasehold::JobStatus;
use rustix::process::Signal;
use tokio::io::AsyncReadExt as _;
use tokio::process::{Child, ChildStdin};
use tokio::sync::{Mutex, watch};

use super::processes;

pub(super) struct Job {
    id: String,
    mark: String,
    leader: Option<u32>,
    view: watch::Sender<View>,
    input: Mutex<Option<ChildStdin>>,
}

/// A job as seen now.
#[derive(Debug, Clone, Default)]
pub(super) struct View {
    pub(super) output: Vec<u8>,
    pub(super) ended: bool,
    pub(super) exit_code: Option<i32>,
    pub(super) interrupted: bool,
}

impl View {
    pub(super) fn status(&self) -> JobStatus {
        match (self.ended, self.interrupted) {
            (false, _) => JobStatus::Running,
            (true, true) => JobStatus::Terminated,
            (true, false) => JobStatus::Exited,
        }
    }
}

/// How a job deviates from a good one.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Habits {
    /// The end is told before the output is read.
    pub(super) exit_before_output: bool,
    /// Output is cut at this many bytes, silently.
    pub(super) output_limit: Option<usize>,
}

impl Job {
    /// Takes over a started process: reads its output to the end, then its status.
    pub(super) fn adopt(id: String, mark: String, mut child: Child, habits: Habits) -> Arc<Self> {
        let leader = child.id();
        let input = Mutex::new(child.stdin.take());
        let mut output = child.stdout.take().expect("its output is piped");
        let job = Arc::new(Self { id, mark, leader, view: watch::Sender::default(), input });
        let told = job.view.clone();
        tokio::spawn(async move {
            let mut buffer = vec![0; 1 << 16];
            let mut late = Vec::new();
            while let Ok(length @ 1..) = output.read(&mut buffer).await {
                if habits.exit_before_output {
                    late.extend_from_slice(&buffer[..length]);
                    continue;
                }
                told.send_modify(|view| {
                    view.output.extend_from_slice(&buffer[..length]);
                    view.output.truncate(habits.output_limit.unwrap_or(usize::MAX));
                });
            }
            let status = child.wait().await;
            told.send_modify(|view| {
                view.ended = true;
                view.exit_code = status.ok().map(exit_code);
            });
            if habits.exit_before_output {
                tokio::time::sleep(Duration::from_millis(5)).await;
                told.send_modify(|view| view.output = late);
            }
        });
        job
    }

    pub(super) fn id(&self) -> &str {
        &self.id
    }

    pub(super) fn now(&self) -> View {
        self.view.borrow().clone()
    }

    pub(super) fn watch(&self) -> watch::Receiver<View> {
        self.view.subscribe()
    }

    pub(super) fn input(&self) -> &Mutex<Option<ChildStdin>> {
        &self.input
    }

    /// Asks the tree to end, waits for the grace, kills what is left of it.
    pub(super) async fn interrupt(&self, grace: Duration, ask: bool) {
        self.view.send_modify(|view| view.interrupted = !view.ended);
        if ask {
            processes::signal(&self.mark, Signal::TERM);
            let deadline = tokio::time::Instant::now() + grace;
            // There is no event for the end of a whole tree outside of a control group.
            while processes::any(&self.mark) && tokio::time::Instant::now() < deadline {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        }
        processes::kill_all(&self.mark);
        self.ended().await;
    }

    /// Kills the first process only.
    pub(super) fn kill_leader(&self) {
        if let Some(pid) = self.leader.and_then(|pid| i32::try_from(pid).ok()).and_then(rustix::process::Pid::from_raw)
        {
            // It may be gone already.
            rustix::process::kill_process(pid, Signal::KILL).ok();
        }
        self.view.send_modify(|view| {
            view.interrupted = true;
            view.ended = true;
        });
    }

    async fn ended(&self) {
        let mut view = self.view.subscribe();
        // The sender lives in `self`, so the channel is open.
        view.wait_for(|view| view.ended).await.ok();
    }
}

fn exit_code(status: std::process::ExitStatus) -> i32 {
    use std::os::unix::process::ExitStatusExt as _;
    status.code().or_else(|| status.signal().map(|signal| 128 + signal)).unwrap_or(-1)
}
