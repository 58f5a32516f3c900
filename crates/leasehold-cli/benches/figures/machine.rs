//! What the figures were taken on.

use std::fmt;
use std::fs;
use std::io::{Seek as _, SeekFrom, Write as _};
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use anyhow::Context as _;

use crate::stage::temporary;
use crate::table::Samples;

/// Writes whose durability is waited for. Chosen: their median is steady, and they take a fraction of a second.
const SYNCS: usize = 100;

/// The machine, at this moment.
pub(crate) struct Machine {
    processor: String,
    cores: usize,
    memory_mib: u64,
    kernel: String,
    load: String,
    date: String,
    commit: String,
    fsync: Samples,
}

impl Machine {
    pub(crate) fn look() -> anyhow::Result<Self> {
        let cpu = fs::read_to_string("/proc/cpuinfo").context("cannot read /proc/cpuinfo")?;
        let model = cpu.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
        let dir = temporary()?;
        Ok(Self {
            processor: model.map_or("unknown", |(_, model)| model).to_owned(),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            memory_mib: meminfo("MemTotal")? >> 20,
            kernel: rustix::system::uname().release().to_string_lossy().into_owned(),
            load: fs::read_to_string("/proc/loadavg")
                .unwrap_or_default()
                .split(' ')
                .take(2)
                .collect::<Vec<_>>()
                .join(" "),
            date: said(Command::new("date").args(["-u", "+%Y-%m-%d %H:%M UTC"])),
            commit: said(Command::new("git").args(["describe", "--always", "--dirty", "--exclude", "*"])),
            fsync: fsync(dir.path())?,
        })
    }
}

/// The first line that a command says, or nothing.
fn said(command: &mut Command) -> String {
    let output = command.output().map(|output| output.stdout).unwrap_or_default();
    String::from_utf8_lossy(&output).trim().to_owned()
}

/// A value of /proc/meminfo in bytes.
pub(crate) fn meminfo(name: &str) -> anyhow::Result<u64> {
    let text = fs::read_to_string("/proc/meminfo").context("cannot read /proc/meminfo")?;
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    Ok(kib.with_context(|| format!("/proc/meminfo has no {name}"))? << 10)
}

/// How long a durable 4 KiB write takes where the data directories are.
fn fsync(dir: &Path) -> anyhow::Result<Samples> {
    let mut file = fs::File::create(dir.join("fsync")).context("cannot write")?;
    let mut samples = Samples::default();
    for _ in 0..SYNCS {
        let start = Instant::now();
        file.seek(SeekFrom::Start(0))?;
        file.write_all(&[0x5a; 4096])?;
        file.sync_all()?;
        samples.time(start.elapsed());
    }
    Ok(samples)
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let figures: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
        let tail = if figures.is_empty() { String::new() } else { format!(" -- {}", figures.join(" ")) };
        writeln!(
            f,
            "machine: {}, {} cores, {} MiB, Linux {}",
            self.processor, self.cores, self.memory_mib, self.kernel
        )?;
        writeln!(f, "date: {}, commit {}, load before {}", self.date, self.commit, self.load)?;
        writeln!(f, "command: cargo bench -p leasehold-cli{tail}")?;
        let [p50, p95, p99] = [50, 95, 99].map(|percent| self.fsync.percentile(percent));
        writeln!(f, "fsync_ms: {p50:.3} (p95 {p95:.3}, p99 {p99:.3}; 4 KiB, n {})", self.fsync.count())
    }
}
