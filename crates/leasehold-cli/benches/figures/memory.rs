//! What an idle sandbox occupies: the difference in the machine's available memory over many of them.

use std::fs;
use std::time::Duration;

use crate::Counts;
use crate::machine::meminfo;
use crate::sandbox::create;
use crate::stage::{Stage, processes_of};
use crate::table::{Samples, Table, Unit};

const IDLE_GOAL: f64 = 4.0;

/// Readings of the machine's memory, of which the median counts, and the time between them: others use the machine too.
const READINGS: usize = 11;
const BETWEEN: Duration = Duration::from_millis(100);

pub(crate) async fn take(counts: Counts, table: &mut Table) -> anyhow::Result<()> {
    let stage = Stage::start()?;
    // What the first sandbox brings, such as the host's own buffers, is not the others'.
    let first = create(&stage.client).await?;
    let count = counts.of(50);
    let host = || resident(stage.pid());
    let (before, host_before, shares_before) = (available().await?, host(), shares(&stage));
    let mut sandboxes = Vec::new();
    for _ in 0..count {
        sandboxes.push(create(&stage.client).await?);
    }
    let (after, host_after, shares_after) = (available().await?, host(), shares(&stage));
    for sandbox in sandboxes.iter().chain([&first]) {
        sandbox.kill().await?;
    }
    stage.stop()?;
    let each = |before: f64, after: f64| (after - before) / f64::from(u32::try_from(count).unwrap_or(u32::MAX));
    table.single("idle sandbox, MemAvailable difference", Unit::Megabytes, count, each(after, before), Some(IDLE_GOAL));
    table.note(format!(
        "processes' PSS {:.2} MB each, host's RSS grew by {:.2} MB each; the rest is the kernel's",
        each(shares_before, shares_after),
        each(host_before, host_after),
    ));
    Ok(())
}

/// The machine's available memory in 10⁶ bytes.
async fn available() -> anyhow::Result<f64> {
    let mut readings = Samples::default();
    for _ in 0..READINGS {
        tokio::time::sleep(BETWEEN).await;
        readings.push(megabytes(meminfo("MemAvailable")?));
    }
    Ok(readings.median())
}

#[expect(clippy::cast_precision_loss, reason = "a machine's memory is far below 2^52 bytes")]
fn megabytes(bytes: u64) -> f64 {
    bytes as f64 / 1e6
}

/// A line of one of a process's tables, in 10⁶ bytes.
fn line(pid: u32, file: &str, name: &str) -> f64 {
    let text = fs::read_to_string(format!("/proc/{pid}/{file}")).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    megabytes(line.unwrap_or_default() << 10)
}

fn resident(pid: u32) -> f64 {
    line(pid, "status", "VmRSS:")
}

/// The proportional shares of memory of all processes in the host's sandboxes.
fn shares(stage: &Stage) -> f64 {
    let inside = processes_of(&stage.data_dir()).into_iter().filter(|pid| *pid != stage.pid());
    inside.map(|pid| line(pid, "smaps_rollup", "Pss:")).sum()
}
