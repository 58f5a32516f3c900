//! `GET /metrics`: how busy the sandbox's machine is, as far as the sandbox can see.

use std::fs;
use std::sync::{Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use serde::Serialize;

/// Reads the figures; remembers the processor times of the last reading.
#[derive(Debug, Default)]
pub(super) struct Metrics {
    last: Mutex<CpuTimes>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct CpuTimes {
    busy: u64,
    total: u64,
}

/// The figures under envd's names (0.6.13).
#[derive(Debug, Serialize)]
pub(super) struct Figures {
    ts: u64,
    cpu_count: usize,
    /// Since the last reading; since boot at the first.
    cpu_used_pct: f64,
    mem_total: u64,
    mem_used: u64,
    mem_total_mib: u64,
    mem_used_mib: u64,
    mem_cache: u64,
    disk_used: u64,
    disk_total: u64,
}

impl Metrics {
    pub(super) fn read(&self) -> Figures {
        let now = cpu_times(&fs::read_to_string("/proc/stat").unwrap_or_default());
        let last = std::mem::replace(&mut *self.last.lock().unwrap_or_else(PoisonError::into_inner), now);
        let memory = fs::read_to_string("/proc/meminfo").unwrap_or_default();
        let (total, available) = (memory_bytes(&memory, "MemTotal:"), memory_bytes(&memory, "MemAvailable:"));
        let used = total.saturating_sub(available);
        let (disk_total, disk_used) = rustix::fs::statvfs("/").map_or((0, 0), |disk| {
            (disk.f_blocks * disk.f_frsize, disk.f_blocks.saturating_sub(disk.f_bfree) * disk.f_frsize)
        });
        Figures {
            ts: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs()),
            cpu_count: std::thread::available_parallelism().map_or(1, usize::from),
            cpu_used_pct: percent(now.busy.saturating_sub(last.busy), now.total.saturating_sub(last.total)),
            mem_total: total,
            mem_used: used,
            mem_total_mib: total >> 20,
            mem_used_mib: used >> 20,
            mem_cache: memory_bytes(&memory, "Cached:"),
            disk_used,
            disk_total,
        }
    }
}

/// With two decimals.
#[expect(clippy::cast_precision_loss, reason = "two decimals of a percentage do not need 64 bits")]
fn percent(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { (part as f64 * 10_000.0 / whole as f64).round() / 100.0 }
}

/// See proc_stat(5): the fourth and fifth figure are idle time.
fn cpu_times(stat: &str) -> CpuTimes {
    let Some(line) = stat.lines().next().and_then(|line| line.strip_prefix("cpu ")) else { return CpuTimes::default() };
    let figures: Vec<u64> = line.split_ascii_whitespace().take(8).filter_map(|text| text.parse().ok()).collect();
    let total = figures.iter().sum();
    let idle: u64 = figures.iter().skip(3).take(2).sum();
    CpuTimes { busy: total - idle, total }
}

/// See proc_meminfo(5): figures are in KiB.
fn memory_bytes(meminfo: &str, name: &str) -> u64 {
    let line = meminfo.lines().find_map(|line| line.strip_prefix(name));
    line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<u64>().ok()).unwrap_or(0) << 10
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_read_from_proc() {
        assert_eq!(cpu_times("cpu  10 0 20 60 10 0 0 0 5 5\ncpu0 1"), CpuTimes { busy: 30, total: 100 });
        assert!((percent(30, 100) - 30.0).abs() < 1e-9 && percent(0, 0).abs() < 1e-9);
        assert_eq!(memory_bytes("MemTotal:  2 kB\nCached: 3 kB\n", "Cached:"), 3072);
    }
}
