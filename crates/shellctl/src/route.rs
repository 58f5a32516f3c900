//! Paths of the protocol: the one place that spells them.

use crate::JobId;

/// `GET`: is the daemon up? Always open.
pub const HEALTHZ: &str = "/healthz";
/// `POST`: start a job.
pub const RUN: &str = "/v1/jobs/run";
/// `GET`: list jobs.
pub const JOBS: &str = "/v1/jobs";

/// `GET`: one job's state. `DELETE`: forget the job and its files.
#[must_use]
pub fn job(id: &JobId) -> String {
    format!("{JOBS}/{id}")
}

/// `POST`: wait for output or the end.
#[must_use]
pub fn wait(id: &JobId) -> String {
    format!("{JOBS}/{id}/wait")
}

/// `POST`: type into the job's terminal.
#[must_use]
pub fn input(id: &JobId) -> String {
    format!("{JOBS}/{id}/input")
}

/// `GET`: the end of the output.
#[must_use]
pub fn tail(id: &JobId) -> String {
    format!("{JOBS}/{id}/log/tail")
}

/// `POST`: stop the job.
#[must_use]
pub fn terminate(id: &JobId) -> String {
    format!("{JOBS}/{id}/terminate")
}
