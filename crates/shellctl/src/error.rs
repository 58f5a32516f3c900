//! Refusals: `{"error":{"code","message"}}`.

use serde::{Deserialize, Serialize};

/// Why a request was refused. A job that fails to start is no refusal: run then answers 200 with status `failed`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorCode {
    /// The request is no JSON object of the expected shape: syntax, type, missing or unknown field.
    InvalidRequest,
    /// The job id could never be one.
    InvalidJobId,
    /// The working directory is missing, no directory, or out of reach for the job's user.
    InvalidCwd,
    /// The offset lies beyond the output.
    InvalidOffset,
    /// A well-formed request has a value outside its limits.
    ValidationError,
    /// The bearer token is missing or wrong.
    Unauthorized,
    /// No such job, or it was deleted or expired.
    JobNotFound,
    /// No such route.
    NotFound,
    /// The route exists, but not for this method.
    MethodNotAllowed,
    /// Input for a job that has ended.
    JobNotRunning,
    /// Input for a job without a terminal: mode `stdio` reads from `/dev/null`.
    InputUnsupported,
    /// Deletion of a running job without `force`.
    JobRunning,
    /// The request body exceeds the limit.
    RequestTooLarge,
    /// As many jobs run as this daemon allows.
    TooManyJobs,
    /// No free job id was found.
    JobIdCollision,
    /// A fault of the daemon or of the machine under it.
    InternalError,
}

impl ErrorCode {
    /// Every code.
    pub const ALL: &[Self] = &[
        Self::InvalidRequest,
        Self::InvalidJobId,
        Self::InvalidCwd,
        Self::InvalidOffset,
        Self::ValidationError,
        Self::Unauthorized,
        Self::JobNotFound,
        Self::NotFound,
        Self::MethodNotAllowed,
        Self::JobNotRunning,
        Self::InputUnsupported,
        Self::JobRunning,
        Self::RequestTooLarge,
        Self::TooManyJobs,
        Self::JobIdCollision,
        Self::InternalError,
    ];

    /// The HTTP status that carries this code.
    #[must_use]
    pub fn http_status(self) -> u16 {
        match self {
            Self::InvalidRequest | Self::InvalidJobId | Self::InvalidCwd | Self::InvalidOffset => 400,
            Self::Unauthorized => 401,
            Self::JobNotFound | Self::NotFound => 404,
            Self::MethodNotAllowed => 405,
            Self::JobNotRunning | Self::InputUnsupported | Self::JobRunning => 409,
            Self::RequestTooLarge => 413,
            Self::ValidationError => 422,
            Self::TooManyJobs => 429,
            Self::JobIdCollision | Self::InternalError => 500,
        }
    }

    /// The code as written on the wire.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::InvalidRequest => "invalid_request",
            Self::InvalidJobId => "invalid_job_id",
            Self::InvalidCwd => "invalid_cwd",
            Self::InvalidOffset => "invalid_offset",
            Self::ValidationError => "validation_error",
            Self::Unauthorized => "unauthorized",
            Self::JobNotFound => "job_not_found",
            Self::NotFound => "not_found",
            Self::MethodNotAllowed => "method_not_allowed",
            Self::JobNotRunning => "job_not_running",
            Self::InputUnsupported => "input_unsupported",
            Self::JobRunning => "job_running",
            Self::RequestTooLarge => "request_too_large",
            Self::TooManyJobs => "too_many_jobs",
            Self::JobIdCollision => "job_id_collision",
            Self::InternalError => "internal_error",
        }
    }

    /// The code spelled `text`; `None` for codes of other daemons.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|code| code.as_str() == text)
    }
}

/// A refusal as it travels. The code is text, since other daemons have codes of their own.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{code}: {message}")]
pub struct ErrorBody {
    /// One of [`ErrorCode`], or another daemon's own.
    pub code: String,
    /// The text for the caller.
    #[serde(default)]
    pub message: String,
}

impl ErrorBody {
    /// Makes a refusal.
    pub fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        Self { code: code.as_str().to_owned(), message: message.into() }
    }

    /// The code, if it is one of ours.
    #[must_use]
    pub fn known(&self) -> Option<ErrorCode> {
        ErrorCode::parse(&self.code)
    }
}

/// Body of every refusal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorEnvelope {
    /// The refusal.
    pub error: ErrorBody,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_is_listed_once_and_found_by_its_text() {
        for code in ErrorCode::ALL {
            assert_eq!(ErrorCode::parse(code.as_str()), Some(*code));
            assert!((400..600).contains(&code.http_status()));
        }
        let mut texts: Vec<_> = ErrorCode::ALL.iter().map(|code| code.as_str()).collect();
        texts.sort_unstable();
        texts.dedup();
        assert_eq!(texts.len(), ErrorCode::ALL.len());
        assert_eq!(ErrorCode::parse("tmux_error"), None);
    }

    #[test]
    fn the_envelope_has_the_protocols_shape() {
        let envelope = ErrorEnvelope { error: ErrorBody::new(ErrorCode::JobNotFound, "no job x") };
        let text = serde_json::to_string(&envelope).unwrap();
        assert_eq!(text, r#"{"error":{"code":"job_not_found","message":"no job x"}}"#);
        assert_eq!(serde_json::from_str::<ErrorEnvelope>(&text).unwrap().error.known(), Some(ErrorCode::JobNotFound));
    }
}
