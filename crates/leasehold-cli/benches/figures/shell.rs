//! The command daemon's round trip, and the published Python daemon's beside it.

use std::time::Instant;

use anyhow::{Context as _, bail};
use shellctl::{JobResult, JobStatus, Mode, RunRequest, WaitRequest};

use crate::Counts;
use crate::peer::Peer;
use crate::sandbox::{create, shellctl};
use crate::stage::Stage;
use crate::table::{Samples, Table, Unit};

const ROUND_TRIP_GOAL: f64 = 2.0;
const RATIO_GOAL: f64 = 50.0;

/// Jobs run before measuring.
const WARM_UP: usize = 5;

pub(crate) async fn take(counts: Counts, table: &mut Table) -> anyhow::Result<()> {
    let stage = Stage::start()?;
    let sandbox = create(&stage.client).await?;
    let client = shellctl(&stage, &sandbox)?;
    let mut in_terminal = Samples::default();
    for (mode, name) in [(Mode::Stdio, "stdio"), (Mode::Pty, "pty")] {
        let mut samples = Samples::default();
        for round in 0..WARM_UP + counts.of(1000) {
            let start = Instant::now();
            let result = run(&client, "echo hi", mode).await?;
            let took = start.elapsed();
            check(&result)?;
            client.delete(&result.job_id, &Default::default()).await?;
            if round >= WARM_UP {
                samples.time(took);
            }
        }
        table.spread(format!("shellctl `echo hi`, {name}"), Unit::Millis, &samples, Some(ROUND_TRIP_GOAL));
        in_terminal = samples;
    }
    sandbox.kill().await?;
    stage.stop()?;
    beside(counts, table, &in_terminal).await
}

/// The same job on the peer, which has terminals only.
async fn beside(counts: Counts, table: &mut Table, ours: &Samples) -> anyhow::Result<()> {
    let mut peer = Peer::start().await.context("the peer could not be measured")?;
    let mut samples = Samples::default();
    let mut odd = 0;
    for round in 0..WARM_UP + counts.of(200) {
        let start = Instant::now();
        let result = peer.run("echo hi").await?;
        let took = start.elapsed();
        if check(&result).is_err() {
            odd += 1;
        } else if round >= WARM_UP {
            samples.time(took);
        }
        peer.delete(&result.job_id).await?;
    }
    peer.stop()?;
    table.spread(format!("{} `echo hi`, pty", crate::peer::NAME), Unit::Millis, &samples, None);
    table.note(format!("{odd} more jobs ended wrongly"));
    let ratio = samples.median() / ours.median();
    table.single("ours in pty mode, so many times as fast", Unit::Times, samples.count(), ratio, Some(RATIO_GOAL));
    Ok(())
}

/// Runs a script and waits for its end, whatever its output.
pub(crate) async fn run(client: &shellctl::client::Client, script: &str, mode: Mode) -> anyhow::Result<JobResult> {
    let mut request = RunRequest::new(script);
    request.mode = mode;
    let mut result = client.run(&request).await?;
    while !result.done {
        // Before the end only a part may have come; this asks again from its beginning.
        result = client.wait(&result.job_id, &WaitRequest::new(0)).await?;
    }
    Ok(result)
}

fn check(result: &JobResult) -> anyhow::Result<()> {
    if !result.done || result.status != JobStatus::Exited || result.exit_code != Some(0) || result.output != "hi\n" {
        bail!("echo hi ended as {} with {:?} and said {:?}", result.status, result.exit_code, result.output);
    }
    Ok(())
}
