//! The list of promises, by area.

mod bindings;
mod cancellation;
mod commands;
mod files;
mod isolation;
mod jobs;
mod leases;
mod needs;
mod sharing;
mod snapshots;

use crate::Case;

/// Every case, in the order of the report.
pub fn cases() -> impl Iterator<Item = &'static Case> {
    [
        bindings::CASES,
        sharing::CASES,
        leases::CASES,
        snapshots::CASES,
        commands::CASES,
        jobs::CASES,
        files::CASES,
        isolation::CASES,
        cancellation::CASES,
    ]
    .into_iter()
    .flatten()
}

/// Names the functions of one area as its cases.
macro_rules! area {
    ($area:literal { $($(#[doc = $promise:literal])+ $function:ident: $needs:path,)+ }) => {
        pub(super) const CASES: &[crate::Case] = &[$(crate::Case {
            name: concat!($area, "::", stringify!($function)),
            promise: concat!($($promise),+).trim_ascii(),
            needs: $needs,
            run: |stage| Box::pin($function(stage)),
        }),+];
    };
}
use area;

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn names_are_unique_and_promises_are_sentences() {
        let mut names = BTreeSet::new();
        for case in cases() {
            assert!(names.insert(case.name), "{} is there twice", case.name);
            assert!(case.promise.ends_with('.') && case.promise.len() > 20, "{}: {:?}", case.name, case.promise);
        }
        assert!(names.len() >= 25, "{} cases", names.len());
    }
}
