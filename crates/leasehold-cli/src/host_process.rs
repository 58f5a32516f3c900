//! Finds the host that owns a data directory, or starts it.
//!
//! One host per data directory: it holds `D/lock` and listens on `D/run/host.sock`. A command that finds nobody there starts
//! this same program as `leasehold host`, detached, and reads one line from it: ready, or why not. When two commands race,
//! one host gets the lock; the loser's command waits for the winner's socket to appear.

use std::io::{BufRead as _, BufReader, ErrorKind, Read as _, Seek as _, SeekFrom};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use std::{env, fs, io};

use anyhow::{Context as _, bail};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::inotify;
use serde::{Deserialize, Serialize};

/// How long a command waits for a host that somebody else is starting. Chosen: a start takes tens of milliseconds, and a
/// recovery of many sandboxes some seconds.
const WAIT_FOR_WINNER: Duration = Duration::from_secs(30);

/// How much of `host.log` is shown when a host died before it was ready.
const LOG_TAIL_BYTES: u64 = 2048;

/// The line that a starting host writes to its parent.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Announcement {
    /// Why it could not start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) error: Option<String>,
    /// Another process holds the data directory.
    #[serde(default)]
    pub(crate) held: bool,
}

/// The data directory that a command works on.
///
/// # Errors
/// When none was given and the environment does not say where data belongs.
pub(crate) fn data_dir(given: Option<PathBuf>) -> anyhow::Result<PathBuf> {
    let chosen = if let Some(dir) = given {
        dir
    } else if let Some(dir) = env::var_os("XDG_DATA_HOME").filter(|dir| !dir.is_empty()) {
        PathBuf::from(dir).join("leasehold")
    } else if let Some(home) = env::var_os("HOME").filter(|home| !home.is_empty()) {
        PathBuf::from(home).join(".local/share/leasehold")
    } else {
        bail!("no data directory: HOME is not set; give --data-dir DIR or set LEASEHOLD_DATA_DIR");
    };
    if chosen.as_os_str().is_empty() {
        bail!("the data directory is empty; give --data-dir DIR");
    }
    std::path::absolute(&chosen).with_context(|| format!("data directory {}", chosen.display()))
}

/// The path by which this process reaches the host's socket. It leads through a descriptor, because the address of a Unix
/// socket holds at most 107 bytes and a data directory may be deeper than that.
pub(crate) fn socket_path(data_dir: &Path) -> anyhow::Result<PathBuf> {
    let run = data_dir.join("run");
    let direct = run.join("host.sock");
    if direct.as_os_str().len() < 108 {
        return Ok(direct);
    }
    let dir = fs::File::open(&run).with_context(|| format!("cannot open {}", run.display()))?;
    let through = PathBuf::from(format!("/proc/self/fd/{}/host.sock", dir.as_raw_fd()));
    // Kept open for the life of this short process: every later connection goes through it.
    std::mem::forget(dir);
    Ok(through)
}

fn is_up(data_dir: &Path) -> bool {
    socket_path(data_dir).is_ok_and(|path| UnixStream::connect(path).is_ok())
}

/// Makes sure that a host owns `data_dir` and answers.
///
/// # Errors
/// When it cannot be started, with the reason it gave, or does not appear in time.
pub(crate) fn ensure(data_dir: &Path) -> anyhow::Result<()> {
    if is_up(data_dir) {
        return Ok(());
    }
    let announcement = start(data_dir)?;
    match announcement.error {
        None => Ok(()),
        Some(_) if announcement.held => wait_for_socket(data_dir, WAIT_FOR_WINNER),
        Some(error) => bail!("the host did not start: {error}"),
    }
}

fn start(data_dir: &Path) -> anyhow::Result<Announcement> {
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(data_dir)
        .with_context(|| format!("cannot make the data directory {}", data_dir.display()))?;
    let log_path = data_dir.join("host.log");
    let log = fs::OpenOptions::new()
        .create(true)
        .append(true)
        .mode(0o600)
        .open(&log_path)
        .with_context(|| format!("cannot write {}", log_path.display()))?;
    let log_start = log.metadata().map_or(0, |meta| meta.len());
    let mut child = Command::new(env::current_exe().context("cannot find this program's own file")?)
        .arg("--data-dir")
        .arg(data_dir)
        .arg("host")
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(log)
        .spawn()
        .context("cannot start the host process")?;
    let stdout = child.stdout.take().expect("stdout was asked to be a pipe");
    let mut line = String::new();
    BufReader::new(stdout).read_line(&mut line).context("cannot read from the host process")?;
    if line.is_empty() {
        let status = child.wait().context("cannot wait for the host process")?;
        bail!("the host ended before it was ready ({status}): {}", log_tail(&log_path, log_start));
    }
    serde_json::from_str(&line).with_context(|| format!("the host process said {line:?} instead of being ready"))
}

fn log_tail(path: &Path, start: u64) -> String {
    let read = || -> io::Result<String> {
        let mut file = fs::File::open(path)?;
        let end = file.metadata()?.len();
        file.seek(SeekFrom::Start(start.max(end.saturating_sub(LOG_TAIL_BYTES))))?;
        let mut bytes = Vec::new();
        file.take(LOG_TAIL_BYTES).read_to_end(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).trim().to_owned())
    };
    read().unwrap_or_else(|error| format!("see {} ({error})", path.display()))
}

/// Waits until the host that won the race accepts connections.
fn wait_for_socket(data_dir: &Path, limit: Duration) -> anyhow::Result<()> {
    let deadline = Instant::now() + limit;
    let run = data_dir.join("run");
    let watch = inotify::init(inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK)?;
    let mut watching_run = false;
    loop {
        // Both directories are watched before the check, so a socket that appears between check and wait wakes us.
        let created = inotify::WatchFlags::CREATE | inotify::WatchFlags::MOVED_TO | inotify::WatchFlags::ATTRIB;
        if !watching_run {
            inotify::add_watch(&watch, data_dir, created)?;
            watching_run = match inotify::add_watch(&watch, &run, created) {
                Ok(_) => true,
                Err(rustix::io::Errno::NOENT) => false,
                Err(error) => return Err(error).context("cannot watch the data directory"),
            };
        }
        if is_up(data_dir) {
            return Ok(());
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            bail!("another host holds {} but does not answer after {} s", data_dir.display(), limit.as_secs());
        }
        // A host may have bound its socket without listening yet; a short wait covers that step, which makes no event.
        let wait = left.min(Duration::from_millis(200));
        let timeout = rustix::time::Timespec::try_from(wait).expect("a fraction of a second fits");
        poll(&mut [PollFd::new(&watch, PollFlags::IN)], Some(&timeout))?;
        let mut buffer = [const { std::mem::MaybeUninit::uninit() }; 4096];
        let mut events = inotify::Reader::new(&watch, &mut buffer);
        while events.next().is_ok() {}
        if !is_up(data_dir) && !lock_is_held(data_dir) {
            // The winner is gone again: start our own.
            return ensure(data_dir);
        }
    }
}

fn lock_is_held(data_dir: &Path) -> bool {
    match fs::File::open(data_dir.join("lock")) {
        Ok(file) => match file.try_lock_shared() {
            Ok(()) => false,
            Err(fs::TryLockError::WouldBlock) => true,
            Err(fs::TryLockError::Error(_)) => false,
        },
        Err(error) => error.kind() != ErrorKind::NotFound,
    }
}
