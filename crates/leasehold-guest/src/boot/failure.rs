//! Why a boot stopped.

use std::path::Path;

use rustix::io::Errno;

use super::plan::Report;

/// A step that did not work. Its text is shown to people by the engine.
#[derive(Debug)]
pub(crate) struct Failure {
    stage: &'static str,
    errno: Option<Errno>,
    message: String,
}

impl Failure {
    pub(crate) fn new(stage: &'static str, message: impl Into<String>) -> Self {
        Self { stage, errno: None, message: message.into() }
    }

    pub(crate) fn os(stage: &'static str, what: impl std::fmt::Display, errno: Errno) -> Self {
        Self { stage, errno: Some(errno), message: format!("{what}: {}", describe(errno)) }
    }

    pub(crate) fn report(self) -> Report {
        Report::Failed {
            error: self.message,
            stage: Some(self.stage.into()),
            errno: self.errno.map(Errno::raw_os_error),
        }
    }
}

fn describe(errno: Errno) -> String {
    std::io::Error::from(errno).to_string()
}

/// Attaches the step and the object to a system call's error.
pub(crate) trait During<T> {
    fn during(self, stage: &'static str, what: &str) -> Result<T, Failure>;
    fn at(self, stage: &'static str, what: &str, path: &Path) -> Result<T, Failure>;
}

impl<T> During<T> for Result<T, Errno> {
    fn during(self, stage: &'static str, what: &str) -> Result<T, Failure> {
        self.map_err(|errno| Failure::os(stage, what, errno))
    }

    fn at(self, stage: &'static str, what: &str, path: &Path) -> Result<T, Failure> {
        self.map_err(|errno| Failure::os(stage, format_args!("{what} {}", path.display()), errno))
    }
}

impl<T> During<T> for std::io::Result<T> {
    fn during(self, stage: &'static str, what: &str) -> Result<T, Failure> {
        self.map_err(|error| io(stage, what.to_owned(), &error))
    }

    fn at(self, stage: &'static str, what: &str, path: &Path) -> Result<T, Failure> {
        self.map_err(|error| io(stage, format!("{what} {}", path.display()), &error))
    }
}

fn io(stage: &'static str, what: String, error: &std::io::Error) -> Failure {
    match Errno::from_io_error(error) {
        Some(errno) => Failure::os(stage, what, errno),
        None => Failure::new(stage, format!("{what}: {error}")),
    }
}
