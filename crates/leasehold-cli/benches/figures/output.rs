//! Bytes per second out of a sandbox, and what they cost in processor time.

use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use leasehold_e2b::{Output, ProcessSpec, Sandbox};
use shellctl::{Mode, RunRequest, WaitRequest, limits};

use crate::Counts;
use crate::processor::Processor;
use crate::sandbox::{create, run, shellctl};
use crate::stage::Stage;
use crate::table::{Samples, Table, Unit};

const WAIT_GOAL: f64 = 150.0;
const STREAM_GOAL: f64 = 80.0;
const FILE_GOAL: f64 = 1000.0;

const MEBIBYTE: u64 = 1 << 20;

/// How much each round moves. Chosen: long enough for a steady state, small enough for a job's bounded output file.
const WAIT_BYTES: u64 = 32 * MEBIBYTE;
const STREAM_BYTES: u64 = 128 * MEBIBYTE;
const FILE_BYTES: u64 = 512 * MEBIBYTE;

pub(crate) async fn take(counts: Counts, table: &mut Table) -> anyhow::Result<()> {
    let stage = Stage::start()?;
    let sandbox = create(&stage.client).await?;
    waits(counts, table, &stage, &sandbox).await.context("shellctl wait")?;
    streams(counts, table, &stage, &sandbox).await.context("envd stream")?;
    files(counts, table, &stage, &sandbox).await.context("GET file")?;
    sandbox.kill().await?;
    stage.stop()
}

/// Text of lines, as programs write it.
fn text(bytes: u64) -> String {
    format!("yes 0123456789abcdefghijklmnopqrstuvwxyz | head -c {bytes}")
}

async fn waits(counts: Counts, table: &mut Table, stage: &Stage, sandbox: &Sandbox) -> anyhow::Result<()> {
    let client = shellctl(stage, sandbox)?;
    let mut request = RunRequest::new(text(WAIT_BYTES));
    (request.mode, request.output_limit) = (Mode::Stdio, 1);
    let mut result = client.run(&request).await?;
    while !result.done {
        result = client.wait(&result.job_id, &WaitRequest::new(result.offset)).await?;
    }
    let mut rates = Rates::new(stage);
    for _ in 0..counts.of(10) {
        rates.start();
        let (mut offset, mut length) = (0, 0);
        while offset < WAIT_BYTES {
            let request = WaitRequest { output_limit: limits::MAX_OUTPUT_LIMIT, ..WaitRequest::new(offset) };
            let piece = client.wait(&result.job_id, &request).await?;
            ensure!(piece.offset > offset, "the output ended at {offset} of {WAIT_BYTES} bytes");
            (offset, length) = (piece.offset, length + piece.output.len());
        }
        rates.stop(length as u64, WAIT_BYTES)?;
    }
    client.delete(&result.job_id, &Default::default()).await?;
    rates.tell(table, "shellctl wait, 1 MiB windows", WAIT_GOAL);
    Ok(())
}

async fn streams(counts: Counts, table: &mut Table, stage: &Stage, sandbox: &Sandbox) -> anyhow::Result<()> {
    let spec = ProcessSpec::new("sh").arguments(["-c".to_owned(), text(STREAM_BYTES)]);
    let mut rates = Rates::new(stage);
    for _ in 0..counts.of(10) {
        rates.start();
        let mut process = sandbox.start(&spec).await?;
        let mut length = 0;
        loop {
            match process.next().await? {
                Some(Output::Stdout(bytes)) => length += bytes.len() as u64,
                Some(Output::End(end)) if end.exit_code == 0 => break,
                other => bail!("unexpected: {other:?}"),
            }
        }
        rates.stop(length, STREAM_BYTES)?;
    }
    rates.tell(table, "envd stream", STREAM_GOAL);
    Ok(())
}

async fn files(counts: Counts, table: &mut Table, stage: &Stage, sandbox: &Sandbox) -> anyhow::Result<()> {
    let path = "/home/user/big";
    let make = format!("{} > {path}", text(FILE_BYTES));
    let made = run(sandbox, &ProcessSpec::new("sh").arguments(["-c", &make])).await?;
    ensure!(made.end.exit_code == 0, "cannot make the file: {}", String::from_utf8_lossy(&made.stderr));
    let files = sandbox.files();
    let mut rates = Rates::new(stage);
    for _ in 0..counts.of(10) {
        rates.start();
        let mut reader = files.read(path).await?;
        let mut length = 0;
        while let Some(bytes) = reader.next().await? {
            length += bytes.len() as u64;
        }
        rates.stop(length, FILE_BYTES)?;
    }
    files.remove(path).await?;
    rates.tell(table, "GET file", FILE_GOAL);
    Ok(())
}

/// Rates of one way out.
struct Rates<'a> {
    stage: &'a Stage,
    rates: Samples,
    bytes: u64,
    /// Processor time of host and sandboxes, and of this client.
    used: [Duration; 2],
    begun: (Instant, [Processor; 2]),
}

impl<'a> Rates<'a> {
    fn new(stage: &'a Stage) -> Self {
        let begun = (Instant::now(), Self::look(stage));
        Self { stage, rates: Samples::default(), bytes: 0, used: [Duration::ZERO; 2], begun }
    }

    fn look(stage: &Stage) -> [Processor; 2] {
        [Processor::of_tree(stage.pid()), Processor::of_process(std::process::id())]
    }

    fn start(&mut self) {
        self.begun = (Instant::now(), Self::look(self.stage));
    }

    fn stop(&mut self, length: u64, expected: u64) -> anyhow::Result<()> {
        let took = self.begun.0.elapsed().as_secs_f64();
        ensure!(length == expected, "{length} bytes came, not {expected}");
        for (used, (now, then)) in self.used.iter_mut().zip(Self::look(self.stage).into_iter().zip(self.begun.1)) {
            *used += now.since(then);
        }
        self.bytes += length;
        self.rates.push(length as f64 / 1e6 / took);
        Ok(())
    }

    fn tell(self, table: &mut Table, name: &str, goal: f64) {
        table.spread(name, Unit::MegabytesPerSecond, &self.rates, Some(goal));
        let [served, client] = self.used.map(|used| used.as_secs_f64() / (self.bytes as f64 / 1e9));
        table.note(format!("processor s/GB: host and sandbox {served:.2}, client {client:.2}"));
    }
}
