//! What the control plane says when it refuses: always `{"code", "message"}`, and a status chosen by what to do next.

use axum::body::Body;
use axum::response::IntoResponse;
use http::header::{CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderName, HeaderValue, Response, StatusCode};
use serde::Serialize;

use crate::ids::SandboxId;
use crate::port::{Failure, FailureKind};
use crate::transition::Answer;

const SHOULD_RETRY: HeaderName = HeaderName::from_static("should-retry");

/// Whether the same request may succeed later.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Again {
    /// Nothing is said: clients decide by the status.
    Unsaid,
    /// Not before something else changes.
    No,
    /// After so many seconds.
    After(u32),
}

/// A refusal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ApiError {
    status: StatusCode,
    message: String,
    again: Again,
}

#[derive(Serialize)]
struct Text<'a> {
    code: u16,
    message: &'a str,
}

pub(crate) type ApiResult<T> = Result<T, ApiError>;

impl ApiError {
    pub(crate) fn new(status: StatusCode, message: impl Into<String>) -> Self {
        Self { status, message: message.into(), again: Again::Unsaid }
    }

    /// The request is wrong.
    pub(crate) fn bad(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, message)
    }

    /// A field asks for what this host cannot do.
    pub(crate) fn unsupported(field: &str, instead: &str) -> Self {
        Self::bad(format!("{field} is not supported by this host{instead}"))
    }

    /// The whole operation is not there. Not 404, which would say that the *sandbox* is not there.
    pub(crate) fn no_such_route(method: &http::Method, path: &str) -> Self {
        Self { again: Again::No, ..Self::new(StatusCode::NOT_IMPLEMENTED, format!("this host has no {method} {path}")) }
    }

    pub(crate) fn no_sandbox(id: &SandboxId) -> Self {
        Self::new(StatusCode::NOT_FOUND, format!("Sandbox \"{id}\" doesn't exist or you don't have access to it"))
    }

    pub(crate) fn no_template(reference: &str) -> Self {
        Self::new(StatusCode::NOT_FOUND, format!("Template '{reference}' not found"))
    }

    pub(crate) fn conflict(message: impl Into<String>) -> Self {
        Self::new(StatusCode::CONFLICT, message)
    }

    /// The host is about to stop.
    pub(crate) fn leaving() -> Self {
        let again = Again::After(1);
        Self { again, ..Self::new(StatusCode::SERVICE_UNAVAILABLE, "the host is stopping; nothing was changed") }
    }

    /// What an engine or the ledger could not do.
    pub(crate) fn failed(failure: &Failure) -> Self {
        let message = failure.message.as_str();
        match failure.kind {
            FailureKind::Invalid | FailureKind::Unsupported => Self::bad(message),
            FailureKind::Capacity => {
                Self { again: Again::After(1), ..Self::new(StatusCode::TOO_MANY_REQUESTS, message) }
            }
            FailureKind::Internal => Self::new(StatusCode::INTERNAL_SERVER_ERROR, message),
        }
    }

    /// The refusal that an owner's answer means for `what` (a participle: `paused`, `snapshotted`).
    pub(crate) fn from_answer(answer: Answer, id: &SandboxId, what: &str) -> Self {
        match answer {
            Answer::AlreadyPaused => {
                Self::conflict(format!("Error pausing sandbox - sandbox '{id}' is already paused"))
            }
            Answer::AlreadyRunning => Self::conflict(format!("Sandbox {id} is already running")),
            Answer::Busy { state } => {
                Self::conflict(format!("Sandbox '{id}' cannot be {what} while in '{state}' state"))
            }
            Answer::BeingKilled => Self::conflict(format!("Sandbox \"{id}\" is being killed")),
            Answer::Failed(failure) => Self::failed(&failure),
            Answer::NotFound | Answer::Running { .. } | Answer::Done => Self::no_sandbox(id),
        }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response<Body> {
        let text = Text { code: self.status.as_u16(), message: &self.message };
        let body = serde_json::to_vec(&text).expect("a number and a text are JSON");
        let mut response = Response::new(Body::from(body));
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        match self.again {
            Again::Unsaid => {}
            Again::No => {
                headers.insert(SHOULD_RETRY, HeaderValue::from_static("false"));
            }
            Again::After(seconds) => {
                headers.insert(RETRY_AFTER, HeaderValue::from(seconds));
            }
        }
        response
    }
}
