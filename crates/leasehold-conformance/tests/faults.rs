//! The cases on the fake: healthy it passes them all, and each planted fault is seen by the cases that are to see it.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::io::Write as _;
use std::sync::{Arc, Mutex, PoisonError};

use leasehold_conformance::{
    Case, FAULTS, FakeHarness, FakeOptions, Fault, Harness as _, cases, run_case, unfailed_cases,
};
use libtest_mimic::{Arguments, Failed, Trial};
use tokio::runtime::Runtime;

/// The compositions of the fake; a case runs on the first one that can do what it needs.
const COMPOSITIONS: [(bool, bool); 3] = [(false, false), (true, false), (false, true)];

fn main() -> std::process::ExitCode {
    let arguments = Arguments::from_args();
    let runtime = Arc::new(Runtime::new().expect("a runtime can be made"));
    let failed: Arc<Mutex<BTreeSet<(&'static str, &'static str)>>> = Arc::default();

    let mut trials: Vec<_> = cases()
        .map(|case| {
            let runtime = runtime.clone();
            Trial::test(format!("healthy::{}", case.name), move || run(&runtime, case, None).map_err(Failed::from))
        })
        .collect();
    trials.extend(FAULTS.iter().map(|info| {
        let (runtime, failed) = (runtime.clone(), failed.clone());
        Trial::test(format!("fault::{}", info.name), move || {
            let unseen: Vec<_> = info
                .seen_by
                .iter()
                .filter(|name| {
                    let case = cases().find(|case| case.name == **name).expect("a unit test checks the names");
                    let seen = run(&runtime, case, Some(info.fault)).is_err();
                    if seen {
                        failed.lock().unwrap_or_else(PoisonError::into_inner).insert((info.name, case.name));
                    }
                    !seen
                })
                .collect();
            if unseen.is_empty() { Ok(()) } else { Err(format!("{}: not seen by {unseen:?}", info.what).into()) }
        })
    }));

    let everything = arguments.filter.is_none() && !arguments.list && !arguments.exact;
    let conclusion = libtest_mimic::run(&arguments, trials);
    if everything {
        let failed = failed.lock().unwrap_or_else(PoisonError::into_inner);
        let mut table = format!("case × fault ({} cases, {} faults):\n", cases().count(), FAULTS.len());
        for case in cases() {
            let faults: Vec<_> =
                failed.iter().filter(|(_, name)| *name == case.name).map(|(fault, _)| *fault).collect();
            writeln!(table, "  {:<64} fails with {}", case.name, faults.join(", ")).expect("a string takes all");
        }
        let unfailed = unfailed_cases(&failed);
        if !unfailed.is_empty() {
            writeln!(table, "error: no fault fails {unfailed:?}").expect("a string takes all");
        }
        // The table is for people; a closed output does not change the verdict.
        std::io::stdout().write_all(table.as_bytes()).ok();
        if !unfailed.is_empty() {
            return std::process::ExitCode::FAILURE;
        }
    }
    conclusion.exit_code()
}

/// Runs one case on a fake of its own, healthy or with one fault.
fn run(runtime: &Runtime, case: &Case, fault: Option<Fault>) -> Result<(), String> {
    for (shared_workspaces, own_processes) in COMPOSITIONS {
        let fake = FakeHarness::new(FakeOptions { shared_workspaces, own_processes, fault });
        let fake = match fake {
            Ok(fake) => Arc::new(fake),
            Err(error) => return Err(format!("cannot make a fake: {error:#}")),
        };
        if (case.needs)(&fake.profile()).is_ok() {
            return runtime.block_on(run_case(case, fake)).map_err(|error| format!("{error:#}"));
        }
    }
    Err("no composition of the fake can run it".to_owned())
}
