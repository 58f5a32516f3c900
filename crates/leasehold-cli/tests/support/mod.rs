//! A data directory of a test's own, commands on it, and the check that nothing is left of them.

#![expect(clippy::unwrap_used, reason = "a test ends at the first surprise")]
#![allow(dead_code, unreachable_pub, missing_docs, reason = "each test program uses its part of what they share")]

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::Pid;
use tempfile::TempDir;

/// A data directory. When the test ends, everything in it is removed by our own commands, and what stays is a failure.
pub struct Place {
    dir: TempDir,
}

impl Place {
    pub fn new() -> Self {
        Self { dir: tempfile::Builder::new().prefix("leasehold-cli-").tempdir().unwrap() }
    }

    pub fn data_dir(&self) -> PathBuf {
        self.dir.path().join("data")
    }

    /// A directory beside the data directory.
    pub fn beside(&self, name: &str) -> PathBuf {
        let path = self.dir.path().join(name);
        fs::create_dir_all(&path).unwrap();
        path
    }

    pub fn command<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_leasehold"));
        command.arg("--data-dir").arg(self.data_dir()).args(args).stdin(Stdio::null());
        for name in ["LEASEHOLD_DATA_DIR", "LEASEHOLD_LISTEN", "LEASEHOLD_API_KEY", "LEASEHOLD_LOG"] {
            command.env_remove(name);
        }
        command
    }

    /// Runs a command to its end.
    pub fn output<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Output {
        self.command(args).output().unwrap()
    }

    /// Runs a command that must succeed, and gives its stdout.
    pub fn ok<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> String {
        let output = self.output(args);
        assert!(output.status.success(), "{}: {}", output.status, text(&output.stderr));
        text(&output.stdout)
    }

    /// Runs a command with this on its stdin.
    pub fn with_input<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>, input: &[u8]) -> Output {
        let mut command = self.command(args);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut stdin = child.stdin.take().unwrap();
        std::thread::scope(|scope| {
            scope.spawn(move || stdin.write_all(input));
            child.wait_with_output().unwrap()
        })
    }

    /// Starts a command whose output is collected later.
    pub fn spawn<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Child {
        self.command(args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    }

    /// The ids that `ls` shows.
    pub fn ids(&self) -> Vec<String> {
        let listed = self.ok(["ls", "--json"]);
        let id =
            |line: &str| serde_json::from_str::<serde_json::Value>(line).unwrap()["id"].as_str().unwrap().to_owned();
        listed.lines().map(id).collect()
    }

    /// Waits until the host of this directory has ended by itself.
    pub fn wait_for_host(&self) {
        if let Ok(lock) = File::open(self.data_dir().join("lock")) {
            lock.lock_shared().unwrap();
        }
    }

    /// The first processes of this directory's sandboxes, as this machine numbers them.
    pub fn guests(&self) -> Vec<Pid> {
        let needle = self.data_dir();
        let processes = fs::read_dir("/proc").unwrap().flatten();
        let guests = processes.filter(|entry| {
            fs::read(entry.path().join("cmdline")).is_ok_and(|line| line == b"/run/leasehold-guest\0init\0")
                && fs::read_to_string(entry.path().join("mountinfo"))
                    .is_ok_and(|mounts| mounts.contains(needle.to_str().unwrap()))
        });
        guests.filter_map(|entry| Pid::from_raw(entry.file_name().to_str()?.parse().ok()?)).collect()
    }

    fn leftovers(&self) -> Vec<String> {
        let data = self.data_dir();
        let mut left = Vec::new();
        for sub in ["run/s", "sandboxes", "layers"] {
            let entries = fs::read_dir(data.join(sub)).into_iter().flatten().flatten();
            left.extend(entries.map(|entry| format!("file {}", entry.path().display())));
        }
        left.extend(processes_of(&data));
        left.extend(
            fs::read_to_string("/proc/self/mountinfo")
                .unwrap()
                .lines()
                .filter(|line| line.contains(data.to_str().unwrap()))
                .map(|line| format!("mount {line}")),
        );
        left
    }
}

/// Processes whose program, arguments or root lie in the directory.
fn processes_of(data: &Path) -> Vec<String> {
    let needle = data.to_str().unwrap().as_bytes().to_vec();
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").unwrap().flatten() {
        let path = entry.path();
        if !entry.file_name().to_string_lossy().bytes().all(|byte| byte.is_ascii_digit()) {
            continue;
        }
        let line = fs::read(path.join("cmdline")).unwrap_or_default();
        let mounts = fs::read(path.join("mountinfo")).unwrap_or_default();
        let contains = |bytes: &[u8]| bytes.windows(needle.len()).any(|window| window == needle);
        if contains(&line) || contains(&mounts) {
            found.push(format!(
                "process {}: {}",
                entry.file_name().display(),
                String::from_utf8_lossy(&line).replace('\0', " ")
            ));
        }
    }
    found
}

impl Drop for Place {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // The failure matters more than the order; still, nothing may go on running.
            for id in self.output(["ls", "--json"]).stdout.split(|byte| *byte == b'\n') {
                if let Ok(row) = serde_json::from_slice::<serde_json::Value>(id) {
                    self.output(["rm", row["id"].as_str().unwrap_or_default()]);
                }
            }
            return;
        }
        let ids = if self.data_dir().join("lock").exists() { self.ids() } else { Vec::new() };
        if !ids.is_empty() {
            self.ok(["rm".to_owned()].into_iter().chain(ids));
        }
        self.wait_for_host();
        let left = until(Duration::from_secs(10), || self.leftovers(), Vec::is_empty);
        assert!(left.is_empty(), "left behind:\n{}", left.join("\n"));
    }
}

/// Looks again until the look satisfies or the limit passes; gives the last look.
pub fn until<T>(limit: Duration, look: impl Fn() -> T, satisfied: impl Fn(&T) -> bool) -> T {
    let deadline = Instant::now() + limit;
    loop {
        let seen = look();
        if satisfied(&seen) || Instant::now() > deadline {
            return seen;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Sends a signal to a child that we started.
pub fn signal(child: &Child, signal: rustix::process::Signal) {
    let pid = Pid::from_child(child);
    rustix::process::kill_process(pid, signal).unwrap();
}
