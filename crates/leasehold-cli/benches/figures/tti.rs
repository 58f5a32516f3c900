//! Time to interactive: from sending the create until the end event of the first command, with the ledger durable.

use std::time::Instant;

use anyhow::Context as _;
use futures_util::future::join_all;
use leasehold_e2b::ProcessSpec;

use crate::Counts;
use crate::sandbox::{create, echo, run};
use crate::stage::Stage;
use crate::table::{Samples, Table, Unit};

const TTI_GOAL: f64 = 15.0;
const BURST_GOAL: f64 = 300.0;

/// Sandboxes made before measuring, so that caches and connections are as they are in use.
const WARM_UP: usize = 3;

pub(crate) async fn take(counts: Counts, table: &mut Table) -> anyhow::Result<()> {
    let stage = Stage::start()?;
    let (mut created, mut first, mut second) = (Samples::default(), Samples::default(), Samples::default());
    let (mut shell, mut killed) = (Samples::default(), Samples::default());
    for round in 0..WARM_UP + counts.of(200) {
        let start = Instant::now();
        let sandbox = create(&stage.client).await?;
        let made = start.elapsed();
        echo(&sandbox).await?;
        let done = start.elapsed();
        let start = Instant::now();
        echo(&sandbox).await?;
        let again = start.elapsed();
        let start = Instant::now();
        run(&sandbox, &ProcessSpec::shell("echo hi")).await?;
        let login = start.elapsed();
        let start = Instant::now();
        sandbox.kill().await?;
        let gone = start.elapsed();
        if round >= WARM_UP {
            created.time(made);
            first.time(done);
            second.time(again);
            shell.time(login);
            killed.time(gone);
        }
    }
    table.spread("TTI: create sent → end of `echo`", Unit::Millis, &first, Some(TTI_GOAL));
    table.spread("– of which create", Unit::Millis, &created, None);
    table.spread("`echo` again, envd Start → end", Unit::Millis, &second, None);
    table.spread("`bash -l -c 'echo hi'`, as E2B's SDKs run it", Unit::Millis, &shell, None);
    table.spread("kill", Unit::Millis, &killed, None);
    stage.stop()
}

/// All at once, as the hosted services are measured: each from its own create to its own end of `echo`.
pub(crate) async fn burst(counts: Counts, table: &mut Table) -> anyhow::Result<()> {
    let stage = Stage::start()?;
    let count = counts.of(100);
    for _ in 0..WARM_UP {
        create(&stage.client).await?.kill().await?;
    }
    let start = Instant::now();
    let one = || async {
        let sandbox = create(&stage.client).await?;
        let made = start.elapsed();
        echo(&sandbox).await?;
        anyhow::Ok((sandbox, made, start.elapsed()))
    };
    let all = join_all((0..count).map(|_| one())).await;
    let (mut created, mut done) = (Samples::default(), Samples::default());
    let mut failed = None;
    for outcome in all {
        match outcome {
            Ok((sandbox, made, echoed)) => {
                created.time(made);
                done.time(echoed);
                sandbox.kill().await?;
            }
            Err(error) => failed = Some(error),
        }
    }
    if let Some(error) = failed {
        return Err(error).context("a sandbox of the burst");
    }
    table.spread(format!("burst of {count} creates → 201"), Unit::Millis, &created, Some(BURST_GOAL));
    table.spread(format!("burst of {count} creates → end of `echo`"), Unit::Millis, &done, None);
    stage.stop()
}
