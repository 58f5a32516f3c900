//! Short jobs that fail on purpose: each must be told with its output and its exit code, every time.

use std::time::Instant;

use futures_util::stream::{self, StreamExt as _};
use leasehold_e2b::ProcessSpec;
use shellctl::{JobStatus, Mode};

use crate::Counts;
use crate::sandbox::{create, run, shellctl};
use crate::stage::Stage;
use crate::table::{Samples, Table, Unit};

const SCRIPT: &str = "printf x; exit 3";

/// Jobs under way at once: more than cores, so that ends and outputs overlap.
const AT_ONCE: usize = 8;

pub(crate) async fn take(counts: Counts, table: &mut Table) -> anyhow::Result<()> {
    let stage = Stage::start()?;
    let sandbox = create(&stage.client).await?;
    let count = counts.of(2000);

    let spec = ProcessSpec::new("sh").arguments(["-c", SCRIPT]);
    let envd = || async {
        let ended = run(&sandbox, &spec).await.map_err(|error| format!("{error:#}"))?;
        let right = ended.stdout == b"x" && ended.stderr.is_empty() && ended.end.exited && ended.end.exit_code == 3;
        if right { Ok(()) } else { Err(format!("{:?} {:?}", ended.stdout, ended.end)) }
    };
    wrong(table, "envd", count, envd).await;

    let client = shellctl(&stage, &sandbox)?;
    for (mode, name) in [(Mode::Stdio, "shellctl, stdio"), (Mode::Pty, "shellctl, pty")] {
        let client = &client;
        let job = || async move {
            let result = crate::shell::run(client, SCRIPT, mode).await.map_err(|error| format!("{error:#}"))?;
            let right = result.status == JobStatus::Exited && result.exit_code == Some(3) && result.output == "x";
            client.delete(&result.job_id, &Default::default()).await.map_err(|error| error.to_string())?;
            if right { Ok(()) } else { Err(format!("{result:?}")) }
        };
        wrong(table, name, count, job).await;
    }
    sandbox.kill().await?;
    stage.stop()
}

/// Runs `count` jobs, counts the wrong ones and shows the first.
async fn wrong<F: Future<Output = Result<(), String>>>(
    table: &mut Table,
    name: &str,
    count: usize,
    job: impl Fn() -> F,
) {
    let start = Instant::now();
    let outcomes: Vec<_> = stream::iter(0..count).map(|_| job()).buffer_unordered(AT_ONCE).collect().await;
    let each: Samples = [start.elapsed().as_secs_f64() * 1e3 / outcomes.len().max(1) as f64].into_iter().collect();
    let wrong: Vec<_> = outcomes.into_iter().filter_map(Result::err).collect();
    table.single(format!("`{SCRIPT}` through {name}"), Unit::Wrong, count, wrong.len() as f64, Some(0.0));
    table.note(match wrong.first() {
        Some(first) => format!("the first: {first}"),
        None => format!("{AT_ONCE} at once, {:.2} ms each", each.median()),
    });
}
