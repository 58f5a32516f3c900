//! A host of our own: the built `leasehold serve` on a temporary data directory.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, bail};
use leasehold_e2b::{Client, ClientOptions};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use tempfile::TempDir;

use crate::processor::{descendants, is_there};

/// The program under test.
pub(crate) const PROGRAM: &str = env!("CARGO_BIN_EXE_leasehold");

/// How long a host may take to become ready, and to end.
const PATIENCE: Duration = Duration::from_secs(60);

/// A directory that `scripts/leftovers` would find.
pub(crate) fn temporary() -> anyhow::Result<TempDir> {
    tempfile::Builder::new().prefix("leasehold-bench-").tempdir().context("cannot make a temporary directory")
}

/// The program on a data directory, with nothing of ours in its environment.
pub(crate) fn program(data_dir: &Path) -> Command {
    let mut command = Command::new(PROGRAM);
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("LEASEHOLD_") {
            command.env_remove(name);
        }
    }
    command.arg("--data-dir").arg(data_dir).stdin(Stdio::null());
    command
}

/// A running host.
pub(crate) struct Stage {
    dir: TempDir,
    host: Child,
    /// A client of its Unix socket.
    pub(crate) client: Client,
}

impl Stage {
    /// Starts a host and waits until it is ready.
    pub(crate) fn start() -> anyhow::Result<Self> {
        let dir = temporary()?;
        let log = fs::File::create(dir.path().join("serve.log")).context("cannot write the host's log")?;
        let data = dir.path().join("data");
        let mut host = program(&data)
            .args(["serve", "--listen", "127.0.0.1:0"])
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .context("cannot start the host")?;
        let mut stdout = BufReader::new(host.stdout.take().expect("stdout was asked to be a pipe"));
        let mut line = String::new();
        while !line.contains("http://") {
            line.clear();
            if stdout.read_line(&mut line)? == 0 {
                let status = host.wait()?;
                let log = fs::read_to_string(dir.path().join("serve.log")).unwrap_or_default();
                bail!("the host ended before it was ready ({status}): {}", log.trim());
            }
        }
        // Whatever else it says must not block it.
        std::thread::spawn(move || stdout.read_to_end(&mut Vec::new()));
        let socket = data.join("run/host.sock");
        UnixStream::connect(&socket).with_context(|| format!("cannot connect to {}", socket.display()))?;
        let client = ClientOptions::default().unix_socket(socket).build()?;
        Ok(Self { dir, host, client })
    }

    pub(crate) fn data_dir(&self) -> PathBuf {
        self.dir.path().join("data")
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.data_dir().join("run/host.sock")
    }

    /// The host's process.
    pub(crate) fn pid(&self) -> u32 {
        self.host.id()
    }

    /// Ends the host in good order and looks for what it left.
    pub(crate) fn stop(mut self) -> anyhow::Result<()> {
        let inside = descendants(self.host.id());
        end(self.host.id(), &self.data_dir())?;
        let status = self.host.wait().context("cannot wait for the host")?;
        if !status.success() {
            bail!("the host ended with {status}");
        }
        let mut left = processes_of(&self.data_dir());
        left.extend(inside.into_iter().filter(|process| is_there(*process)).map(|(pid, _)| pid));
        if !left.is_empty() {
            bail!("processes were left: {left:?}");
        }
        Ok(())
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        // After `stop` it is gone. After an error in between, its sandboxes end with it or are ended one by one.
        if matches!(self.host.try_wait(), Ok(None)) {
            drop(end(self.host.id(), &self.data_dir()));
            drop(self.host.wait());
        }
    }
}

/// Ends the host `pid` of a data directory: asks, waits, and kills what does not listen.
fn end(pid: u32, data_dir: &Path) -> anyhow::Result<()> {
    if signal(pid, Signal::TERM, PATIENCE)? {
        return Ok(());
    }
    for pid in processes_of(data_dir).into_iter().chain([pid]) {
        signal(pid, Signal::KILL, PATIENCE)?;
    }
    bail!("the host did not end within {} s and was killed", PATIENCE.as_secs())
}

/// Sends a signal and waits for the process's end; false when it lives on.
fn signal(pid: u32, signal: Signal, patience: Duration) -> anyhow::Result<bool> {
    let Some(process) = i32::try_from(pid).ok().and_then(Pid::from_raw) else { return Ok(true) };
    let Ok(handle) = pidfd_open(process, PidfdFlags::empty()) else { return Ok(true) };
    if pidfd_send_signal(&handle, signal).is_err() {
        return Ok(true);
    }
    wait(&handle, patience)
}

fn wait(handle: &impl std::os::fd::AsFd, patience: Duration) -> anyhow::Result<bool> {
    let limit = rustix::time::Timespec::try_from(patience).expect("a minute fits");
    Ok(poll(&mut [PollFd::new(handle, PollFlags::IN)], Some(&limit))? > 0)
}

/// Waits until a host that a command started by itself has left, as it does when nothing is left to do; asks it to otherwise.
pub(crate) fn wait_for_embedded(data_dir: &Path) -> anyhow::Result<()> {
    for pid in processes_of(data_dir) {
        let Some(process) = i32::try_from(pid).ok().and_then(Pid::from_raw) else { continue };
        let Ok(handle) = pidfd_open(process, PidfdFlags::empty()) else { continue };
        if !wait(&handle, Duration::from_secs(5))? {
            end(pid, data_dir)?;
        }
    }
    Ok(())
}

/// Processes that run from a data directory or name it in their arguments.
pub(crate) fn processes_of(data_dir: &Path) -> Vec<u32> {
    let name = data_dir.as_os_str().as_encoded_bytes();
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else { continue };
        let executable = fs::read_link(entry.path().join("exe")).is_ok_and(|exe| exe.starts_with(data_dir));
        let arguments = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        if pid != std::process::id() && (executable || arguments.windows(name.len()).any(|window| window == name)) {
            found.push(pid);
        }
    }
    found
}
