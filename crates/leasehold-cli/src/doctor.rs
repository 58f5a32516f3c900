//! `doctor`: what this machine offers, what is missing, and one real trial.

use std::io::Write as _;
use std::path::Path;
use std::time::{Duration, Instant};

use leasehold::ExecutionBindingBackend as _;
use leasehold_e2b::ProcessSpec;
use serde::Serialize;
use serde_json::Value;

use crate::args::DoctorArgs;
use crate::context::Context;
use crate::{print_line, run};

/// How a finding bears on use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Verdict {
    Ok,
    /// Works, with less than there could be.
    Limited,
    Failed,
}

#[derive(Debug, Serialize)]
struct Finding {
    what: &'static str,
    verdict: Verdict,
    detail: String,
}

/// Examines and reports; exit code 1 when something failed.
pub(crate) async fn doctor(context: &Context, args: &DoctorArgs) -> anyhow::Result<u8> {
    let mut findings = vec![data_directory(&context.data_dir)];
    match context.api.call::<Value>(http::Method::GET, "/leasehold/v1/info").await {
        Ok(info) => engine(&info, &mut findings),
        Err(error) => findings.push(Finding { what: "host", verdict: Verdict::Failed, detail: format!("{error:#}") }),
    }
    findings.push(gvisor());
    findings.push(trial(context).await);
    let failed = findings.iter().any(|finding| finding.verdict == Verdict::Failed);
    if args.json {
        print_line(&serde_json::to_string(&findings)?)?;
    } else {
        for Finding { what, verdict, detail } in &findings {
            let mark = match verdict {
                Verdict::Ok => "ok",
                Verdict::Limited => "limited",
                Verdict::Failed => "FAILED",
            };
            print_line(&format!("{mark:8} {what:15} {detail}"))?;
        }
    }
    Ok(u8::from(failed))
}

fn data_directory(dir: &Path) -> Finding {
    let measured = || -> std::io::Result<String> {
        let mut probe = tempfile_in(dir)?;
        probe.write_all(&[0; 4096])?;
        let start = Instant::now();
        probe.sync_data()?;
        let fsync = start.elapsed();
        let disk = rustix::fs::statvfs(dir)?;
        let free = disk.f_bavail.saturating_mul(disk.f_frsize) >> 20;
        Ok(format!("{}: {free} MiB free, fsync {:.2} ms", dir.display(), fsync.as_secs_f64() * 1e3))
    };
    match measured() {
        Ok(detail) => Finding { what: "data directory", verdict: Verdict::Ok, detail },
        Err(error) => {
            Finding { what: "data directory", verdict: Verdict::Failed, detail: format!("{}: {error}", dir.display()) }
        }
    }
}

/// A file without a name: nothing is left of it.
fn tempfile_in(dir: &Path) -> std::io::Result<std::fs::File> {
    let flags = rustix::fs::OFlags::TMPFILE | rustix::fs::OFlags::RDWR | rustix::fs::OFlags::CLOEXEC;
    Ok(rustix::fs::open(dir, flags, rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR)?.into())
}

/// What the host says of its engine: one finding, and one more for each way in which it is less than it could be.
fn engine(info: &Value, findings: &mut Vec<Finding>) {
    let engine = &info["engine"];
    let text = |key: &str| engine[key].as_str().unwrap_or("unknown").to_owned();
    let detail = format!("{} {}, isolation {}", text("name"), text("version"), text("isolation"));
    findings.push(Finding { what: "engine", verdict: Verdict::Ok, detail });
    for degraded in engine["degraded"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        findings.push(Finding { what: "engine", verdict: Verdict::Limited, detail: degraded.to_owned() });
    }
    for limitation in info["limitations"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        findings.push(Finding { what: "host", verdict: Verdict::Limited, detail: limitation.to_owned() });
    }
}

fn gvisor() -> Finding {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).map(|dir| dir.join("runsc")).find(|file| file.is_file());
    let detail = match found {
        Some(file) => format!("runsc is at {}; this version does not use it yet", file.display()),
        None => "runsc is not installed; this version does not use it yet".to_owned(),
    };
    Finding { what: "gvisor", verdict: Verdict::Limited, detail }
}

/// Runs `true` in a fresh sandbox.
async fn trial(context: &Context) -> Finding {
    let start = Instant::now();
    let outcome = async {
        let binding = context.create(None, None).await?;
        let ran = async {
            let lease = context.driver.acquire_lease(&binding).await?;
            let ran = run::helper(lease.sandbox().handle(), &ProcessSpec::new("true")).await;
            context.driver.release(&lease).await?;
            ran
        }
        .await;
        context.destroy(&binding).await?;
        ran
    };
    let outcome = match tokio::time::timeout(Duration::from_secs(30), outcome).await {
        Ok(outcome) => outcome,
        Err(_) => Err(anyhow::anyhow!("not done after 30 s")),
    };
    match outcome {
        Ok(()) => {
            let detail =
                format!("a command ran in a fresh sandbox, {:.0} ms in all", start.elapsed().as_secs_f64() * 1e3);
            Finding { what: "trial", verdict: Verdict::Ok, detail }
        }
        Err(error) => Finding { what: "trial", verdict: Verdict::Failed, detail: format!("{error:#}") },
    }
}
