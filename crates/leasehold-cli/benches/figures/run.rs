//! `leasehold run -- true` as a person types it: the whole process, with and without a host that is up.

use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};

use crate::Counts;
use crate::stage::{Stage, program, temporary, wait_for_embedded};
use crate::table::{Samples, Table, Unit};

const NO_HOST_GOAL: f64 = 80.0;
const HOST_UP_GOAL: f64 = 30.0;

pub(crate) async fn take(counts: Counts, table: &mut Table) -> anyhow::Result<()> {
    let mut samples = Samples::default();
    for _ in 0..counts.of(20) {
        let dir = temporary()?;
        let data = dir.path().join("data");
        samples.time(run(&data)?);
        wait_for_embedded(&data)?;
    }
    table.spread("run -- true, no host, new data directory", Unit::Millis, &samples, Some(NO_HOST_GOAL));

    let mut samples = Samples::default();
    let dir = temporary()?;
    let data = dir.path().join("data");
    run(&data)?;
    for _ in 0..counts.of(20) {
        wait_for_embedded(&data)?;
        samples.time(run(&data)?);
    }
    wait_for_embedded(&data)?;
    table.spread("run -- true, no host, used data directory", Unit::Millis, &samples, Some(NO_HOST_GOAL));

    let mut samples = Samples::default();
    let stage = Stage::start()?;
    run(&stage.data_dir())?;
    for _ in 0..counts.of(100) {
        samples.time(run(&stage.data_dir())?);
    }
    stage.stop()?;
    table.spread("run -- true, host up", Unit::Millis, &samples, Some(HOST_UP_GOAL));
    Ok(())
}

fn run(data_dir: &Path) -> anyhow::Result<Duration> {
    let mut command = program(data_dir);
    command.args(["run", "--", "true"]).stdout(Stdio::piped()).stderr(Stdio::piped());
    let start = Instant::now();
    let output = command.spawn().and_then(std::process::Child::wait_with_output).context("cannot run the program")?;
    let took = start.elapsed();
    if !output.status.success() || !output.stdout.is_empty() || !output.stderr.is_empty() {
        let [stdout, stderr] = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes));
        bail!("run -- true: {}, said {stdout:?} and {stderr:?}", output.status);
    }
    Ok(took)
}
