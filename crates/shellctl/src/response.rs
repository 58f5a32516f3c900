//! Responses.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::{JobId, Timestamp};

/// Answer of `GET /healthz`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Health {
    /// `ok` when the daemon takes requests.
    pub status: String,
}

impl Health {
    /// The daemon takes requests.
    #[must_use]
    pub fn ok() -> Self {
        Self { status: "ok".to_owned() }
    }

    /// Whether the daemon takes requests.
    #[must_use]
    pub fn is_ok(&self) -> bool {
        self.status == "ok"
    }
}

/// State of a job. The last four are terminal: they never change again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum JobStatus {
    /// Known, not yet being started.
    Created,
    /// Being started.
    Starting,
    /// Runs.
    Running,
    /// Ended by itself; its output is complete.
    Exited,
    /// Ended by terminate or a forced delete.
    Terminated,
    /// Could not be started.
    Failed,
    /// The daemon lost track of it, for example over a cold start of the sandbox.
    Lost,
}

impl JobStatus {
    /// Every state.
    pub const ALL: &[Self] =
        &[Self::Created, Self::Starting, Self::Running, Self::Exited, Self::Terminated, Self::Failed, Self::Lost];

    /// Whether the state never changes again.
    #[must_use]
    pub fn is_done(self) -> bool {
        match self {
            Self::Created | Self::Starting | Self::Running => false,
            Self::Exited | Self::Terminated | Self::Failed | Self::Lost => true,
        }
    }

    /// The state as written on the wire.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Created => "created",
            Self::Starting => "starting",
            Self::Running => "running",
            Self::Exited => "exited",
            Self::Terminated => "terminated",
            Self::Failed => "failed",
            Self::Lost => "lost",
        }
    }
}

impl fmt::Display for JobStatus {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.as_str())
    }
}

impl FromStr for JobStatus {
    type Err = crate::Invalid;

    fn from_str(text: &str) -> Result<Self, crate::Invalid> {
        Self::ALL.iter().copied().find(|status| status.as_str() == text).ok_or_else(|| {
            let shown: String = text.chars().take(64).collect();
            crate::Invalid::new(
                "status",
                format!("is {shown:?}, must be one of created, starting, running, exited, terminated, failed, lost"),
            )
        })
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
fn is_zero(count: &u64) -> bool {
    *count == 0
}

/// A piece of a job's output and the job's state at that moment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobResult {
    /// The job.
    pub job_id: JobId,
    /// Whether the state is terminal.
    pub done: bool,
    /// The state.
    pub status: JobStatus,
    /// The leader's exit code, 128 + N when signal N ended it; null while it runs and when it never told one.
    pub exit_code: Option<i32>,
    /// Absolute path of the output file inside the sandbox.
    #[serde(default)]
    pub output_path: String,
    /// Whole characters from the requested offset on; bytes that are no UTF-8 read as U+FFFD.
    pub output: String,
    /// Where the next read must start, in bytes of the output file.
    pub offset: u64,
    /// More output is already there to be read; nothing is lost.
    pub truncated: bool,
    /// Bytes the job wrote after its output file was full; they are gone. Absent means none.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub discarded_bytes: u64,
}

/// A job's state.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobStatusView {
    /// The job.
    pub job_id: JobId,
    /// The state.
    pub status: JobStatus,
    /// Whether the state is terminal.
    pub done: bool,
    /// The leader's exit code, 128 + N when signal N ended it; null while it runs and when it never told one.
    pub exit_code: Option<i32>,
    /// When the daemon took the job.
    pub created_at: Timestamp,
    /// When it started to run.
    pub started_at: Option<Timestamp>,
    /// When it ended.
    pub ended_at: Option<Timestamp>,
    /// Size of the output file in bytes.
    pub offset: u64,
    /// Bytes the job wrote after its output file was full; they are gone. Absent means none.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub discarded_bytes: u64,
    /// Why the job failed to start or was lost. Absent otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// A job in a listing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobInfo {
    /// The job.
    pub job_id: JobId,
    /// The state.
    pub status: JobStatus,
    /// When the daemon took the job.
    pub created_at: Timestamp,
    /// When it started to run.
    #[serde(default)]
    pub started_at: Option<Timestamp>,
    /// When it ended.
    #[serde(default)]
    pub ended_at: Option<Timestamp>,
}

/// A listing, newest first.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobList {
    /// The jobs. The Go daemon writes null for none; it is read as empty and never written.
    #[serde(default, deserialize_with = "null_as_empty")]
    pub jobs: Vec<JobInfo>,
}

fn null_as_empty<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Vec<JobInfo>, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

/// Answer of a deletion.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Deleted {
    /// The job.
    pub job_id: JobId,
    /// Always true.
    pub deleted: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_have_exactly_the_protocols_fields() {
        let result = JobResult {
            job_id: JobId::new("abc").unwrap(),
            done: false,
            status: JobStatus::Running,
            exit_code: None,
            output_path: "/s/output.log".to_owned(),
            output: "hi\n".to_owned(),
            offset: 3,
            truncated: false,
            discarded_bytes: 0,
        };
        assert_eq!(
            serde_json::to_string(&result).unwrap(),
            r#"{"job_id":"abc","done":false,"status":"running","exit_code":null,"output_path":"/s/output.log","output":"hi\n","offset":3,"truncated":false}"#
        );
        let view: JobStatusView = serde_json::from_str(
            r#"{"job_id":"abc","status":"exited","done":true,"exit_code":3,"created_at":"2026-12-01T00:00:00Z","started_at":null,"ended_at":null,"offset":3}"#,
        )
        .unwrap();
        assert_eq!(view.exit_code, Some(3));
        assert!(!serde_json::to_string(&view).unwrap().contains("discarded"));
    }

    #[test]
    fn an_empty_listing_is_an_array_and_null_is_read_as_one() {
        assert_eq!(serde_json::to_string(&JobList::default()).unwrap(), r#"{"jobs":[]}"#);
        assert_eq!(serde_json::from_str::<JobList>(r#"{"jobs":null}"#).unwrap(), JobList::default());
    }

    #[test]
    fn states_are_spelled_as_the_protocol_does() {
        for status in JobStatus::ALL {
            assert_eq!(serde_json::to_value(status).unwrap(), status.as_str());
            assert_eq!(status.as_str().parse(), Ok(*status));
        }
    }
}
