//! Processes of the sandbox: starting, following, feeding and ending them. Both protocol faces are built on this.
//!
//! Every process has a supervisor (see [`crate::supervise`]) that owns the tree below it, and a thread here that reads its output and
//! hears of its end. All waiting is on events.
//!
//! - The end is reported after the last byte of output, or after [`Drain`] when background processes hold the streams open.
//! - Without subscriber and sink, output is read and discarded: nothing is buffered, nothing blocks.
//! - An ended process of the envd face can still be found for [`REMEMBERED`].
//!
//! ```no_run
//! use std::collections::VecDeque;
//! use leasehold_guest::environment::{self, Terminal};
//! use leasehold_guest::process::*;
//! use leasehold_guest::{Identity, users::Users};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let processes = Processes::new("/proc/self/exe", Reaping::ByReaper);
//! let user = Users::default().by_name("user")?;
//! let (process, events) = processes.start(StartSpec {
//!     program: "sh".into(),
//!     args: vec!["-c".into(), "echo hi".into()],
//!     env: environment::build(&Identity::new("i", "host"), &user, Terminal::No, &Default::default()),
//!     cwd: user.home.clone(),
//!     user,
//!     stdio: Stdio::Pipes { stdin: Stdin::Null },
//!     tag: None,
//!     face: Face::Shellctl,
//!     sink: None, // or something that writes a file
//!     drain: Drain::default(),
//!     deadline: None,
//! })?;
//! let mut waiting = VecDeque::new();
//! events.wait(None)?;
//! events.take(&mut waiting);
//! drop(events); // unsubscribes
//! process.terminate(std::time::Duration::from_secs(5)); // asks; then:
//! let exit = process.wait(None);
//! let nothing_is_left = process.wait_gone(Some(std::time::Duration::from_secs(10)));
//! # Ok(()) }
//! ```

mod feed;
mod input;
mod pump;
mod running;
mod spawn;
mod spawner;
mod spec;
pub(crate) mod wire;

use std::collections::HashMap;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

pub use feed::{Event, QUEUE_BYTES, Subscription};
pub use input::InputError;
pub use running::Process;
use spawner::Spawner;
pub use spec::{
    Drain, Exit, ExitInfo, Face, OutputEnd, PtySize, Sink, Source, Stage, StartError, StartSpec, Stdin, Stdio,
};

/// How long an ended process can still be found, so that a late follower learns its exit. As envd does (0.6.13).
pub const REMEMBERED: Duration = Duration::from_secs(30);

/// Most ended processes that are remembered; the oldest go first. Chosen.
const MAX_REMEMBERED: usize = 1024;

/// Who takes the exit status of the spawner, the one child of this process (supervisors are the spawner's).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reaping {
    /// PID 1's reaper, which takes those of all children.
    ByReaper,
    /// The set of processes itself, in a program that has other children.
    ByProcess,
}

/// All processes that were started through the guest.
#[derive(Debug)]
pub struct Processes {
    spawner: Spawner,
    open_files: u64,
    registry: Mutex<Registry>,
}

#[derive(Debug, Default)]
struct Registry {
    by_pid: HashMap<u32, Arc<Process>>,
}

impl Processes {
    /// Makes an empty set. `guest` is this crate's binary, whose mode `supervise` is used.
    pub fn new(guest: impl Into<PathBuf>, reaping: Reaping) -> Self {
        let open_files = rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap_or(u64::MAX);
        Self { spawner: Spawner::new(guest.into(), reaping), open_files, registry: Mutex::default() }
    }

    /// The same, for a program that has raised its limit of open files and states what its children get.
    #[must_use]
    pub fn with_open_files(mut self, soft_limit: u64) -> Self {
        self.open_files = soft_limit;
        self
    }

    /// Prepares for the first start, which else takes a little longer.
    ///
    /// # Errors
    /// When the spawner cannot be started; a later start tries again.
    pub fn warm_up(&self) -> io::Result<()> {
        self.spawner.warm_up()
    }

    /// Starts a process. The subscription begins before its first output.
    ///
    /// # Errors
    /// When it could not be started: nothing of it is left then.
    pub fn start(&self, spec: StartSpec) -> Result<(Arc<Process>, Subscription), StartError> {
        let (process, subscription) = spawn::start(&self.spawner, self.open_files, spec)?;
        let mut registry = self.registry();
        registry.forget_old();
        // A process that had the number before has ended, else the kernel would not have given it again.
        registry.by_pid.insert(process.pid(), Arc::clone(&process));
        Ok((process, subscription))
    }

    /// The process with that number, running or ended less than [`REMEMBERED`] ago.
    #[must_use]
    pub fn by_pid(&self, pid: u32) -> Option<Arc<Process>> {
        let mut registry = self.registry();
        registry.forget_old();
        registry.by_pid.get(&pid).cloned()
    }

    /// The process with that tag: a running one, else the one that ended last.
    #[must_use]
    pub fn by_tag(&self, tag: &str) -> Option<Arc<Process>> {
        let mut registry = self.registry();
        registry.forget_old();
        let tagged = registry.by_pid.values().filter(|process| process.tag() == Some(tag));
        tagged.min_by_key(|process| process.ended_for()).cloned()
    }

    /// All running processes, by number.
    #[must_use]
    pub fn running(&self) -> Vec<Arc<Process>> {
        let registry = self.registry();
        let mut running: Vec<_> =
            registry.by_pid.values().filter(|process| process.exit().is_none()).cloned().collect();
        running.sort_by_key(|process| process.pid());
        running
    }

    fn registry(&self) -> MutexGuard<'_, Registry> {
        self.registry.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Registry {
    /// Old ends are forgotten when the registry is used, so that no timer is needed.
    fn forget_old(&mut self) {
        // Jobs of the shellctl face remember their end themselves, without descriptors.
        let kept = |process: &Process| if *process.face() == Face::Shellctl { Duration::ZERO } else { REMEMBERED };
        self.by_pid.retain(|_, process| process.ended_for().is_none_or(|time| time < kept(process)));
        let ended = |process: &Arc<Process>| process.ended_for().map(|time| (time, process.pid()));
        let mut ends: Vec<_> = self.by_pid.values().filter_map(ended).collect();
        if ends.len() > MAX_REMEMBERED {
            ends.sort_unstable();
            for (_, pid) in &ends[MAX_REMEMBERED..] {
                self.by_pid.remove(pid);
            }
        }
    }
}
