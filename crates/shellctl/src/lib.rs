//! Wire types of the shellctl command daemon, and an async client for it.
//!
//! shellctl runs scripts as *jobs*: JSON over HTTP/1.1, each job's output is a file that readers page through by byte offset.
//! Both sides use these types: the guest that serves the protocol and the client that calls it. What a request leaves out has
//! the value of a constant in [`limits`], what lies outside its limits is refused with the field's name
//! ([`Invalid`]), and unknown fields are refused too: an option that would be ignored is an error.
//!
//! | method, path | request | response |
//! | --- | --- | --- |
//! | `GET /healthz` | – | [`Health`] |
//! | `POST /v1/jobs/run` | [`RunRequest`] | [`JobResult`] |
//! | `POST /v1/jobs/{id}/wait` | [`WaitRequest`] | [`JobResult`] |
//! | `POST /v1/jobs/{id}/input` | [`InputRequest`] | [`JobResult`] |
//! | `GET /v1/jobs/{id}/log/tail?output_limit=` | [`TailQuery`] | [`JobResult`] |
//! | `GET /v1/jobs/{id}` | – | [`JobStatusView`] |
//! | `GET /v1/jobs?status=&limit=` | [`ListQuery`] | [`JobList`] |
//! | `POST /v1/jobs/{id}/terminate` | [`TerminateRequest`] | [`JobStatusView`] |
//! | `DELETE /v1/jobs/{id}?force=&grace_seconds=` | [`DeleteQuery`] | [`Deleted`] |
//!
//! A refusal is an [`ErrorEnvelope`] with one of [`ErrorCode`]. The shapes follow langgenius/dify's daemons as seen in
//! December 2026 (Python package `shell-session-manager` 2.4.1 and its Go successor); where the two differ, the constant or
//! the code says which was taken.
//!
//! # Features
//! | name | default | what it adds |
//! | --- | --- | --- |
//! | `client` | no | the async client; brings an HTTP stack |

#[cfg(feature = "client")]
pub mod client;
mod error;
mod id;
pub mod limits;
mod request;
mod response;
pub mod route;
mod timestamp;
mod validate;

pub use error::{ErrorBody, ErrorCode, ErrorEnvelope};
pub use id::{BadJobId, JobId};
pub use request::{
    DeleteQuery, InputRequest, ListQuery, Mode, RunRequest, TailQuery, Terminal, TerminateRequest, WaitRequest,
};
pub use response::{Deleted, Health, JobInfo, JobList, JobResult, JobStatus, JobStatusView};
pub use timestamp::{BadTimestamp, Timestamp};
pub use validate::Invalid;
