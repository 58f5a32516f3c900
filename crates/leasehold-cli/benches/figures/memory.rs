//! What an idle sandbox occupies: the difference in the machine's available memory over many of them.

use std::fs;
use std::time::Duration;

use crate::Counts;
use crate::machine::meminfo;
use crate::processor::descendants;
use crate::sandbox::create;
use crate::stage::Stage;
use crate::table::{Samples, Table, Unit};

const IDLE_GOAL: f64 = 4.0;

/// Readings of the machine's memory, of which the median counts, and the time between them: others use the machine too.
const READINGS: usize = 11;
const BETWEEN: Duration = Duration::from_millis(100);

/// Times that the sandboxes are made and measured; the median counts.
const ROUNDS: usize = 3;

pub(crate) async fn take(counts: Counts, table: &mut Table) -> anyhow::Result<()> {
    let stage = Stage::start()?;
    let count = counts.of(50);
    // What the first ones bring, such as the host's own buffers and threads, is not the others'.
    round(&stage, count).await?;
    let mut each: [Samples; 3] = Default::default();
    for _ in 0..ROUNDS {
        for (samples, value) in each.iter_mut().zip(round(&stage, count).await?) {
            samples.push(value);
        }
    }
    stage.stop()?;
    let [used, shares, host] = each.map(|samples| samples.median());
    table.single("idle sandbox, MemAvailable difference", Unit::Megabytes, count, used, Some(IDLE_GOAL));
    let rest = used - shares - host;
    table.note(format!("its processes {shares:.2} MB (PSS), host {host:.2} MB, kernel {rest:.2} MB"));
    Ok(())
}

/// What each of `count` sandboxes adds to the memory in use, to their processes' shares, and to the host.
async fn round(stage: &Stage, count: usize) -> anyhow::Result<[f64; 3]> {
    let look = async || anyhow::Ok([-available().await?, shares(stage), resident(stage.pid())]);
    let before = look().await?;
    let mut sandboxes = Vec::new();
    for _ in 0..count {
        sandboxes.push(create(&stage.client).await?);
    }
    let after = look().await?;
    for sandbox in &sandboxes {
        sandbox.kill().await?;
    }
    Ok(std::array::from_fn(|index| (after[index] - before[index]) / count as f64))
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
    descendants(stage.pid()).into_iter().map(|(pid, _)| line(pid, "smaps_rollup", "Pss:")).sum()
}
