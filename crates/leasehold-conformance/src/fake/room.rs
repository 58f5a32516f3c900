//! One Binding's directory, processes and jobs.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::process::Signal;

use super::job::Job;
use super::processes;

/// What a new Home brings along.
const PROFILE: &str = "# the fake's default profile\n";

pub(super) struct Room {
    name: String,
    directory: PathBuf,
    home: PathBuf,
    workspace: PathBuf,
    workspace_ref: String,
    made_from: Option<String>,
    active: AtomicBool,
    next_job: AtomicU64,
    jobs: Mutex<BTreeMap<String, Arc<Job>>>,
    init: Mutex<Option<Child>>,
}

/// What a room is made of.
pub(super) struct Plan {
    pub(super) name: String,
    pub(super) directory: PathBuf,
    pub(super) home: PathBuf,
    pub(super) workspace: PathBuf,
    pub(super) workspace_ref: String,
    pub(super) made_from: Option<String>,
}

impl Room {
    pub(super) fn new(plan: Plan) -> io::Result<Self> {
        let Plan { name, directory, home, workspace, workspace_ref, made_from } = plan;
        for needed in [&directory, &directory.join("jobs"), &home, &workspace] {
            std::fs::create_dir_all(needed)?;
        }
        Ok(Self {
            name,
            directory,
            home,
            workspace,
            workspace_ref,
            made_from,
            active: AtomicBool::new(false),
            next_job: AtomicU64::new(1),
            jobs: Mutex::default(),
            init: Mutex::default(),
        })
    }

    pub(super) fn write_default_home(&self) -> io::Result<()> {
        std::fs::write(self.home.join(".profile"), PROFILE)
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn directory(&self) -> &Path {
        &self.directory
    }

    pub(super) fn home(&self) -> &Path {
        &self.home
    }

    pub(super) fn workspace(&self) -> &Path {
        &self.workspace
    }

    pub(super) fn workspace_ref(&self) -> &str {
        &self.workspace_ref
    }

    pub(super) fn made_from(&self) -> Option<&str> {
        self.made_from.as_deref()
    }

    /// The mark of all of its processes.
    pub(super) fn mark(&self) -> String {
        format!("{}#", self.directory.display())
    }

    pub(super) fn is_active(&self) -> bool {
        self.active.load(Ordering::SeqCst)
    }

    /// Lets the room's processes run.
    pub(super) fn resume(&self) {
        self.active.store(true, Ordering::SeqCst);
        processes::signal(&self.mark(), Signal::CONT);
    }

    /// Stops the room's processes where they are.
    pub(super) fn suspend(&self) {
        processes::signal(&self.mark(), Signal::STOP);
        self.active.store(false, Ordering::SeqCst);
    }

    pub(super) fn kill_processes(&self) {
        processes::kill_all(&self.mark());
        self.end_init();
    }

    fn end_init(&self) {
        if let Some(mut init) = self.init.lock().unwrap_or_else(PoisonError::into_inner).take() {
            // Both fail only when it is gone already.
            init.kill().ok();
            init.wait().ok();
        }
    }

    fn jobs(&self) -> MutexGuard<'_, BTreeMap<String, Arc<Job>>> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn next_job(&self) -> String {
        format!("job-{}", self.next_job.fetch_add(1, Ordering::SeqCst))
    }

    pub(super) fn add_job(&self, job: Arc<Job>) {
        self.jobs().insert(job.id().to_owned(), job);
    }

    pub(super) fn job(&self, id: &str) -> Option<Arc<Job>> {
        self.jobs().get(id).cloned()
    }

    pub(super) fn take_job(&self, id: &str) -> Option<Arc<Job>> {
        self.jobs().remove(id)
    }

    /// The pid of the room's own PID 1, started when the first command needs it.
    pub(super) fn init(&self, reap: bool) -> io::Result<u32> {
        let mut init = self.init.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(child) = init.as_ref() {
            return first_child(child.id());
        }
        // The shell sits in a wait for any child, and so reaps orphans.
        let script = if reap { "sleep infinity & echo; wait" } else { "echo; exec sleep infinity" };
        let mut child = Command::new("unshare")
            .args(["--pid", "--fork", "--mount-proc", "--kill-child=KILL", "sh", "-c", script])
            .env(processes::VARIABLE, format!("{}init", self.mark()))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()?;
        // The empty line says that /proc is mounted.
        let mut line = [0; 1];
        io::Read::read_exact(child.stdout.as_mut().expect("its output is piped"), &mut line)?;
        let pid = first_child(child.id());
        *init = Some(child);
        pid
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        // Not the jobs: when they outlive their room, the leftover check is to see it. They end with the world.
        self.end_init();
    }
}

fn first_child(pid: u32) -> io::Result<u32> {
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"))?;
    let first = children.split_whitespace().next().and_then(|child| child.parse().ok());
    first.ok_or_else(|| io::Error::other(format!("process {pid} has no child")))
}
