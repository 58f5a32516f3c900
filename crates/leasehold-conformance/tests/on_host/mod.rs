//! The trials.

mod harness;

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use leasehold_conformance::{Case, Column, FakeHarness, FakeOptions, Harness, cases, matrix_document, run_case};
use libtest_mimic::{Arguments, Failed, Trial};
use tokio::runtime::Runtime;

use harness::HostHarness;

/// Where the page is, from this crate.
const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/conformance.md");

pub(crate) fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    // One case at a time: what a case leaves is told by comparing the whole process tree before and after it.
    arguments.test_threads = Some(1);
    let runtime = Arc::new(Runtime::new().expect("a runtime can be made"));
    let profile = HostHarness::profile();
    let host: Arc<tokio::sync::OnceCell<Arc<HostHarness>>> = Arc::default();

    let mut trials = Vec::new();
    for case in cases() {
        let name = format!("{}::{}", HostHarness::NAME, case.name);
        if let Err(reason) = (case.needs)(&profile) {
            // Shown as ignored, with the reason.
            trials.push(
                Trial::test(name, || Ok(())).with_kind(format!("not applicable: {reason}")).with_ignored_flag(true),
            );
            continue;
        }
        let (runtime, host) = (runtime.clone(), host.clone());
        trials.push(Trial::test(name, move || {
            let outcome = runtime.block_on(async {
                let harness: Arc<dyn Harness> = host.get_or_try_init(HostHarness::start).await?.clone();
                run_case(case, harness).await
            });
            outcome.map_err(failed)
        }));
    }
    let planted = (runtime.clone(), host.clone());
    trials.push(Trial::test(format!("{}::a_planted_leftover_is_seen", HostHarness::NAME), move || {
        let (runtime, host) = planted;
        let outcome = runtime.block_on(async {
            let harness = host.get_or_try_init(HostHarness::start).await?.clone();
            plant(harness).await
        });
        outcome.map_err(failed)
    }));
    let stopping = (runtime.clone(), host.clone());
    trials.push(Trial::test(format!("{}::stopping_leaves_nothing", HostHarness::NAME), move || {
        let (runtime, host) = stopping;
        let outcome = runtime.block_on(async { host.get_or_try_init(HostHarness::start).await?.stop().await });
        outcome.map_err(failed)
    }));
    trials.push(Trial::test("the_page_in_docs_is_not_stale", || page(&columns()?).map_err(failed)));

    let conclusion = libtest_mimic::run(&arguments, trials);
    // A filter may have left the trial out that stops the host.
    if let Some(host) = host.get() {
        runtime.block_on(host.stop()).ok();
    }
    conclusion.exit_code()
}

/// A case that leaves a Binding: the check must name it, and each kind of thing that it is made of.
const CARELESS: Case = Case {
    name: "planted::careless",
    promise: "Nothing is left.",
    needs: |_| Ok(()),
    run: |stage| {
        Box::pin(async move {
            stage.bindings().create_binding(&stage.create_spec()?).await?;
            Ok(())
        })
    },
};

async fn plant(harness: Arc<HostHarness>) -> anyhow::Result<()> {
    let outcome = run_case(&CARELESS, harness.clone()).await;
    harness.kill_all().await?;
    let Err(error) = outcome else { anyhow::bail!("the leftover was not seen") };
    let text = format!("{error:#}");
    for kind in ["resource sandbox ", "process ", "namespace net:", "namespace user:", "file sandboxes/", "file run/s/"]
    {
        anyhow::ensure!(text.contains(&format!("left behind: {kind}")), "no {kind:?} in {text}");
    }
    // Where the machine has control groups.
    let groups = harness.ours().is_some_and(|ours| !ours.cgroup_marks.is_empty());
    anyhow::ensure!(!groups || text.contains("left behind: cgroup "), "no control group in {text}");
    Ok(())
}

fn failed(error: anyhow::Error) -> Failed {
    format!("{error:#}").into()
}

fn columns() -> Result<Vec<Column>, Failed> {
    let mut columns = Vec::new();
    for (shared_workspaces, own_processes) in [(false, false), (true, false), (false, true)] {
        let options = FakeOptions { shared_workspaces, own_processes, fault: None };
        let fake = FakeHarness::new(options).map_err(failed)?;
        columns.push(Column { name: fake.name().to_owned(), profile: fake.profile() });
    }
    columns.push(Column { name: HostHarness::NAME.to_owned(), profile: HostHarness::profile() });
    Ok(columns)
}

/// Compares the page with what the tables say now. The new text is written beside the build, for `scripts/conformance-doc`.
fn page(columns: &[Column]) -> anyhow::Result<()> {
    let expected = matrix_document(columns);
    let fresh = Path::new(env!("CARGO_TARGET_TMPDIR")).join("conformance.md");
    std::fs::write(&fresh, &expected)?;
    let present = std::fs::read_to_string(PAGE).unwrap_or_default();
    anyhow::ensure!(
        present == expected,
        "docs/conformance.md is stale: run scripts/conformance-doc (it copies {})",
        fresh.display()
    );
    Ok(())
}
