//! The launcher and the first process, step by step.

use std::convert::Infallible;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitCode};

use rustix::fs::{Mode, OFlags};
use rustix::pipe::PipeFlags;
use rustix::process::{Resource, Rlimit, Signal};
use rustix::thread::{Gid, Uid};

use super::failure::{During, Failure};
use super::furnish::{self, Root};
use super::plan::{BootPlan, READY_FD, Report};
use super::stage::Sources;
use super::sys::{self, Cloned, MountAttributes};
use super::{capabilities, overlay, seccomp};

/// A plan has a few kilobytes, with hundreds of layers a few more. Chosen far above.
const LARGEST_PLAN: u64 = 4 << 20;

/// Runs the launcher: reads a [`BootPlan`] from standard input, starts the sandbox and reports on standard output.
///
/// Standard error becomes the guest's standard output and error. The process must have a single thread.
#[must_use]
pub fn launch() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            // If even this cannot be written, the engine sees the end of the pipe and says so.
            drop(say(&failure.report()));
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Failure> {
    // A host that is killed takes the launcher along: the next one may already be clearing away what this boot is made of. If it was killed before
    // this line, the first report finds no reader, and that ends the launcher too.
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL)).during("launch", "cannot tie to the host")?;
    keep_low_descriptors_free()?;
    // Wherever the host was started is no place to stay in.
    rustix::process::chdir("/").during("launch", "cannot go to the root directory")?;
    let plan = read_plan()?;
    shed_privileged_scheduling()?;
    let (wait, go) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC).during("launch", "cannot make a pipe")?;
    let cgroup = plan.cgroups.unified.as_deref().map(open_directory).transpose()?;
    match sys::clone_into_sandbox(cgroup.as_ref().map(OwnedFd::as_fd)).during("clone", "cannot make the namespaces")? {
        Cloned::Child => {
            drop((go, cgroup));
            first_process(&plan, &wait)
        }
        Cloned::Parent { pid } => {
            drop(wait);
            attend(&plan, pid, File::from(go))
        }
    }
}

/// The launcher's part: what only the host's root can do to the new process. If it fails, the pipe closes and the process ends by itself.
fn attend(plan: &BootPlan, pid: u32, mut go: File) -> Result<(), Failure> {
    // Said before the process may take a step: whatever goes wrong later, the engine knows whom to wait for.
    say(&Report::Launched { pid })?;
    let map: String = plan.ids.iter().map(ToString::to_string).collect();
    for name in ["uid_map", "gid_map"] {
        let path = format!("/proc/{pid}/{name}");
        fs::write(&path, &map).at("ids", "cannot write", Path::new(&path))?;
    }
    go.write_all(b"i").during("launch", "the first process died early")?;
    for directory in &plan.cgroups.legacy {
        let file = directory.join("cgroup.procs");
        fs::write(&file, pid.to_string()).at("cgroup", "cannot enter", &file)?;
    }
    // The process may have failed meanwhile and said why; then this write fails too, and its report counts.
    drop(go.write_all(b"c"));
    Ok(())
}

/// The first process: builds its world, then becomes the guest. Never returns to the launcher's code.
fn first_process(plan: &BootPlan, wait: &OwnedFd) -> ! {
    let Err(failure) = become_guest(plan, wait);
    drop(say(&failure.report()));
    sys::exit_now(1)
}

fn become_guest(plan: &BootPlan, wait: &OwnedFd) -> Result<Infallible, Failure> {
    // A terminal's Ctrl-C goes to the host's foreground group; the sandbox is not in it.
    rustix::process::setsid().during("session", "cannot make a session")?;
    await_byte(wait, "ids")?;
    let sources = Sources::open(plan)?;
    become_mapped_root()?;
    isolate_mounts()?;

    let directory = overlay::mount(&sources.layers)?;
    furnish::attach_root(&directory, &sources.mountpoint)?;
    let root = Root { directory, sources: &sources };
    rustix::process::umask(Mode::empty());
    plan.steps.iter().try_for_each(|step| root.apply(step))?;
    root.enter()?;

    rustix::process::umask(Mode::from_raw_mode(0o022));
    rustix::system::sethostname(plan.sandbox_id.as_bytes()).during("hostname", "cannot set the host name")?;
    sys::raise_loopback().during("network", "cannot bring up the loopback interface")?;
    await_byte(wait, "cgroup")?;
    arrange_descriptors()?;
    // In this order: reducing the bounding set needs a capability, an unprivileged filter needs no_new_privs.
    capabilities::reduce().during("capabilities", "cannot give up capabilities")?;
    rustix::thread::set_no_new_privs(true).during("privileges", "cannot rule out new privileges")?;
    sys::install_filter(&seccomp::program()).during("seccomp", "cannot install the system call filter")?;
    let error = Command::new(&plan.guest).arg("init").env_clear().exec();
    Err(error).at("exec", "cannot execute", &plan.guest)
}

/// Waits for the launcher to finish a part. End of file: it failed or was killed.
fn await_byte(wait: &OwnedFd, part: &str) -> Result<(), Failure> {
    let mut byte = [0];
    match rustix::io::retry_on_intr(|| rustix::io::read(wait, &mut byte)) {
        Ok(1) => Ok(()),
        // The launcher has said what is wrong; one line is enough.
        Ok(_) => sys::exit_now(1),
        Err(errno) => Err(errno).during("launch", part),
    }
}

fn become_mapped_root() -> Result<(), Failure> {
    const STAGE: &str = "ids";
    rustix::thread::set_thread_groups(&[]).during(STAGE, "cannot leave the host's groups")?;
    rustix::thread::set_thread_res_gid(Gid::ROOT, Gid::ROOT, Gid::ROOT)
        .during(STAGE, "cannot become the mapped group")?;
    rustix::thread::set_thread_res_uid(Uid::ROOT, Uid::ROOT, Uid::ROOT).during(STAGE, "cannot become the mapped root")
}

/// From here on, what the host mounts or unmounts is not seen here, nor the other way round.
fn isolate_mounts() -> Result<(), Failure> {
    let root = open_directory(Path::new("/"))?;
    let attributes = MountAttributes { private: true, ..MountAttributes::default() };
    sys::set_mount_attributes(root.as_fd(), attributes).during("mounts", "cannot separate the mount namespace")
}

/// Standard input is the sandbox's null device, output and error the log, [`READY_FD`] the pipe to the engine; nothing else crosses `exec`.
fn arrange_descriptors() -> Result<(), Failure> {
    const STAGE: &str = "descriptors";
    let null = rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
        .during(STAGE, "cannot open /dev/null")?;
    sys::duplicate_to(rustix::stdio::stdout(), READY_FD).during(STAGE, "cannot place the ready pipe")?;
    sys::duplicate_to(rustix::stdio::stderr(), 1).during(STAGE, "cannot place standard output")?;
    sys::duplicate_to(&null, 0).during(STAGE, "cannot place standard input")?;
    sys::close_on_exec_from(READY_FD + 1).during(STAGE, "cannot mark descriptors")
}

/// Occupies [`READY_FD`] with something nobody owns, so that no descriptor opened later gets this number and is lost when the ready pipe takes it.
fn keep_low_descriptors_free() -> Result<(), Failure> {
    sys::duplicate_to(rustix::stdio::stderr(), READY_FD).during("descriptors", "cannot reserve the ready pipe's number")
}

/// A host may run with a negative nice value or protected from the out-of-memory killer; a sandbox must not inherit that. Core dumps are off because the
/// host's core handler would run as the host's root on data from the sandbox: a limit of one byte is the only one that a piped handler obeys
/// (fs/coredump.c).
fn shed_privileged_scheduling() -> Result<(), Failure> {
    const STAGE: &str = "scheduling";
    const ADJUSTMENT: &str = "/proc/self/oom_score_adj";
    let protected = fs::read_to_string(ADJUSTMENT).is_ok_and(|text| text.trim_start().starts_with('-'));
    if protected {
        fs::write(ADJUSTMENT, "0").during(STAGE, "cannot reset the out-of-memory score")?;
    }
    if rustix::process::getpriority_process(None).is_ok_and(|nice| nice < 0) {
        rustix::process::setpriority_process(None, 0).during(STAGE, "cannot reset the nice value")?;
    }
    rustix::process::setrlimit(Resource::Core, Rlimit { current: Some(1), maximum: Some(1) })
        .during(STAGE, "cannot switch core dumps off")
}

fn read_plan() -> Result<BootPlan, Failure> {
    let mut text = Vec::new();
    io::stdin().lock().take(LARGEST_PLAN).read_to_end(&mut text).during("plan", "cannot read the plan")?;
    serde_json::from_slice(&text).map_err(|error| Failure::new("plan", format!("not a plan: {error}")))
}

fn open_directory(path: &Path) -> Result<OwnedFd, Failure> {
    rustix::fs::open(path, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).at(
        "launch",
        "cannot open",
        path,
    )
}

/// Writes one line in one call, so that lines of two processes never mix (it is far shorter than a pipe's atomic size).
fn say(report: &Report) -> Result<(), Failure> {
    let mut line = serde_json::to_vec(report).map_err(|error| Failure::new("report", error.to_string()))?;
    line.push(b'\n');
    rustix::io::write(rustix::stdio::stdout(), &line).map(drop).during("report", "cannot report")
}
