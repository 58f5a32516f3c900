//! Points between two steps at which tests make an operation fail. Without tests they are nothing.

use crate::error::EngineError;

/// A place where an operation can be made to fail.
#[cfg(not(test))]
#[inline]
#[expect(clippy::unnecessary_wraps, reason = "it fails in tests")]
pub(crate) fn point(_name: &'static str) -> Result<(), EngineError> {
    Ok(())
}

#[cfg(test)]
pub(crate) use planted::{fail_at, point};

#[cfg(test)]
mod planted {
    use std::cell::Cell;

    use super::EngineError;
    use crate::error::ErrorKind;

    thread_local! {
        static LEFT: Cell<Option<usize>> = const { Cell::new(None) };
    }

    /// Lets `count` points of this thread pass and the next one fail, once.
    pub(crate) fn fail_at(count: usize) {
        LEFT.set(Some(count));
    }

    pub(crate) fn point(name: &'static str) -> Result<(), EngineError> {
        match LEFT.get() {
            Some(0) => {
                LEFT.set(None);
                Err(EngineError::new(ErrorKind::Io, "fault", name))
            }
            Some(count) => {
                LEFT.set(Some(count - 1));
                Ok(())
            }
            None => Ok(()),
        }
    }
}
