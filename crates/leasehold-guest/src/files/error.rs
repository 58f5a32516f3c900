//! What goes wrong with files, and how both faces say it: a Connect code for RPC, a status for REST.

use std::io;

use envd::{Code, RpcError};
use rustix::io::Errno;

use super::path::BadPath;
use crate::users::UserError;

/// A file operation that failed. Every text names the path as the caller wrote or would write it.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// Nothing is there.
    #[error("path '{0}' does not exist")]
    NotFound(String),
    /// The acting user may not do that.
    #[error("permission denied for user '{user}' on '{path}': {reason}")]
    PermissionDenied {
        /// What was to be touched.
        path: String,
        /// Who acted.
        user: String,
        /// The kernel's reason.
        reason: String,
    },
    /// A directory is there and no file.
    #[error("path '{0}' is a directory")]
    IsDirectory(String),
    /// Something is there that is no directory.
    #[error("path '{0}' is not a directory")]
    NotDirectory(String),
    /// A pipe, socket or device is there.
    #[error("path '{0}' is not a regular file")]
    NotRegular(String),
    /// It already exists.
    #[error("path '{0}' already exists")]
    AlreadyExists(String),
    /// The path itself cannot be used.
    #[error("path '{path}' cannot be used: {reason}")]
    BadPath {
        /// The path.
        path: String,
        /// Why.
        reason: String,
    },
    /// A directory with content is in the way.
    #[error("directory '{0}' is not empty")]
    NotEmpty(String),
    /// More entries than one answer may hold.
    #[error("directory '{path}' has more than {limit} entries at this depth: list its parts one by one")]
    TooManyEntries {
        /// The directory.
        path: String,
        /// The limit.
        limit: usize,
    },
    /// The disk or a quota is full.
    #[error("not enough space to write '{0}'")]
    NoSpace(String),
    /// The request is wrong in itself.
    #[error("{0}")]
    BadRequest(String),
    /// Nobody is called that.
    #[error(transparent)]
    User(#[from] UserError),
    /// The request has no right to be served.
    #[error("{0}")]
    Unauthorized(String),
    /// The client accepts only encodings that are not spoken.
    #[error("{0}")]
    NotAcceptable(String),
    /// The body comes in a form that is not read.
    #[error("{0}")]
    Unsupported(String),
    /// The request's body broke off or made no sense.
    #[error("request body: {0}")]
    Body(#[source] io::Error),
    /// Anything else the kernel says.
    #[error("cannot {doing} '{path}': {source}")]
    Io {
        /// The step.
        doing: &'static str,
        /// The path.
        path: String,
        /// Why.
        source: io::Error,
    },
}

impl FileError {
    /// Sorts what the kernel said when `user` was `doing` something with `path`.
    pub(super) fn from_io(source: impl Into<io::Error>, doing: &'static str, path: &str, user: &str) -> Self {
        let source = source.into();
        let path = path.to_owned();
        match Errno::from_io_error(&source) {
            Some(Errno::NOENT) => Self::NotFound(path),
            Some(errno @ (Errno::ACCESS | Errno::PERM | Errno::ROFS)) => {
                Self::PermissionDenied { path, user: user.to_owned(), reason: errno_text(errno).to_owned() }
            }
            Some(Errno::ISDIR) => Self::IsDirectory(path),
            Some(Errno::NOTDIR) => Self::NotDirectory(path),
            Some(Errno::NXIO | Errno::NODEV) => Self::NotRegular(path),
            Some(Errno::EXIST) => Self::AlreadyExists(path),
            Some(Errno::NOTEMPTY) => Self::NotEmpty(path),
            Some(Errno::NOSPC | Errno::DQUOT) => Self::NoSpace(path),
            Some(errno @ (Errno::LOOP | Errno::NAMETOOLONG | Errno::INVAL)) => {
                Self::BadPath { path, reason: errno_text(errno).to_owned() }
            }
            _ => Self::Io { doing, path, source },
        }
    }

    pub(super) fn bad_path(path: &str, bad: BadPath) -> Self {
        let shown: String = path.chars().take(200).map(|char| if char == '\0' { '\u{2400}' } else { char }).collect();
        Self::BadPath { path: shown, reason: bad.to_string() }
    }

    /// The Connect code.
    #[must_use]
    pub fn code(&self) -> Code {
        match self {
            Self::NotFound(_) => Code::NotFound,
            Self::PermissionDenied { .. } => Code::PermissionDenied,
            Self::AlreadyExists(_) => Code::AlreadyExists,
            Self::NotEmpty(_) => Code::FailedPrecondition,
            Self::TooManyEntries { .. } | Self::NoSpace(_) => Code::ResourceExhausted,
            Self::User(UserError::Unknown(_)) | Self::Unauthorized(_) => Code::Unauthenticated,
            Self::IsDirectory(_)
            | Self::NotDirectory(_)
            | Self::NotRegular(_)
            | Self::BadPath { .. }
            | Self::BadRequest(_)
            | Self::NotAcceptable(_)
            | Self::Unsupported(_)
            | Self::Body(_) => Code::InvalidArgument,
            Self::User(_) | Self::Io { .. } => Code::Internal,
        }
    }

    /// The HTTP status.
    #[must_use]
    pub fn http_status(&self) -> u16 {
        match self {
            Self::NotFound(_) => 404,
            Self::PermissionDenied { .. } => 403,
            Self::NoSpace(_) => 507,
            Self::User(UserError::Unknown(_)) | Self::Unauthorized(_) => 401,
            Self::NotAcceptable(_) => 406,
            Self::Unsupported(_) => 415,
            Self::AlreadyExists(_) | Self::NotEmpty(_) => 409,
            Self::IsDirectory(_)
            | Self::NotDirectory(_)
            | Self::NotRegular(_)
            | Self::BadPath { .. }
            | Self::TooManyEntries { .. }
            | Self::BadRequest(_)
            | Self::Body(_) => 400,
            Self::User(_) | Self::Io { .. } => 500,
        }
    }
}

impl From<FileError> for RpcError {
    fn from(error: FileError) -> Self {
        Self::new(error.code(), error.to_string())
    }
}

fn errno_text(errno: Errno) -> &'static str {
    match errno {
        Errno::ACCESS => "no access",
        Errno::PERM => "operation not permitted",
        Errno::ROFS => "read-only file system",
        Errno::LOOP => "too many symbolic links, or a link of /proc",
        Errno::NAMETOOLONG => "name too long",
        _ => "invalid argument",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kernel_answer_has_its_own_code_status_and_text() {
        for (errno, code, status, text) in [
            (Errno::NOENT, Code::NotFound, 404, "path '/p' does not exist"),
            (Errno::ACCESS, Code::PermissionDenied, 403, "permission denied for user 'u' on '/p': no access"),
            (Errno::ROFS, Code::PermissionDenied, 403, "permission denied for user 'u' on '/p': read-only file system"),
            (Errno::ISDIR, Code::InvalidArgument, 400, "path '/p' is a directory"),
            (Errno::NOTDIR, Code::InvalidArgument, 400, "path '/p' is not a directory"),
            (Errno::EXIST, Code::AlreadyExists, 409, "path '/p' already exists"),
            (Errno::NOTEMPTY, Code::FailedPrecondition, 409, "directory '/p' is not empty"),
            (Errno::NOSPC, Code::ResourceExhausted, 507, "not enough space to write '/p'"),
            (Errno::NAMETOOLONG, Code::InvalidArgument, 400, "path '/p' cannot be used: name too long"),
            (Errno::IO, Code::Internal, 500, "cannot read '/p': Input/output error (os error 5)"),
        ] {
            let error = FileError::from_io(errno, "read", "/p", "u");
            assert_eq!((error.code(), error.http_status(), error.to_string().as_str()), (code, status, text));
        }
    }
}
