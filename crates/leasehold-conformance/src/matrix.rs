//! The tables that show what was run where: capability × case for the documentation, case × fault for the run's output.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use crate::{FAULTS, Profile, Separation, cases};

/// One backend in the table.
#[derive(Debug, Clone)]
pub struct Column {
    /// Its name.
    pub name: String,
    /// What it can do.
    pub profile: Profile,
}

/// The cases that no fault made fail, given the pairs of fault and case that failed.
#[must_use]
pub fn unfailed_cases(failed: &BTreeSet<(&str, &str)>) -> Vec<&'static str> {
    let seen: BTreeSet<_> = failed.iter().map(|(_, case)| *case).collect();
    cases().map(|case| case.name).filter(|name| !seen.contains(name)).collect()
}

/// The documentation's page: what each backend can do, which cases run on it, and which faults each case is known to see.
#[must_use]
pub fn matrix_document(columns: &[Column]) -> String {
    let mut page = String::from(
        "# Conformance\n\n\
         <!-- Generated from the case and fault tables; the test `conformance` fails when this page is stale. Refresh: scripts/conformance-doc -->\n\n\
         Each case is one promise of the contract. It runs on every backend whose capabilities it needs, and after it nothing may be left:\n\
         no sandbox, snapshot, process, namespace, mount, control group, interface or file. Each case has been seen to fail: on a fake\n\
         backend that breaks one promise at a time.\n\n\
         ## Capabilities\n\n",
    );
    heading(&mut page, "capability", columns, "");
    for (name, value) in CAPABILITIES {
        row(&mut page, name, columns.iter().map(|column| value(&column.profile)), "");
    }
    page.push_str("\n## Cases\n\n");
    heading(&mut page, "case", columns, "promise | seen to fail with");
    for case in cases() {
        let cells = columns.iter().map(|column| match (case.needs)(&column.profile) {
            Ok(()) => "runs".to_owned(),
            Err(reason) => format!("– {reason}"),
        });
        let faults: Vec<_> =
            FAULTS.iter().filter(|info| info.seen_by.contains(&case.name)).map(|info| info.name).collect();
        let tail = format!(" {} | {} |", case.promise, faults.join(", "));
        row(&mut page, &format!("`{}`", case.name), cells, &tail);
    }
    page.push_str("\n## Faults\n\n| fault | what the fake does wrong |\n| --- | --- |\n");
    for info in FAULTS {
        writeln!(page, "| {} | {} |", info.name, info.what).expect("writing to a string does not fail");
    }
    page
}

type Show = fn(&Profile) -> String;

const CAPABILITIES: &[(&str, Show)] = &[
    ("workspace", |profile| format!("{:?}", profile.capabilities.workspace_mode).to_lowercase()),
    ("shared workspace", |profile| yes(profile.capabilities.shared_workspace)),
    ("binding-only destroy", |profile| yes(profile.capabilities.binding_only_destroy)),
    ("home snapshots", |profile| yes(profile.capabilities.home_snapshots)),
    ("snapshot excludes workspace", |profile| yes(profile.capabilities.snapshot_excludes_workspace)),
    ("memory kept on release", |profile| yes(profile.capabilities.memory_kept_on_release)),
    ("files", |profile| yes(profile.capabilities.files)),
    ("own process table", |profile| yes(profile.separation == Separation::Processes)),
];

fn yes(holds: bool) -> String {
    if holds { "yes" } else { "no" }.to_owned()
}

fn heading(page: &mut String, first: &str, columns: &[Column], tail: &str) {
    let mut line = format!("| {first} |");
    for column in columns {
        write!(line, " {} |", column.name).expect("writing to a string does not fail");
    }
    if !tail.is_empty() {
        write!(line, " {tail} |").expect("writing to a string does not fail");
    }
    let cells = line.matches('|').count() - 1;
    writeln!(page, "{line}\n|{}", " --- |".repeat(cells)).expect("writing to a string does not fail");
}

fn row(page: &mut String, first: &str, cells: impl Iterator<Item = String>, tail: &str) {
    let cells: Vec<_> = cells.collect();
    writeln!(page, "| {first} | {} |{tail}", cells.join(" | ")).expect("writing to a string does not fail");
}
